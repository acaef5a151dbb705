"""Models as users of PyG write them, and what becomes of each: ``python -m benchmarks.fullgraph.models``."""

"""Memory: what a run holds, on mini-batches, on the whole graph, in its evaluations and for its links."""

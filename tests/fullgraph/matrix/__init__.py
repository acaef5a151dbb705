"""The matrix: models as people write them, on graphs of every kind, each held to PyG in float64."""

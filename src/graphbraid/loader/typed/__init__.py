"""Loading where nodes and edges have types: PyG's HeteroData, or a graph with types, in mini-batches."""

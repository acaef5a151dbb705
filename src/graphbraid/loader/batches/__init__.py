"""BatchLoader: mini-batches prepared ahead by threads, a device or a plan, from a graph or PyG Data."""

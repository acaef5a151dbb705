"""A run: its options, the graph and model made from them, and the reading of a saved run."""

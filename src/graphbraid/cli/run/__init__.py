"""A run: its options, the graph and the model made of these, and what is read of a saved one."""

"""Reordering: a graph and all its data with the nodes in another order."""

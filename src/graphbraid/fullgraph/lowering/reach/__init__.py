"""Reach: the nodes for which values have rows, the edges between them, and the rows that ranks exchange."""

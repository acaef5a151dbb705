"""Budgets: how many rows and adjacency lists some memory holds, and which."""

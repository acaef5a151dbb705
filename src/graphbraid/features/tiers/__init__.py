"""Tiers: rows and adjacency lists that devices, the host and a file hold, and what is reported of them."""

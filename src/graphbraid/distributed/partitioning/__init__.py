"""Partitioning: which part owns which node, decided by METIS, by components, by streaming or simply."""

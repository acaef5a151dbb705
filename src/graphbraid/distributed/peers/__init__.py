"""Ranks that read each other's memory: rows shared once, sums over them, and their gradients."""

"""Sums over in-neighbours that other ranks keep, in memory that each rank can read."""

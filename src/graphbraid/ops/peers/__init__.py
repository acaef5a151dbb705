"""Sums over in-neighbours of which other ranks keep some, in memory that each can read."""

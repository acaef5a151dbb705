"""Tiers: rows and adjacency lists on devices, in the host's memory and in a file, and their reports."""

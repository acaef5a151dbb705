"""Rows of features: read from a file, through caches in front of it, from memory, or as a stream."""

"""NumPy ``.npz`` files: graphs from their arrays, with node types and relations or without."""

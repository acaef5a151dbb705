"""Linear maps of rows, which are dense, sparse or kept as bits, alone and around an aggregation."""

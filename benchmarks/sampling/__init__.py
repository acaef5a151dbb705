"""How fast mini-batches are prepared, beside other libraries and the machine's limits."""

"""How much memory training takes while the graph grows."""

"""Attention over in-neighbours in Triton: GAT and GATv2, their gradients, and the softmax over in-edges."""

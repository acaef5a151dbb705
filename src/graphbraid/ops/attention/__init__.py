"""Attention over in-neighbours: its coefficients, their softmax, and the sums that they weigh."""

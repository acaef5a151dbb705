"""Sums and maxima over in-neighbours in Triton, and inner products along edges."""

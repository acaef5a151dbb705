"""What works row by row in Triton: bias, activation and dropout, and normalisation."""

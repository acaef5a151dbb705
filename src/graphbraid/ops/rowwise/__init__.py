"""What works row by row: bias, activation and dropout, normalisation, and the loss of classes."""

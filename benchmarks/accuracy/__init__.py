"""Whether models learn what the literature and PyTorch Geometric's learn."""

"""MiniBatch: a sample with its attributes, each read at first use, and moved as a tensor is."""

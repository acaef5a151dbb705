"""Mini-batches: a model is read once, and its program runs on each batch, under autograd and trimmed."""

"""Mini-batches: a model is read once, its program runs on each batch; exact evaluation, level by level."""

"""Links as the seeds of mini-batches, and their negatives."""

"""What prepares, moves and trains batches: processors, CUDA devices, processes, a device made of sleeps."""

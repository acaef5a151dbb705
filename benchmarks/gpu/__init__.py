"""What wants a CUDA device; with --smoke the same logic on the CPU at tiny sizes."""

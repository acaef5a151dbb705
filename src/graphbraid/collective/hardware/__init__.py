"""Stage operators by hardware: CPU threads, worker processes and CUDA devices."""

"""Stage operators by hardware: CPU threads, worker processes, CUDA devices, and an emulated accelerator."""

"""What to say where an optional part is not installed, or the machine lacks something."""

NO_PYG = 'needs PyTorch Geometric: pip install "graphbraid[pyg]"'
NO_TRITON = 'needs Triton: pip install "graphbraid[triton]"'
NO_TENSORBOARD = 'needs TensorBoard: pip install "graphbraid[tensorboard]"'
NO_PEAK = "needs Linux, whose peak of resident memory it reads"
NO_KERNELS = "needs the compiled kernels: install graphbraid, and leave GRAPHBRAID_KERNELS unset"

"""The devices that a step can run on: the host or a CUDA device."""

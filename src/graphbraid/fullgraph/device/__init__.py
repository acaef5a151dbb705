"""The places that a step runs on: the host, a CUDA device."""

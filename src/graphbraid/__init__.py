"""graphbraid: train graph neural networks faster on the hardware you have."""

__version__ = "0.1.0"

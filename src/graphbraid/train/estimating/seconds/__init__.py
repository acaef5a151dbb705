"""Seconds: how long the epochs of a run take, and its evaluations and checkpoints."""

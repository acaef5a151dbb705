"""Prediction of an epoch's time on many ranks: measured kernels, a network model, and how graphs divide."""

"""Prediction of epochs of mini-batches on many ranks: shares of batches, measured, and simulated steps."""

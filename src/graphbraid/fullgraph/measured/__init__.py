"""Measurements behind a lowering or a prediction: rates of the machine."""

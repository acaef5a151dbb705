"""Measurements behind a lowering or a prediction: rates of the machine, and trials on the graph."""

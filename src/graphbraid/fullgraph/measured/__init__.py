"""Measurements behind a lowering or a prediction: rates, trials on the graph, the cost of moving bytes."""

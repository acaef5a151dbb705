"""Links: what a step takes that learns them, and the models that encode nodes and score their pairs."""

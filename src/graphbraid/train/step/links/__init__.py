"""Links: steps that learn them, and models that encode nodes and score their pairs."""

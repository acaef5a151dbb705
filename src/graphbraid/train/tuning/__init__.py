"""What a run tries before it begins: plans, and who has the cores."""

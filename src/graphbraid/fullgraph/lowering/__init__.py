"""Lowering: passes that turn a program into the cheapest equivalent one, and the costs they weigh."""

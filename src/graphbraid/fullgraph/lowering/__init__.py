"""Lowering: passes that turn a program into the cheapest equal one, and what they weigh."""

"""Explanations of a lowered program: its work, its least time and its measured times."""

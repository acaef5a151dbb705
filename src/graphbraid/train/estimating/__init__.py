"""Estimates: the memory, disk and time that a run needs, counted and tried on copies before it starts."""

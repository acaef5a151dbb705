"""The machine: its hardware, the load of other programs, and the rates it was measured at."""

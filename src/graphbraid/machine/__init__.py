"""The machine: its hardware, the load of other programs, and its measured rates."""

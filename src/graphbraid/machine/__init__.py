"""The machine: what it has, what other programs take of it, and what it does in a second."""

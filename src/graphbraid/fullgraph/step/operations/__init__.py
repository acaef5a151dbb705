"""The tasks of each kind of operation, forward and backward: one class for each."""

"""Planning of the tasks of each kind of operation, forward and backward."""

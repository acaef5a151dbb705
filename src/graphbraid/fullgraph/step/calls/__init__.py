"""Calls of kernels: what one operation of a step runs, on the rows and with the numbers it is given."""

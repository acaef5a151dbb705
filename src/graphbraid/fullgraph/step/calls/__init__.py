"""Calls of kernels by the tasks of a step, and the rows, seeds and bound arguments they take."""

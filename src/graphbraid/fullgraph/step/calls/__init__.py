"""Calls of kernels by the tasks of a step: rows, seeds, bound arguments, and copies on a device."""

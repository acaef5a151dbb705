"""Measurements that decide a lowering: the machine's rates, and trials on the graph's own operands."""

"""Distributed training: what partitions cut and cost."""

"""The tasks of GAT's and GATv2's attention, and of what edges add to it."""

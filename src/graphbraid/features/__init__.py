"""Features: where a feature row is stored, and how it reaches the model.

:func:`score` says which rows are read most, :func:`batch_reads` which rows each coming batch reads, and
:func:`reorder` renumbers a graph's nodes, for example with those read most often first.
"""

from graphbraid.features.coverage import coverage
from graphbraid.features.reads import batch_reads
from graphbraid.features.reorder import Reordered, reorder
from graphbraid.features.scores import KINDS, Score, score
from graphbraid.graph.orders import ORDERS, order_by

__all__ = ["KINDS", "ORDERS", "Reordered", "Score", "batch_reads", "coverage", "order_by", "reorder", "score"]

"""Features: where a feature row is, and how it gets here.

:func:`score` says which rows are read most, :func:`batch_reads` which rows each coming batch reads.
"""

from graphbraid.features.coverage import coverage
from graphbraid.features.reads import batch_reads
from graphbraid.features.scores import KINDS, Score, score

__all__ = ["KINDS", "Score", "batch_reads", "coverage", "score"]

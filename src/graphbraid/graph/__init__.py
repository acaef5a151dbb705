"""The graph: topology in CSC, features, labels, splits, and conversions from and to other libraries."""

from graphbraid.graph.graph import Graph
from graphbraid.graph.sparse_features import SparseFeatures

__all__ = ["Graph", "SparseFeatures"]

"""The graph: topology in CSC, features, labels, splits, and the way to and from other libraries."""

from graphbraid.graph.graph import Graph
from graphbraid.graph.sparse_features import SparseFeatures

__all__ = ["Graph", "SparseFeatures"]

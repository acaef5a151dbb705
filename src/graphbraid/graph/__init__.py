"""The graph: topology in CSC, features, labels, splits, and conversions from and to other libraries."""

from graphbraid.graph.graph import Graph
from graphbraid.graph.scaled_features import ScaledFeatures
from graphbraid.graph.schema import Columns, Schema
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.graph.types import EdgeSet, EdgeType, NodeSet, Types

__all__ = [
    "Columns",
    "EdgeSet",
    "EdgeType",
    "Graph",
    "NodeSet",
    "ScaledFeatures",
    "Schema",
    "SparseFeatures",
    "Types",
]

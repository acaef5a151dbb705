"""Graph: the data structure that everything takes: topology, features, labels and splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

from torch import Tensor

from graphbraid.arguments import as_flag
from graphbraid.errors import DataError
from graphbraid.graph.conversions import Conversions
from graphbraid.graph.csc import Csc
from graphbraid.graph.editing import EdgeEdits
from graphbraid.graph.labelled import SPLITS, LabelledNodes, TaskName
from graphbraid.graph.scaled_features import Features, ScaledFeatures
from graphbraid.graph.schema import Schema
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.graph.typed import TypedViews
from graphbraid.graph.types import Types
from graphbraid.graph.validate import check_contents, check_shapes, validate_graph
from graphbraid.signatures import typed

__all__ = ["SPLITS", "Graph", "ScaledFeatures", "SparseFeatures", "TaskName"]


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Graph(LabelledNodes, TypedViews, Conversions, EdgeEdits):
    """A graph in CSC form, with the features, labels and splits that training needs.

    A graph of one node type and one relation has its features, labels and splits in ``x``, ``y`` and
    ``splits``. A graph of several (:meth:`from_relations`) has them by type in ``types``, and in ``csc`` the
    in-edges of all nodes, one type's after the other's.

    Shapes, dtypes and the arrays that are read by index (edges, splits, edge ids) are checked on
    construction; :meth:`validate` also checks weights, features and labels.

    Raises:
        DataError: names the array that does not fit, or the first value that is wrong and where it stands.
    """

    csc: Csc
    """Topology: the in-edges of each node, with optional edge weights."""
    edge_id: Tensor | None = None
    """``(num_edges,)`` int64 position of each edge in the list the graph was made from.

    -1 marks an edge that was not in the list, such as an added self-loop. If None, the stored order counts as
    the original one.
    """
    edge_attr: Tensor | None = None
    """``(num_edges, num_edge_features)`` float32, float16 or bfloat16 edge features, in the stored order."""
    x: Features | None = None
    """``(num_nodes, num_features)`` float32, float16 or bfloat16 features, dense or CSR; or scaled int8."""
    y: Tensor | None = None
    """Labels or targets of the nodes, one row per node.

    ``(num_nodes,)`` int64 classes (-1 or -100 for a node without one), ``(num_nodes, num_labels)`` float32
    multi-hot labels, or ``(num_nodes,)`` or ``(num_nodes, k)`` float32 targets.
    """
    splits: Mapping[str, Tensor] = field(default_factory=dict)
    """int64 node ids of ``train``, ``val`` and ``test``, without duplicates."""
    name: str = ""
    """Name of the graph in reports."""
    types: Types | None = None
    """Node types and relations, of which :meth:`nodes_of` and :meth:`relation` give one; None if there is one
    of each. ``edge_id`` then counts within each relation's list."""
    weight_name: str = "edge_weight"
    """Name of the argument by which a model gets the weights of ``csc``: ``edge_weight``, or ``edge_attr`` if
    they came as one feature per edge."""
    left_out: frozenset[str] = frozenset()
    """Names of attributes of the PyG data that the graph was made of, which the graph does not hold."""
    schema: Schema = field(default_factory=Schema)
    """Names of feature columns and of classes, and how features were made, where that is known."""
    trusted: InitVar[bool] = False
    """Skip the checks of splits and edge ids. Only for arrays known to be valid."""

    def __post_init__(self, trusted: bool) -> None:
        check_shapes(self)
        if not as_flag(trusted, "trusted"):
            check_contents(self, ("splits", "edge_id", "types"))

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.csc.num_dst

    @property
    def num_edges(self) -> int:
        """Number of stored (directed) edges."""
        return self.csc.num_edges

    @property
    def num_features(self) -> int:
        """Number of features per node; 0 without features."""
        return 0 if self.x is None else int(self.x.shape[1])

    @property
    def num_edge_features(self) -> int:
        """Number of features per edge; 0 without edge features."""
        return 0 if self.edge_attr is None else int(self.edge_attr.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays: topology, ids, features, labels and splits, without cached transposes."""
        tensors = [self.edge_id, self.edge_attr, self.y, *self.splits.values()]
        x = self.x
        x_bytes = 0 if x is None else x.nbytes
        type_bytes = 0 if self.types is None else self.types.nbytes
        return self.csc.nbytes + x_bytes + type_bytes + sum(t.nbytes for t in tensors if t is not None)

    def __repr__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        kind = f"{_kind_of(self.x)} features"
        features = f", {self.num_features} {kind}" if self.x is not None else ""
        if self.edge_attr is not None:
            features += f", {self.num_edge_features} edge features"
        splits = "".join(f", {ids.numel():,} {key}" for key, ids in self.splits.items())
        if self.types is not None:
            splits = f" in {len(self.types.nodes)} types and {len(self.types.edges)} relations"
        return f"Graph({name}{self.num_nodes:,} nodes, {self.num_edges:,} edges{features}{splits})"

    def dense_x(self) -> Tensor:
        """Return the features as a dense tensor; a copy if they are sparse or int8, which become float32.

        Raises:
            DataError: the graph has no features.
        """
        if self.x is None:
            raise DataError("the graph has no features; set them with graph.replace(x=...)")
        return self.x if isinstance(self.x, Tensor) else self.x.to_dense()

    def replace(self, **fields: Any) -> Graph:
        """Return a graph with some fields replaced; the others are shared.

        New features or labels lose the names of columns or classes, unless ``schema`` gives them.

        Raises:
            DataError: the new fields do not fit the graph.
        """
        trusted = as_flag(fields.pop("trusted", False), "trusted")
        if "schema" not in fields:
            fields["schema"] = self.schema.without(*fields)
        changed = replace(self, **fields, trusted=True)
        if not trusted:
            check_contents(changed, (*fields, "splits") if "csc" in fields else fields)
        return changed

    @typed
    def validate(self, *, num_classes: int | None = None, allow_negative_weights: bool = False) -> Graph:
        """Check every value of the graph and return the graph if all are valid.

        ``indptr`` must never decrease; sources must exist; weights must be finite and not negative; features
        of nodes and edges must be finite; splits must not be empty or overlap and must name existing nodes,
        each once; classes must be -1, -100 or in range, and every node of a split must have a label.

        Args:
            num_classes: Also check that classes are below this number.
            allow_negative_weights: Accept negative edge weights.

        Raises:
            DataError: names the first invalid value and its position.
        """
        validate_graph(self, num_classes=num_classes, allow_negative_weights=allow_negative_weights)
        return self


def _kind_of(x: Features | None) -> str:
    if isinstance(x, SparseFeatures):
        return "sparse"
    return "int8" if isinstance(x, ScaledFeatures) else "dense"

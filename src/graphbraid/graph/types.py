"""Types: the node types and relations of a graph (decision 0012); the labels and splits of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor

from graphbraid.errors import DataError, did_you_mean
from graphbraid.graph.csc import Csc, index_dtype, indptr_of, ranges
from graphbraid.graph.scaled_features import Features
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from graphbraid.graph.graph import Graph

EdgeType = tuple[str, str, str]
"""A relation: the type of its sources, its name, the type of its destinations."""
ONLY_NODE_TYPE = "node"
ONLY_EDGE_TYPE: EdgeType = ("node", "to", "node")
"""Names of the types of a graph with one of each."""
MOST_RELATIONS = 1 << 16
"""Largest number of relations of a graph: their number shares a word of random bits with node and hop."""

TaskName = Literal["single-label", "multi-label", "regression"]
SPLITS = ("train", "val", "test")
"""Names of the splits that training knows."""
_SCAN = 1 << 20
UNLABELLED = (-1, -100)
"""Class numbers that mean "no label": graphbraid's, and torch's (``ignore_index`` of its losses)."""


class LabelledNodes:
    """The part of :class:`graphbraid.Graph` about labels and splits, which a node type has as well."""

    __slots__ = ()

    @property
    def task(self) -> TaskName:
        """Task that ``y`` implies: int64 is single-label, a matrix of 0 and 1 multi-label, else regression.

        A matrix of 0 and 1 may have cells of NaN, and rows of -1 or -100 throughout, for labels that are not
        known.

        Raises:
            DataError: the graph has no labels.
        """
        y = self._labels()
        if not y.dtype.is_floating_point:
            return "single-label"
        return "multi-label" if y.ndim == 2 and is_multi_hot(y) else "regression"

    @property
    def num_classes(self) -> int:
        """Number of classes (largest class plus one), of labels (multi-label) or of targets (regression).

        Raises:
            DataError: the graph has no labels.
        """
        y = self._labels()
        if y.dtype.is_floating_point:
            return 1 if y.ndim == 1 else int(y.shape[1])
        return max(int(y.max()) + 1, 0) if y.numel() else 0

    @typed
    def split(self, name: str) -> Tensor:
        """Return the node ids of a split.

        Raises:
            DataError: there is no such split, or it is empty.
        """
        splits = cast("NodeSet", self).splits
        ids = splits.get(name)
        if ids is None:
            present = ", ".join(splits) or "none"
            raise DataError(
                f"the graph has no split {name!r} (present: {present}); pass splits={{{name!r}: ids}}"
            )
        if not ids.numel():
            raise DataError(f"split {name!r} is empty; it needs at least one node id")
        return ids

    def _labels(self) -> Tensor:
        y = cast("NodeSet", self).y
        if y is None:
            raise DataError("the graph has no labels; set them with graph.replace(y=...)")
        return y


def has_class(labels: Tensor) -> Tensor:
    """Return a bool tensor that is True where integer ``labels`` are classes and not :data:`UNLABELLED`."""
    known = labels != UNLABELLED[0]
    for none in UNLABELLED[1:]:
        known &= labels != none
    return known


def has_labels(y: Tensor) -> Tensor:
    """Return which rows of a matrix have labels, as a bool tensor.

    A row without labels is NaN throughout or, in a matrix of several columns, one of :data:`UNLABELLED`
    throughout. In a matrix of one column such a number may be a target.
    """
    known = ~y.isnan().all(dim=1)
    for none in UNLABELLED if y.shape[1] > 1 else ():
        known &= (y != none).any(dim=1)
    return known


def is_multi_hot(y: Tensor) -> bool:
    """Return whether the rows of a float matrix that have labels hold nothing but 0, 1 and NaN."""
    return all(
        bool(((_is_bit(part) | part.isnan()).all(dim=1) | ~has_labels(part)).all()) for part in _row_parts(y)
    )


def misses_cells(y: Tensor) -> bool:
    """Return whether a row of a float matrix has NaN in some of its columns, but not in all."""
    return y.ndim == 2 and any(
        bool((part.isnan().any(dim=1) & ~part.isnan().all(dim=1)).any()) for part in _row_parts(y)
    )


def first_partly_labelled(y: Tensor) -> int:
    """Return the first row that has marks of no label beside 0 or 1; -1 if there is none.

    The matrix must hold nothing but these marks, 0 and 1; else the result is -1. So it is without a 0 or
    without a 1: such a matrix may hold targets, such as signs.
    """
    found, begin, seen = -1, 0, torch.zeros(2, dtype=torch.bool)
    for part in _row_parts(y):
        bits = _is_bit(part)
        marks = part.isnan() | (part == UNLABELLED[0]) | (part == UNLABELLED[1])
        if not bool((bits | marks).all()):
            return -1
        partly = bits.any(dim=1) & marks.any(dim=1)
        if found < 0 and bool(partly.any()):
            found = begin + int(partly.nonzero()[0])
        seen |= torch.tensor([bool((part == bit).any()) for bit in (0, 1)])
        begin += part.shape[0]
    return found if bool(seen.all()) else -1


def _is_bit(values: Tensor) -> Tensor:
    return (values == 0) | (values == 1)


def _row_parts(y: Tensor) -> Iterator[Tensor]:
    """Yield the rows of a matrix, about a million numbers at a time, to make no large temporary."""
    rows = max(1, _SCAN // max(1, y.shape[1]))
    return (y[begin : begin + rows] for begin in range(0, y.shape[0], rows))


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class NodeSet(LabelledNodes):
    """The nodes of one type; ids, rows and splits count from 0 within the type."""

    num_nodes: int
    x: Features | None = None
    """``(num_nodes, num_features)`` features, as those of a graph of one type."""
    y: Tensor | None = None
    """Labels or targets, one row per node, as those of a graph of one type."""
    splits: Mapping[str, Tensor] = field(default_factory=dict)
    """int64 node ids of ``train``, ``val`` and ``test``, without duplicates."""
    time: Tensor | None = None
    """``(num_nodes,)`` int64 or float times of the nodes."""

    @property
    def tensors(self) -> list[Tensor]:
        """All dense tensors of the nodes."""
        held = (self.x, self.y, self.time, *self.splits.values())
        return [values for values in held if isinstance(values, Tensor)]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        others = 0 if isinstance(self.x, Tensor | None) else self.x.nbytes
        return others + sum(values.nbytes for values in self.tensors)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class EdgeSet(LabelledNodes):
    """The edges of one relation, without their ends; rows are in the order of the list they came in."""

    num_edges: int
    edge_attr: Tensor | None = None
    """``(num_edges, num_edge_features)`` float32, float16 or bfloat16 features."""
    time: Tensor | None = None
    """``(num_edges,)`` int64 or float times of the edges."""
    y: Tensor | None = None
    """Labels or targets, one row per edge, as those of nodes; learned with ``task="edge"``."""
    splits: Mapping[str, Tensor] = field(default_factory=dict)
    """int64 positions in the list, by name: such as the triples to train on and those to predict."""
    weighted: bool = False
    """Whether the graph's weights of these edges were given; otherwise they are 1 or there are none."""
    weight_name: str = "edge_weight"
    """Name that these weights have for a model, as :attr:`graphbraid.Graph.weight_name`."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        held = (self.edge_attr, self.time, self.y, *self.splits.values())
        return sum(t.nbytes for t in held if t is not None)

    @property
    def num_nodes(self) -> int:
        """Number of edges: labels are counted by it, as by the number of nodes of a :class:`NodeSet`."""
        return self.num_edges


@dataclass(frozen=True, kw_only=True, slots=True)
class Relation:
    """Where the edges of one relation stand in the rows of :class:`Types`, as numbers."""

    edge_type: EdgeType
    number: int
    """Place among the graph's relations; draws are keyed by it."""
    source: int
    """Number of the type of the sources."""
    destination: int
    """Number of the type of the destinations."""
    first_row: int
    """Row of the first destination."""
    stride: int
    """Rows from one destination to the next: the number of relations into its type."""
    first_source: int
    """Id in the whole graph of the first node of the sources' type."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Types:
    """The node types and relations of a graph.

    Types are in the order of their nodes' ids: in the whole graph (:attr:`graphbraid.Graph.csc`) the nodes of
    the first type come first, then those of the second.
    """

    nodes: Mapping[str, NodeSet]
    edges: Mapping[EdgeType, EdgeSet]
    rows: Csc
    """In-edges by destination and relation: a node has a row for each relation into its type, in the order of
    the relations, and these are neighbours. Sources are ids in the whole graph; ``indices`` and ``weight``
    are those of the graph."""

    def __post_init__(self) -> None:
        names = list(self.nodes)
        for source, _, destination in self.edges:
            for end in (source, destination):
                if end not in self.nodes:
                    raise DataError(f"there is no node type {end!r}.{did_you_mean(end, names)}")
        if len(self.edges) > MOST_RELATIONS:
            raise DataError(f"a graph has at most {MOST_RELATIONS} relations; got {len(self.edges)}")

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all types."""
        return sum(nodes.num_nodes for nodes in self.nodes.values())

    @property
    def first_ids(self) -> list[int]:
        """Id in the whole graph of the first node of each type, and at the end the number of all nodes."""
        return first_ids([nodes.num_nodes for nodes in self.nodes.values()])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays that the graph's topology does not have."""
        node_bytes = sum(nodes.nbytes for nodes in self.nodes.values())
        return self.rows.indptr.nbytes + node_bytes + sum(edges.nbytes for edges in self.edges.values())

    def relations(self) -> list[Relation]:
        """Return where each relation stands, in their order."""
        return placed([nodes.num_nodes for nodes in self.nodes.values()], list(self.nodes), list(self.edges))

    def relation(self, edge_type: EdgeType) -> Relation:
        """Return where one relation stands.

        Raises:
            DataError: there is no such relation.
        """
        self.edges_of(edge_type)
        return self.relations()[list(self.edges).index(edge_type)]

    def edges_of(self, edge_type: EdgeType) -> EdgeSet:
        """Return the edges of one relation.

        Raises:
            DataError: there is no such relation.
        """
        if edge_type not in self.edges:
            known = ["__".join(one) for one in self.edges]
            hint = did_you_mean("__".join(map(str, edge_type)), known)
            raise DataError(f"the graph has no relation {edge_type}.{hint}")
        return self.edges[edge_type]


def only_types(csc: Csc) -> Types:
    """Return the types of a graph of one node type and one relation, whose adjacency is ``csc``."""
    nodes, edges = NodeSet(num_nodes=csc.num_dst), EdgeSet(num_edges=csc.num_edges)
    return Types(nodes={ONLY_NODE_TYPE: nodes}, edges={ONLY_EDGE_TYPE: edges}, rows=csc)


def first_ids(counts: list[int]) -> list[int]:
    """Return the first id of each type from the types' numbers of nodes, and at the end their sum."""
    return list(accumulate(counts, initial=0))


def placed(counts: list[int], node_types: list[str], edge_types: list[EdgeType]) -> list[Relation]:
    """Return where relations stand, from the number of nodes of each type and the order of the relations."""
    number_of = {name: number for number, name in enumerate(node_types)}
    into = dict.fromkeys(node_types, 0)
    place = []  # among the relations into the same type
    for edge_type in edge_types:
        place.append(into[edge_type[2]])
        into[edge_type[2]] += 1
    first_row = first_ids([count * into[name] for name, count in zip(node_types, counts, strict=True)])
    sources = first_ids(counts)
    return [
        Relation(
            edge_type=edge_type,
            number=number,
            source=number_of[edge_type[0]],
            destination=number_of[edge_type[2]],
            first_row=first_row[number_of[edge_type[2]]] + place[number],
            stride=into[edge_type[2]],
            first_source=sources[number_of[edge_type[0]]],
        )
        for number, edge_type in enumerate(edge_types)
    ]


def num_rows_of(types: Types) -> int:
    """Return the number of rows of all nodes: one row for each node and relation into its type."""
    return sum(types.nodes[destination].num_nodes for _, _, destination in types.edges)


def rows_of_nodes(relations: list[Relation], first_ids: list[int], ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of nodes, one for each relation into their type, and their number for each node.

    ``first_ids`` are those of the first node of each type, and at the end the number of nodes; all are int64.
    """
    stride, first_row = torch.zeros(2, len(first_ids) - 1, dtype=torch.int64)
    for one in reversed(relations):  # the first relation into a type has its nodes' first rows
        stride[one.destination], first_row[one.destination] = one.stride, one.first_row
    kinds = torch.bucketize(ids, torch.tensor(first_ids[1:-1]), right=True)
    counts = stride[kinds]
    begins = first_row[kinds] + (ids - torch.tensor(first_ids)[kinds]) * counts
    return ranges(begins, counts), counts


def node_indptr(types: Types) -> Tensor:
    """Return where the in-edges of each node of the whole graph begin, whatever their relation."""
    starts, row, indptr = [], 0, types.rows.indptr
    into = [edge_type[2] for edge_type in types.edges]
    for name, nodes in types.nodes.items():
        stride = into.count(name)
        last = row + nodes.num_nodes * stride
        starts.append(indptr[row:last:stride] if stride else indptr[row].expand(nodes.num_nodes))
        row = last
    return torch.cat([*starts, indptr[-1:]])


def edges_of(types: Types, relation: Relation) -> tuple[Tensor, Tensor]:
    """Return the positions of a relation's edges, and where each destination's begin among them.

    Returns:
        ``(num_edges,)`` int64 positions in the graph's edges, by destination, and ``(num_dst + 1,)`` int64.
    """
    count = list(types.nodes.values())[relation.destination].num_nodes
    first, last = relation.first_row, relation.first_row + count * relation.stride
    begin = types.rows.indptr[first : last : relation.stride][:count]
    degree = types.rows.indptr[first + 1 : last + 1 : relation.stride][:count] - begin
    return ranges(begin, degree), indptr_of(degree)


def csc_of(types: Types, relation: Relation) -> Csc:
    """Return one relation as an adjacency of its own between the ids of its two types (a copy)."""
    positions, indptr = edges_of(types, relation)
    rows, counts = types.rows, [nodes.num_nodes for nodes in types.nodes.values()]
    num_src = counts[relation.source]
    dtype = index_dtype(max(num_src, counts[relation.destination]))
    weight = rows.weight
    if weight is not None:
        weight = weight[positions] if types.edges[relation.edge_type].weighted else None
    sources = (rows.indices[positions] - relation.first_source).to(dtype)
    return Csc(indptr, sources, num_src, weight, trusted=True)


def features_by_type(graph: Graph) -> dict[str | EdgeType, Features]:
    """Return the features of each node type and relation that has some."""
    if graph.types is None:
        found: dict[str | EdgeType, Features | None] = {ONLY_NODE_TYPE: graph.x}
        found[ONLY_EDGE_TYPE] = graph.edge_attr
    else:
        found = {name: nodes.x for name, nodes in graph.types.nodes.items()}
        found |= {name: edges.edge_attr for name, edges in graph.types.edges.items()}
    return {of: rows for of, rows in found.items() if rows is not None}

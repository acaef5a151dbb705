"""GraphSet: many small graphs. A mini-batch takes some of them, each as a whole."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.csc import indptr_of, indptr_of_rows, ranges
from graphbraid.graph.graph import Graph
from graphbraid.graph.interop.convert import as_labels, as_splits
from graphbraid.graph.interop.pyg import data_class
from graphbraid.graph.interop.relations import edge_weights_of
from graphbraid.graph.scans import is_plain
from graphbraid.graph.schema import Schema
from graphbraid.graph.types import EdgeType, NodeSet
from graphbraid.signatures import typed

NODES, GRAPHS = "node", "graph"
"""Node types of :attr:`GraphSet.graph`."""
WITHIN: EdgeType = (NODES, "to", NODES)
PART_OF: EdgeType = (NODES, "in", GRAPHS)
X, EDGES, Y, GRAPH_X = "x", "edge_index", "y", "graph_x"
_MADE = ("batch", "ptr")
"""Attributes that every batch gets."""
_NUMBERS = (int, float, Tensor)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class JoinedAttribute:
    """One attribute of all graphs, joined along one dimension."""

    values: Tensor
    """The attribute of all graphs, one after the other."""
    starts: Tensor
    """``(num_graphs + 1,)`` int64: where the attribute of each graph begins along :attr:`dim`."""
    dim: int = 0
    """Dimension along which the graphs are joined."""
    steps: Tensor | None = None
    """``(num_graphs,)`` int64: how much is added to the ids of the next graph; for ``edge_index`` the number
    of nodes. None for an attribute without ids."""

    def counts(self, ids: Tensor) -> Tensor:
        """Return how many entries the graphs ``ids`` have along :attr:`dim`, ``(len(ids),)`` int64."""
        return self.starts[ids + 1] - self.starts[ids]

    def of(self, ids: Tensor) -> Tensor:
        """Return the attribute of the graphs ``ids``, joined in this order; ids count from the first one."""
        counts = self.counts(ids)
        found = self.values.index_select(self.dim, ranges(self.starts[ids], counts))
        if self.steps is None:
            return found
        # An exclusive cumulative sum: ids of a graph rise by the steps of the graphs before it.
        steps = self.steps[ids]
        rises = torch.repeat_interleave(steps.cumsum(0) - steps, counts).to(found.dtype)
        return found + rises.reshape([-1 if at == self.dim else 1 for at in range(found.ndim)])


class GraphBatch:
    """Some graphs as one graph without edges between them, as PyG's ``Batch``, with the graphs' attributes.

    It also has ``batch``, the number of each node's graph in the batch, and ``ptr``, where the nodes of each
    graph begin.

    Args:
        values: the attributes.
        nodes: ``(num_nodes,)`` int64 ids of the nodes among those of all graphs.
        seed_y: rows of labels of the graphs; None without labels.
        made: makes PyG's object of the attributes.
    """

    def __init__(self, values: Mapping[str, Tensor], nodes: Tensor, seed_y: Tensor | None, made: Any) -> None:
        self._values, self.nodes, self.seed_y, self._made = dict(values), nodes, seed_y, made

    def keys(self) -> list[str]:
        """Return the names of the attributes."""
        return list(self._values)

    def __getattr__(self, name: str) -> Tensor:
        if name[:1] != "_" and name in self._values:
            return self._values[name]
        raise AttributeError(f"the graphs have no attribute {name!r}, but {', '.join(self._values)}")

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all graphs."""
        return self.nodes.numel()

    @property
    def num_edges(self) -> int:
        """Number of edges of all graphs."""
        return int(self._values[EDGES].shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of all attributes."""
        return sum(values.nbytes for values in self._values.values())

    @property
    def batch_size(self) -> int:
        """Number of graphs."""
        return self.ptr.numel() - 1

    def to(self, device: torch.device) -> GraphBatch:
        """Return the batch with its attributes on ``device``."""
        moved = {name: value.to(device) for name, value in self._values.items()}
        return GraphBatch(moved, self.nodes, self.seed_y, self._made)

    def to_data(self) -> Any:
        """Return PyG's ``Batch`` of the attributes.

        Raises:
            MissingPackageError: PyG is not installed.
        """
        return self._made(self._values)


class GraphSet:
    """Many small graphs with labels and splits.

    ``Trainer(model, graphs, task="graph")`` learns the labels of graphs, from mini-batches of whole graphs.

    Args:
        arrays: the attributes of all graphs by name, among them ``edge_index`` of ids within each graph.
        num_nodes: ``(num_graphs,)`` int64 number of nodes of each graph.
        y: labels, one row per graph, in the forms that ``Graph.y`` has. None if they are not known.
        splits: ids of graphs, or masks, by name: ``train``, ``val``, ``test``.
        name: name of the set in reports.
        data_class: class of PyG's data that each graph was. If None, ``Data``.
        class_names: name of each class, if they have names.

    Raises:
        DataError: an edge leaves its graph, or an array does not fit.
    """

    def __init__(
        self,
        arrays: Mapping[str, JoinedAttribute],
        num_nodes: Tensor,
        *,
        y: Any = None,
        splits: Mapping[str, Any] | None = None,
        name: str = "",
        data_class: type | None = None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        self._arrays, self._num_nodes, self._data_class = dict(arrays), num_nodes, data_class
        count = num_nodes.numel()
        self._starts = indptr_of(num_nodes)
        joined = self._arrays[EDGES]
        if joined.values.ndim != 2 or joined.values.shape[0] != 2:
            raise DataError(f"edge_index must have two rows; got shape {tuple(joined.values.shape)}")
        limits = torch.repeat_interleave(num_nodes, joined.starts.diff())
        wrong = ((joined.values < 0) | (joined.values >= limits)).any(0).nonzero().flatten()
        if wrong.numel():
            at = int(torch.searchsorted(joined.starts, wrong[0], right=True)) - 1
            raise DataError(
                f"an edge of graph {at} is {joined.values[:, wrong[0]].tolist()}, and the graph has "
                f"{int(num_nodes[at])} nodes"
            )
        x, y = self._arrays.get(X), as_labels(y)
        if y is not None and y.shape[0] != count:
            raise DataError(f"y must have a row for each of the {count} graphs; got {tuple(y.shape)}")
        of_nodes = torch.repeat_interleave(torch.arange(count), num_nodes)
        edges = replace(joined, steps=num_nodes).of(torch.arange(count))
        members = torch.stack([torch.arange(of_nodes.numel()), of_nodes])
        has_rows = x is not None and x.values.ndim == 2 and x.values.is_floating_point()
        self.graph: Graph = Graph.from_relations(
            {WITHIN: edges, PART_OF: members},
            {NODES: of_nodes.numel(), GRAPHS: count},
            x={NODES: x.values} if has_rows and x is not None else None,
            y={GRAPHS: y},
            splits={GRAPHS: as_splits(splits, count)},
            name=name,
        )
        """All graphs as one with the node types ``node`` and ``graph``: the latter have labels and splits."""
        if class_names is not None:
            self.graph = self.graph.replace(schema=Schema(class_names={GRAPHS: tuple(class_names)}))

    @classmethod
    @typed
    def from_pyg(cls, graphs: Any, *, splits: Mapping[str, Any] | None = None, name: str = "") -> GraphSet:
        """Make a set of PyG's graphs. Models get the graphs' attributes under their own names.

        A transform of a dataset runs once for each graph, now. Attributes that are no tensors or numbers,
        such as texts, are left out.

        Args:
            graphs: a list of ``Data``, a dataset, a ``Batch``, or a ``DataLoader``, whose dataset is read.
                ``y`` has one row per graph: ``(1,)`` or ``(1, num_targets)``.
            splits: ids of graphs, or masks, by name: ``train``, ``val``, ``test``.
            name: name of the set in reports.

        Raises:
            DataError: there are no graphs, one has types or other attributes than the first, or an attribute
                does not fit; names the graph.
        """
        data = listed(graphs)
        arrays, num_nodes = stacked(data)
        found = arrays.get(Y)
        y = None if found is None else found.values
        if found is not None and bool((found.starts.diff() != 1).any()):
            at = int((found.starts.diff() != 1).nonzero()[0])
            raise DataError(
                f"y of a graph must have one row, (1,) or (1, num_targets); graph {at} has "
                f"{int(found.starts.diff()[at])}. Labels of nodes are learned with task='node'."
            )
        return cls(arrays, num_nodes, y=y, splits=splits, name=name, data_class=type(data[0]))

    @classmethod
    @typed
    def from_graph(cls, graph: Graph) -> GraphSet:
        """Make a set of a graph with two node types: nodes, and the graphs that they belong to.

        Tables make such a graph: one of graphs, with labels; one of nodes, with a key to their graph; and one
        of edges between nodes. Models get ``x``, ``edge_index``, ``edge_attr`` and ``edge_weight``, and as
        ``graph_x`` the features that graphs have of their own. Where an edge's relation has its reverse,
        ``rev_NAME``, the graphs have both directions.

        Args:
            graph: the graph. The graphs keep their numbers.

        Raises:
            DataError: there are other types or relations; or a node is in no graph or in several, or an edge
                leaves its graph, which is named.
        """
        nodes, graphs = types_of_sets(graph)
        lists = graph.to_edge_indices()
        members, of = next(pairs for one, pairs in lists.items() if (one[0], one[2]) == (nodes, graphs))
        counts = torch.bincount(members, minlength=graph.nodes_of(nodes).num_nodes)
        if (wrong := (counts != 1).nonzero().flatten()).numel():
            raise DataError(
                f"each {nodes} must belong to one {graphs}; {nodes} {int(wrong[0])} belongs to "
                f"{int(counts[wrong[0]])}"
            )
        of_node = torch.empty_like(of)
        of_node[members] = of
        num_nodes = torch.bincount(of_node, minlength=graph.nodes_of(graphs).num_nodes)
        order, starts = of_node.argsort(stable=True), indptr_of(num_nodes)
        local = order.argsort() - starts[of_node]  # the argsort of a permutation is its inverse
        within = [one for one in graph.edge_types if (one[0], one[2]) == (nodes, nodes)]
        ends = torch.cat([lists[one] for one in within], 1)
        of_edge = of_node[ends[0]]
        if (wrong := (of_edge != of_node[ends[1]]).nonzero().flatten()).numel():
            source, destination = ends[:, wrong[0]].tolist()
            raise DataError(
                f"an edge joins {nodes} {source} of {graphs} {int(of_node[source])} and {destination} of "
                f"{int(of_node[destination])}; edges must stay in their graph"
            )
        by_graph = of_edge.argsort(stable=True)
        edge_starts = indptr_of_rows(of_edge, num_nodes.numel())
        edges = local[ends][:, by_graph]
        arrays = {EDGES: JoinedAttribute(values=edges, starts=edge_starts, dim=1, steps=num_nodes)}
        own, labels = torch.arange(num_nodes.numel() + 1), graph.nodes_of(graphs)
        for name, x, rows, begins in (
            (X, graph.nodes_of(nodes).x, order, starts),
            (GRAPH_X, labels.x, own[:-1], own),
        ):
            if not isinstance(x, Tensor | None):
                raise DataError(
                    "features of many graphs must be dense and of floats; convert them without int8"
                )
            if x is not None:
                arrays[name] = JoinedAttribute(values=x.index_select(0, rows), starts=begins)
        weights = edge_weights_of(graph)
        for name, found in (
            ("edge_attr", [graph.edges_of(one).edge_attr for one in within]),
            ("edge_weight", [weights.get(one) for one in within]),
        ):
            values = [one for one in found if one is not None]
            if len(values) == len(within):
                arrays[name] = JoinedAttribute(values=torch.cat(values)[by_graph], starts=edge_starts)
        return cls(
            arrays,
            num_nodes,
            y=labels.y,
            splits=labels.splits,
            name=graph.name,
            class_names=graph.schema.class_names.get(graphs),
        )

    def with_splits(self, splits: Mapping[str, Any]) -> GraphSet:
        """Return the same graphs with other splits: ids of graphs, or masks, by name."""
        made, types = copy.copy(self), self.graph.types
        assert types is not None
        labels = replace(self.labels, splits=as_splits(splits, len(self)))
        types = replace(types, nodes={**types.nodes, GRAPHS: labels})
        made.graph = self.graph.replace(types=types, schema=self.graph.schema)
        return made

    @property
    def labels(self) -> NodeSet:
        """The graphs as nodes of a type, with their labels and splits."""
        return self.graph.nodes_of(GRAPHS)

    @property
    def num_features(self) -> int:
        """Number of columns of ``x``; 0 without."""
        return self._width(X)

    @property
    def num_graph_features(self) -> int:
        """Number of columns of ``graph_x``, the graphs' own features; 0 without."""
        return self._width(GRAPH_X)

    def _width(self, name: str) -> int:
        rows = self._arrays.get(name)
        return 0 if rows is None or rows.values.ndim < 2 else int(rows.values.shape[1])

    @property
    def num_classes(self) -> int:
        """Number of classes, labels or targets: the width of a model's outputs."""
        return self.labels.num_classes

    def __len__(self) -> int:
        """Return the number of graphs."""
        return self._num_nodes.numel()

    def __repr__(self) -> str:
        sizes = f"{len(self)} graphs, {self.graph.nodes_of(NODES).num_nodes} nodes"
        return f"GraphSet({sizes}, {self.graph.edges_of(WITHIN).num_edges} edges)"

    def arrays(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and values of the attributes."""
        for name, one in self._arrays.items():
            yield name, one.values

    def batch(self, ids: Tensor) -> GraphBatch:
        """Return the graphs ``ids`` as one batch, in this order."""
        check_tensor(ids, "ids", ndim=1)
        counts = self._num_nodes[ids]
        nodes, ptr = ranges(self._starts[ids], counts), indptr_of(counts)
        of_nodes = torch.repeat_interleave(torch.arange(ids.numel()), counts)
        values = {name: one.of(ids) for name, one in self._arrays.items()}
        y = self.labels.y
        return GraphBatch(
            values | {"batch": of_nodes, "ptr": ptr},
            nodes,
            None if y is None else y.index_select(0, ids),
            lambda moved: batch_of(moved, ids, self._arrays, counts, self._data_class),
        )


def types_of_sets(graph: Graph) -> tuple[str, str]:
    """Return the two node types of a graph that holds many: of nodes, and of graphs; DataError for others."""
    known = ", ".join("__".join(one) for one in graph.edge_types)
    within = {one[0] for one in graph.edge_types if one[0] == one[2]}
    beside = [one for one in graph.node_types if one not in within]
    if len(graph.node_types) != 2 or len(within) != 1 or len(beside) != 1:
        raise DataError(
            "many graphs are a graph with two node types, the nodes and the graphs that they belong to, and "
            f"with edges between nodes alone; this one has the node types {', '.join(graph.node_types)} and "
            f"the relations {known}"
        )
    nodes, graphs = within.pop(), beside[0]
    names = [one[1] for one in graph.edge_types if one[0] == one[2]]
    into = [one for one in graph.edge_types if (one[0], one[2]) == (nodes, graphs)]
    if len(into) != 1 or not {one.removeprefix("rev_") for one in names} <= {*names} or len(names) > 2:
        raise DataError(
            "many graphs have one relation between nodes, beside its reverse, and one from nodes to their "
            f"graph; this graph has {known}"
        )
    return nodes, graphs


# ---- from PyG's graphs, attribute by attribute, and back


def listed(graphs: Any) -> list[Any]:
    """Return the graphs of a list, dataset, ``Batch`` or ``DataLoader``; DataError if they are none of it."""
    if isinstance(graphs, torch.utils.data.DataLoader):
        graphs = graphs.dataset
    if hasattr(graphs, "to_data_list"):
        graphs = graphs.to_data_list()
    if hasattr(graphs, "keys") or not (hasattr(graphs, "__len__") and hasattr(graphs, "__getitem__")):
        raise DataError(
            "many graphs are a list of PyG's Data, a dataset, a Batch or a DataLoader; got "
            f"{type(graphs).__name__}"
        )
    found = [graphs[at] for at in range(len(graphs))]
    if not found:
        raise DataError("many graphs are needed; got none")
    for at, one in enumerate(found):
        if hasattr(one, "node_types"):
            raise DataError(f"graph {at} has types, and many graphs are of one type each")
        if not hasattr(one, "keys") or getattr(one, "edge_index", None) is None:
            raise DataError(f"graph {at} must be PyG's Data with an edge_index; got {type(one).__name__}")
        if one.num_nodes is None:
            raise DataError(f"graph {at} has no number of nodes; set num_nodes")
    return found


def stacked(graphs: Sequence[Any]) -> tuple[dict[str, JoinedAttribute], Tensor]:
    """Return attributes of all graphs by name, and numbers of nodes; DataError if they do not fit."""
    names = set(graphs[0].keys()) - {"num_nodes"}
    for at, one in enumerate(graphs):
        if (others := names ^ (set(one.keys()) - {"num_nodes"})) or names & {*_MADE}:
            name = min(others or names & {*_MADE})
            raise DataError(
                f"all graphs must have the same attributes, none of them called batch or ptr; {name!r} of "
                f"graph {at} is not in all, or called so"
            )
    arrays = {}
    for name in sorted(names):
        values = [one[name] for one in graphs]
        dim = graphs[0].__cat_dim__(name, values[0])
        steps = [one.__inc__(name, value) for one, value in zip(graphs, values, strict=True)]
        if (found := _joined(name, values, dim, steps)) is not None:
            arrays[name] = found
    return arrays, torch.tensor([int(one.num_nodes) for one in graphs], dtype=torch.int64)


def _joined(
    name: str, values: Iterable[Any], dim: int | None, steps: Iterable[Any]
) -> JoinedAttribute | None:
    """Return an attribute of all graphs, joined along ``dim`` or a new first one; None if none has numbers.

    ``steps`` says by how much its ids rise after each graph.
    """
    found = [torch.as_tensor(one) if isinstance(one, _NUMBERS) else None for one in values]
    if all(one is None for one in found):
        return None
    rows: list[Tensor] = []
    for at, one in enumerate(found):
        if one is None or not is_plain(one):
            raise DataError(
                f"{name} of graph {at} is no dense tensor of numbers without a gradient; give edges as "
                "edge_index, and leave out attributes that some graphs alone have as tensors"
            )
        rows.append(one.cpu().unsqueeze(0) if dim is None or one.ndim == 0 else one.cpu())
        where = 0 if dim is None or rows[0].ndim == 1 else dim % rows[0].ndim
        kinds = [(one.dtype, one.shape[:where], one.shape[where + 1 :]) for one in (rows[0], rows[at])]
        if kinds[0] != kinds[1]:
            raise DataError(
                f"{name} of graph {at} is {rows[at].dtype} of shape {tuple(rows[at].shape)}, and that of "
                f"graph 0 {rows[0].dtype} of shape {tuple(rows[0].shape)}; all must be alike"
            )
    rises = [one if isinstance(one, int) else torch.as_tensor(one) for one in steps]
    if any(isinstance(one, Tensor) and one.numel() != 1 for one in rises):
        raise DataError(f"the ids in {name} rise by more than one number from graph to graph (__inc__)")
    numbers = torch.tensor([int(one) for one in rises])
    return JoinedAttribute(
        values=torch.cat(rows, where),
        starts=torch.tensor([0, *(one.shape[where] for one in rows)]).cumsum(0),
        dim=where,
        steps=numbers if bool(numbers.any()) else None,
    )


def batch_of(
    values: Mapping[str, Tensor],
    ids: Tensor,
    arrays: Mapping[str, JoinedAttribute],
    num_nodes: Tensor,
    kind: type | None,
) -> Any:
    """Return PyG's ``Batch`` of the graphs ``ids``, as its ``DataLoader`` makes it.

    ``values`` are these graphs' attributes, joined, and ``arrays`` those of all graphs. ``kind`` is the class
    of each graph's data, by default ``Data``.
    """
    made = data_class("Batch")(_base_cls=data_class() if kind is None else kind)
    for name, value in values.items():
        made[name] = value
    if "x" not in values:
        made.num_nodes = int(num_nodes.sum())
    made._num_graphs = num_nodes.numel()
    made._slice_dict = {name: indptr_of(one.counts(ids)) for name, one in arrays.items()}
    steps = {name: ids * 0 if one.steps is None else one.steps[ids] for name, one in arrays.items()}
    made._inc_dict = {name: one.cumsum(0) - one for name, one in steps.items()}
    return made

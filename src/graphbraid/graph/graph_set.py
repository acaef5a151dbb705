"""GraphSet: many small graphs, of which mini-batches take some as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.graph import Graph
from graphbraid.graph.interop.convert import as_labels, as_splits
from graphbraid.graph.interop.pyg_graphs import JoinedAttribute, batch_of, listed, stacked
from graphbraid.graph.types import EdgeType, NodeSet
from graphbraid.signatures import typed

NODES, GRAPHS = "node", "graph"
"""Node types of :attr:`GraphSet.graph`."""
WITHIN: EdgeType = (NODES, "to", NODES)
PART_OF: EdgeType = (NODES, "in", GRAPHS)
X, EDGES, Y = "x", "edge_index", "y"


class GraphBatch:
    """Some graphs as one whose parts do not touch, as PyG's ``Batch``; attributes are the graphs' own.

    Beside these it has ``batch``, the number of each node's graph in the batch, and ``ptr``, where the nodes
    of each graph begin.

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
    ) -> None:
        self._arrays, self._num_nodes, self._data_class = dict(arrays), num_nodes, data_class
        count = num_nodes.numel()
        self._starts = torch.cat([num_nodes.new_zeros(1), num_nodes.cumsum(0)])
        _check_edges(self._arrays[EDGES], num_nodes)
        x, y = self._arrays.get(X), as_labels(y)
        if y is not None and y.shape[0] != count:
            raise DataError(f"y must have a row for each of the {count} graphs; got {tuple(y.shape)}")
        of_nodes = torch.repeat_interleave(torch.arange(count), num_nodes)
        edges = replace(self._arrays[EDGES], steps=num_nodes).of(torch.arange(count))
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

    @classmethod
    @typed
    def from_pyg(cls, graphs: Any, *, splits: Mapping[str, Any] | None = None, name: str = "") -> GraphSet:
        """Make a set of PyG's graphs, whose attributes models get under their own names.

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

    def with_splits(self, splits: Mapping[str, Any]) -> GraphSet:
        """Return the same graphs with other splits: ids of graphs, or masks, by name."""
        labels = self.labels
        return GraphSet(
            self._arrays,
            self._num_nodes,
            y=labels.y,
            splits=splits,
            name=self.graph.name,
            data_class=self._data_class,
        )

    @property
    def labels(self) -> NodeSet:
        """The graphs as nodes of a type, with their labels and splits."""
        return self.graph.nodes_of(GRAPHS)

    @property
    def num_features(self) -> int:
        """Number of columns of ``x``; 0 without."""
        x = self._arrays.get(X)
        return 0 if x is None or x.values.ndim < 2 else int(x.values.shape[1])

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
        ptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        of_nodes = torch.repeat_interleave(torch.arange(ids.numel()), counts)
        nodes = torch.repeat_interleave(self._starts[ids] - ptr[:-1], counts) + torch.arange(of_nodes.numel())
        values = {name: one.of(ids) for name, one in self._arrays.items()}
        y = self.labels.y
        return GraphBatch(
            values | {"batch": of_nodes, "ptr": ptr},
            nodes,
            None if y is None else y.index_select(0, ids),
            lambda moved: self._to_pyg(moved, ids),
        )

    def _to_pyg(self, values: Mapping[str, Tensor], ids: Tensor) -> Any:
        sizes = {name: (one.counts(ids), one.steps) for name, one in self._arrays.items()}
        parts = {
            name: (counts, torch.zeros_like(counts) if steps is None else steps[ids])
            for name, (counts, steps) in sizes.items()
        }
        return batch_of(values, parts, self._num_nodes[ids], self._data_class)


def _check_edges(edges: JoinedAttribute, num_nodes: Tensor) -> None:
    """Check that each edge joins nodes of its graph."""
    if edges.values.ndim != 2 or edges.values.shape[0] != 2:
        raise DataError(f"edge_index must have two rows; got shape {tuple(edges.values.shape)}")
    limits = torch.repeat_interleave(num_nodes, edges.starts.diff())
    wrong = ((edges.values < 0) | (edges.values >= limits)).any(0).nonzero().flatten()
    if wrong.numel():
        at = int(torch.searchsorted(edges.starts, wrong[0], right=True)) - 1
        raise DataError(
            f"an edge of graph {at} is {edges.values[:, wrong[0]].tolist()}, and the graph has "
            f"{int(num_nodes[at])} nodes"
        )


__all__ = ["GraphBatch", "GraphSet"]

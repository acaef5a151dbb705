"""BatchSource: the graph and attributes that mini-batches are read from, and how rows are taken by id."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.graph import EdgeType, Graph, ScaledFeatures, SparseFeatures
from graphbraid.graph.identity import check_made_for
from graphbraid.graph.scaled_features import Features, stored_rows, widened
from graphbraid.graph.scans import is_plain
from graphbraid.graph.types import ONLY_EDGE_TYPE, ONLY_NODE_TYPE
from graphbraid.ops.gather import TierTable, gather_features, gather_tiered
from graphbraid.sampling.cpu import HostPipeline
from graphbraid.sampling.rows.by_id import FeatureSource, TransferCounter, link_of, travelled
from graphbraid.sampling.sample import NeighborLists

ADJ_VALUES = "values of adj_t"
"""Name of the values of ``adj_t`` among ``edge_attrs``; no attribute of a user can have it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchSource:
    """The graph and attributes that every batch of a loader is read from.

    Its arrays are on the device of the batches' ids, or in page-locked host memory that this device reads.
    """

    graph: Graph
    node_attrs: Mapping[str, Mapping[str, Features]] = field(default_factory=dict)
    """Further attributes with one row per node, such as ``train_mask``, by node type and name; also ``x`` and
    ``y`` if the graph cannot hold their dtype or shape."""
    edge_attrs: Mapping[EdgeType, Mapping[str, Tensor]] = field(default_factory=dict)
    """Further tensors with one row per edge, such as ``edge_attr``, in the order of the relation's original
    edge list, by relation and name."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of the whole graph. Every batch of a graph of one type has them unchanged."""
    by_column: frozenset[tuple[str | EdgeType, str]] = frozenset()
    """Names in ``node_attrs`` and ``edge_attrs`` whose last dimension in a batch is the nodes or edges."""
    names: tuple[str, ...] | None = None
    """Order of the attributes in a batch of one type. If None, edges, ``x``, ``y``, then the others."""
    adj_t: Any = None
    """Sparse matrix of the whole graph, whose kind batches' ``adj_t`` has; one by relation in a graph with
    types. If None, batches have none."""
    template: Any = None
    """PyG ``Data``, whose class and settings batches get, or ``HeteroData``, which batches copy except for
    these attributes. If None, batches are plain."""
    src_degree: Tensor | None = None
    """In-degrees that blocks carry for layers that normalise by them, ``(num_nodes,)`` float32."""
    src_loop: Tensor | None = None
    """Weights of self-loops for the same layers, ``(num_nodes,)`` float32; see :class:`graphbraid.Csc`."""
    rows: FeatureSource | None = None
    """Source of a batch's ``x``; None: ``graph.x``, which has the same rows."""
    lists: NeighborLists | None = None
    """Source of the adjacency lists; None: ``graph.csc``, which has the same lists."""
    table: TierTable | None = None
    """Table by which a sampling device finds the rows of ``x`` in several memories."""
    pipeline: Callable[..., HostPipeline] | None = None
    """Makes the pipeline of a graph whose lists are divided among ranks, from the sampler's options,
    ``gathers`` and ``num_threads``. None: the threads of this process prepare batches."""
    given_link: TransferCounter | None = None
    """Counter of transfers to devices if there are no ``rows``, whose own counter counts."""

    @property
    def link(self) -> TransferCounter | None:
        """Counter of transfers to devices; None if nothing is counted."""
        return self.given_link if self.rows is None else link_of(self.rows)

    def check_tiers(self) -> None:
        """Raise DataError if rows or lists are of another graph, or of this one before a change."""
        x, rows, lists = self.graph.x, self.rows, self.lists
        if lists is not None:
            csc, whole = lists.csc, self.graph.csc
            if (csc.num_dst, csc.num_edges) != (whole.num_dst, whole.num_edges):
                raise DataError(
                    f"lists are of {csc.num_dst} nodes and {csc.num_edges} edges, but the graph has "
                    f"{whole.num_dst} and {whole.num_edges}; make the topology's tiers of this very graph"
                )
        dense = x if isinstance(x, Tensor | ScaledFeatures) else None
        if rows is not None and (dense is None or (dense.shape, dense.dtype) != (rows.shape, rows.dtype)):
            own = "none that are dense" if dense is None else f"{dense.dtype} of {tuple(dense.shape)}"
            raise DataError(
                f"rows are {rows.dtype} of {tuple(rows.shape)}, but the graph's features are {own}; make the "
                "tiers of this very graph"
            )
        if lists is not None:
            check_made_for(lists, self.graph.csc, "the topology's tiers were")
        if rows is not None:
            check_made_for(rows, x, "the features' tiers were")

    def keys(self, layout: str, *, by_edge: bool) -> list[str]:
        """Return the names of a batch's attributes in order; ``by_edge`` says whether it keeps edge ids.

        In a graph with types, a name that ends in ``_dict`` stands for rows by node type or relation.
        """
        if self.graph.is_typed:
            return self._typed_keys(layout, by_edge=by_edge)
        names: Iterable[str] = self._default_names() if self.names is None else self.names
        if layout == "blocks":
            names = ["blocks", *(name for name in names if name not in ("edge_index", "adj_t"))]
        if by_edge:
            return list(dict.fromkeys((*names, "e_id")))
        held = self.edge_attrs.get(ONLY_EDGE_TYPE, {})  # else `edge_attr` is the graph's
        return [name for name in names if name not in held and (name != "edge_attr" or self.has(name))]

    def without(self, names: Iterable[str]) -> BatchSource:
        """Return a source without the attributes of these names, except those of the graph itself.

        A graph with types keeps them, since its batches have attributes of their seeds beside them.
        """
        if self.graph.is_typed:
            return self
        dropped = set(names)
        nodes, edges = self.node_attrs.get(ONLY_NODE_TYPE, {}), self.edge_attrs.get(ONLY_EDGE_TYPE, {})
        return dataclasses.replace(
            self,
            node_attrs={ONLY_NODE_TYPE: {name: rows for name, rows in nodes.items() if name not in dropped}},
            edge_attrs={ONLY_EDGE_TYPE: {name: rows for name, rows in edges.items() if name not in dropped}},
            constants={name: value for name, value in self.constants.items() if name not in dropped},
            names=None if self.names is None else tuple(name for name in self.names if name not in dropped),
        )

    def has(self, name: str) -> bool:
        """Return whether a graph of one type has a further attribute of this name."""
        return (
            name in self.node_attrs.get(ONLY_NODE_TYPE, {})
            or name in self.edge_attrs.get(ONLY_EDGE_TYPE, {})
            or name in self.constants
        )

    def gathered(self, node_type: str) -> Tensor | None:
        """Return the features of a type if threads can gather their rows: a contiguous matrix on the CPU."""
        if not self.graph.is_typed:
            x = self.graph.x if self.rows is None else None
        elif (node_type, "x") in self.by_column:
            return None
        else:
            x = self.tables[node_type].get("x")
        if not isinstance(x, Tensor) or not is_plain(x) or x.ndim != 2 or not x.is_contiguous():
            return None
        return x if x.device.type == "cpu" else None

    def node_rows(self, node_type: str, name: str, ids: Tensor) -> Tensor | None:
        """Return the rows of an attribute for nodes of a type; sparse rows become dense, int8 rows float32.

        None if a graph of one type has no such attribute. A label of the whole graph, one of the
        ``constants``, is returned as it is.
        """
        if name in self.constants:
            return cast("Tensor", self.constants[name])
        if name == "x" and not self.graph.is_typed and not self.has("x"):
            return self._x_rows(ids)
        table = self.tables[node_type].get(name)
        if table is None:
            return None
        if isinstance(table, SparseFeatures):
            return table.rows(ids.cpu()).to_dense()
        of_kernel = name == "x" and self.graph.is_typed and self.gathered(node_type) is not None
        if of_kernel or isinstance(table, ScaledFeatures):
            return gather_features(table, ids, trusted=True)
        return self._turned(self._taken(name, table, ids), node_type, name)

    def edge_rows(self, edge_type: EdgeType, name: str, positions: Tensor) -> Tensor:
        """Return the rows of an attribute for edges of a relation at ``positions`` in the graph.

        The relation must have the attribute: features, weights, or one of ``edge_attrs``.
        """
        graph, table = self.graph, self.tables[edge_type].get(name)
        if isinstance(table, Tensor):
            return self._turned(self._taken(name, table, self.edge_ids(positions)), edge_type, name)
        is_weight = name == (graph.edges_of(edge_type) if graph.is_typed else graph).weight_name
        stored = graph.csc.weight if is_weight else graph.edge_attr
        assert stored is not None
        return self._taken(name, stored, positions)

    def edge_ids(self, positions: Tensor) -> Tensor:
        """Return the places in the relations' edge lists of edges at ``positions`` in the graph."""
        ids = self.graph.edge_id
        return positions if ids is None else self._taken("e_id", ids, positions)

    @cached_property
    def tables(self) -> Mapping[str | EdgeType, dict[str, Any]]:
        """Tables with a row for each node of a type, or for each edge of a relation in the order of its list.

        They are the graph's own, then ``node_attrs`` or ``edge_attrs``. None stands for the weights of a
        relation, which are in the graph's order. Tables of a graph of one type are left out, and so is its
        ``edge_attr``.
        """
        graph, found = self.graph, dict[str | EdgeType, dict[str, Any]]()
        for one in graph.node_types:
            nodes = graph.nodes_of(one)
            found[one] = {"x": nodes.x, "y": nodes.y, "time": nodes.time, **self.node_attrs.get(one, {})}
        for relation in graph.edge_types:
            found[relation] = {}
            if graph.is_typed:
                edges = graph.edges_of(relation)
                found[relation] = {"edge_attr": edges.edge_attr, "time": edges.time}
            found[relation] |= self.edge_attrs.get(relation, {})
        tables = {
            one: {name: rows for name, rows in held.items() if rows is not None}
            for one, held in found.items()
        }
        for relation in graph.edge_types if graph.is_typed and self.template is None else ():
            edges = graph.edges_of(relation)
            if edges.weighted:
                tables[relation].setdefault(edges.weight_name)
        return tables

    @cached_property
    def holders(self) -> Mapping[str, list[str | EdgeType]]:
        """The types, then the relations, that have an attribute in :attr:`tables`, by its name."""
        holders: dict[str, list[str | EdgeType]] = {}
        for one, held in self.tables.items():
            for name in held:
                holders.setdefault(name, []).append(one)
        return holders

    def _x_rows(self, ids: Tensor) -> Tensor | None:
        """Return the features of the nodes ``ids`` from any tier; None without features."""
        if self.table is not None and self.table.device == ids.device:
            return gather_tiered(self.table, ids, trusted=True)
        if self.rows is not None:
            return rows_on_device(self.rows, ids)
        features = self.graph.x
        if isinstance(features, SparseFeatures):
            return features.rows(ids.cpu()).to_dense()
        if features is None or ids.device.type == "cpu":
            return None if features is None else gather_features(features, ids, trusted=True)
        stored = stored_rows(features)
        if self.link is not None and stored is not None and is_read_over_link(stored, ids):
            self.link.add_direct(features, ids)
        return take_features(features, ids)

    def _taken(self, name: str, table: Tensor, ids: Tensor) -> Tensor:
        """Return rows of a table; a device's reads of host memory are counted."""
        taken = take_rows(table, ids)
        if self.link is not None and is_read_over_link(table, ids):
            self.link.add_attribute(name, taken)
        return taken

    def _turned(self, rows: Tensor, key: str | EdgeType, name: str) -> Tensor:
        return rows.movedim(0, -1) if (key, name) in self.by_column else rows

    def _default_names(self) -> list[str]:
        graph = self.graph
        held = (
            ("x", graph.x),
            ("y", graph.y),
            (graph.weight_name, graph.csc.weight),
            ("edge_attr", graph.edge_attr),
        )
        held_names = [name for name, value in held if value is not None]
        nodes, edges = self.node_attrs.get(ONLY_NODE_TYPE, {}), self.edge_attrs.get(ONLY_EDGE_TYPE, {})
        return list(dict.fromkeys(("edge_index", *held_names, *nodes, *edges, *self.constants)))

    def _typed_keys(self, layout: str, *, by_edge: bool) -> list[str]:
        lists = ["edge_index_dict", "adj_t_dict"] if self.adj_t else ["edge_index_dict"]
        held_by = {name: held for name, held in self.holders.items() if name != ADJ_VALUES}
        names = [f"{name}_dict" for name, held in held_by.items() if by_edge or isinstance(held[0], str)]
        return [
            *(["blocks"] if layout == "blocks" else lists),
            *names,
            *(["e_id_dict"] if by_edge and "e_id" not in self.holders else ()),
        ]


def take_rows(table: Tensor, ids: Tensor) -> Tensor:
    """Return ``table[ids]`` on the device of ``ids``.

    A plain table on another device must be contiguous and in page-locked host memory, which the device of
    ``ids`` reads over the link; the call does not wait for it. Rows of any other table are taken by torch
    where the table is, and copied.

    Args:
        table: ``(num_rows, ...)`` of any dtype, dense or in COO.
        ids: ``(num_ids,)`` int64 in ``[0, num_rows)``.
    """
    if is_plain(table):
        return table[ids] if is_beside(table, ids) else read_over_link(table, ids)
    return torch.index_select(table, 0, ids.to(table.device)).to(ids.device)


def take_features(x: Tensor | ScaledFeatures, ids: Tensor) -> Tensor:
    """Return the feature rows of ``ids`` as :func:`take_rows` does; those of int8 become float32."""
    if isinstance(x, ScaledFeatures):
        return widened(take_rows(x.values, ids), take_rows(x.scale, ids))
    return take_rows(x, ids)


def is_beside(table: Tensor, ids: Tensor) -> bool:
    """Return whether ``table`` is on the device of ``ids``."""
    return table.device == ids.device


def is_read_over_link(table: Tensor, ids: Tensor) -> bool:
    """Return whether the device of ``ids`` reads ``table`` from the host's memory."""
    return not is_beside(table, ids)


def read_over_link(table: Tensor, ids: Tensor) -> Tensor:
    """Return ``table[ids]`` by a kernel on the device of ``ids`` that reads a page-locked host table."""
    from graphbraid.ops.triton.gather import gather_rows
    from graphbraid.ops.triton.launch import on_device_of

    out = torch.empty((ids.numel(), *table.shape[1:]), dtype=table.dtype, device=ids.device)
    if out.numel():
        with on_device_of(ids):
            gather_rows(_bytes_of(table.detach()), ids, _bytes_of(out))
    return out


def _bytes_of(table: Tensor) -> Tensor:
    """Return a view of the same memory as ``(num_rows, row_bytes)`` uint8."""
    return table.view(table.shape[0], -1).view(torch.uint8)


def rows_on_device(rows: FeatureSource, ids: Tensor) -> Tensor:
    """Return the rows of ``ids`` on their device; rows that are hot there are not copied."""
    return rows.gather(ids) if ids.device.type == "cpu" else travelled(rows, ids)

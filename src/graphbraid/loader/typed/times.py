"""TypedTimes: the times of nodes or edges of a loader's data with types, by which its graph is sorted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import shown
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import EdgeType
from graphbraid.graph.csc import Csc
from graphbraid.graph.types import Types, edges_of
from graphbraid.loader.times import TimeScale, checked_times, named_time, ordered_times, strategy_of
from graphbraid.sampling.constraints import NO_TIME, EdgeTimes
from graphbraid.sampling.time_order import sorted_by_time
from graphbraid.sampling.typed.source import TypedBatchSource


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class TypedTimes(TimeScale):
    """The times of a graph's nodes or edges by type. Edges of relations without times are early enough."""

    source: TypedBatchSource
    """The loader's source, each of its graph's relations sorted by time."""
    node_time: Mapping[str, Tensor]
    """``(num_nodes,)`` int64 times by node type; empty where edges have times."""

    def of_nodes(self, node_type: str, nodes: Tensor) -> Tensor:
        """Return the times of nodes of a type.

        Raises:
            ConfigError: they have none.
        """
        if node_type not in self.node_time:
            raise ConfigError(
                f"input_time must be given: time_attr names no times of nodes of type {node_type!r}"
            )
        return self.node_time[node_type][nodes]


def read_typed_times(source: TypedBatchSource, given: dict[str, Any]) -> TypedTimes | None:
    """Return the times that the options of a loader name; None if they name none.

    As PyG reads them: of some node types, whose out-edges are as old as their sources, or of some relations.

    Raises:
        ConfigError: options about times exclude each other, or the data has no such attribute, or both nodes
            and edges have it.
        DataError: there is not one finite time per node or edge of a type.
    """
    strategy, name = strategy_of(given), named_time(given)
    if name is None:
        return None
    _check_lengths(source, name)
    nodes = {one: attrs[name] for one, attrs in source.node_attrs.items() if name in attrs}
    edges = {one: attrs[name] for one, attrs in source.edge_attrs.items() if name in attrs}
    if nodes and edges:
        raise ConfigError(
            f"time_attr={name!r} names times of nodes ({', '.join(nodes)}) and of edges "
            f"({', '.join('__'.join(one) for one in edges)}); name either"
        )
    found = [_checked(values, name, key) for key, values in (nodes or edges).items()]
    if not found:
        raise ConfigError(
            f"time_attr={name!r} is an attribute of no node type and of no relation of the data"
        )
    is_float = any(values.is_floating_point() for values in found)
    ordered = [ordered_times(values, "the times", is_float=is_float) for values in found]
    node_time = dict(zip(nodes, ordered, strict=True)) if nodes else {}
    edge_time = {} if nodes else dict(zip(edges, ordered, strict=True))
    return _sorted(source, node_time, edge_time, is_float=is_float, last=strategy == "last")


def _check_lengths(source: TypedBatchSource, name: str) -> None:
    """Refuse times of another length, which would be taken for an attribute of the whole type."""
    if source.template is None:
        return
    for key, attrs in (*source.node_attrs.items(), *source.edge_attrs.items()):
        values = source.template[key].get(name)
        if values is not None and name not in attrs:
            what = "node" if isinstance(key, str) else "edge"
            raise DataError(f"{name} of {key!r} must have a time for each {what}; got {shown(values)}")


def _checked(values: Any, name: str, key: str | EdgeType) -> Tensor:
    if not isinstance(values, Tensor):
        raise DataError(f"{name} of {key!r} must be a dense tensor of times; got {type(values).__name__}")
    return checked_times(values, f"{name} of {key!r}")


def _sorted(
    source: TypedBatchSource,
    node_time: Mapping[str, Tensor],
    edge_time: Mapping[EdgeType, Tensor],
    *,
    is_float: bool,
    last: bool,
) -> TypedTimes:
    """Sort the in-edges of each node and relation by time, equal ones as they stand."""
    graph, types = source.graph, source.graph.types
    assert types is not None, "a loader of data with types"
    by_edge, untimed = torch.full((graph.num_edges,), NO_TIME), set()
    for relation in types.relations():
        positions, _ = edges_of(types, relation)
        start, edge_type = relation.first_source, relation.edge_type
        if edge_type[0] in node_time:
            by_edge[positions] = node_time[edge_type[0]][types.rows.indices[positions].long() - start]
        elif edge_type in edge_time:
            by_edge[positions] = edge_time[edge_type][source.edge_ids(positions)]
        else:
            untimed.add(relation.number)
    rows, order = sorted_by_time(types.rows, by_edge)
    edge_id = order if graph.edge_id is None else graph.edge_id[order]
    return TypedTimes(
        source=dataclasses.replace(
            source,
            graph=graph.replace(
                csc=Csc(graph.csc.indptr, rows.indices, graph.num_nodes, rows.weight, trusted=True),
                types=_with_rows(types, rows),
                edge_id=edge_id,
                trusted=True,
            ),
        ),
        edge_times=EdgeTimes(time=by_edge[order].contiguous(), last=last, untimed=frozenset(untimed)),
        node_time=node_time,
        is_float=is_float,
    )


def _with_rows(types: Types, rows: Csc) -> Types:
    return dataclasses.replace(types, rows=rows)

"""Times: the times of a loader's nodes or edges; temporal sampling needs its graph sorted by them."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import shown
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import EdgeType, Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.types import edges_of
from graphbraid.loader.options import LoaderOptions
from graphbraid.sampling.batch_seeds import NO_TIME, EdgeTimes, sorted_by_time
from graphbraid.sampling.source import BatchSource

_MOST_EXACT = 1 << 53  # integers up to here are float64 numbers
_MANTISSA = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Times:
    """The times of a graph's nodes or edges, as integers of the same order.

    Edges of relations without times are early enough for every seed.
    """

    source: BatchSource
    """The loader's source, the in-edges of each node and relation sorted by time."""
    edge_times: EdgeTimes
    """Times of the edges of this graph; if nodes have times, an edge has the time of its source."""
    node_time: Mapping[str, Tensor]
    """``(num_nodes,)`` int64 times by node type; empty where edges have times."""
    is_float: bool

    def of_nodes(self, node_type: str, nodes: Tensor) -> Tensor:
        """Return the times of nodes of a type; ConfigError if they have none."""
        if node_type not in self.node_time:
            raise ConfigError(
                f"input_time must be given: time_attr names no times of nodes of type {node_type!r}"
            )
        return self.node_time[node_type][nodes]

    def ordered(self, values: Tensor, name: str) -> Tensor:
        """Return a user's times as integers that compare with those of the edges, or raise ConfigError."""
        if values.is_floating_point() and not self.is_float:
            whole = values.double()
            if not bool((whole == whole.floor()).all()) or bool((whole.abs() > _MOST_EXACT).any()):
                raise ConfigError(
                    f"{name} must be whole numbers, as the times in the data are; got {values.dtype} with "
                    "fractions, or beyond 2**53"
                )
            values = whole.long()
        found = _as_integers(values, name, is_float=self.is_float)
        edges, untimed = self.edge_times.time, self.edge_times.untimed
        first = int(edges.min()) if edges.numel() else NO_TIME
        is_known = edges.numel() and not (untimed and first == NO_TIME)
        if found.numel() and is_known and int(found.max()) < first:
            raise ConfigError(
                f"every time of {name} is earlier than every edge, so that no neighbour could be drawn; are "
                "both in the same unit?"
            )
        return found


def read_times(source: BatchSource, options: LoaderOptions, data: Any) -> Times | None:
    """Return the times that the options of a loader name; None if they name none.

    As in PyG, some node types have times, which their out-edges take over, or some relations do.

    Raises:
        ConfigError: options about times exclude each other, or the data has no such attribute, or both nodes
            and edges have it.
        DataError: there is not one finite time per node or edge of a type.
    """
    name = options.time_attr
    if name is None:
        return None
    if options.topology is not None:
        raise ConfigError("time_attr needs adjacency lists sorted by time: leave out topology=")
    if isinstance(data, Graph) and not data.is_typed:
        raise ConfigError(
            f"time_attr={name!r} names an attribute of a PyG Data, and a Graph has none: make the loader "
            "over the Data"
        )
    node_attrs, edge_attrs = source.node_attrs, source.edge_attrs
    if source.graph.is_typed:  # whose own attributes may be times
        node_attrs = {one: source.tables[one] for one in source.graph.node_types}
        edge_attrs = {one: source.tables[one] for one in source.graph.edge_types}
    nodes = {one: attrs[name] for one, attrs in node_attrs.items() if name in attrs}
    edges = {one: attrs[name] for one, attrs in edge_attrs.items() if attrs.get(name) is not None}
    if source.graph.is_typed and source.template is not None:
        # Times of another length would be taken for an attribute of the whole type.
        for key in (*(node_attrs.keys() - nodes), *(edge_attrs.keys() - edges)):
            if (values := source.template[key].get(name)) is not None:
                what = "node" if isinstance(key, str) else "edge"
                raise DataError(f"{name} of {key!r} must have a time for each {what}; got {shown(values)}")
    if nodes and edges:
        raise ConfigError(
            f"time_attr={name!r} names times of nodes ({', '.join(nodes)}) and of edges "
            f"({', '.join('__'.join(one) for one in edges)}); rename one of them"
        )
    if not nodes and not edges:
        raise ConfigError(
            f"time_attr={name!r} is neither an attribute of the nodes nor of the edges of the data"
        )
    found = [
        checked_times(values, f"{name} of {key!r}" if source.graph.is_typed else name)
        for key, values in (nodes or edges).items()
    ]
    is_float = any(values.is_floating_point() for values in found)
    ordered = [_as_integers(values, "the times", is_float=is_float) for values in found]
    return _sorted(
        source,
        dict(zip(nodes, ordered, strict=True)) if nodes else {},
        {} if nodes else dict(zip(edges, ordered, strict=True)),
        is_float=is_float,
        last=options.temporal_strategy == "last",
    )


def seed_times(values: Any, name: str, number: int) -> Tensor | None:
    """Return the times of a loader's inputs, None without; DataError unless each has a finite one."""
    if values is None:
        return None
    try:
        times = checked_times(torch.as_tensor(values).detach().cpu(), name)
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, DataError):
            raise
        raise ConfigError(f"{name} must be a tensor of times; got {shown(values)}") from error
    if times.numel() != number:
        raise DataError(f"{name} must have a time for each of the {number} inputs; got {times.numel()}")
    return times


def checked_times(values: Any, name: str) -> Tensor:
    """Return times; DataError unless they are finite numbers of one dimension."""
    if not isinstance(values, Tensor):
        raise DataError(f"{name} must be a dense tensor of times; got {type(values).__name__}")
    is_number = not values.is_complex() and values.dtype != torch.bool
    if values.ndim != 1 or not is_number:
        raise DataError(
            f"{name} must be one number each, of one dimension; got {values.dtype} of shape "
            f"{tuple(values.shape)}"
        )
    if values.is_floating_point():
        wrong = (~values.isfinite()).nonzero()
        if wrong.numel():
            first = int(wrong[0])
            raise DataError(f"{name} must be finite times; {name}[{first}] is {float(values[first])}")
    return values.detach()


def _as_integers(values: Tensor, name: str, *, is_float: bool) -> Tensor:
    """Return integers in the order of the values; for floats their bits, which have the same order.

    Raises:
        ConfigError: they are compared with floats, which cannot tell these integers apart.
    """
    if not is_float:
        return values.long().contiguous()
    if not values.is_floating_point() and bool((values.long().abs() > _MOST_EXACT).any()):
        raise ConfigError(
            f"{name} has whole numbers beyond 2**53, which the data's times as floats do not tell apart"
        )
    bits = (values.double() + 0.0).view(torch.int64)  # the sum has no negative zero
    return torch.where(bits >= 0, bits, bits ^ _MANTISSA)  # the bits of negative numbers fall: turn them


def _sorted(
    source: BatchSource,
    node_time: Mapping[str, Tensor],
    edge_time: Mapping[EdgeType, Tensor],
    *,
    is_float: bool,
    last: bool,
) -> Times:
    """Sort the in-edges of each node and relation by time; edges of equal time keep their order."""
    graph, types = source.graph, source.graph.all_types
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
    return Times(
        source=dataclasses.replace(source, graph=_with_rows(graph, rows, order)),
        edge_times=EdgeTimes(time=by_edge[order].contiguous(), last=last, untimed=frozenset(untimed)),
        node_time=node_time,
        is_float=is_float,
    )


def _with_rows(graph: Graph, rows: Csc, order: Tensor) -> Graph:
    """Return the graph with its edges in another order within each row of its types."""
    edge_id = order if graph.edge_id is None else graph.edge_id[order]
    if graph.types is None:
        edge_attr = None if graph.edge_attr is None else graph.edge_attr[order]
        return graph.replace(csc=rows, edge_id=edge_id, edge_attr=edge_attr)
    return graph.replace(
        csc=Csc(graph.csc.indptr, rows.indices, graph.num_nodes, rows.weight, trusted=True),
        types=dataclasses.replace(graph.types, rows=rows),
        edge_id=edge_id,
        trusted=True,
    )

"""Times: the times of a loader's nodes or edges, by which its graph is sorted for temporal sampling."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import check_choice, shown
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.sampling.constraints import NO_TIME, EdgeTimes
from graphbraid.sampling.source import BatchSource
from graphbraid.sampling.time_order import sorted_by_time

STRATEGIES = ("uniform", "last")
_MOST_EXACT = 1 << 53  # integers up to here are float64 numbers
_MANTISSA = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class TimeScale:
    """The times of a graph's edges, as integers of the same order."""

    edge_times: EdgeTimes
    """Times of the edges of a graph that is sorted by them; an edge is as old as its source where nodes have
    times."""
    is_float: bool
    """Whether the times are floating point numbers."""

    def ordered(self, values: Tensor, name: str) -> Tensor:
        """Return times that a user gave as integers that compare with those of the edges.

        Raises:
            ConfigError: they are earlier than every edge, or numbers of another kind that does not compare.
        """
        if values.is_floating_point() and not self.is_float:
            whole = values.double()
            if not bool((whole == whole.floor()).all()) or bool((whole.abs() > _MOST_EXACT).any()):
                raise ConfigError(
                    f"{name} must be whole numbers, as the times in the data are; got {values.dtype} with "
                    "fractions, or beyond 2**53"
                )
            values = whole.long()
        found = ordered_times(values, name, is_float=self.is_float)
        edges, untimed = self.edge_times.time, self.edge_times.untimed
        first = int(edges.min()) if edges.numel() else NO_TIME
        is_known = edges.numel() and not (untimed and first == NO_TIME)
        if found.numel() and is_known and int(found.max()) < first:
            raise ConfigError(
                f"every time of {name} is earlier than every edge, so that no neighbour could be drawn; are "
                "both in the same unit?"
            )
        return found


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Times(TimeScale):
    """The times of a graph's nodes or edges."""

    source: BatchSource
    """The loader's source, its graph's rows sorted by time."""
    node_time: Tensor | None
    """``(num_nodes,)`` int64; None where edges have times."""

    def of_nodes(self, nodes: Tensor) -> Tensor:
        """Return the times of nodes.

        Raises:
            ConfigError: edges have times, and nodes have none.
        """
        if self.node_time is None:
            raise ConfigError(
                "input_time must be given where time_attr names times of edges: nodes have none"
            )
        return self.node_time[nodes]


def read_times(source: BatchSource, given: dict[str, Any]) -> Times | None:
    """Return the times that the options of a loader name; None if they name none.

    Raises:
        ConfigError: options about times exclude each other, or the data has no such attribute.
        DataError: there is not one finite time per node or edge.
    """
    strategy, name = strategy_of(given), named_time(given)
    if name is None:
        return None
    if given["topology"] is not None:
        raise ConfigError("time_attr needs adjacency lists sorted by time: leave out topology=")
    if isinstance(given["data"], Graph):
        raise ConfigError(
            f"time_attr={name!r} names an attribute of a PyG Data, and a Graph has none: make the loader "
            "over the Data"
        )
    by_node = source.node_attrs.get(name)
    values = source.edge_attrs.get(name) if by_node is None else by_node
    if values is None:
        raise ConfigError(
            f"time_attr={name!r} is neither an attribute of the nodes nor of the edges of the data"
        )
    is_of_nodes = by_node is not None
    return _sorted(source, checked_times(values, name), is_of_nodes=is_of_nodes, last=strategy == "last")


def strategy_of(given: dict[str, Any]) -> str:
    """Return the ``temporal_strategy`` among a loader's options.

    Raises:
        ConfigError: there is no such strategy.
    """
    asked = given["temporal_strategy"]
    asked = getattr(asked, "value", asked)  # PyG's enumerations
    strategy: str = "uniform" if asked is None else asked
    check_choice(strategy, "temporal_strategy", STRATEGIES)
    return strategy


def named_time(given: dict[str, Any]) -> str | None:
    """Return the ``time_attr`` among a loader's options; None if there is none.

    Raises:
        ConfigError: it is no name, or seeds have times, and nothing else has.
    """
    name: str | None = given["time_attr"]
    if name is not None and not isinstance(name, str):
        raise ConfigError(f"time_attr must be the name of an attribute; got {shown(name)}")
    if name is None and given.get("input_time") is not None:
        raise ConfigError("input_time needs time_attr, the name of the times of nodes or edges")
    return name


def seed_times(values: Any, name: str, number: int) -> Tensor | None:
    """Return the times of a loader's inputs as a tensor after checking them; None if there are none.

    Raises:
        DataError: there is not one finite time per input.
    """
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


def checked_times(values: Tensor, name: str) -> Tensor:
    """Return times after checking them.

    Raises:
        DataError: they are not finite numbers of one dimension.
    """
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


def ordered_times(values: Tensor, name: str, *, is_float: bool) -> Tensor:
    """Return integers in the order of the values.

    Raises:
        ConfigError: they are integers that floats do not tell apart, and are to compare with floats.
    """
    if not is_float:
        return values.long().contiguous()
    if not values.is_floating_point() and bool((values.long().abs() > _MOST_EXACT).any()):
        raise ConfigError(
            f"{name} has whole numbers beyond 2**53, which the data's times as floats do not tell apart"
        )
    bits = (values.double() + 0.0).view(torch.int64)  # the sum has no negative zero
    return torch.where(bits >= 0, bits, bits ^ _MANTISSA)


def _sorted(source: BatchSource, values: Tensor, *, is_of_nodes: bool, last: bool) -> Times:
    """Sort the in-edges of each node by time, equal ones as they stand."""
    graph, csc = source.graph, source.graph.csc
    is_float = values.is_floating_point()
    ordered = ordered_times(values, "the times", is_float=is_float)
    by_edge = (
        ordered[csc.indices.long()] if is_of_nodes else ordered[source.edge_ids(torch.arange(csc.num_edges))]
    )
    sorted_csc, order = sorted_by_time(csc, by_edge)
    edge_id = order if graph.edge_id is None else graph.edge_id[order]
    edge_attr = None if graph.edge_attr is None else graph.edge_attr[order]
    return Times(
        source=dataclasses.replace(
            source, graph=graph.replace(csc=sorted_csc, edge_id=edge_id, edge_attr=edge_attr)
        ),
        edge_times=EdgeTimes(time=by_edge[order].contiguous(), last=last),
        node_time=ordered if is_of_nodes else None,
        is_float=is_float,
    )

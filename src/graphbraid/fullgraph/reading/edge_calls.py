"""Values that models compute of the edges alone: self-loops, degrees, coefficients such as a GCN's.

Calls that read nothing but the edges are kept apart from the others of a trace. Those that messages need are
made once for each graph or batch.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map

from graphbraid.fullgraph.program import ComputedEdges, FromCall, FromGraph, NotLoweredError, WrittenCall
from graphbraid.fullgraph.program.graph_break import DEVICE, DTYPE, EDGE_LIST, EDGE_WEIGHT, NUM_NODES
from graphbraid.fullgraph.reading.break_trial import plain
from graphbraid.fullgraph.reading.matrices import MatrixKind
from graphbraid.fullgraph.reading.reader import NumRows
from graphbraid.fullgraph.reading.trace_context import generators, put_back, writes


class EdgeCalls:
    """The calls of a trace that read nothing but edges, edge weights, the number of nodes, and constants.

    Args:
        matrix: the kind of sparse matrix that the edges are; None for a list.
    """

    def __init__(self, matrix: MatrixKind | None = None) -> None:
        self._matrix = matrix
        self._calls: dict[fx.Node, list[fx.Node]] = {}
        """The calls in their order, each with those that it reads, directly or not."""
        self._of_rows: dict[fx.Node, str] = {}
        """Reads of node rows that have one result for all rows: their number, dtype and device."""
        self._made: list[ComputedEdges] = []

    def __contains__(self, node: object) -> bool:
        return node in self._calls

    def takes(
        self,
        node: fx.Node,
        rows: Mapping[fx.Node, Any],
        others: Mapping[fx.Node, Any],
        of_shapes: Collection[fx.Node] = (),
    ) -> bool:
        """Return whether a call reads edges alone, and take it if so.

        ``others`` has results of readers that are no values. ``of_shapes`` has calls that are taken if they
        read the number of nodes alone, as ``torch.zeros`` does.
        """
        inputs = node.all_input_nodes
        if node.target is getattr and inputs and inputs[0] in rows and node.args[1] in (DTYPE, DEVICE):
            self._of_rows[node] = str(node.args[1])
            return True
        if node.op not in ("call_function", "call_method") or isinstance(node.target, type):
            return False
        # Weights beside a matrix stand in another order than its entries.
        targets = (EDGE_LIST, EDGE_WEIGHT) if self._matrix is None else (EDGE_LIST,)
        of_graph = {one for one in inputs if one.op == "placeholder" and one.target in targets}
        own = [one for one in inputs if one in self._calls or one in of_graph]
        for one in inputs:
            if isinstance(others.get(one), NumRows):
                self._of_rows[one] = NUM_NODES
        if not (own or node in of_shapes) or any(
            one not in own and one not in self._of_rows for one in inputs
        ):
            return False
        before = {earlier: None for one in own if one in self._calls for earlier in (*self._calls[one], one)}
        self._calls[node] = list(before)
        return True

    def are_written_over(self, node: fx.Node) -> bool:
        """Return whether a result that another call reads of these is written over by any of them."""
        read = [one for one in node.all_input_nodes if one in self._calls]
        needed = self._needed(read)
        return any(writes(one) for one in needed)

    def _needed(self, wanted: Iterable[fx.Node]) -> set[fx.Node]:
        """Return calls with all that they read, and those that write over any of these."""
        found: set[fx.Node] = set()
        for one in wanted:
            found |= {one, *self._calls[one]}
        while True:
            more = {
                one
                for one, before in self._calls.items()
                if one not in found and writes(one) and not found.isdisjoint(before)
            }
            if not more:
                return found
            for one in more:
                found |= {one, *self._calls[one]}

    def computed(
        self, name: str, edges: fx.Node, values: Sequence[fx.Node]
    ) -> tuple[ComputedEdges, list[tuple[int, ...]]]:
        """Return edges that a model computes, and the shape of a row of each value.

        ``edges`` are a call or the graph's own. ``values`` are calls, or the edge weights, with a row for
        each edge.

        Raises:
            NotLoweredError: on a small graph they fail, or are not some of the graph's edges and self-loops.
        """
        needed = self._needed(one for one in (edges, *values) if one in self._calls)
        order = [one for one in self._calls if one in needed]
        place = {one: number for number, one in enumerate(order)}

        def reference(one: fx.Node) -> Any:
            if one in place:
                return FromCall(place[one])
            return FromGraph(self._of_rows.get(one, "") or str(one.target))

        calls = tuple(
            WrittenCall(
                target=one.target,
                args=plain(fx.node.map_arg(one.args, reference)),
                kwargs=plain(fx.node.map_arg(dict(one.kwargs), reference)),
                name=getattr(one.target, "__name__", str(one.target)),
            )
            for one in order
        )
        made = ComputedEdges(
            calls=calls,
            edges=reference(edges),
            values=tuple(reference(one) for one in values),
            matrix=self._matrix,
        )
        return next((one for one in self._made if one == made), made), _checked(name, made)


def _checked(name: str, made: ComputedEdges) -> list[tuple[int, ...]]:
    """Return the shape of a row of each value, by computing them of a small graph.

    It has repeated edges, self-loops and nodes without edges. A graph keeps its edges in the order of their
    destinations, so that calls must give each edge the same in any order. They are made on two orders,
    which differ but for edges that are repeated: add_remaining_self_loops takes the weight of the last one.
    """
    for call in made.calls:
        index = call.args[1] if call.target is operator.getitem else ()
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(one, slice) and one != slice(None) for one in parts):  # as edge_index[:, :1000]
            raise NotLoweredError(name, _BY_ORDER, "edges chosen by their ends")
    # A number among the calls may be a bound for the places of edges: there are more edges than that.
    held = [one for call in made.calls for one in call.references() if type(one) in (int, float)]
    numbers = [abs(one) for one in held if math.isfinite(one)]
    bounds = [math.ceil(one) for one in numbers if one <= MOST_COUNTED]
    counting = [one for call in made.calls if call.name in _COUNTS for one in call.references()]
    if len(bounds) < len(numbers) and any(isinstance(one, FromCall) for one in counting):
        raise NotLoweredError(name, _BY_ORDER, "edges chosen by their ends")
    draw, count = torch.Generator().manual_seed(0), 40 + 2 * max(bounds, default=0)
    ends, weight = torch.randint(1, 9, (2, count), generator=draw), torch.rand(count, generator=draw)
    if made.matrix is not None:  # PyTorch's products of two matrices may crash on repeated entries
        if max(bounds, default=0) > _MOST_OF_MATRIX:
            raise NotLoweredError(name, _BY_ORDER, "edges chosen by their ends")
        ends = torch.unique(ends, dim=1)
        weight = weight[: ends.shape[1]]
    before = generators()
    orders = [keys.argsort(stable=True) for keys in (ends[1], -ends[0])]
    results: list[list[Any]] = [[], []]
    try:
        runs = [
            made.run(ends[:, order], weight[order], 12, torch.float32, partial(_note, noted))
            for order, noted in zip(orders, results, strict=True)
        ]
        edges, values = runs[0]
        found = set(map(tuple, edges.t().tolist()))
    except Exception as error:  # whatever the user's code may raise
        raise NotLoweredError(name, f"edges that it computes cannot be computed once ({error})") from error
    finally:
        drew = put_back(before)
    if drew:
        raise NotLoweredError(
            name, "it draws random numbers for edges", "the graph's own edges", code="draws"
        )
    own = set(map(tuple, ends.t().tolist()))
    if edges.ndim != 2 or len(edges) != 2 or not found <= own | {(node, node) for node in range(12)}:
        raise NotLoweredError(
            name, "it computes other edges than the graph's and self-loops", "the graph's own edges"
        )
    if not all(
        isinstance(value, Tensor) and value.shape[:1] == edges.shape[1:] and value.is_floating_point()
        for value in values
    ):
        raise NotLoweredError(name, "it reads a value without rows for the edges", "a row for each edge")
    if not _same_edges(*runs) or (made.matrix is None and _reads_places(made.calls, orders, runs, results)):
        raise NotLoweredError(name, _BY_ORDER, "edges chosen, and numbers computed, by their ends")
    return [tuple(value.shape[1:]) for value in values]


MOST_COUNTED = 1 << 18
"""Largest number among calls that may be a number of edges in a trial."""
_MOST_OF_MATRIX = 16
"""The same where the edges are a matrix, whose trial has few."""
_COUNTS = {"arange", "linspace", "cumsum"}
"""Calls by which a value may depend on the place of an edge among more edges than a trial has."""
_BY_ORDER = "its values of the edges depend on the edges' order or places"


def _note(noted: list[Any], result: Any) -> None:
    noted.append(tree_map(lambda one: one.clone() if isinstance(one, Tensor) else one, result))


_SHAPES = {"view", "reshape", "unsqueeze", "squeeze", "flatten", "long", "to", "contiguous", "clone", "size"}
_SHAPES |= {"getattr", "numel", "dim", "len", "unbind", "getitem", "detach", "type", "double", "float"}
_SHAPES |= {"zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full"}
"""Calls that compute nothing with the numbers that they get; parts of these are looked at by themselves."""
_INDEXED = {"getitem": 1, "index_select": 2, "take": 1, "setitem": 1}
"""Calls that take rows by their number, and where they get it: an order by which all is put may be any."""


def _reads_places(
    calls: Sequence[WrittenCall],
    orders: Sequence[Tensor],
    runs: Sequence[tuple[Tensor, tuple[Tensor, ...]]],
    results: Sequence[Sequence[Any]],
) -> bool:
    """Return whether a call computes with values that do not move with their edges, as places of edges do.

    What it gives may be alike on a small graph, and differ on a large one: ``torch.arange(E) / 9 > 1000``.
    """
    known = [[order.argsort() for order in orders]]  # by an order of edges, each edge's own row
    known += [
        [(ends[0] * 12 + ends[1]).argsort(stable=True) for ends in pair]
        for pair in ([ends for ends, _ in runs], *zip(*results, strict=True))
        if all(isinstance(one, Tensor) and one.ndim == 2 and len(one) == 2 for one in pair)
    ]

    def moves(one: Any, other: Any) -> bool:
        if isinstance(one, tuple | list) and isinstance(other, tuple | list):
            return all(map(moves, one, other))
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            return True
        if one.shape != other.shape or one.ndim == 0 or len(one) == 12:
            return _alike(one, other)
        at = int(one.ndim == 2 and len(one) == 2)  # of a list of edges, or of a row for each
        one, other = one.movedim(at, 0), other.movedim(at, 0)
        rows = [by for by in known if len(by[0]) == len(one)]
        if not rows:
            return _alike(*(part.reshape(-1).sort()[0] for part in (one, other)))
        return any(_alike(one[first], other[second]) for first, second in rows)

    fixed = {number for number, pair in enumerate(zip(*results, strict=True)) if not moves(*pair)}
    for call in calls:
        at = _INDEXED.get(call.name, len(call.args))
        given = {key: one for key, one in call.kwargs.items() if key != "index"}
        read = replace(call, args=(*call.args[:at], *call.args[at + 1 :]), kwargs=given).references()
        if call.name not in _SHAPES and any(
            isinstance(one, FromCall) and one.number in fixed for one in read
        ):
            return True
    return False


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one.double(), other.double(), equal_nan=True)


def _same_edges(*runs: tuple[Tensor, tuple[Tensor, ...]]) -> bool:
    """Return whether edges with their values are the same in any order; repeated edges must keep theirs."""
    (edges, values), (others, their_values) = (
        (ends[:, order], [value[order] for value in of_edges])
        for ends, of_edges in runs
        for order in [(ends[0] * 12 + ends[1]).argsort(stable=True)]
    )
    return torch.equal(edges, others) and all(
        torch.allclose(value, other, equal_nan=True)
        for value, other in zip(values, their_values, strict=True)
    )

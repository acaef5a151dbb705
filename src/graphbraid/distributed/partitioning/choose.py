"""partition(): divides a graph by the strategy that was named, or by the first of several that succeeds.

METIS, by pymetis, is one of these; parts that it leaves too heavy are repaired here, at the cost of
few cut edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import as_size
from graphbraid.distributed.partitioning import simple
from graphbraid.distributed.partitioning.records import (
    TOLERANCE,
    Attempt,
    Balance,
    Partition,
    PartitionOptions,
    Strategy,
    imbalance,
    node_loads,
    part_loads,
)
from graphbraid.distributed.partitioning.simple import components, pack, pack_components, spread
from graphbraid.distributed.partitioning.streaming import cut_edges, is_hub, place, relieve, stream
from graphbraid.errors import DataError, GraphbraidError, MissingPackageError, ResourceError
from graphbraid.files.progress import stage
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph, edges
from graphbraid.graph.csc import Csc, indptr_of, ranges
from graphbraid.graph.identity import topology_mark
from graphbraid.machine.hardware import free_memory_bytes
from graphbraid.signatures import typed

INSTALL = 'pip install "graphbraid[metis]"'
EDGE_BYTES = 112
"""Bytes at the peak, per edge of the symmetric graph in each direction: that graph, its copy in METIS's
64-bit ids and the coarser graphs. Of 1.2 million random edges it is 109."""
_BESIDE_BYTES = 32 << 20
"""Kept free beside the edges: the library itself, and heaps of threads. A container kills what takes more."""


class RefusedError(GraphbraidError):
    """METIS gives no partition of this graph; the message says why."""


def symmetric(csc: Csc) -> Csc:
    """Return the graph that METIS cuts: each edge in both directions, and no self-loops.

    Its weights are numbers of edges of the graph, None if all are alike; that of its cut is the number cut.
    """
    counted = Csc(csc.indptr, csc.indices, csc.num_src, torch.ones(csc.num_edges), trusted=True)
    both = edges.symmetrize(counted, weights="sum", keep_edge_id=False).csc
    both = edges.remove_self_loops(both, keep_edge_id=False).csc
    weight = both.weight
    assert weight is not None
    if weight.numel() and bool((weight == weight[0]).all()):
        return Csc(both.indptr, both.indices, both.num_src, trusted=True)
    return both


def refusal(csc: Csc, num_parts: int) -> str:
    """Return why METIS cannot be asked for a partition, or an empty text if it can."""
    if load_pymetis() is None:
        return f"pymetis is not installed: {INSTALL}"
    if num_parts > csc.num_dst:
        return f"there are more parts ({num_parts}) than nodes ({csc.num_dst})"
    if csc.num_edges == 0:
        return "the graph has no edges"
    free, needed = free_memory_bytes(), 2 * EDGE_BYTES * csc.num_edges + _BESIDE_BYTES
    if free is not None and needed > free:
        return f"METIS takes up to {format_bytes(needed)} of memory; {format_bytes(free)} are free"
    return ""


def metis(
    csc: Csc,
    loads: Tensor,
    num_parts: int,
    *,
    tolerance: float,
    recursive: bool,
    limit: int,
    seed: int,
) -> Tensor:
    """Return METIS's int32 parts of a symmetric graph with an edge, repaired where above ``limit``.

    METIS ends well even where a part is heavier than its tolerance: nodes of such parts then move to the part
    of most of their neighbours that has room (:func:`repaired`). RefusedError: METIS failed, left a part
    empty, or a part is too heavy even when repaired.
    """
    part_of = asked_metis(csc, loads, num_parts, tolerance=tolerance, recursive=recursive, seed=seed)
    sums = part_loads(part_of, loads, num_parts)
    before = imbalance(sums)
    if int(sums.max()) > limit:
        part_of, sums = repaired(csc, part_of, loads, sums, limit)
    if int(sums.max()) > limit:
        raise RefusedError(
            f"its heaviest part has {before:.2f} times the mean load, repaired {imbalance(sums):.2f}"
        )
    empty = int((torch.bincount(part_of, minlength=num_parts) == 0).sum())
    if empty:
        raise RefusedError(f"it leaves {empty} of {num_parts} parts empty")
    return part_of


def asked_metis(
    csc: Csc, loads: Tensor, num_parts: int, *, tolerance: float, recursive: bool, seed: int
) -> Tensor:
    """Return METIS's own ``(num_nodes,)`` int32 parts, whatever their balance; RefusedError if it failed."""
    pymetis = load_pymetis()
    assert pymetis is not None
    dtype = torch.int64 if pymetis.zero_copy_dtype().itemsize == 8 else torch.int32

    def array(values: Tensor) -> Any:
        return values.to(dtype).numpy()

    # METIS's ufactor: thousandths above 1. Heavy edges are matched first by default (SHEM).
    options = pymetis.Options(ufactor=round(1000 * (tolerance - 1)), seed=seed)
    adjacency = pymetis.CSRAdjacency(array(csc.indptr), array(csc.indices))
    weight = None if csc.weight is None else array(csc.weight)
    try:
        found = pymetis.part_graph(
            num_parts,
            adjacency,
            vweights=array(loads),
            eweights=weight,
            recursive=recursive,
            options=options,
        )
    except (RuntimeError, MemoryError) as error:
        raise RefusedError(f"METIS failed: {error}") from error
    return torch.as_tensor(found.vertex_part, dtype=torch.int32)


def load_pymetis() -> Any | None:
    """Return the pymetis module; None if it is not installed."""
    try:
        import pymetis
    except ImportError:
        return None
    return pymetis


PASSES = 8
"""Most passes over the nodes of parts that are too heavy."""

_Rows = tuple[Tensor, Tensor, Tensor | None]


def repaired(csc: Csc, part_of: Tensor, loads: Tensor, sums: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Move nodes of the parts above the limit, those with the least weight of neighbours in their part first.

    Each goes to the part with room that holds most of its neighbours. Once its part is below the limit, a
    node only moves where it has more neighbours. A part that is too heavy by its hubs alone gives one of them
    to another, which makes room for it in the next pass. Returns the new parts and their int64 loads, some of
    which may still be above the limit.
    """
    part_of, sums = part_of.clone(), sums.clone()
    hubs = is_hub(loads, int(sums.sum()), sums.numel(), limit).nonzero().squeeze(1)
    for _ in range(PASSES):
        nodes = (sums > limit)[part_of].nonzero().squeeze(1)
        if not nodes.numel():
            break
        nodes = nodes[_inside(_rows(csc, nodes), part_of[nodes], part_of).argsort(stable=True)]
        place(nodes, _rows(csc, nodes), loads[nodes], part_of, sums, most=limit, price=0.0)
        relieve(part_of, sums, hubs, loads[hubs], limit)
    return part_of, sums


def _rows(csc: Csc, nodes: Tensor) -> _Rows:
    counts = csc.degrees()[nodes]
    at = ranges(csc.indptr[nodes], counts)
    return indptr_of(counts), csc.indices[at], None if csc.weight is None else csc.weight[at]


def _inside(rows: _Rows, own: Tensor, part_of: Tensor) -> Tensor:
    """Return the weight of each row's neighbours that are in the row's own part."""
    indptr, indices, weight = rows
    row = torch.arange(own.numel()).repeat_interleave(indptr.diff())
    is_inside = (part_of[indices.long()] == own[row]).float()
    return torch.zeros(own.numel()).index_add_(0, row, is_inside if weight is None else is_inside * weight)


RELAXED = 1.20
"""Largest load of a part by the least that is possible that is put up with."""
PEAK_BYTES = {"components": (24, 40), "greedy": (0, 40), "contiguous": (0, 40), "random": (0, 32)}
"""Memory beside the graph, in bytes by edge and by node, rounded up from peaks of 4 to 16 edges a node."""


@typed
def partition(
    graph: Graph | Csc,
    num_parts: int,
    *,
    strategy: Strategy = "auto",
    balance: Balance = "edges",
    tolerance: float = TOLERANCE,
    memory: int | str | None = None,
    seed: int = 0,
) -> Partition:
    """Divide the nodes of a graph among parts: few edges between parts, loads about equal.

    ``auto`` is Morphling's Algorithm 4, "hierarchical constraint relaxation": METIS k-way within
    ``tolerance``; METIS by recursive bisection within 1.20; whole connected components, those of the largest
    load first, into the lightest part; nodes by load in the same way. A phase fails where METIS refuses the
    graph, leaves a part empty or too heavy, or where a component weighs more than a part may. Departs from
    it: METIS's result is repaired, then checked (METIS itself reports success whatever the balance);
    components are packed by load, not by number of nodes, and have to be balanced within 1.20 as well; a
    graph that is too large for METIS in memory is streamed. Limits count from the largest part that packing
    single nodes reaches: a hub may weigh more than the mean of the parts.

    Args:
        graph: The graph; its directions do not matter to the cut.
        num_parts: Number of parts, in ``[1, 65536]``. May exceed the number of nodes: some are empty then.
        strategy: ``"metis"``, ``"components"``, ``"greedy"``, ``"contiguous"`` (ranges of nodes, by binary
            search), ``"streaming"`` (bounded memory), ``"random"``, or ``"auto"``.
        balance: What is made equal: ``"edges"``, the in-edges of a part's nodes; ``"nodes"``; or ``"work"``,
            edges and four times nodes.
        tolerance: Largest load of a part by the least possible, for METIS and streaming; more than 1.
        memory: Of streaming: bytes, or a size such as ``"1GiB"``, beside the graph. None takes what the
            nodes' parts and blocks of 64 MiB need, with smaller blocks where less is free.
        seed: Of METIS's and of random partitions. The same seed gives the same partition.

    Returns:
        The partition, with the considered methods.

    Raises:
        ConfigError: An option is not one of these, or out of its bounds.
        MissingPackageError: ``"metis"`` was asked for, and pymetis is not installed.
        DataError: ``"metis"`` was asked for and gives no partition; the graph is not square.
        ResourceError: ``memory`` is too small, or the strategy takes more memory than is free.
    """
    if isinstance(graph, Graph):
        graph.check_whole("a partition")
    csc = graph.csc if isinstance(graph, Graph) else graph
    if csc.num_src != csc.num_dst:
        raise DataError(
            f"a graph to divide has as many sources as destinations; got {csc.num_src} and {csc.num_dst}"
        )
    options = PartitionOptions(
        num_parts=num_parts,
        strategy=strategy,
        balance=balance,
        tolerance=tolerance,
        memory=memory,
        seed=seed,
    )
    return _Division(csc, options).by(options.strategy)


class _Division:
    """One call of :func:`partition`."""

    def __init__(self, csc: Csc, options: PartitionOptions) -> None:
        self.csc, self.num_parts, self.balance = csc, options.num_parts, options.balance
        self.tolerance, self.seed = options.tolerance, options.seed
        self.memory = None if options.memory is None else as_size(options.memory, "memory")
        self.attempts: list[Attempt] = []

    def by(self, strategy: Strategy) -> Partition:
        if self.num_parts == 1:
            return self._taken("one part", torch.zeros(self.csc.num_dst, dtype=torch.int32))
        divide: Callable[[], Partition] = {
            "auto": self._first_that_succeeds,
            "metis": self._only_metis,
            "streaming": self._streamed,
        }.get(strategy, lambda: self._taken(strategy, self._simply(strategy)))
        with stage(f"dividing the nodes, strategy {strategy}"):
            return divide()

    def _simply(self, strategy: Strategy) -> Tensor:
        """Return the parts by a strategy that cannot fail; ResourceError if memory is short."""
        if why := self._too_much(strategy):
            raise ResourceError(
                f"dividing {self.csc.num_dst:,} nodes by {strategy!r} {why}. Take strategy='streaming', "
                "whose memory is bounded"
            )
        if strategy == "random":
            return simple.at_random(self.csc.num_dst, self.num_parts, self.seed)
        loads = node_loads(self.csc, self.balance)
        if strategy == "contiguous":
            return simple.contiguous(loads, self.num_parts)
        if strategy == "greedy":
            return pack(loads, self.num_parts)
        count, component_of = components(self.csc)
        return pack_components(component_of, count, loads, self.num_parts)

    def _only_metis(self) -> Partition:
        reason = refusal(self.csc, self.num_parts)
        if INSTALL in reason:
            raise MissingPackageError(reason)
        loads = node_loads(self.csc, self.balance)
        least = self._heaviest(pack(loads, self.num_parts), loads)
        found = None if reason else self._metis(loads, least)
        if found is None:
            reason = reason or "; ".join(f"{a.strategy}: {a.outcome}" for a in self.attempts)
            raise DataError(
                f"METIS gives no partition into {self.num_parts} parts ({reason}); take strategy='auto'"
            )
        return found

    def _first_that_succeeds(self) -> Partition:
        """Algorithm 4."""
        if why := self._too_much("greedy"):
            self._failed("greedy", why)
            return self._streamed()
        loads = node_loads(self.csc, self.balance)
        packed = pack(loads, self.num_parts)
        least = self._heaviest(packed, loads)
        reason = refusal(self.csc, self.num_parts)
        if reason:
            self._failed("metis", reason)
            if "of memory" in reason:
                return self._streamed()
        elif found := self._metis(loads, least):
            return found
        if found := self._components(loads, least):
            return found
        return self._taken("greedy", packed)

    def _metis(self, loads: Tensor, least: int) -> Partition | None:
        both = symmetric(self.csc)
        for name, tolerance, recursive in (
            ("metis k-way", self.tolerance, False),
            ("metis recursive bisection", max(self.tolerance, RELAXED), True),
        ):
            try:
                found = metis(
                    both,
                    loads,
                    self.num_parts,
                    tolerance=tolerance,
                    recursive=recursive,
                    limit=math.floor(tolerance * least),
                    seed=self.seed,
                )
            except RefusedError as error:
                self._failed(name, str(error))
            else:
                idle = (both.degrees() == 0) & (loads == 0)
                spread(found, idle.nonzero().squeeze(1), self.num_parts)
                return self._taken(name, found)
        return None

    def _components(self, loads: Tensor, least: int) -> Partition | None:
        if why := self._too_much("components"):
            self._failed("components", why)
            return None
        count, component_of = components(self.csc)
        if count < 2:
            self._failed("components", "the graph is connected")
            return None
        found = pack_components(component_of, count, loads, self.num_parts)
        heaviest = self._heaviest(found, loads)
        if heaviest > RELAXED * least:
            self._failed(
                "components",
                f"{count:,} whole ones make a part {heaviest / max(least, 1):.2f} times as heavy as need be",
            )
            return None
        return self._taken("components", found)

    def _streamed(self) -> Partition:
        memory = free_memory_bytes() if self.memory is None else self.memory
        found = stream(self.csc, self.num_parts, self.balance, tolerance=self.tolerance, memory=memory)
        return self._taken(
            "streaming", found.part_of, cut=found.cut, sums=found.loads, how=f" after {found.passes} passes"
        )

    def _too_much(self, strategy: str) -> str:
        """Return why a strategy does not fit the free memory; empty if it does."""
        by_edge, by_node = PEAK_BYTES[strategy]
        needed, free = by_edge * self.csc.num_edges + by_node * self.csc.num_dst, free_memory_bytes()
        if free is None or needed <= free:
            return ""
        return f"takes up to {format_bytes(needed)} of memory; {format_bytes(free)} are free"

    def _heaviest(self, part_of: Tensor, loads: Tensor) -> int:
        return int(part_loads(part_of, loads, self.num_parts).max())

    def _failed(self, name: str, reason: str) -> None:
        self.attempts.append(Attempt(strategy=name, outcome=reason, is_taken=False))

    def _taken(
        self, name: str, part_of: Tensor, *, cut: int | None = None, sums: Tensor | None = None, how: str = ""
    ) -> Partition:
        cut = cut_edges(self.csc, part_of) if cut is None else cut
        if sums is None:
            sums = part_loads(part_of, node_loads(self.csc, self.balance), self.num_parts)
        share = cut / max(self.csc.num_edges, 1)
        outcome = (
            f"cuts {share:.2%} of the edges{how}; the heaviest part has {imbalance(sums):.3f} times the mean "
            f"{self.balance}"
        )
        self.attempts.append(Attempt(strategy=name, outcome=outcome, is_taken=True))
        return Partition(
            part_of=part_of,
            num_parts=self.num_parts,
            strategy=name,
            balance=self.balance,
            attempts=tuple(self.attempts),
            mark=topology_mark(self.csc),
            trusted=True,
        )

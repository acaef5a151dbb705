"""Locality: renumbering nodes so that rows read in succession share the cache.

Orders (:mod:`graphbraid.graph.orders`) are compared by simulating a cache over the row reads of an epoch's
aggregations, with the costs of hits and misses from this machine's measured rates. The candidates are the
graph's own order, the most read nodes first, and an order by communities; each is computed only where it
could pay for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.lowering.costs import CostModel, RowReads, in_bytes
from graphbraid.fullgraph.lowering.levels import Reach
from graphbraid.graph.csc import Csc
from graphbraid.graph.orders import community_order, degree_order, inverse_of

LEAST_GAIN = 0.1
"""Share of the aggregations' time that an order must save; less is within the error of the cache model, which
tends to promise too much."""
EPOCHS = 100
"""Number of epochs within which computing an order has to pay for itself."""
ROWS_A_FETCH = 2
"""Neighbouring rows that enter the cache together: the processor prefetches beyond the row it reads, so rows
read often are best placed next to each other."""

_COUNTING, _JOINING = 1e-8, 5e-8
"""Seconds per edge to compute and weigh the orders by degree and by communities; measured (compiled)."""
_TWIN_SLOWER = 100
_READS_SIMULATED = 1 << 20
_LEAST_SETS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighed:
    """An order of the levels' nodes, and the predicted time of an epoch's row reads in it."""

    name: str
    reached: Reach
    seconds: float
    hits: float
    """Share of the reads that hit the cache."""


def choose_order(
    program: ir.Program,
    csc: Csc,
    reached: Reach,
    costs: CostModel,
    reads: list[RowReads],
    *,
    allowed_bytes: int,
    cache_bytes: int,
) -> tuple[Reach | None, ir.Decision]:
    """Choose the order of each level's nodes in which a program's aggregations read their rows fastest.

    ``reached`` has the nodes in their present order: pruned ones, which are free to reorder, or all.
    Renumbered edges, and features in the same order, may take ``allowed_bytes``. Rows have ``cache_bytes`` of
    cache.

    Returns:
        The levels in the better order, or None if they stay as they are; and the decision with its reason.
    """
    scale = _OrderComparison(csc, reads, costs, cache_bytes)
    before = scale.weigh("", reached)
    if before.hits == 1:
        return None, _left(f"rows fit in {in_bytes(cache_bytes)} of cache in any order")
    is_pruned = min(reached.sizes) < csc.num_dst
    needed = 0 if is_pruned else added_bytes(program, csc, costs)
    if needed > allowed_bytes:
        what = f"renumbered edges would take {in_bytes(needed)} of the {in_bytes(allowed_bytes)} allowed"
        return None, _left(f"{what}; spare_bytes allows more")
    candidates = [before]
    if is_pruned:  # then the training nodes come first, in the order they were listed
        candidates.append(scale.weigh("the graph's own order", reached.ordered(None)))
    why_not = "no other order is better"
    if scale.could_pay(before, _COUNTING):
        candidates.append(scale.weigh("out-degree", reached.ordered(inverse_of(degree_order(csc)))))
    best = min(candidates, key=attrgetter("seconds"))
    if scale.could_pay(best, _JOINING):
        candidates.append(scale.weigh("communities", reached.ordered(inverse_of(community_order(csc)))))
    elif best is before:
        why_not = "another order would not pay for its making"
    best = min(candidates, key=attrgetter("seconds"))
    if before.seconds - best.seconds < LEAST_GAIN * before.seconds:
        return None, _left(f"{before.hits:.0%} of the row reads find the cache as nodes stand; {why_not}")
    cost = f", {in_bytes(needed)} for renumbered edges" if needed else ""
    return best.reached, ir.Decision(
        name="locality",
        taken=True,
        what=f"nodes stand by {best.name}{cost}: {best.hits:.0%} of the row reads find the cache",
        saves=f"{1e3 * (before.seconds - best.seconds):.3g} ms an epoch",
        instead_of=f"{before.hits:.0%} as they stood, {1e3 * before.seconds:.3g} ms",
    )


def _left(what: str) -> ir.Decision:
    return ir.Decision(name="locality", taken=False, what=what)


def added_bytes(program: ir.Program, csc: Csc, costs: CostModel) -> int:
    """Return the bytes that renumbering all nodes takes: edges, ids, and features where they are copied."""
    edges = csc.indices.nbytes + csc.indptr.nbytes + 2 * 8 * csc.num_dst
    if csc.weight is not None:  # each edge's position, and the reordered weights
        edges += 12 * csc.num_edges
    cells = csc.num_dst * costs.in_channels
    if program.is_compact(ir.INPUT):  # a form made of the features anyway; sparse rows are copied
        copied = program.input_path == "sparse" and costs.is_sparse
        return edges + (int(8 * cells * costs.density) if copied else 0)
    return edges + 4 * cells * feature_copies(program)


def feature_copies(program: ir.Program) -> int:
    """Count the copies of renumbered nodes' features; a dense product needs none, as it reads rows by id."""
    return sum(ir.INPUT in op.inputs and not isinstance(op, ir.Linear | ir.Hoisted) for op in program.ops)


def cached_share(csc: Csc, nodes: Tensor | None, capacity: int) -> float:
    """Return the share of row reads that hit a cache of ``capacity`` rows, over the in-edges of ``nodes``.

    Simulates a sample of the cache's sets over all reads; a hash assigns rows to sets.
    """
    every = max(1, min(csc.num_edges // _READS_SIMULATED, capacity // (16 * _LEAST_SETS)))
    kernels = native.kernels()
    count = cached_reads if kernels is None else kernels.cached_reads
    reads, hits = count(csc.indptr, csc.indices, nodes, capacity, every)
    return hits / reads if reads else 1.0


class _OrderComparison:
    """Compares orders by the same reads in the same cache."""

    def __init__(self, csc: Csc, reads: list[RowReads], costs: CostModel, cache_bytes: int) -> None:
        self.csc, self.reads, self.costs, self.cache_bytes = csc, reads, costs, cache_bytes

    def weigh(self, name: str, reached: Reach) -> Weighed:
        """Predict the time of an epoch's reads in an order by simulating the cache."""
        keys = {(read.level, read.row_bytes): read for read in self.reads}
        # The edges, with each source replaced by the group of rows that enters the cache with it.
        fetch = torch.zeros(self.csc.num_src, dtype=self.csc.indices.dtype)
        fetch[reached.nodes] = torch.arange(reached.nodes.numel(), dtype=fetch.dtype) // ROWS_A_FETCH
        groups = fetch.index_select(0, self.csc.indices)
        fetches = Csc(self.csc.indptr, groups, self.csc.num_src, trusted=True)
        shares = {key: self._share(fetches, reached, read) for key, read in keys.items()}
        seconds, hits = self._cost([shares[read.level, read.row_bytes] for read in self.reads])
        return Weighed(name=name, reached=reached, seconds=seconds, hits=hits)

    def could_pay(self, now: Weighed, making: float) -> bool:
        """Return whether an order that fetches each row only once would repay ``making`` seconds per edge."""
        rows, edges = self.costs.rows, self.costs.edges
        once = [
            1.0
            if self.costs.fits(read, self.cache_bytes)
            else max(0.0, 1 - rows[read.level] / max(1, edges[read.level]))
            for read in self.reads
        ]
        saved = now.seconds - self._cost(once)[0]
        slower = 1 if native.kernels() is not None else _TWIN_SLOWER
        return saved > max(LEAST_GAIN * now.seconds, making * slower * self.csc.num_edges / EPOCHS)

    def _share(self, fetches: Csc, reached: Reach, read: RowReads) -> float:
        if self.costs.fits(read, self.cache_bytes):
            return 1.0
        nodes = reached.nodes[: reached.sizes[-2 - read.level]]
        return cached_share(fetches, nodes, max(1, self.cache_bytes // (read.row_bytes * ROWS_A_FETCH)))

    def _cost(self, shares: list[float]) -> tuple[float, float]:
        """Return the seconds of all reads and the share that hits, from each operation's share."""
        rates = self.costs.rates
        seconds = hits = total = 0.0
        for read, share in zip(self.reads, shares, strict=True):
            rows = read.times * self.costs.edges[read.level]
            seconds += (
                rows * read.row_bytes * (share / rates.cached_row_bytes + (1 - share) / rates.row_bytes)
            )
            hits += rows * share
            total += rows
        return seconds, hits / total if total else 1.0


# ---- plain-Python reference of ``cached_reads`` in ``csrc/graph/locality.cpp``, with the same counts

_WAYS = 16


def cached_reads(
    indptr: Tensor, indices: Tensor, nodes: Tensor | None, capacity: int, every: int
) -> tuple[int, int]:
    """Count the reads of source rows and the hits among them in a 16-way cache with LRU replacement.

    The cache holds ``capacity`` rows; one in ``every`` sets is simulated. ``nodes`` are the ``(num_rows,)``
    int64 destination rows in the order they are aggregated; None for all.
    """
    ends, sources = indptr.tolist(), indices.tolist()
    num_sets = max(1, capacity // _WAYS)
    sets: list[list[int]] = [[] for _ in range(max(1, num_sets // every))]
    reads = hits = 0
    for v in range(len(ends) - 1) if nodes is None else nodes.tolist():
        for row in sources[ends[v] : ends[v + 1]]:
            place = ((row * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) >> 32) * num_sets >> 32
            if place >= len(sets):
                continue
            held = sets[place]
            reads += 1
            if row in held:
                hits += 1
                held.remove(row)
            held.insert(0, row)
            del held[_WAYS:]
    return reads, hits

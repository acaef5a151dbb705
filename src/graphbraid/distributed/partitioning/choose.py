"""partition(): divides a graph by the strategy that was named, or by the first of several that succeeds."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from graphbraid.arguments import as_size
from graphbraid.distributed.partitioning import simple
from graphbraid.distributed.partitioning.metis import INSTALL, RefusedError, metis, refusal, symmetric
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
from graphbraid.distributed.partitioning.streaming import cut_edges, stream
from graphbraid.errors import DataError, MissingPackageError, ResourceError
from graphbraid.files.progress import stage
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.identity import topology_mark
from graphbraid.machine.hardware import free_memory_bytes
from graphbraid.signatures import typed

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
        """Return the parts by a strategy that cannot fail.

        Raises:
            ResourceError: it takes more memory than is free.
        """
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
        graph = symmetric(self.csc)
        for name, tolerance, recursive in (
            ("metis k-way", self.tolerance, False),
            ("metis recursive bisection", max(self.tolerance, RELAXED), True),
        ):
            try:
                found = metis(
                    graph,
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
                idle = (graph.csc.degrees() == 0) & (loads == 0)
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

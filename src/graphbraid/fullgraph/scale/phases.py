"""Phases: a lowered step as what one rank computes, what it waits for and what it sends, in order."""

from __future__ import annotations

from dataclasses import dataclass

from graphbraid.fullgraph.explain.floor import Floor
from graphbraid.fullgraph.lowering.lowered import Lowered
from graphbraid.fullgraph.program import (
    INPUT,
    Aggregate,
    Attention,
    Exchange,
    Gine,
    Hoisted,
    Linear,
    Maximum,
    Operation,
    Own,
    Program,
)
from graphbraid.fullgraph.program.chains import chains_before, first_before, linear_before
from graphbraid.fullgraph.ranks.distribute import divided_program


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One operation in one direction, over the whole graph on one rank."""

    name: str
    seconds: float
    """Time of the whole of it on one rank."""
    by_edges: bool = False
    """Whether ranks divide it as they do the edges; otherwise as the rows."""
    with_halo: bool = False
    """Whether each rank also does it for the rows of its halo."""
    backward: bool = False
    travels: float = 0.0
    """Bytes a halo row of the whole graph has in the exchange before it, or after it if backward; 0: none."""
    overlaps: bool = False
    """Whether own rows are worked on while the halo's travel."""
    halo_first: bool = False
    """Whether, backward, the halo's gradients are computed first and travel, whole, while own rows' are."""
    departs: float = 0.0
    """Bytes a halo row has in an exchange that departs before it, forward; a later phase waits for that."""
    early_seconds: float = 0.0
    """Time of all operations that the rows which depart go through first, over all rows."""
    is_covered: bool = False
    """Whether, backward, it works on own rows while what the phase before it has sent travels."""
    summed_bytes: int = 0
    """Bytes of the gradients that are whole after it, whose sum over the ranks then begins."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A training step on one rank, by phases."""

    phases: tuple[Phase, ...]
    other_seconds: float
    """Time between the phases, which every rank takes in full."""
    num_nodes: int
    num_edges: int
    """Sizes of the graph that the phases are of."""
    row_bytes: float
    """Bytes that a node's row takes over all values and gradients of the step, beside its features."""

    @property
    def seconds(self) -> float:
        """Time of the step on one rank."""
        return self.other_seconds + sum(phase.seconds for phase in self.phases)


def step_of(lowered: Lowered, floor: Floor, *, wire_bytes: int = 4) -> Step:
    """Return the phases of a lowered step.

    Args:
        lowered: the program of one rank over a graph.
        floor: the floor of its step; its measured times count if there are any, else the floor itself.
        wire_bytes: bytes of a number on the wire.

    Raises:
        NotLoweredError: an operation cannot be divided among ranks; the message names it.
    """
    program = lowered.program
    travel, with_halo = _Travel(lowered, wire_bytes), divided_program(program)[1]
    is_measured = floor.step_seconds is not None
    summed = _summed_bytes(program)
    phases: list[Phase] = []
    times = {
        (entry.operation, entry.backward): entry.seconds if is_measured else entry.floor_seconds
        for entry in floor.operations
    }
    for entry in floor.operations:
        op, chain = program.producer(entry.operation), travel.chain(entry.operation)
        found = Phase(
            name=f"{entry.operation or entry.what}{' back' if entry.backward else ''}",
            seconds=entry.seconds if is_measured else entry.floor_seconds,
            by_edges=isinstance(op, _OVER_EDGES),
            with_halo=with_halo and op is not None and program.level(op.out) == 0,
            backward=entry.backward,
            travels=0.0 if op is None else travel.bytes_of(op, backward=entry.backward),
            overlaps=op is not None and travel.overlaps(op),
            halo_first=entry.backward and op is not None and travel.halo_first(op),
            departs=0.0 if entry.backward else travel.departing(entry.operation),
            early_seconds=0.0 if entry.backward else sum(times.get((out, False), 0.0) for out in chain),
            is_covered=entry.backward and travel.covers(entry.operation),
            summed_bytes=summed.get(entry.operation, 0) if entry.backward else 0,
        )
        if found.seconds or found.travels or found.summed_bytes:
            phases.append(found)
    values = sum(
        2 * 4.0 * program.width(op.out) * lowered.num_rows(program.level(op.out)) / lowered.graph.num_nodes
        for op in program.ops
        if not isinstance(op, Own)
    )
    return Step(
        phases=tuple(phases),
        other_seconds=max(0.0, floor.between_seconds) if is_measured else 0.0,
        num_nodes=lowered.graph.num_nodes,
        num_edges=lowered.graph.num_edges,
        row_bytes=values,
    )


_OVER_EDGES = (Aggregate, Attention, Gine, Maximum)


class _Travel:
    """The exchanges that a step makes before the operations that read others' rows."""

    def __init__(self, lowered: Lowered, wire_bytes: int) -> None:
        self._lowered, self._wire_bytes = lowered, wire_bytes
        divided, _ = divided_program(lowered.program)
        self._divided = divided
        self._chains = {
            head: found
            for head, found in chains_before(divided).items()
            if not _is_constant(divided, found[0].inputs[0])
        }
        self._first: dict[str, list[Exchange]] = {}
        for op in divided.ops:
            if isinstance(op, Exchange) and not _is_constant(divided, op.inputs[0]):
                self._first.setdefault(divided.consumers(op.out)[0].out, []).append(op)

    def bytes_of(self, op: Operation, *, backward: bool) -> float:
        """Return the bytes that a node in the halo has in what travels for an operation."""
        return sum(
            self._bytes_of(exchange)
            for exchange in self._first.get(op.out, ())
            if not backward or self._lowered.program.learns(exchange.inputs[0])
        )

    def _bytes_of(self, exchange: Exchange) -> float:
        program, lowered = self._lowered.program, self._lowered
        rows = lowered.num_rows(program.level(exchange.inputs[0])) / lowered.graph.num_nodes
        return float(self._wire_bytes) * program.width(exchange.inputs[0]) * rows

    def departing(self, value: str) -> float:
        """Return the bytes that a node in the halo has in the exchange that departs before an operation."""
        found = self._chains.get(value)
        return 0.0 if found is None else self._bytes_of(found[0])

    def chain(self, value: str) -> list[str]:
        """Return the operations that rows go through which depart before an operation, by their values."""
        return [op.out for op in self._chains[value][1]] if value in self._chains else []

    def covers(self, value: str) -> bool:
        """Return whether an operation's own gradients are computed while those of its value's halo travel."""
        divided, covered = self._divided, linear_before(self._divided, value) is not None
        for reader in divided.consumers(value):
            if isinstance(reader, Linear) and linear_before(divided, reader.out) is not None:
                found = first_before(divided, reader)
                return found is not None and found.out == value and self.covers(reader.out)
            if covered and isinstance(reader, Exchange) and self.overlaps(divided.consumers(reader.out)[0]):
                return True
        return False

    def overlaps(self, op: Operation) -> bool:
        """Return whether an operation sums own rows while the halo's travel."""
        exchanges = self._first.get(op.out, ())
        return isinstance(op, Aggregate) and all(
            len(self._divided.consumers(exchange.out)) == 1 for exchange in exchanges
        )

    def halo_first(self, op: Operation) -> bool:
        """Return whether a maximum or GAT computes the halo's gradients before own rows' and sends them.

        GATv2's kernel goes over all edges twice; coefficients of edges under dropout, or of other rows, wait
        for them.
        """
        divided = self._divided.producer(op.out)
        if isinstance(divided, Attention):
            scores_source = divided.own_rows or divided.inputs[-1] == divided.inputs[0]
            has_keys = not divided.reads_edges or divided.dropout == 0
            if divided.kind != "gat" or not has_keys or not scores_source:
                return False
        elif not isinstance(divided, Maximum):
            return False
        maker = self._divided.producer(divided.inputs[0])
        is_alone = isinstance(maker, Exchange) and len(self._divided.consumers(maker.out)) == 1
        return is_alone and maker is not None and self._divided.learns(maker.inputs[0])


def _is_constant(program: Program, value: str) -> bool:
    """Return whether no step changes a value, so that it travels only once."""
    op = program.producer(value)
    if isinstance(op, Own):
        return _is_constant(program, op.inputs[0])
    return value == INPUT or isinstance(op, Hoisted)


def _summed_bytes(program: Program) -> dict[str, int]:
    """Return the bytes of the gradients that are whole once each operation has gone back, by its value."""
    return {out: sum(4 * p.numel() for p in new) for out, new in program.first_uses().items()}


__all__ = ["Phase", "Step", "step_of"]

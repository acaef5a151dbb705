"""Where the halo's rows of level 0 come from: each rank computes them, or their owners send them.

Features of the halo are at hand, so that rows before the first aggregation need not travel at all. But each
of them is then computed once more on every rank that reads it, also backward. Where the link is fast and the
first layer dear, as with many features, it takes less to let the owners compute them and send them.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphbraid.fullgraph.lowering.costs import LEAST_STAKE, Facts, in_seconds
from graphbraid.fullgraph.program import (
    INPUT,
    Aggregate,
    Attention,
    Decision,
    Gine,
    Linear,
    Maximum,
    Module,
    Normalise,
    Operation,
    Own,
    Program,
)
from graphbraid.fullgraph.ranks.link import Link

NAME = "halo"
"""The pass that decides it."""
LEAST_GAIN = 1.25
"""Times that computing must take as long as sending: noise of a measured link should not decide."""
_PASSES = 4
"""Times that bytes of rows which travel are read or written: packed and unpacked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HaloSeconds:
    """Seconds of an epoch that the rows of the busiest rank's halo take at level 0."""

    computed: float
    """Where the rank computes them itself."""
    travelling: float
    """Where their owners send them, and their gradients come back."""

    @property
    def should_travel(self) -> bool:
        """Whether to let the owners send them."""
        saved = self.computed - self.travelling
        return self.computed > LEAST_GAIN * self.travelling and saved >= LEAST_STAKE

    def decision(self, values: list[str]) -> Decision:
        """Return what was decided for ``values``, as ``explain()`` prints it."""
        names = ", ".join(values)
        computed, travelling = in_seconds(self.computed), in_seconds(self.travelling)
        if self.should_travel:
            what, other = (
                f"rows of {names} that others own travel",
                f"computing them here, {computed} an epoch",
            )
        else:
            what, other = (
                f"rows of {names} that others own are computed here",
                f"sending them, {travelling} an epoch, {computed} here",
            )
        saves = f"{in_seconds(self.computed - self.travelling)} an epoch" if self.should_travel else ""
        return Decision(name=NAME, taken=self.should_travel, what=what, saves=saves, instead_of=other)


def read_along_edges(op: Operation) -> set[str]:
    """Return the values of which an operation reads the rows of a node's neighbours."""
    if not isinstance(op, Aggregate | Attention | Gine | Maximum):
        return set()
    scores = isinstance(op, Attention) and op.kind == "gat" and not op.own_rows
    return set(op.inputs) if scores else {op.inputs[0]}


def must_travel(program: Program) -> bool:
    """Return whether rows of level 0 depend on all rows of it, so that only their owners compute them."""
    return any(program.level(op.out) == 0 and _couples_rows(op) for op in program.ops)


def values_that_may_travel(program: Program) -> list[str]:
    """Return the values of level 0 that are read along edges; none if one of them is the same in every step.

    A rank computes those once, or holds them.
    """
    read = {value for op in program.ops for value in read_along_edges(op) if program.level(value) == 0}
    return sorted(read) if all(program.learns(value) for value in read) else []


def halo_seconds(program: Program, facts: Facts, link: Link, num_rows: int) -> HaloSeconds:
    """Return what the rows of a halo take at level 0, by the rates and a link.

    Args:
        program: the program of all ranks.
        facts: with the rates of a rank.
        link: the way between ranks.
        num_rows: rows that the busiest rank receives or sends, whichever are more.
    """
    widths = [program.width(value) for value in values_that_may_travel(program)]
    moved = 2 * num_rows * 4.0 * sum(widths)
    travelling = 2 * len(widths) * link.message_seconds
    travelling += moved * (link.byte_seconds + _PASSES / facts.rates.stream_bytes)
    computed = sum(
        _seconds(program, op, facts, num_rows)
        for op in program.ops
        if program.level(op.out) == 0 and not isinstance(op, Own)
    )
    return HaloSeconds(computed=computed, travelling=travelling)


def _seconds(program: Program, op: Operation, facts: Facts, num_rows: int) -> float:
    """Return the seconds that an operation takes for some rows, with its adjoints."""
    width, rates = program.width(op.out), facts.rates
    if not isinstance(op, Linear):
        return 2 * 4.0 * num_rows * 2 * width / rates.stream_bytes
    source = op.inputs[0]
    if source != INPUT:
        products = 3 if program.learns(source) else 2
        return products * rates.multiply_seconds(num_rows, program.width(source), width)
    path = program.settings.get("input_path", "dense")
    if path == "sparse":
        return 2 * rates.sparse_seconds(num_rows * facts.in_channels * facts.density, width)
    if path == "binary":
        return 2 * rates.binary_seconds(num_rows, facts.in_channels, width)
    return 2 * rates.multiply_seconds(num_rows, facts.in_channels, width)


def _couples_rows(op: Operation) -> bool:
    return isinstance(op, Normalise | Module) and op.couples_rows


__all__ = [
    "NAME",
    "HaloSeconds",
    "halo_seconds",
    "must_travel",
    "read_along_edges",
    "values_that_may_travel",
]

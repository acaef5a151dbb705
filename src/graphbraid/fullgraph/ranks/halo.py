"""The pass ``halo``: each rank computes the halo's rows of level 0, or their owners send them.

Features of the halo are at hand, so that rows before the first aggregation need not travel at all. But each
of them is then computed once more on every rank that reads it, also backward. Where the link is fast and the
first layer dear, as with many features, it takes less to let the owners compute them and send them.
"""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter

import torch

from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.lowering.costs import CostModel, Link, in_seconds
from graphbraid.fullgraph.lowering.lower_program import couples_rows
from graphbraid.machine.measurements import Kept

PROBE_BYTES = 1 << 18
_REPEATS = 5
_ALIKE = 2.0
"""Factor within which a link measured anew is the one that was measured before."""


def measured_link(comm: Communicator) -> Link:
    """Measure exchanges between all ranks, which all call this together; the slowest counts."""

    def exchange(num_bytes: int) -> float:
        others = [0 if rank == comm.rank else num_bytes for rank in range(comm.size)]
        data = torch.zeros(sum(others), dtype=torch.uint8)
        seconds = []
        for _ in range(_REPEATS):
            began = perf_counter()
            comm.all_to_all(data, others, others).wait()
            seconds.append(perf_counter() - began)
        return float(max(comm.gather(median(seconds))))

    empty, full = exchange(1), exchange(PROBE_BYTES)
    num_bytes = PROBE_BYTES * max(1, comm.size - 1)
    return Link(message_seconds=empty, byte_seconds=max(full - empty, 1e-9) / num_bytes)


def steady_link(comm: Communicator) -> Link:
    """Measure the link between all ranks, which all call this together, as :func:`measured_link` does.

    Rank 0 keeps the first measurement. Later ones that are like it return it, so that each run makes the same
    choices and gets the same bits.
    """
    link = measured_link(comm)
    machines = comm.gather(platform.node())  # also after a restart, unlike machine_name()
    if comm.rank == 0:
        file = _KEPT.file(f"{comm.name} {machines}")
        kept = _KEPT.read(file)
        if kept is not None and _are_alike(kept, link):
            link = kept
        else:
            _KEPT.keep(file, link, "the measured link between the ranks")
    return Link(**comm.share(asdict(link)))


def _are_alike(one: Link, other: Link) -> bool:
    """Return whether two measurements may be of the same link."""
    pairs = zip(asdict(one).values(), asdict(other).values(), strict=True)
    return all(max(pair) <= _ALIKE * min(pair) for pair in pairs)


_KEPT = Kept("links", asdict, Link.from_json)
"""Links by transport and machines."""


NAME = "halo"
"""The pass that decides it."""
LEAST_GAIN = 1.25
"""Times that computing must take as long as sending: noise of a measured link should not decide."""
LEAST_STAKE = 20e-6
"""Seconds of an epoch that sending must save, for the same reason."""
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

    def decision(self, values: list[str]) -> ir.Decision:
        """Return the decision for ``values``, as ``explain()`` prints it."""
        computed, travelling = in_seconds(self.computed), in_seconds(self.travelling)
        what, saves = f"rows of {', '.join(values)} that others own are computed here", ""
        other = f"sending them, {travelling} an epoch, {computed} here"
        if self.should_travel:
            what = f"rows of {', '.join(values)} that others own travel"
            saves = f"{in_seconds(self.computed - self.travelling)} an epoch"
            other = f"computing them here, {computed} an epoch"
        return ir.Decision(name=NAME, taken=self.should_travel, what=what, saves=saves, instead_of=other)


def read_along_edges(program: ir.Program, op: ir.Operation) -> set[str]:
    """Return the values whose rows an operation of a program reads along edges."""
    if isinstance(op, ir.Messages):  # also a destination's, where its rows are the first of the sources'
        return {value for value in op.inputs if program.level(value) < program.level(op.out)}
    if not isinstance(op, ir.Aggregate | ir.Attention | ir.Gine | ir.Maximum):
        return set()
    scores = isinstance(op, ir.Attention) and op.kind == "gat" and not op.own_rows
    return set(op.inputs) if scores else {op.inputs[0]}


def must_travel(program: ir.Program) -> bool:
    """Return whether rows of level 0 depend on all rows of it, so that only their owners compute them."""
    return any(program.level(op.out) == 0 and couples_rows(op) for op in program.ops)


def values_that_may_travel(program: ir.Program) -> list[str]:
    """Return the values of level 0 that are read along edges; none if one of them is the same in every step.

    A rank computes those once, or holds them.
    """
    read = {
        value for op in program.ops for value in read_along_edges(program, op) if program.level(value) == 0
    }
    return sorted(read) if all(program.learns(value) for value in read) else []


def halo_seconds(program: ir.Program, costs: CostModel, link: Link, num_rows: int) -> HaloSeconds:
    """Return the seconds that the rows of a halo take at level 0, by the rates of a rank and a link.

    ``num_rows`` are those that the busiest rank receives or sends, whichever are more.
    """
    widths = [program.width(value) for value in values_that_may_travel(program)]
    moved = 2 * num_rows * 4.0 * sum(widths)
    travelling = 2 * len(widths) * link.message_seconds
    travelling += moved * (link.byte_seconds + _PASSES / costs.rates.stream_bytes)
    computed = sum(
        _seconds(program, op, costs, num_rows)
        for op in program.ops
        if program.level(op.out) == 0 and not isinstance(op, ir.DestinationRows)
    )
    return HaloSeconds(computed=computed, travelling=travelling)


def _seconds(program: ir.Program, op: ir.Operation, costs: CostModel, num_rows: int) -> float:
    """Return the seconds that an operation takes for some rows, with its adjoints."""
    width, rates = program.width(op.out), costs.rates
    if not isinstance(op, ir.Linear):
        return 2 * 4.0 * num_rows * 2 * width / rates.stream_bytes
    source = op.inputs[0]
    if source == ir.INPUT:
        return 2 * costs.product_seconds(program.input_path, num_rows, width)
    products = 3 if program.learns(source) else 2
    return products * rates.multiply_seconds(num_rows, program.width(source), width)

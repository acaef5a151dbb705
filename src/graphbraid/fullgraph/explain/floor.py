"""The text of ``explain()``, the measured times of a step's tasks, and its floor at the machine's rates."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphbraid.fullgraph.explain.ledger import Ledger, Work
from graphbraid.fullgraph.lowering.costs import in_bytes
from graphbraid.fullgraph.lowering.lower_program import decision_lines, operation_lines
from graphbraid.fullgraph.program import Break, Operation, Program, written_lines
from graphbraid.fullgraph.ranks.pipeline_tuner import described
from graphbraid.fullgraph.step.operations.row_exchange import why_rows_travel
from graphbraid.fullgraph.step.plan import StepRequest
from graphbraid.fullgraph.step.planned_step import PlannedStep, ReplayedStep
from graphbraid.fullgraph.step.tasks import BufferPool, copied
from graphbraid.machine.hardware import Rates

if TYPE_CHECKING:
    from graphbraid.fullgraph.device import Device
    from graphbraid.fullgraph.lowering.lower_program import Lowered
    from graphbraid.fullgraph.ranks.pipeline_tuner import PipelineTuner
    from graphbraid.fullgraph.step.device_copies import SpmmChoice


# ---- the program, its memory and its exchanges


def explain(
    lowered: Lowered, planned: PlannedStep, choices: Sequence[SpmmChoice], *, level_bytes: int = 0
) -> str:
    """Return the explanation of a lowered program and its training step, as lines to print.

    ``choices`` are the kernels of a device's aggregations. ``level_bytes`` are those of the levels' own edges
    and node ids.
    """
    breaks = [op for op in lowered.program.ops if isinstance(op, Break) and op.is_graph_break]
    lines = [*written_lines(breaks), *decision_lines(lowered.program, lowered.costs.doubt)]
    lines += operation_lines(lowered.program, lowered.num_rows)
    arena, device = planned.arena, lowered.options.device
    lines.append("Arena")
    lines.append(
        f"  {in_bytes(arena.nbytes)} for {len(arena.buffers)} matrices that would take "
        f"{in_bytes(arena.separate_bytes)} apart; {in_bytes(arena.least_bytes)} are live at once"
    )
    what = "values computed once" if device.is_host else "values computed once and copied to the device"
    lines.append(f"  {in_bytes(planned.nbytes)} with {what}")
    if planned.plan.streams is not None:
        lines += planned.plan.streams.explain()
    if level_bytes:
        lines.append(f"  {in_bytes(planned.nbytes + level_bytes)} with the levels' own edges and node ids")
    return "\n".join(lines if device.is_host else lines + _on_device(planned, device, choices))


def _on_device(planned: PlannedStep, device: Device, choices: Sequence[SpmmChoice]) -> list[str]:
    """Return the lines about how a device runs the step, which is known once it has run."""
    lines = [f"Device {device.place}", *(f"  aggregation of {choice}" for choice in choices)]
    if not isinstance(planned, ReplayedStep):
        lines.append("  nothing has run yet: the first step chooses kernels, the second is recorded")
    elif planned.why_not:
        lines.append(f"  every kernel is started by a call of its own: {planned.why_not}")
    else:
        state = "recorded" if planned.is_recorded else "to be recorded in the next step"
        lines.append(f"  forward and backward are {state}, each started by one call")
    return lines


def exchanges(step: PlannedStep, tuner: PipelineTuner | None) -> list[str]:
    """Return the lines about the exchanges of one of several ranks on a device; none on the host.

    Without a ``tuner`` the kernel's configuration is given.
    """
    if step.request.copies is None:
        return []
    read = list(step.peer_reads)
    travel = [name for name in step.exchanged_rows if name not in step.peer_reads]
    lines = ["Exchanges"] if read or travel else []
    if read:
        lines.append(f"  read where peers keep them: {', '.join(read)}")
        lines += [f"  {described(step.plan.exchanges.pipeline)}"] if tuner is None else tuner.explain()
    if travel:
        reason = why_rows_travel(step.plan) or "their reader is not a single sum of float32 rows"
        lines.append(f"  travel: {', '.join(travel)}: {reason}")
    return lines


# ---- measured times

_OUTPUTS, _THEIR_GRADIENT = -1, -2
"""Numbers, beside those of the tasks, for copying the outputs and for taking in their gradient."""
REPEATS = 7
"""Number of timed steps, after one warm-up step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskTime:
    """Time of one task of a step: of one kernel call."""

    name: str
    operation: str
    """Name of the value whose operation it belongs to; empty for returning outputs or taking in gradients."""
    backward: bool
    seconds: float
    """Median over the timed steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """Times of a step's tasks, and of whole steps run without timing each task."""

    tasks: tuple[TaskTime, ...]
    seconds: float


class TimedStep(PlannedStep):
    """A training step that can read the clock between its tasks.

    Args:
        request: the request to plan the step, with copies of the parameters and modules.
        wait: waits until the device has done all work given to it.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        request: StepRequest,
        *,
        wait: Callable[[], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(request)
        self._wait, self._clock = wait, clock
        self._looks = False
        self._pool: BufferPool | None = None
        """Lends the memory of returned outputs, as the runner's does; None on a device."""
        self._seconds: dict[int, list[float]] = {}
        self.plan.tasks = [
            replace(task, run=partial(self._timed, place, task.run))
            for place, task in enumerate(self.plan.tasks)
        ]

    def measured(self, rows: Tensor | None, num_nodes: int, repeats: int = REPEATS) -> StepTimes:
        """Time the tasks of ``repeats`` steps and, in turn with them, ``repeats`` whole steps.

        They return the ``num_nodes`` int64 ``rows`` of the output; all of them if None.
        """
        on_host, width = self.output.tensor.is_cpu, self.output.tensor.shape[1]
        self._pool = BufferPool((num_nodes, width)) if on_host else None
        with torch.random.fork_rng([] if on_host else [self.output.tensor.device]):
            grad = self.output.tensor.new_full((num_nodes, width), 1 / num_nodes)
            self._step(grad, rows)
            whole = []
            for _ in range(repeats):
                whole.append(self._step(grad, rows))
                self._looks = True
                self._step(grad, rows)
                self._looks = False
        return StepTimes(tasks=tuple(self._times()), seconds=statistics.median(whole))

    def _step(self, grad: Tensor, rows: Tensor | None) -> float:
        started = self._clock()
        out = self.forward()
        self._timed(_OUTPUTS, lambda: copied(out, self._pool, rows))
        self.backward(grad, rows)
        self._wait()
        return self._clock() - started

    def _take_in(self, grad: Tensor, rows: Tensor | None) -> None:
        self._timed(_THEIR_GRADIENT, lambda: PlannedStep._take_in(self, grad, rows))

    def _timed(self, place: int, run: Callable[[], object]) -> None:
        if not self._looks:
            run()
            return
        self._wait()
        started = self._clock()
        run()
        self._wait()
        self._seconds.setdefault(place, []).append(self._clock() - started)

    def _times(self) -> list[TaskTime]:
        tasks, first_back = self.plan.tasks, self._backward_tasks
        found = {place: statistics.median(seconds) for place, seconds in self._seconds.items()}
        times = [
            TaskTime(name=task.name, operation=task.operation, backward=at >= first_back, seconds=found[at])
            for at, task in enumerate(tasks)
            if at in found
        ]
        handing = [
            TaskTime(name=name, operation="", backward=backward, seconds=found[place])
            for name, backward, place in (
                ("outputs", False, _OUTPUTS),
                ("gradient of the outputs", True, _THEIR_GRADIENT),
            )
        ]
        return [*times, *handing]


# ---- the floor


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationFloor:
    """The floor of one operation in one direction, forward or backward."""

    operation: str
    """Name of the value it computes; empty for returning the outputs and taking in their gradient."""
    what: str
    """Description of the operation."""
    backward: bool
    work: Work
    """The bytes and operations it cannot avoid."""
    floor_seconds: float
    """Least seconds for that work."""
    tasks: tuple[TaskTime, ...] = ()
    """Its kernel calls with their times; empty if nothing was measured or nothing is left to do."""
    is_written: bool = False
    """Whether PyTorch runs it as the model is written; its floor counts its matrices of node rows alone."""

    @property
    def seconds(self) -> float:
        """Measured seconds of its tasks."""
        return sum(task.seconds for task in self.tasks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Floor:
    """The floor of a training step: forward and backward pass, without the caller's loss and optimizer."""

    operations: tuple[OperationFloor, ...]
    rates: Rates
    """This machine's rates, by which the work is divided."""
    doubt: str = ""
    """Why the rates may be wrong; empty if there is no doubt."""
    step_seconds: float | None = None
    """Measured seconds of a whole step (median); None if nothing was measured."""

    @property
    def floor_seconds(self) -> float:
        """Least seconds of the step."""
        return sum(operation.floor_seconds for operation in self.operations)

    @property
    def between_seconds(self) -> float:
        """Measured seconds of a step outside its tasks; negative where timing each task slowed them down."""
        return (self.step_seconds or 0.0) - sum(operation.seconds for operation in self.operations)

    @property
    def written_seconds(self) -> float:
        """Measured seconds of graph breaks, which PyTorch runs as the model is written."""
        return sum(operation.seconds for operation in self.operations if operation.is_written)

    @property
    def ratio(self) -> float | None:
        """Measured time of a step over its floor; None if nothing was measured or the floor is zero."""
        if self.step_seconds is None or self.floor_seconds == 0:
            return None
        return self.step_seconds / self.floor_seconds

    def at(self, rates: Rates) -> Floor:
        """Return the floor of the same work at other rates, such as those measured just before the times."""
        operations = (
            dataclasses.replace(operation, floor_seconds=operation.work.seconds(rates))
            for operation in self.operations
        )
        return dataclasses.replace(self, operations=tuple(operations), rates=rates)

    def to_json(self) -> dict[str, Any]:
        """Return the record and its sums as plain values."""
        totals = {
            "floor_seconds": self.floor_seconds,
            "between_seconds": None if self.step_seconds is None else self.between_seconds,
            "ratio": self.ratio,
        }
        return dataclasses.asdict(self) | totals

    def __str__(self) -> str:
        lines = [_heading(self), _HEADER if self.step_seconds is not None else _HEADER[:_MEASURED].rstrip()]
        for operation in self.operations:
            if not operation.tasks and not operation.floor_seconds:
                continue
            lines.append(_line(operation, measured=self.step_seconds is not None))
            if len(operation.tasks) > 1:
                lines += [f"    {_cut(t.name):<{_MEASURED - 4}}{_milli(t.seconds)}" for t in operation.tasks]
        return "\n".join([*lines, *_totals(self)])


def floor_of(
    program: Program,
    ledger: Ledger,
    rates: Rates,
    *,
    num_nodes: int,
    times: StepTimes | None = None,
    doubt: str = "",
) -> Floor:
    """Compute the floor of a lowered program's step.

    ``num_nodes`` counts the training nodes, whose outputs are returned. Without ``times`` nothing was
    measured. ``doubt`` says why the rates may be wrong; empty if there is no doubt.
    """
    tasks = () if times is None else times.tasks

    def entry(name: str, what: str, work: Work, *, backward: bool) -> OperationFloor:
        its = tuple(task for task in tasks if (task.operation, task.backward) == (name, backward))
        return OperationFloor(
            operation=name,
            what=what,
            backward=backward,
            work=work,
            floor_seconds=work.seconds(rates),
            tasks=its,
            is_written=isinstance(made := program.producer(name), Break) and made.is_graph_break,
        )

    forward = [entry(op.out, _words(op), ledger.forward(op), backward=False) for op in program.ops]
    back = [entry(op.out, _words(op), ledger.backward(op), backward=True) for op in reversed(program.ops)]
    handed = entry("", "outputs of the training nodes", ledger.outputs(num_nodes), backward=False)
    taken = entry("", "their gradient", ledger.outputs_backward(num_nodes), backward=True)
    return Floor(
        operations=(*forward, handed, taken, *back),
        rates=rates,
        doubt=doubt,
        step_seconds=None if times is None else times.seconds,
    )


def _words(op: Operation) -> str:
    details = op.details()
    return f"{op.symbol}{' ' * bool(details) + details}"


_NAME = 42
_COLUMNS = ("MB stream", "at random", "outer", "in cache")
_HEADER = (
    f"  {'':<{_NAME}}{''.join(f'{column:>11}' for column in _COLUMNS)}{'GFLOP':>9}{'floor ms':>10}"
    f"{'took ms':>10}{'ratio':>7}"
)
_MEASURED = len(_HEADER) - 17


def _heading(floor: Floor) -> str:
    rates = floor.rates
    measured = [o.work.random_rate for o in floor.operations if o.work.random_rate] or [rates.row_bytes]
    at_random = " to ".join(dict.fromkeys(_giga(rate) for rate in (min(measured), max(measured))))
    doubtful = f"; doubtful: {floor.doubt}" if floor.doubt else ""
    return (
        f"Floor of a step at {_giga(rates.multiply_flops)} GFLOP/s, {_giga(rates.stream_bytes)} GB/s in "
        f"sequence, {at_random} at random, {_giga(rates.outer_stream_bytes)} and "
        f"{_giga(rates.outer_row_bytes)} in the outer cache, {_giga(rates.cached_row_bytes)} in a core's"
        f"{doubtful}"
    )


def _giga(rate: float) -> str:
    return f"{rate / 1e9:.3g}"


def _line(operation: OperationFloor, *, measured: bool) -> str:
    arrow = "<-" if operation.backward else "->"
    name = f"{arrow} {operation.operation} {operation.what}".replace("  ", " ")
    work, mega = operation.work, 1e6
    outer = work.outer_stream_bytes + work.outer_bytes
    counted = [part / mega for part in (work.stream_bytes, work.random_bytes, outer, work.cached_bytes)]
    cells = "".join(f"{value:>11.2f}" for value in counted) + f"{work.flops / 1e9:>9.3f}"
    line = f"  {_cut(name):<{_NAME}}{cells}{1e3 * operation.floor_seconds:>10.3f}"
    if not measured:
        return line
    ratio = operation.seconds / operation.floor_seconds if operation.floor_seconds else None
    return line + f"{_milli(operation.seconds)}{'' if ratio is None else f'{ratio:>7.1f}'}"


def _totals(floor: Floor) -> list[str]:
    lines = [f"  {1e3 * floor.floor_seconds:.3f} ms is the least a step can take"]
    if floor.step_seconds is not None:
        times = f", {floor.ratio:.2f} times that" if floor.ratio is not None else ""
        lines.append(
            f"  {1e3 * floor.step_seconds:.3f} ms is the median of measured steps{times}; "
            f"{1e3 * floor.between_seconds:.3f} ms of it between the tasks"
        )
        if any(operation.is_written for operation in floor.operations):
            share = floor.written_seconds / floor.step_seconds if floor.step_seconds else 0.0
            lines.append(
                f"  {1e3 * floor.written_seconds:.3f} ms of it, {share:.0%}, in parts that run as written"
            )
    return lines


def _cut(text: str) -> str:
    return text if len(text) < _NAME else f"{text[: _NAME - 4]}..."


def _milli(seconds: float) -> str:
    return f"{1e3 * seconds:>10.3f}"

"""PlannedStep: the tasks of a program's training step in one arena, planned once and run every epoch.

On a device the passes are recorded once and then each started by one call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.device import NotRecordedError, Run
from graphbraid.fullgraph.reading.watch import moves_vectors
from graphbraid.fullgraph.step.operations import attention, by_pytorch, edges, exchange, linear, norm, rowwise
from graphbraid.fullgraph.step.operations.row_exchange import PeerReads, route_of
from graphbraid.fullgraph.step.plan import PlannedOperation, StepPlan, StepRequest, WhenWhole
from graphbraid.fullgraph.step.tasks import Arena
from graphbraid.ops.gather import copy_rows, places_of, spread_rows


class ForwardPass(NamedTuple):
    """The state, beside the parameters, that decides a forward pass's numbers and can repeat the pass."""

    number: int
    seeds: tuple[int, ...]
    """Seeds of its dropout masks."""
    modes: tuple[bool, ...]
    """Whether each of the step's modules was in training mode."""
    statistics: tuple[int, ...]
    """Versions of the running statistics that the pass normalised by."""
    generators: tuple[Tensor, ...]
    """States of torch's generators, the host's and the device's, from which graph breaks drew."""
    vectors: tuple[Tensor, ...]
    """Vectors of spectral norms before the pass, which moved them."""


class PlannedStep:
    """The tasks of a program over a graph, planned at construction; :meth:`allocate` takes the memory."""

    def __init__(self, request: StepRequest) -> None:
        self.request, self.program = request, request.program
        copies, program = request.copies, request.program
        copied_before = 0 if copies is None else copies.nbytes
        self.plan = plan = StepPlan(request)
        """The tasks in the order they run, forward, ``loss`` and backward, and the rows of all values."""
        for op in program.ops:
            plan.planning = op.out
            plan.planned[op.out] = _PLANNED[type(op)](plan, op)
            plan.planned[op.out].forward()
        self._forward_tasks = len(plan.tasks)
        self.output = plan.values[program.output]
        self._output_grad = self.output
        if request.training:
            width = program.width(program.output)
            self._output_grad = plan.scratch("gradient of the output", self.output.count, width)
            plan.grads[program.output] = self._output_grad
            plan.do("loss", lambda: None, self.output, self._output_grad)
            for op in reversed(program.ops):
                plan.planning = op.out
                if program.learns(op.out):
                    plan.planned[op.out].backward()
                    plan.tell_of_whole(op)
        self._backward_tasks = self._forward_tasks + 1
        self.arena = Arena(plan.tasks, keep=[] if request.training else [self.output.buffer])
        if plan.streams is not None:
            plan.streams.share()
        self._copied_bytes = 0 if copies is None else copies.nbytes - copied_before
        self.is_allocated = False
        self.seconds: float | None = None
        """Seconds of the last forward and backward pass on the host's clock; None between the two."""
        self._forward_seconds = 0.0
        self._parameters = tuple(program.parameters())
        of_user = [op.module for op in program.ops if isinstance(op, ir.Normalise)]
        self._breaks = [op for op in program.ops if isinstance(op, ir.Break)]
        of_user += [module for op in self._breaks for module in op.modules()]
        self._modules = [inner for module in of_user for inner in module.modules()]
        self._moving = [b for m in self._modules if moves_vectors(m) for b in m.buffers(recurse=False)]
        self._vectors: tuple[Tensor, ...] = ()
        self.lock = threading.RLock()
        """Held while a pass runs: passes of several threads share the arena."""
        self._num_forwards = 0
        self._held = 0
        """Number of the forward pass whose values the arena holds; 0 if it holds none, or a backward pass has
        used them up."""
        self._places: list[tuple[int, tuple[int, ...]]] = []
        self._spread: tuple[Tensor, Tensor] | None = None
        self._generators: tuple[Tensor, ...] = ()
        """States of torch's generators before the last forward pass; see :class:`ForwardPass`."""

    @property
    def nbytes(self) -> int:
        """Bytes it takes in addition to the graph: the arena, the constants, features in another form.

        On a device this includes all copies.
        """
        return self.arena.nbytes + self.plan.other_bytes + self._copied_bytes

    def allocate(self) -> None:
        """Allocate the memory and compute the constants."""
        copies = self.request.copies
        self.plan.allocate()
        self.arena.allocate(torch.device("cpu") if copies is None else copies.place)
        self.is_allocated = True

    @torch.no_grad()
    def forward(self) -> Tensor:
        """Run the forward pass; return the ``(num_rows, width)`` outputs, valid until the next pass."""
        self._look_at_parameters()
        self.plan.seeds.draw()
        began, self.seconds = time.perf_counter(), None
        self._held = 0
        self._generators = self._states_of_generators()
        self._vectors = tuple(one.clone() for one in self._moving)
        with self._awake():
            self._run_forward()
        self._num_forwards += 1
        self._held = self._num_forwards
        self._forward_seconds = time.perf_counter() - began
        return self.output.tensor

    def last_pass(self) -> ForwardPass:
        """Return the state that :meth:`bring_back` needs to repeat the last :meth:`forward`."""
        modes, statistics = self._modes(), self._statistics()
        seeds, drew = self.plan.seeds.drawn(), self._generators
        return ForwardPass(self._held, seeds, modes, statistics, drew, self._vectors)

    @torch.no_grad()
    def bring_back(self, was: ForwardPass) -> Tensor:
        """Return the outputs of an earlier :meth:`forward`; run it again if its values are overwritten.

        The pass gets the same masks and modes, and updates no statistics. The parameters must be unchanged.

        Raises:
            RuntimeError: running statistics that it normalised by have changed.
        """
        if was.number != self._held:
            if was.statistics != self._statistics(was.modes):
                raise RuntimeError(
                    "running statistics of a normalisation changed between engine() and this backward pass; "
                    "call backward() before other calls in training mode"
                )
            self._look_at_parameters()
            self.plan.seeds.put_back(was.seeds)
            self._held = 0
            now = self._states_of_generators()
            with self._as_before(was.modes), self.vectors_of(was):
                self._put_back(was.generators)
                self._run_forward()
                self._put_back(now)
            self._held = was.number
        return self.output.tensor

    @contextmanager
    def vectors_of(self, was: ForwardPass) -> Iterator[None]:
        """Give spectral norms the vectors that they had before a pass."""
        now = [one.clone() for one in self._moving]
        try:
            for one, value in zip(self._moving, was.vectors, strict=True):
                one.data.copy_(value)
            yield
        finally:
            for one, value in zip(self._moving, now, strict=True):
                one.data.copy_(value)

    @contextmanager
    def _as_before(self, modes: tuple[bool, ...]) -> Iterator[None]:
        """Put the modules in the modes of a pass and keep their buffers while it is repeated."""
        buffers = [b for module in self._modules for b in module.buffers(recurse=False)]
        before, now, self.plan.seeds.repeats = [b.clone() for b in buffers], self._modes(), True
        try:
            for module, mode in zip(self._modules, modes, strict=True):
                module.training = mode
            yield
        finally:
            self.plan.seeds.repeats = False
            for module, mode in zip(self._modules, now, strict=True):
                module.training = mode
            for buffer, value in zip(buffers, before, strict=True):
                buffer.data.copy_(value)  # without a new version: the values are the same

    def _states_of_generators(self) -> tuple[Tensor, ...]:
        """Return the states of the generators from which graph breaks may draw; none without breaks."""
        if not self._breaks:
            return ()
        copies, host = self.request.copies, torch.get_rng_state()
        if copies is None or copies.place.type != "cuda":
            return (host,)
        return host, torch.cuda.get_rng_state(copies.place)

    def _put_back(self, states: tuple[Tensor, ...]) -> None:
        if states:
            torch.set_rng_state(states[0])
        for state in states[1:]:
            assert self.request.copies is not None
            torch.cuda.set_rng_state(state, self.request.copies.place)

    def _modes(self) -> tuple[bool, ...]:
        return tuple(module.training for module in self._modules)

    def _statistics(self, modes: tuple[bool, ...] | None = None) -> tuple[int, ...]:
        """Return the versions of the buffers of modules that are not in training mode."""
        reading = [m for m, trains in zip(self._modules, modes or self._modes(), strict=True) if not trains]
        return tuple(b._version for module in reading for b in module.buffers(recurse=False))

    @torch.no_grad()
    def backward(
        self, grad: Tensor, rows: Tensor | None = None, when_whole: WhenWhole | None = None
    ) -> dict[int, Tensor]:
        """Run the adjoints of the forward pass whose values the arena holds, and use these up.

        ``rows`` are the int64 rows of the output that ``grad`` belongs to; the others' gradient is 0. Of
        several ranks, ``when_whole`` is called with each parameter and its gradient as soon as nothing more
        is added to it, while the rest is computed.

        Returns:
            The gradient of each parameter that requires one, by its ``id``.
        """
        self._look_at_parameters()
        self.plan.when_whole, self._held = when_whole, 0
        began = time.perf_counter()
        with self._awake():
            self._take_in(grad, rows)
            found = self._run_backward()
        self.seconds = self._forward_seconds + time.perf_counter() - began
        return found

    def _take_in(self, grad: Tensor, rows: Tensor | None) -> None:
        """Write the gradient of the outputs, or of those in ``rows``, to the step's memory."""
        target = self._output_grad.tensor
        if rows is None:
            copy_rows(grad, target)
        elif self.request.copies is None:
            if self._spread is None or self._spread[0] is not rows:  # the same in every step
                self._spread = rows, places_of(rows, self.output.count)
            spread_rows(grad, self._spread[1], target)
        else:
            target.zero_().index_copy_(0, rows, grad)

    def _look_at_parameters(self) -> None:
        """Make tasks forget their bound arguments if a parameter has moved in memory."""
        places = [(p.data_ptr(), p.stride()) for p in self._parameters]
        if places != self._places:
            self._places = places
            for call in self.plan.bound_calls:
                call.forget()

    def _awake(self) -> AbstractContextManager[None]:
        """Keep the kernels' threads awake inside, where kernels run on the host."""
        return native.awake_threads() if self.request.copies is None else nullcontext()

    def _run_forward(self) -> None:
        for task in self.plan.tasks[: self._forward_tasks]:
            task.run()

    def _run_backward(self) -> dict[int, Tensor]:
        for task in self.plan.tasks[self._backward_tasks :]:
            task.run()
        return self.plan.parameters.take()

    # ---- exchanges of several ranks

    @property
    def exchanged_rows(self) -> dict[str, tuple[int, int]]:
        """Rows that each exchange of a training step sends forward and back, by the value's name.

        Constant rows are sent only once, when the memory is allocated, and do not count.
        """
        plan, found = self.plan, dict[str, tuple[int, int]]()
        for op in self.program.ops:
            if isinstance(op, ir.Exchange) and op.out not in plan.constants:
                route, goes_back = route_of(plan, op), self.request.training and self.program.learns(op.out)
                found[op.out] = route.num_sent, route.num_received * goes_back
        return found

    @property
    def peer_reads(self) -> dict[str, PeerReads]:
        """The exchanges whose rows are read where peers keep them, by the value's name."""
        overlapped = self.plan.exchanges.overlapped
        return {name: one for name, one in overlapped.items() if isinstance(one, PeerReads)}

    # ---- explanations

    def run_by_torch(self) -> list[str]:
        """Return the operations that run through PyTorch's autograd."""
        by_torch = ir.Break | ir.Messages
        found = [op for op in self.program.ops if isinstance(op, by_torch)]
        return [f"{op.symbol} {op.out}" for op in found if not (isinstance(op, ir.Messages) and op.steps)]

    def first_not_finite(self) -> str:
        """Describe the first non-finite value, found by running the forward pass again task by task."""
        with self.lock, torch.no_grad(), self._as_before(self._modes()):
            self._look_at_parameters()
            self._held = 0
            return self._first_not_finite()

    def _first_not_finite(self) -> str:
        plan, found = self.plan, list[tuple[int, int]]()
        for number, task in enumerate(plan.tasks[: self._forward_tasks]):
            task.run()
            if task.name not in plan.values or found:  # a task that only copies
                continue
            bad = (~torch.isfinite(plan.values[task.name].tensor)).any(1).nonzero()
            if len(bad):
                nodes = plan.nodes_of(task.name)
                found.append((number, int(bad[0]) if nodes is None else int(nodes[bad[0]])))
                if plan.comm is None:
                    break
        if plan.comm is not None:  # which all run to the end, as they wait for each other
            found = sorted((number, node) for rank in plan.comm.gather(found) for number, node in rank)
        if not found:
            return "every layer's rows are finite: the loss itself overflows"
        number, node = found[0]
        return f"{self._place(plan.tasks[number].name)} is the first to go wrong, at node {node}"

    def _place(self, value: str) -> str:
        """Describe a value's layer and operation; a linear map before an aggregation belongs to its layer."""
        op = self.program.producer(value)
        ahead = isinstance(op, ir.Linear) and any(c.moves for c in self.program.consumers(value))
        return f"layer {self.program.level(value) + ahead} ({op.symbol if op else 'input'})"


_ATTENTIONS = {"gat": attention.PlannedGat, "gatv2": attention.PlannedGatv2}
_NORMS = {"batch": norm.PlannedBatchNorm, "layer": norm.PlannedLayerNorm}
_PLANNED: dict[type[ir.Operation], Callable[[StepPlan, Any], PlannedOperation[Any]]] = {
    ir.Add: rowwise.PlannedAdd,
    ir.Aggregate: linear.PlannedAggregate,
    ir.AlongRow: rowwise.PlannedAlongRow,
    ir.Attention: lambda plan, op: _ATTENTIONS[op.kind](plan, op),
    ir.Break: by_pytorch.PlannedBreak,
    ir.ColumnRange: rowwise.PlannedColumns,
    ir.Combine: rowwise.PlannedCombine,
    ir.Concat: rowwise.PlannedConcat,
    ir.DestinationRows: rowwise.PlannedDestinationRows,
    ir.Epilogue: linear.PlannedEpilogue,
    ir.Exchange: exchange.PlannedExchange,
    ir.Gine: edges.PlannedGine,
    ir.Hoisted: linear.PlannedHoisted,
    ir.Largest: rowwise.PlannedLargest,
    ir.Learned: rowwise.PlannedLearned,
    ir.Linear: linear.PlannedLinear,
    ir.Maximum: edges.PlannedMaximum,
    ir.Messages: edges.PlannedMessages,
    ir.Normalise: lambda plan, op: _NORMS[op.kind](plan, op),
    ir.Prelu: by_pytorch.PlannedPrelu,
    ir.Product: rowwise.PlannedProduct,
    ir.RelationAttention: attention.PlannedRelationAttention,
    ir.RowFunction: by_pytorch.PlannedFunction,
    ir.RowOfParameters: rowwise.PlannedRowOfParameters,
    ir.Scale: rowwise.PlannedScale,
    ir.UnitRows: rowwise.PlannedUnitRows,
}
"""The planner of each kind of operation."""


@dataclass(frozen=True, slots=True)
class RecordedPasses:
    """The recorded passes of a step."""

    forward: Run
    backward: Run
    gradients: dict[int, Tensor]
    """The gradients that a replay of ``backward`` writes, by the parameter's ``id``."""
    addresses: tuple[int, ...]
    """Addresses of the parameters and the modules' buffers."""
    modes: tuple[bool, ...]
    """Whether each module was in training mode."""


class ReplayedStep(PlannedStep):
    """A :class:`PlannedStep` on a device that records its passes after the first whole step.

    The first step compiles kernels and chooses among them. A recording holds addresses. Those of the
    arena and the graph do not change. If a parameter gets other memory, the passes are recorded again. While
    modules are in another mode than when recorded, passes run call by call.
    """

    def __init__(self, request: StepRequest) -> None:
        super().__init__(request)
        assert request.copies is not None
        self._device = request.copies.device
        self._recording: RecordedPasses | None = None
        self._num_steps = 0
        self._replays: RecordedPasses | None = None
        """The recording that the last forward pass replayed; None if it ran call by call."""
        by_torch = self.run_by_torch()
        self.why_not = f"{by_torch[0]} runs through PyTorch's autograd" if by_torch else ""
        """Why the passes are not recorded; empty if they are or will be."""

    @property
    def is_recorded(self) -> bool:
        """Whether the passes are recorded."""
        return self._recording is not None

    def _run_forward(self) -> None:
        if self._recording is not None and self._recording.addresses != self._addresses():
            self._recording = None
        if self._recording is None and self._num_steps > 0 and not self.why_not:
            self._recording = self._record()
        recorded = self._recording
        self._replays = recorded if recorded is not None and recorded.modes == self._modes() else None
        if self._replays is None:
            super()._run_forward()
        else:
            self._replays.forward()

    def _run_backward(self) -> dict[int, Tensor]:
        self._num_steps += 1
        if self._replays is None:
            return super()._run_backward()
        self._replays.backward()
        # Copies, since the caller may keep them and the next step overwrites the recorded ones.
        return {key: grad.clone() for key, grad in self._replays.gradients.items()}

    def _record(self) -> RecordedPasses | None:
        random_state, run_backward = torch.get_rng_state(), super()._run_backward
        try:
            forward = self._device.record(super()._run_forward)
            gradients: dict[int, Tensor] = {}
            backward = self._device.record(lambda: gradients.update(run_backward()))
        except NotRecordedError as error:
            self.why_not = f"the device could not record it: {error}"
            return None
        if not torch.equal(random_state, torch.get_rng_state()):
            torch.set_rng_state(random_state)
            self.why_not = "an operation draws random numbers on the host"
            return None
        return RecordedPasses(forward, backward, gradients, self._addresses(), self._modes())

    def _addresses(self) -> tuple[int, ...]:
        numbers = (number for module in self._modules for number in module.buffers(recurse=False))
        return tuple(tensor.data_ptr() for tensor in (*self.program.parameters(), *numbers))

"""Runner: a lowered program with the memory it runs in, as one differentiable operation on parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack
from torch.autograd import Function

from graphbraid import native
from graphbraid.distributed.peers import Peers
from graphbraid.errors import ConfigError, ResourceError
from graphbraid.fullgraph.lowering.costs import Evidence
from graphbraid.fullgraph.lowering.levels import Blocks, copied_bytes
from graphbraid.fullgraph.lowering.lower_program import Lowered, lower_for_evaluation
from graphbraid.fullgraph.program import Normalise, Program, same_program
from graphbraid.fullgraph.ranks.distribute import as_decided, distribute, divided
from graphbraid.fullgraph.ranks.ranks import evaluation_part
from graphbraid.fullgraph.step.device_copies import WORKSPACE_BYTES, CopySizes, DeviceCopies
from graphbraid.fullgraph.step.plan import StepRequest, WhenWhole
from graphbraid.fullgraph.step.planned_step import PlannedStep, ReplayedStep
from graphbraid.fullgraph.step.tasks import BufferPool, copied
from graphbraid.ops.library import in_memory
from graphbraid.ops.messages import as_learned

if TYPE_CHECKING:
    from graphbraid.fullgraph.explain.floor import Floor, StepTimes
    from graphbraid.fullgraph.ranks.pipeline_tuner import PipelineTuner, TunedPipeline
    from graphbraid.fullgraph.ranks.ranks import Ranks


_AGREES = 0.02
"""Largest difference between two ways to compute the same outputs, as a share of the largest of them."""


@dataclass(frozen=True, slots=True)
class Behind:
    """Questions of a backward pass about the call that gave its outputs."""

    has_changed: Callable[[], bool]
    """Returns whether the graph's tensors were written to after the call."""
    written: Callable[[Sequence[int]], Tensor]
    """Runs the model as it is written, with these seeds of dropout masks, and returns its outputs."""


def _no_model(_: Sequence[int]) -> Tensor:
    raise RuntimeError("only an engine gives gradients that can be differentiated again")


UNCHANGED = Behind(has_changed=lambda: False, written=_no_model)
"""For a lowered program that is run without an engine."""


class _Run(Function):
    """The forward pass of a step, whose ``backward`` runs the adjoints.

    Args:
        step: an allocated step.
        pool: lends memory for the outputs. If None, new memory is allocated.
        rows: int64 rows of the output to return, in this order. If None, all.
        behind: answers for backward about this call.
        when_whole: see :meth:`.PlannedStep.backward`.
        parameters: those of the step's program.

    Returns:
        ``(num_rows, width)`` outputs, which the caller may keep.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes all by position
        ctx: Any,
        step: PlannedStep,
        pool: BufferPool | None,
        rows: Tensor | None,
        behind: Behind,
        when_whole: WhenWhole | None,
        *parameters: nn.Parameter,
    ) -> Tensor:
        ctx.step, ctx.rows, ctx.when_whole, ctx.parameters = step, rows, when_whole, parameters
        ctx.behind = behind
        norms = (op for op in step.program.ops if isinstance(op, Normalise))
        ctx.read = *parameters, *(one for op in norms for one in op.statistics)
        ctx.states = _states_of(ctx.read)
        with step.lock:
            out = step.forward()
            ctx.was = step.last_pass()
            return copied(out, pool, rows).detach()  # no view of the pool's, so that it may be written over

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # there are none; PyTorch's error if an earlier backward pass freed the graph
        if ctx.states != _states_of(ctx.read):
            raise RuntimeError(
                "parameters or running statistics were changed in place between engine() and this backward "
                "pass, or given other data; call backward() before optimizer.step()"
            )
        if ctx.behind.has_changed():
            raise RuntimeError(
                "features or edges were changed in place between engine() and this backward pass; call "
                "backward() before changing them"
            )
        batched = is_legacy_batchedtensor(grad) or peek_interpreter_stack() is not None
        if batched or torch.is_grad_enabled():  # several gradients at once, or create_graph=True
            return None, None, None, None, None, *_differentiable(ctx, grad)
        step: PlannedStep = ctx.step
        with step.lock:
            step.bring_back(ctx.was)
            found = step.backward(in_memory(grad), ctx.rows, ctx.when_whole)
        # Popped from the dict, since autograd stores a tensor without a copy if nothing else refers to it.
        return None, None, None, None, None, *[found.pop(id(p), None) for p in ctx.parameters]


def _states_of(tensors: Sequence[Tensor]) -> list[Any]:
    """Return versions, addresses and strides: new ``data`` leave the version."""
    return [(one._version, one.data_ptr(), one.stride()) for one in tensors]


def _differentiable(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients by PyTorch's operations of the model as it is written, which have derivatives."""
    step, twice = ctx.step, torch.is_grad_enabled()
    with step.lock, torch.no_grad():
        outputs = step.bring_back(ctx.was)
        outputs = outputs.clone() if ctx.rows is None else outputs.index_select(0, ctx.rows)
    with torch.enable_grad(), step.vectors_of(ctx.was):
        written = ctx.behind.written(ctx.was.seeds)
    if ((written - outputs).abs() > _AGREES * outputs.abs().max()).any():
        raise RuntimeError(
            "gradients of this engine() call cannot be differentiated again: the model as it is written "
            "gives other outputs, since it was changed after the call or drops attention coefficients. Later "
            "calls of this engine run the model as it is written, and their gradients can be"
        )
    with as_learned(ctx.parameters):
        found: tuple[Tensor | None, ...] = torch.autograd.grad(
            written, ctx.parameters, grad, create_graph=twice, allow_unused=True
        )
    return found


_MEGA = 1e6
_HOST_BYTES = 1 << 25
"""Host memory beside the arena that is not counted: modules imported late, and heaps of threads."""


class Runner:
    """Runs one lowered program, for an engine whose model and graph do not change.

    Construction allocates nothing; each step takes its memory when it first runs.

    Args:
        lowered: the program to run, with its options, which name the device.
        ranks: the ranks that run it together; all construct it and call :meth:`__call__` and :meth:`predict`
            together. If None, there is one.

    Raises:
        NotLoweredError: an operation cannot be divided among ranks.
        ConfigError: the ranks have not lowered alike, or the partition is of another graph.
    """

    def __init__(self, lowered: Lowered, ranks: Ranks | None = None) -> None:
        self._whole, self._ranks = lowered, ranks
        if ranks is not None and ranks.part is None:
            ranks.check_alike_lowered(lowered.program, lowered.blocks)
            weigh = ranks.weigh(lowered.costs, lowered.options)
            lowered = distribute(lowered, ranks.partition, ranks.comm.rank, weigh)
        self.lowered = lowered
        """The program that runs here; of several ranks, this one's part."""
        self._device = device = lowered.options.device
        rows = lowered.rows
        self._rows = None if rows is None else rows.to(device.place)
        self._peers = None if ranks is None or device.is_host else Peers(ranks.comm, device.place)
        self.device_copies = None if device.is_host else DeviceCopies(device)
        """The lowered arrays on the device; None on the host."""
        self._sizes = None if device.is_host else CopySizes(device)
        self.training_step = self._planned(lowered.program, lowered.blocks, training=True)
        """The step that is planned for training."""
        self._tuner: PipelineTuner | None = None
        if ranks is not None and self.training_step.peer_reads:
            self._tuner = ranks.tuner(lowered, device)
        self._evaluated: Program | None = None
        self._evaluate: PlannedStep | None = None
        self._outputs = self._pool(lowered.nodes.numel())
        self._predictions = self._pool(lowered.num_outputs)
        self._blocks: Blocks = ()

    # ---- running

    def __call__(self, behind: Behind = UNCHANGED) -> Tensor:
        """Return the ``(len(nodes), width)`` outputs of the training nodes, in order; differentiable."""
        self.training_step = self._ready(self.training_step)
        if self._tuner is not None:
            self._tuner.before_step(self.training_step)
        when_whole = None if self._ranks is None else self._ranks.tell_of_whole
        how, parameters = (behind, when_whole), self.training_step.program.parameters()
        out: Tensor = _Run.apply(self.training_step, self._outputs, self._rows, *how, *parameters)  # type: ignore[no-untyped-call]
        return out

    def serves(self, read: Program) -> bool:
        """Return whether :meth:`predict` can run a program with the edges in this one's order.

        A program that reads edge features needs the graph's order, which only lowering such a program keeps.
        """
        return self.lowered.program.reads_edges or not read.reads_edges

    def predict(self, read: Program) -> Tensor:
        """Return the ``(num_nodes, width)`` outputs of every node, by the program in evaluation mode."""
        step, out = self._run_evaluation(read)
        if self._ranks is not None:
            return self._ranks.gathered(out, self._blocks)
        rows = self.lowered.row_of if step.request.blocks is self.lowered.blocks else None
        program = self.lowered.program
        as_wide = out.shape[1] == program.width(
            program.output
        )  # a model may return other columns in training
        return copied(out, self._predictions if as_wide else None, rows)

    def predict_owned(self, read: Program, own: Tensor) -> Tensor:
        """Return the outputs of ``own`` nodes of this one of several ranks, in evaluation mode."""
        step, out = self._run_evaluation(read)
        held = step.plan.nodes_of(step.program.output)
        assert held is not None
        assert self._ranks is not None
        row_of = torch.empty(self._ranks.partition.num_nodes, dtype=torch.int64)
        row_of[held.cpu()] = torch.arange(held.numel())
        return out.index_select(0, row_of[own].to(out.device))

    def _run_evaluation(self, read: Program) -> tuple[PlannedStep, Tensor]:
        """Run a program in evaluation mode; return its step and its rows, valid until the next run."""
        if self._evaluate is None or self._evaluated is None or not same_program(read, self._evaluated):
            self._evaluate = None  # frees its memory first
            program, blocks, self._blocks = self._lowered_for_evaluation(read, checks=True)
            self._evaluated, self._evaluate = read, self._planned(program, blocks, training=False)
        self._evaluate = self._ready(self._evaluate)
        return self._evaluate, self._evaluate.forward()

    def _lowered_for_evaluation(self, read: Program, *, checks: bool) -> tuple[Program, Blocks, Blocks]:
        """Return a program in evaluation mode, the edges that it walks here, and those of the whole graph.

        With ``checks``, all ranks compare their lowered programs. A rank that holds its part alone knows no
        edges of the whole graph.
        """
        ranks = self._ranks
        if ranks is not None and ranks.part is not None:
            return *evaluation_part(self._whole, read, ranks), ()
        program, blocks = lower_for_evaluation(self._whole, read)
        if ranks is None:
            return program, blocks, blocks
        if checks:
            ranks.check_alike_lowered(program, blocks)
        weigh = as_decided(self.lowered.program)
        return *divided(program, blocks, ranks.partition, ranks.comm.rank, weigh), blocks

    # ---- properties and explanations

    @property
    def tuned(self) -> TunedPipeline | None:
        """The fastest configuration found by the search; None while it goes on or without a search."""
        return None if self._tuner is None else self._tuner.found

    @property
    def nbytes(self) -> int:
        """Bytes that training takes in addition to the graph, its features and the parameters.

        On a device this includes the copies of the graph's arrays and features.
        """
        return self.training_step.nbytes + self._level_bytes

    @property
    def _level_bytes(self) -> int:
        """Bytes of edges and ids in the levels' order on the host; a device counts its copies itself."""
        if not self._device.is_host:
            return 0
        places = 0 if self._rows is None else 4 * self.training_step.output.count
        row_of = self.lowered.row_of
        return copied_bytes(self.lowered.blocks) + places + (0 if row_of is None else row_of.nbytes)

    def evaluation_step(self, read: Program) -> PlannedStep:
        """Return the step that :meth:`predict` has, or plan one like it without allocating its memory."""
        if self._evaluate is not None and self._evaluated is not None and same_program(read, self._evaluated):
            return self._evaluate
        program, blocks, _ = self._lowered_for_evaluation(read, checks=False)
        return self._planned(program, blocks, training=False)

    def evidence(self) -> Evidence:
        """Return the measurements behind the choices."""
        link = None if self._ranks is None else self._ranks.link
        return Evidence(rates=self.lowered.costs.rates, link=link)

    def first_not_finite(self) -> str:
        """Describe the operation and first node where the last forward pass gave a non-finite value."""
        self.training_step = self._ready(self.training_step)
        return self.training_step.first_not_finite()

    def floor(self, *, measure: bool = False) -> Floor:
        """Return the floor; see :meth:`.Engine.floor`.

        Raises:
            ConfigError: times of several ranks are to be measured.
            ResourceError: there is too little memory to measure.
        """
        if measure and self._ranks is not None:
            raise ConfigError("the times of one of several ranks cannot be measured; leave measure out.")
        from graphbraid.fullgraph.explain.floor import floor_of
        from graphbraid.fullgraph.explain.ledger import Ledger
        from graphbraid.fullgraph.rates import row_rate

        lowered, program, costs = self.lowered, self.lowered.program, self.lowered.costs
        rates = costs.rates
        sizes = (int(rates.inner_cache_bytes), lowered.options.cache_bytes_by(rates))
        caches = sizes if self._device.is_host else None
        is_measured = caches and lowered.options.rates is None and native.kernels() is not None
        rate = row_rate if is_measured else None
        ledger = Ledger(program, lowered.blocks, lowered.num_rows, costs, caches, row_rate=rate)
        times, num_nodes = self._timed() if measure else None, lowered.nodes.numel()
        return floor_of(program, ledger, rates, num_nodes=num_nodes, times=times, doubt=costs.doubt)

    def explain(self, *, measure: bool = False) -> str:
        """Return the explanation; see :meth:`.Engine.explain`."""
        from graphbraid.fullgraph.explain.floor import exchanges, explain

        choices = [] if self.device_copies is None else self.device_copies.picker.choices
        said = explain(self.lowered, self.training_step, choices, level_bytes=self._level_bytes)
        travel = [] if self._ranks is None else exchanges(self.training_step, self._tuner)
        return "\n".join([said, *travel, str(self.floor(measure=measure))])

    def _timed(self) -> StepTimes:
        """Time some steps on a copy of the program."""
        from graphbraid.fullgraph.explain.floor import TimedStep

        lowered, request = self.lowered, self.training_step.request
        copied = replace(request, program=copy.deepcopy(lowered.program), copies=self.device_copies)
        timed = TimedStep(copied, wait=self._device.wait)
        self._ready(timed)
        return timed.measured(self._rows, lowered.nodes.numel())

    # ---- memory

    def _pool(self, num_rows: int) -> BufferPool | None:
        """Make a pool of outputs on the host; on a device the caching allocator reuses memory by itself."""
        program = self.lowered.program
        return BufferPool((num_rows, program.width(program.output))) if self._device.is_host else None

    def _planned(self, program: Program, blocks: Blocks, *, training: bool) -> PlannedStep:
        """Plan a step, which then knows its size; nothing moves to a device yet."""
        ranks = self._ranks
        return self._step_of(
            StepRequest(
                program=program,
                graph=self.lowered.graph,
                blocks=blocks,
                training=training,
                copies=self._sizes,
                streamed=self.lowered.options.features,
                comm=None if ranks is None else ranks.comm,
                part=self.lowered.part,
                wire=torch.float32 if ranks is None or not training else ranks.wire_dtype,
                peers=self._peers,
            )
        )

    def _step_of(self, request: StepRequest) -> PlannedStep:
        """Plan a step. One that trains on a device records its passes, unless ranks wait in these."""
        ranks, is_copied = self._ranks, request.copies is not None and request.copies is self.device_copies
        is_recorded = ranks is None and is_copied and request.training
        step = (ReplayedStep if is_recorded else PlannedStep)(request)
        if ranks is not None and request.training:
            step.plan.exchanges.pipeline = ranks.config
        return step

    def _ready(self, planned: PlannedStep) -> PlannedStep:
        """Return a step that can run; allocate its memory at its first use, if there is enough."""
        if planned.is_allocated:
            return planned
        planned.plan.compute_coefficients()  # which then are not among the free bytes
        device = self._device
        beside = _HOST_BYTES if device.is_host else WORKSPACE_BYTES
        available, needed = device.free_bytes(), planned.nbytes + beside
        if available is not None and needed > available:
            where = "beside the data" if device.is_host else f"on {device.place}"
            raise ResourceError(
                f"the whole graph needs {needed / _MEGA:,.0f} MB {where}, but "
                f"{available / _MEGA:,.0f} MB are free. Narrower hidden layers need less; sampled "
                "mini-batches (mode='sampled') need a few hundred MB for a graph of any size."
            )
        step = planned
        if self.device_copies is not None and planned.request.copies is not self.device_copies:
            step = self._step_of(replace(planned.request, copies=self.device_copies))
        step.allocate()
        if self.device_copies is not None:
            self.device_copies.forget_host()
        return step

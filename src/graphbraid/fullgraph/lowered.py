"""Lowered: a program over a graph, lowered and ready to run over all nodes at once."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from graphbraid.errors import ResourceError
from graphbraid.fullgraph.device.device import HOST, Device
from graphbraid.fullgraph.lowering.facts import Facts, facts_of
from graphbraid.fullgraph.lowering.levels import (
    Block,
    Reach,
    copied_bytes,
    everything,
    reach,
    towards,
    whole_graph,
)
from graphbraid.fullgraph.lowering.locality import choose_order, feature_copies
from graphbraid.fullgraph.lowering.passes import PASSES, couples_rows
from graphbraid.fullgraph.lowering.symmetry import with_shared_transpose
from graphbraid.fullgraph.measured.evidence import Evidence
from graphbraid.fullgraph.measured.kept_rates import MeasuredRates, measured_rates
from graphbraid.fullgraph.measured.trials import Trials, kept_trials
from graphbraid.fullgraph.program import Attention, Decision, Program, same_program
from graphbraid.fullgraph.program.refusal import NotLoweredError
from graphbraid.fullgraph.step.device_copies import WORKSPACE_BYTES, CopySizes, DeviceCopies, on_place
from graphbraid.fullgraph.step.lending import Lender, copied
from graphbraid.fullgraph.step.planned_step import PlannedStep
from graphbraid.fullgraph.step.replay import ReplayedStep
from graphbraid.graph import Graph
from graphbraid.machine.rates import Rates

if TYPE_CHECKING:
    from graphbraid.fullgraph.explain.floor import Floor
    from graphbraid.fullgraph.explain.timing import StepTimes

ALL = frozenset({*PASSES, "prune", "symmetry", "locality"})
"""Names of all lowering decisions; each can be switched off."""
PRUNE_BELOW = 0.95
"""Share of the edges below which leaving out the others pays."""
HOIST_BYTES = 1 << 28
"""What a hoisted aggregation may take unless told otherwise: time is not worth any amount of memory."""
_MEGA = 1e6


class Lowered:
    """One program over one whole graph: what an engine runs while its model and the graph stay as they are.

    Args:
        read: the model's program.
        graph: features and edges; used in place.
        nodes: ``(num_nodes,)`` int64, each once: whose outputs are trained on.
        passes: names of the lowering passes that may run.
        rates: what the cost model weighs; None: this machine's, measured once
            (:func:`.kept_rates.measured_rates`), and trials where they are close.
        device: where to run.
        storage: see :func:`graphbraid.compile`.
        hoist_bytes: see :func:`graphbraid.compile`.
        locality_bytes: see :func:`graphbraid.compile`.
        cache_bytes: of the processor's cache, what rows find room in; None: as the rates say.
        evidence: see :func:`graphbraid.compile`.

    Raises:
        ResourceError: there is too little memory; says how much is needed and what would fit.
    """

    def __init__(
        self,
        read: Program,
        graph: Graph,
        nodes: Tensor,
        *,
        passes: frozenset[str],
        rates: Rates | None,
        device: Device,
        storage: torch.dtype,
        hoist_bytes: int,
        locality_bytes: int,
        cache_bytes: int | None,
        evidence: Evidence | None,
    ) -> None:
        self._passes, self._device, self._nodes = passes, device, nodes
        self._storage, self._hoist_bytes = storage, hoist_bytes
        self._locality_bytes = locality_bytes
        given = evidence.rates if evidence is not None else rates
        self._measured = MeasuredRates(rates=given) if given else measured_rates(self._device)
        self._rates = self._measured.rates
        self._cache_bytes = int(self._rates.cache_bytes) if cache_bytes is None else cache_bytes
        self._facts: Facts | None = None  # the features are looked at once
        self._tried: Trials | None = None
        self._evidence, self._may_try = evidence, rates is None
        graph = on_place(graph, HOST.place)  # where levels and reverses are made, whatever the device
        self._reads_edges = read.reads_edges
        if not device.is_host and any(isinstance(op, Attention) and op.reads_edges for op in read.ops):
            what = f"attention to edge features has no kernel on {device.place}"
            raise NotLoweredError("attention", what, "the CPU, or edge_dim=None")
        self._csc, shared = with_shared_transpose(
            graph.csc, wanted="symmetry" in self._passes, ordered=self._reads_edges
        )
        self._graph = graph if self._csc is graph.csc else graph.replace(csc=self._csc)
        reached, pruned = self._levels(read)
        program, facts = self._lower(read.rewritten(read.ops, shared, pruned), reached)
        self.program, reached = self._renumbered(program, reached, facts)
        num_blocks = read.num_levels - 1
        self._blocks = whole_graph(self._csc, num_blocks)
        if reached is not None:
            self._blocks = towards(self._csc, reached, keep_edges=self._reads_edges)
        row_of = None if reached is None else _rows_of(reached, graph.num_nodes)
        self._rows = self._rows_of_nodes(row_of)
        self._row_of = None if pruned.taken else row_of
        self._copies = None if self._device.is_host else DeviceCopies(self._device)
        self._sizes = None if self._device.is_host else CopySizes(self._device)
        self._train = self._planned(self.program, self._blocks, training=True)
        self._evaluated: Program | None = None
        self._evaluate: PlannedStep | None = None
        self._outputs = self._lender(self._nodes.numel())
        self._predictions = self._lender(graph.num_nodes)

    @property
    def nbytes(self) -> int:
        """Bytes that training takes beside the graph, its features and the parameters.

        On a device also what it gets of the graph and its features.
        """
        return self._train.nbytes + self._level_bytes

    @property
    def _level_bytes(self) -> int:
        """Of edges and ids in the levels' own order; what a device gets of them is counted there."""
        if not self._device.is_host:
            return 0
        places = 0 if self._rows is None or not self._train.spreads else 4 * self._train.output.count
        return copied_bytes(self._blocks) + places + (0 if self._row_of is None else self._row_of.nbytes)

    def __call__(self) -> Tensor:
        """``(len(nodes), width)`` outputs of the training nodes, in their order; differentiable."""
        self._train = self._ready(self._train)
        parameters = tuple(self.program.parameters())
        out: Tensor = _Run.apply(self._train, self._outputs, self._rows, *parameters)  # type: ignore[no-untyped-call]
        return out

    def serves(self, read: Program) -> bool:
        """Whether :meth:`predict` can run a program: one that reads edges needs them in the graph's order."""
        return self._reads_edges or not read.reads_edges

    def predict(self, read: Program) -> Tensor:
        """``(num_nodes, width)`` outputs of every node, by the model's program in evaluation."""
        if self._evaluate is None or self._evaluated is None or not same_program(read, self._evaluated):
            self._evaluate = None  # its memory first
            self._evaluated, self._evaluate = read, self._make_evaluation(read)
        self._evaluate = self._ready(self._evaluate)
        out = self._evaluate.forward()
        rows = self._row_of if self._evaluate.host_blocks is self._blocks else None
        return copied(out, self._predictions, rows)

    def evidence(self, evaluated: Program | None) -> Evidence:
        """What choices were weighed by, those of the model's program in evaluation too."""
        if evaluated is not None:
            self._lower(evaluated, None, skip="hoist")  # whose trials belong to it
        trials = {} if self._tried is None else dict(self._tried.found)
        return Evidence(rates=self._rates, trials=trials)

    def first_not_finite(self) -> str:
        """After outputs that are not finite: the operation and the first node where forward went wrong."""
        self._train = self._ready(self._train)
        return self._train.first_not_finite()

    def floor(self, *, measure: bool = False) -> Floor:
        """What a step cannot avoid at this machine's rates, per operation.

        Args:
            measure: also time some steps, task by task, on copies of the parameters and of all they are kept
                in: nothing of the model's, nor torch's random state, changes. Takes as much memory again
                as :attr:`nbytes`.

        Raises:
            ResourceError: there is too little memory to measure.
        """
        from graphbraid.fullgraph.explain.floor import floor_of
        from graphbraid.fullgraph.explain.work import Ledger

        assert self._facts is not None
        cache_bytes = self._cache_bytes if self._device.is_host else None
        ledger = Ledger(self.program, self._blocks, self._train.num_rows, self._facts, cache_bytes)
        times, num_nodes = self._timed() if measure else None, self._nodes.numel()
        doubt = self._measured.doubt
        return floor_of(self.program, ledger, self._rates, num_nodes=num_nodes, times=times, doubt=doubt)

    def explain(self, *, measure: bool = False) -> str:
        """The lowered program and every decision: what it saves, what it was chosen over, and the floor.

        Args:
            measure: as :meth:`floor`.
        """
        from graphbraid.fullgraph.explain.text import explain

        choices = [] if self._copies is None else self._copies.picker.choices
        counted: dict[str, Any] = {"level_bytes": self._level_bytes, "doubt": self._measured.doubt}
        said = explain(self.program, self._train, self._device, choices, **counted)
        return f"{said}\n{self.floor(measure=measure)}"

    # ---- making

    def _timed(self) -> StepTimes:
        """Times of some steps of a copy."""
        from graphbraid.fullgraph.explain.timing import TimedStep

        program, copies = copy.deepcopy(self.program), self._copies
        timed = TimedStep(program, self._graph, self._blocks, copies=copies, wait=self._device.wait)
        self._ready(timed)
        return timed.measured(self._rows, self._nodes.numel())

    def _lender(self, num_rows: int) -> Lender | None:
        """Lends outputs on the host; a device's allocator has its own ways to use memory again."""
        width = self.program.width(self.program.output)
        return Lender((num_rows, width)) if self._device.is_host else None

    def _planned(self, program: Program, blocks: list[Block], *, training: bool) -> PlannedStep:
        """A step that knows its size; nothing is moved yet."""
        return PlannedStep(program, self._graph, blocks, training=training, copies=self._sizes)

    def _ready(self, planned: PlannedStep) -> PlannedStep:
        """The step as it runs: its memory is taken at its first use, if there is enough."""
        if planned.is_allocated:
            return planned
        device = self._device
        available, needed = device.free_bytes(), planned.nbytes + WORKSPACE_BYTES * (not device.is_host)
        if available is not None and needed > available:
            where = "beside the data" if device.is_host else f"on {device.place}"
            raise ResourceError(
                f"the whole graph needs {needed / _MEGA:,.0f} MB {where}, but "
                f"{available / _MEGA:,.0f} MB are free. Narrower hidden layers need less; sampled "
                "mini-batches (mode='sampled') need a few hundred MB whatever the graph's size."
            )
        step = planned
        if self._copies is not None and planned.copies is not self._copies:
            step = self._placed(planned, self._copies)
        step.allocate()
        if self._copies is not None:
            self._copies.forget_host()
        return step

    def _placed(self, planned: PlannedStep, copies: DeviceCopies) -> PlannedStep:
        """What was planned, with its edges on the device."""
        make = ReplayedStep if planned.training else PlannedStep
        blocks, training = planned.host_blocks, planned.training
        return make(planned.program, self._graph, blocks, training=training, copies=copies)

    def _levels(self, program: Program) -> tuple[Reach | None, Decision]:
        """The nodes that matter, level by level; None: all of them everywhere."""
        csc, num_blocks = self._csc, program.num_levels - 1
        left_alone = None
        if "prune" not in self._passes:
            left_alone = "switched off"
        elif num_blocks == 0 or csc.num_edges == 0:
            left_alone = "there is nothing to aggregate"
        elif couples_rows(program):
            left_alone = "batch normalisation needs every node's row"
        if left_alone is not None:
            return None, Decision(name="prune", taken=False, what=left_alone)
        reached = reach(csc, self._nodes, num_blocks)
        left = sum(reached.edges(csc)) / (num_blocks * csc.num_edges)
        if left > PRUNE_BELOW:
            what = f"{left:.0%} of the edges would be left"
            return None, Decision(name="prune", taken=False, what=what)
        rows = " -> ".join(f"{size:,}" for size in reversed(reached.sizes))
        what = f"{left:.0%} of the edges reach the nodes of the loss; rows per level {rows}"
        return reached, Decision(name="prune", taken=True, what=what)

    def _lower(self, program: Program, reached: Reach | None, *, skip: str = "") -> tuple[Program, Facts]:
        names = [name for name in PASSES if name in self._passes and name != skip]
        available = (self._device.free_bytes() or 0) // 2
        hoist_bytes = min(self._hoist_bytes, available) if "hoist" in names else 0
        csc, num_blocks = self._csc, program.num_levels - 1
        rows, edges = (csc.num_dst,) * (num_blocks + 1), (csc.num_edges,) * num_blocks
        if reached is not None:
            rows, edges = reached.sizes[::-1], reached.edges(csc)
        limits: dict[str, Any] = {"hoist_bytes": hoist_bytes, "storage": self._storage}
        if self._facts is None:
            facts = facts_of(self._graph, rows, edges, self._rates, **limits)
            self._tried = self._trials(facts.density)
            self._facts = replace(facts, trials=self._tried)
        facts = replace(self._facts, rows=tuple(rows), edges=tuple(edges), hoist_bytes=hoist_bytes)
        for name in names:
            program = PASSES[name](program, facts)
        return program, facts

    def _renumbered(
        self, program: Program, reached: Reach | None, facts: Facts
    ) -> tuple[Program, Reach | None]:
        """The levels' nodes in the order that serves the cache best; None: all of them as they stand."""
        left_alone = None
        if "locality" not in self._passes:
            left_alone = "switched off"
        elif not self._device.is_host:
            left_alone = f"the caches of {self._device.place} are not modelled"
        elif program.num_levels == 1 or self._csc.num_edges == 0:
            left_alone = "there is nothing to aggregate"
        elif self._reads_edges:
            left_alone = "edge features are read in the graph's order"
        if left_alone is not None:
            decision = Decision(name="locality", taken=False, what=left_alone)
            return program.rewritten(program.ops, decision), reached
        better, decision = choose_order(
            program,
            self._csc,
            reached or everything(self._csc.num_dst, program.num_levels - 1),
            facts,
            allowed_bytes=min(self._locality_bytes, (self._device.free_bytes() or 0) // 2),
            cache_bytes=self._cache_bytes,
        )
        return program.rewritten(program.ops, decision), better or reached

    def _rows_of_nodes(self, row_of: Tensor | None) -> Tensor | None:
        """The output's rows of the training nodes; None where they are all of its rows, in order."""
        if row_of is None:
            return self._nodes.to(self._device.place)
        rows = row_of[self._nodes]
        is_in_order = self._blocks[-1].csc.num_dst == rows.numel() and bool((rows.diff() == 1).all())
        return None if is_in_order else rows.to(self._device.place)

    def _trials(self, density: float) -> Trials | None:
        """What tells close choices apart; None where rates alone do."""
        if self._evidence is not None:
            return Trials(self._graph, density, self._rates, self._evidence.trials, may_try=False)
        if not self._may_try:
            return None
        believed = not self._measured.doubt
        return kept_trials(self._graph, density, self._rates, self._device, believed=believed)

    def _make_evaluation(self, read: Program) -> PlannedStep:
        program, _ = self._lower(read, None, skip="hoist")
        blocks = whole_graph(self._csc, read.num_levels - 1)
        if self._row_of is not None and not feature_copies(program):
            blocks = self._blocks  # of all nodes, renumbered
        return self._planned(program, blocks, training=False)


def _rows_of(reached: Reach, num_nodes: int) -> Tensor:
    """``(num_nodes,)`` int64 row of each node, of those that the levels hold."""
    row_of = torch.full((num_nodes,), -1, dtype=torch.int64)
    row_of[reached.nodes] = torch.arange(reached.nodes.numel())
    return row_of


class _Run(torch.autograd.Function):
    """The step as one differentiable operation of the parameters."""

    @staticmethod
    def forward(
        ctx: Any,
        step: PlannedStep,
        lender: Lender | None,
        rows: Tensor | None,
        *parameters: nn.Parameter,
    ) -> Tensor:
        ctx.step, ctx.rows, ctx.ids = step, rows, [id(p) for p in parameters]
        out = step.forward()
        ctx.call, ctx.went_back = step.num_forwards, False
        ctx.versions = [p._version for p in parameters]
        ctx.parameters = parameters
        return copied(out, lender, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.call != ctx.step.num_forwards:
            raise RuntimeError(
                "engine() was called again before this backward pass, and what it needs is overwritten; call "
                "backward() before the next engine()"
            )
        if ctx.versions != [p._version for p in ctx.parameters]:
            raise RuntimeError(
                "a parameter was changed in place between engine() and this backward pass; call backward() "
                "before optimizer.step()"
            )
        if ctx.went_back:  # that wrote over what the forward pass had left
            ctx.step.repeat_forward()
        ctx.went_back = True
        # Out of the dict: autograd stores what nothing else refers to without a copy.
        found = ctx.step.backward(grad, ctx.rows)
        return None, None, None, *[found.pop(key, None) for key in ctx.ids]


__all__ = ["ALL", "HOIST_BYTES", "Lowered"]

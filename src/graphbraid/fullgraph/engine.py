"""Engine: runs a model over a whole graph, following changes of the model from call to call.

A model is read into a program in its current mode, lowered and run. When a mode, a module, an attribute or
the features change, the next call notices and reads the model again; if it then has no lowered form, it runs
as it is written.

Several snapshots of the model are kept, for one that alternates between modes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphbraid.errors import ConfigError, DataError, GraphbraidError
from graphbraid.fullgraph import rates
from graphbraid.fullgraph.device import HOST, Device, device_for, on_place
from graphbraid.fullgraph.lowering.costs import CostModel, Evidence, costs_for
from graphbraid.fullgraph.lowering.lower_program import Lowered, lower_program
from graphbraid.fullgraph.lowering.options import CompileOptions, checked_nodes, needs_lowering
from graphbraid.fullgraph.lowering.passes import drop_sparse
from graphbraid.fullgraph.program import Break, NotLoweredError, Program, Returned, same_program
from graphbraid.fullgraph.ranks.ranks import Ranks, lower_part
from graphbraid.fullgraph.reading.as_written import AsWritten
from graphbraid.fullgraph.reading.modes import (
    CompiledModule,
    CountedMasks,
    kept_buffers,
    lock_of,
    plain_tensors,
    unseen_by_hooks,
    why_not_now,
)
from graphbraid.fullgraph.reading.read import Source, source_of
from graphbraid.fullgraph.reading.watch import ModelWatch, options_of
from graphbraid.fullgraph.runner import Behind, Runner
from graphbraid.graph import Graph
from graphbraid.graph.scans import outside_of_transforms
from graphbraid.nn.module_traits import in_mode
from graphbraid.ops.rng import given_seeds
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from graphbraid.fullgraph.explain.floor import Floor
    from graphbraid.fullgraph.step.planned_step import PlannedStep

_MOST_FORMS = 4
"""Number of snapshots kept per model, since a model alternates between modes."""
_MOST_CHANGES = 16
"""Number of calls in succession that may each need another program, before calls run as written."""


@dataclass
class ModelSnapshot:
    """A model's program at one moment, or the reason why it has none."""

    seen: ModelWatch | None
    """Watches whether the model has changed since; None for a call that reads nothing."""
    program: Program | None
    why: NotLoweredError | None
    runner: Runner | None = None


class TrainingNodes:
    """The training nodes, and the tensor that says which they are, which may change.

    They are given as distinct ids, a mask or the name of a split. It is a ConfigError if one is out of range
    or named twice, and a DataError if there is no such split, or it does not fit the graph.
    """

    def __init__(self, given: Any, source: Source) -> None:
        self.given = given
        self._before = self._now(source)
        mask, count = self._before[0], source.nodes.num_nodes
        is_mask = isinstance(given, str) and source.store is not None and isinstance(mask, Tensor)
        if is_mask and mask.shape[0] != count:
            raise DataError(f"{given}_mask must mark {count} nodes; got shape {tuple(mask.shape)}")
        self.ids = checked_nodes(given, source.nodes)
        """``(num_nodes,)`` int64 ids."""

    def have_changed(self, source: Source) -> bool:
        """Return whether the tensor was written to or replaced."""
        (before, at), (now, version) = self._before, self._now(source)
        return now is not before or version != at

    def _now(self, source: Source) -> tuple[Any, int]:
        says, store = self.given, source.store
        if isinstance(says, str):
            says = source.nodes.splits.get(says) if store is None else store.get(f"{says}_mask")
        return says, says._version if isinstance(says, Tensor) and not says.is_inference() else 0


class ModelTracker:
    """A model and its graph, followed from call to call. If ``strict``, there may be no graph breaks.

    ``source`` is the graph, and the data behind it, in their current state.
    """

    def __init__(
        self,
        model: nn.Module,
        source: Source,
        nodes: Any,
        options: CompileOptions,
        *,
        ranks: Ranks | None,
        strict: bool,
    ) -> None:
        self._model, self._options, self._ranks = model, options, ranks
        alone = ranks is None and options.features is None
        self._breaks_at = options.device.place if alone and not strict else None
        """The device of graph breaks; None if there may be none."""
        self._snapshots: list[ModelSnapshot] = []
        self._num_changes = 0
        self._unread: ModelWatch | None = None
        self.source = source
        self.differentiates_twice = False
        """Whether gradients have been differentiated again. Calls with gradients then run as written."""
        self._asked = TrainingNodes(nodes, self.source)
        if ranks is not None:
            ranks.check_same(options_of(model), source.graph, self.nodes)

    @property
    def nodes(self) -> Tensor:
        """``(num_nodes,)`` int64 ids of the training nodes."""
        return self._asked.ids

    def now(self) -> ModelSnapshot:
        """Return the current snapshot: a new one if the model, the graph or the nodes have changed."""
        if self._asked.have_changed(self.source) or self.source.has_changed():
            with outside_of_transforms():
                self.source = self.source.anew()
                self._asked = TrainingNodes(self._asked.given, self.source)
            self._snapshots.clear()
            self._num_changes = 0
        why = why_not_now(self._options.device.place.type)
        if why is None and self.differentiates_twice and torch.is_grad_enabled():
            what = "its gradients were differentiated again (create_graph=True)"
            why = NotLoweredError("backward", what)
        if why is not None:
            return ModelSnapshot(None, None, why)
        for snapshot in reversed(self._snapshots):
            if snapshot.seen is not None and not snapshot.seen.has_changed():
                self._num_changes = 0
                return snapshot
        seen = ModelWatch(self._model)
        if self._num_changes >= _MOST_CHANGES and (self._unread is None or self._unread.has_changed()):
            self._unread = seen
            what = f"a value that it reads changed in each of the last {_MOST_CHANGES} calls"
            return ModelSnapshot(
                None, None, NotLoweredError("forward", what, "values that stay between calls")
            )
        snapshot = self._read(seen)
        self._num_changes += snapshot.program is not None and snapshot.runner is None
        self._snapshots = [*self._snapshots[1 - _MOST_FORMS :], snapshot]
        return snapshot

    def runner_of(self, snapshot: ModelSnapshot) -> Runner | None:
        """Return the runner of a snapshot's program; None if there is none, and ``snapshot.why`` says why."""
        if snapshot.runner is None and snapshot.program is not None:
            try:
                snapshot.runner = Runner(self._lower(snapshot.program), self._ranks)
            except GraphbraidError:
                raise
            except NotLoweredError as why:
                snapshot.program, snapshot.why = None, why.kept()
            except Exception as error:  # lowering must never make a model fail that runs as written
                snapshot.program, snapshot.why = None, NotLoweredError.of_failure(self._model, error)
        return snapshot.runner

    def runner_serving(self, snapshot: ModelSnapshot) -> Runner | None:
        """Return a runner of any snapshot that can run this one's program; if there is none, its own."""
        runners = (r.runner for r in self._snapshots if r.runner is not None)
        runner = next((r for r in runners if snapshot.program is None or r.serves(snapshot.program)), None)
        return runner or self.runner_of(snapshot)

    def as_written(self) -> AsWritten:
        """Return a runner of the model as it is written; ConfigError if features are streamed."""
        if self._options.features is not None:
            raise ConfigError(needs_lowering(self.now().why))
        written = self.source.as_written(self._model, self._options.device.place)
        written.differentiates_twice = self.differentiates_twice
        return written

    def _read(self, now: ModelWatch) -> ModelSnapshot:
        try:
            with unseen_by_hooks():
                program = self.source.read(self._model, self._breaks_at)
            if program.returned is not None and self._ranks is not None:
                raise NotLoweredError("forward", "it returns several matrices", "one result")
        except NotLoweredError as why:
            return ModelSnapshot(now, None, why.kept())
        known = (r for r in self._snapshots if r.seen is not None and now.has_same_parameters(r.seen))
        alike = next((r for r in known if r.program is not None and same_program(r.program, program)), None)
        if alike is not None:  # the change did not affect the program
            return ModelSnapshot(now, alike.program, None, alike.runner)
        return ModelSnapshot(now, program, None)

    def _lower(self, program: Program) -> Lowered:
        if self._ranks is not None and self._ranks.part is not None:
            costs = _costs(program, self._ranks.part.graph, self._options)
            return lower_part(program, self._ranks, self.nodes, self._options, costs)
        lowered = lowered_on_host(program, self.source.graph_for(program), self.nodes, self._options)
        options, alone = self._options, self._ranks is None and self._options.features is None
        if alone and options.device.is_host and "input_path" in options.passes:
            lowered = replace(lowered, program=drop_sparse(lowered.program, lowered.costs))
        return lowered


def lowered_on_host(program: Program, graph: Graph, nodes: Tensor, options: CompileOptions) -> Lowered:
    """Lower a program over a graph, by this machine's costs. A graph on a device is copied to the host."""
    graph = graph if program.by_relation else on_place(graph, HOST.place)
    return lower_program(program, graph, nodes, options, _costs(program, graph, options))


def _costs(program: Program, graph: Graph, options: CompileOptions) -> CostModel:
    """Return a program's costs by the rates that the options give, or else this machine's."""
    given = options.rates if options.evidence is None else options.evidence.rates
    measured = rates.measured_rates(options.device) if given is None else rates.MeasuredRates(rates=given)
    return costs_for(program, graph, options, measured.rates, measured.doubt)


def strict_text(why: NotLoweredError | None) -> str:
    """Return the text of the error of a strict engine for a part that would run as written."""
    return "strict=True" if why is None else f"strict=True, and {why.explained()}"


class Engine(CompiledModule):
    """Trains one model on one whole graph.

    ``engine()`` returns the outputs of the training nodes; ``loss.backward()`` propagates from them to the
    model's parameters; these stay the user's own, under the model's names, and any torch optimizer works.
    Create engines with :func:`graphbraid.compile`. Calls are serialized: threads wait for each other.

    Args:
        model: see :func:`graphbraid.fullgraph.reading.read.read_model`.
        graph: a graph with features; used in place.
        nodes: the training nodes, as distinct ids, a mask or the name of a split.
        options: how the model is lowered, and the device. If None, the defaults, on the parameters' device.
        ranks: see :func:`graphbraid.compile`.
        node_type: see :func:`graphbraid.compile`.
        data: the user's own data object, if ``graph`` was made from one.
        strict: whether to raise an error where a part of the model would run as written.

    Raises:
        NotLoweredError: part of the model has no lowered form; the message names it.
        ConfigError: a node is out of range or named twice, or the parameters are not on the options' device.
        DataError: the graph has no features.
        ResourceError: there is too little memory; the message gives the needed memory and the remedy.
    """

    runner: Runner
    """Runner of the program that was lowered last."""
    _strict: bool
    ranks: Ranks | None
    """The ranks that run the program together; None for one."""
    _device: Device
    _lock: threading.RLock
    _tracker: ModelTracker

    @typed
    def __init__(
        self,
        model: nn.Module,
        graph: Graph,
        nodes: Any,
        options: CompileOptions | None = None,
        *,
        ranks: Ranks | None = None,
        node_type: str | None = None,
        data: Any = None,
        strict: bool = False,
    ) -> None:
        super().__init__(model)
        device = device_for(model, None if options is None else options.device)
        options = options or CompileOptions(device=device)
        if options.features is not None and (ranks is not None or not device.is_host):
            who = f"a step on {device.place}" if ranks is None else "each of several ranks"
            raise ConfigError(f"{who} reads features in memory; leave tiers and host out.")
        lock = lock_of(model)
        with lock, plain_tensors():
            source = source_of(model, graph, data, node_type)
            tracker = ModelTracker(model, source, nodes, options, ranks=ranks, strict=strict)
            snapshot = tracker.now()
            runner = tracker.runner_of(snapshot)
            if runner is None:
                assert snapshot.why is not None
                raise snapshot.why
        vars(self).update(
            _strict=strict, ranks=ranks, _device=device, _lock=lock, _tracker=tracker, runner=runner
        )

    def __reduce__(self) -> Any:
        """Raise ConfigError: copies and pickles could not share the memory that steps run in."""
        raise ConfigError(
            "an engine cannot be copied or saved; copy or save its model, and compile that: "
            "graphbraid.compile(copy.deepcopy(engine.model), graph)."
        )

    # ---- running

    def forward(self) -> Tensor:
        """Return the ``(len(nodes), width)`` outputs of the training nodes, in their order; differentiable.

        If the model returns several matrices, in tuples, lists or dicts, return the same structure of them.
        These are the model's outputs in its current mode. Any number of calls may wait for their backward
        passes, in any thread; a backward pass that does not belong to the last call runs that forward pass
        again first, with the same masks. A backward pass raises ``RuntimeError`` if the parameters or the
        features were changed in place since the call.
        """
        with self._lock, plain_tensors():
            runner = self._tracker.runner_of(self._tracker.now())
            if runner is None:
                return self._rows_as_written()
            vars(self)["runner"] = runner
            program = runner.lowered.program
            written_again = partial(self._written_again, program.returned)
            return _as_returned(
                runner(Behind(self._tracker.source.watch.has_changed, written_again)), program
            )

    def _rows_as_written(self) -> Tensor:
        nodes = self._tracker.nodes
        nodes = nodes if self.ranks is None else self.ranks.owned(nodes)
        rows: Tensor = self._as_written().rows(nodes.to(self._device.place))
        return rows

    def _written_again(self, returned: Returned | None, seeds: Sequence[int]) -> Tensor:
        """Return the outputs of a call by the model as it is written, so that they have second derivatives.

        Later calls with gradients then run as written from the start.
        """
        if self.ranks is not None:
            raise ConfigError("gradients of several ranks cannot be differentiated again; use one rank.")
        if ours := [m for m in self.model.modules() if type(m).__module__.startswith("graphbraid.")]:
            raise ConfigError(
                f"{type(ours[0]).__name__} has no second derivatives (create_graph=True); build the model of "
                "PyTorch Geometric's layers, which have them and are lowered, too."
            )
        with self._lock, kept_buffers(self.model), given_seeds(seeds), CountedMasks():
            self._tracker.differentiates_twice = True
            rows = self._rows_as_written()
            return rows if returned is None else returned.joined(rows)

    def predict(self) -> Tensor:
        """Return the ``(num_nodes, width)`` outputs of every node in evaluation mode, as the model does."""
        return self._evaluated(lambda runner, program: runner.predict(program), lambda out: out)

    def predict_owned(self, nodes: Tensor) -> Tensor:
        """Return the outputs, in evaluation mode, of the ``nodes`` that this rank owns.

        All ranks call it together, with the same ``nodes``, int64 ids in any order.
        """
        assert self.ranks is not None
        own = self.ranks.owned(nodes)
        return self._evaluated(
            lambda runner, program: runner.predict_owned(program, own), lambda out: out[own]
        )

    def _evaluated(
        self, run: Callable[[Runner, Program], Tensor], of_all: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return ``run``'s result in evaluation mode, or ``of_all`` of a model's outputs as written."""
        with self._lock, plain_tensors(), torch.no_grad(), in_mode(self.model, training=False):
            snapshot = self._tracker.now()
            runner = self._tracker.runner_serving(snapshot)
            if runner is None or snapshot.program is None:
                return of_all(self._as_written()())
            return _as_returned(run(runner, snapshot.program), snapshot.program)

    def _as_written(self) -> AsWritten:
        """Return a runner of the model as it is written; ConfigError if the engine is strict."""
        if self._strict:
            raise ConfigError(strict_text(self._tracker.now().why))
        return self._tracker.as_written()

    # ---- properties and explanations

    @property
    def breaks(self) -> tuple[Break, ...]:
        """The graph breaks of the program that ran last: the parts that PyTorch runs as they are written."""
        return tuple(op for op in self.program.ops if isinstance(op, Break) and op.is_graph_break)

    @property
    def why(self) -> NotLoweredError | None:
        """The reason why the model in its current state runs as it is written; None if it is lowered."""
        with self._lock, plain_tensors():
            return self._tracker.now().why

    @property
    def lowered(self) -> Lowered:
        """The lowering that ran last; print it to see the program, its levels and every decision."""
        return self.runner.lowered

    @property
    def program(self) -> Program:
        """The lowered program that ran last."""
        return self.runner.lowered.program

    @property
    def nbytes(self) -> int:
        """Bytes that training takes in addition to the graph, its features and the parameters.

        On a device this includes the copies of the graph's arrays and features.
        """
        return self.runner.nbytes

    @property
    def evaluation_nbytes(self) -> int:
        """Bytes that :meth:`predict` takes in addition to :attr:`nbytes`; 0 if it runs as it is written."""
        step = self._evaluation_step()
        return 0 if step is None else step.nbytes

    @property
    def evaluation_pass_bytes(self) -> int:
        """Bytes of feature rows that :meth:`predict` reads of files; 0 where they lie in memory."""
        step = self._evaluation_step()
        return 0 if step is None or step.plan.streams is None else step.plan.streams.pass_bytes

    @property
    def evidence(self) -> Evidence:
        """Measurements behind the choices; an engine given them makes the same ones, to the same bits."""
        return self.runner.evidence()

    def _evaluation_step(self) -> PlannedStep | None:
        """Return the step that :meth:`predict` has, or one like it; None if the model runs as written."""
        with self._lock, plain_tensors(), in_mode(self.model, training=False):
            program = self._tracker.now().program
        return None if program is None else self.runner.evaluation_step(program)

    def first_not_finite(self) -> str:
        """Describe the operation and first node where the last forward pass gave a non-finite value."""
        with self._lock:
            return self.runner.first_not_finite()

    def floor(self, *, measure: bool = False) -> Floor:
        """Return the least work and time of a step at this machine's rates, operation by operation.

        Args:
            measure: also time some steps, task by task, on copies of the parameters and buffers, so that
                neither the model nor torch's random state changes. Takes as much memory again as
                :attr:`nbytes`.

        Raises:
            ResourceError: there is too little memory to measure.
        """
        with self._lock, plain_tensors():
            return self.runner.floor(measure=measure)

    def explain(self, *, measure: bool = False) -> str:
        """Describe the lowered program, every decision with its saving and alternatives, and the floor.

        Args:
            measure: see :meth:`floor`.
        """
        with self._lock, plain_tensors():
            snapshot = self._tracker.now()
            runner = self._tracker.runner_of(snapshot)
            if runner is None:
                assert snapshot.why is not None
                return snapshot.why.explained()
            vars(self)["runner"] = runner
            return runner.explain(measure=measure)

    def _repr_html_(self) -> str:
        from graphbraid.figures import notebook, preformatted

        return notebook(f"Engine of {type(self.model).__name__}", preformatted(self.explain()))


def _as_returned(out: Tensor, program: Program) -> Tensor:
    returned: Tensor = out if program.returned is None else program.returned.of(out)
    return returned

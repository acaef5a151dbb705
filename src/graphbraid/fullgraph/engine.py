"""Engine: runs a model over a whole graph, following changes of the model from call to call.

A model is read into a program in its current mode, lowered and run. When a mode, a module, an attribute or
the features change, the next call notices and reads the model again; if it then has no lowered form, it runs
as it is written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphbraid.errors import ConfigError
from graphbraid.fullgraph.device import Device, device_for
from graphbraid.fullgraph.lowering.costs import Evidence
from graphbraid.fullgraph.lowering.lower_program import Lowered
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.fullgraph.model_tracker import ModelTracker
from graphbraid.fullgraph.program import Break, NotLoweredError, Program, Returned
from graphbraid.fullgraph.ranks.ranks import Ranks
from graphbraid.fullgraph.reading.as_written import AsWritten
from graphbraid.fullgraph.reading.modes import (
    CompiledModule,
    CountedMasks,
    in_mode,
    kept_buffers,
    lock_of,
    plain_tensors,
)
from graphbraid.fullgraph.reading.source import source_of
from graphbraid.fullgraph.runner import Behind, Runner
from graphbraid.graph import Graph
from graphbraid.ops.dropout import given_seeds
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from graphbraid.fullgraph.explain.floor import Floor


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
    _ranks: Ranks | None
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
            _strict=strict, _ranks=ranks, _device=device, _lock=lock, _tracker=tracker, runner=runner
        )

    def __reduce__(self) -> Any:
        """Refuse copies and pickles, which could not share the memory that steps run in.

        Raises:
            ConfigError: always.
        """
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
        nodes = nodes if self._ranks is None else self._ranks.owned(nodes)
        rows: Tensor = self._as_written().rows(nodes.to(self._device.place))
        return rows

    def _written_again(self, returned: Returned | None, seeds: Sequence[int]) -> Tensor:
        """Return the outputs of a call by the model as it is written, so that they have second derivatives.

        Later calls with gradients then run as written from the start.
        """
        if self._ranks is not None:
            raise ConfigError("gradients of several ranks cannot be differentiated again; use one rank.")
        if ours := [m for m in self.model.modules() if type(m).__module__.startswith("graphbraid.")]:
            raise ConfigError(
                f"{type(ours[0]).__name__} has no second derivatives (create_graph=True); build the model of "
                "PyTorch Geometric's layers, which have them and are lowered, too."
            )
        with self._lock, kept_buffers(self.model), given_seeds(seeds), CountedMasks():
            rows = self._rows_as_written()
            self._tracker.differentiates_twice = True
            return rows if returned is None else returned.joined(rows)

    def predict(self) -> Tensor:
        """Return the ``(num_nodes, width)`` outputs of every node in evaluation mode, as the model does."""
        return self._evaluated(lambda runner, program: runner.predict(program), lambda out: out)

    def predict_owned(self, nodes: Tensor) -> Tensor:
        """Return the outputs, in evaluation mode, of the ``nodes`` that this rank owns.

        All ranks call it together, with the same ``nodes``, int64 ids in any order.
        """
        assert self._ranks is not None
        own = self._ranks.owned(nodes)
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
        """Return a runner of the model as it is written.

        Raises:
            ConfigError: the engine is strict.
        """
        if self._strict:
            raise ConfigError(strict_text(self._tracker.now().why))
        return self._tracker.as_written()

    # ---- properties and explanations

    @property
    def breaks(self) -> tuple[Break, ...]:
        """The graph breaks of the program that ran last: the parts that PyTorch runs as they are written."""
        return tuple(op for op in self.program.ops if isinstance(op, Break) and op.is_graph_break)

    @property
    def ranks(self) -> Ranks | None:
        """The ranks that run the program together; None for one."""
        return self._ranks

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
        program = self._evaluated_program()
        return 0 if program is None else self.runner.evaluation_bytes(program)

    @property
    def evaluation_pass_bytes(self) -> int:
        """Bytes of feature rows that :meth:`predict` reads of files; 0 where they lie in memory."""
        program = self._evaluated_program()
        return 0 if program is None else self.runner.evaluation_pass_bytes(program)

    @property
    def evidence(self) -> Evidence:
        """Measurements behind the choices; an engine given them makes the same ones, to the same bits."""
        return self.runner.evidence()

    def _evaluated_program(self) -> Program | None:
        """Return the model's program in evaluation mode; None if the model runs as written."""
        with self._lock, plain_tensors(), in_mode(self.model, training=False):
            return self._tracker.now().program

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
    """Return a program's output, or the structure that the model returns of it."""
    returned: Tensor = out if program.returned is None else program.returned.of(out)
    return returned

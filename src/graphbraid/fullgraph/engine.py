"""Engine: a model over a whole graph, as it is at every call.

A model is read into a program in the mode it is in, lowered and run. Whatever of it changes later (a mode, a
module, an attribute, the features) is noticed at the next call and read again; what then has no lowered form
runs as it is written.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from graphbraid.errors import GraphbraidError
from graphbraid.fullgraph.device.choosing import device_for
from graphbraid.fullgraph.device.device import Device
from graphbraid.fullgraph.lower_model import lower
from graphbraid.fullgraph.lowering.evidence import Evidence
from graphbraid.fullgraph.lowering.locality import LOCALITY_BYTES
from graphbraid.fullgraph.lowering.lowered import Lowered
from graphbraid.fullgraph.lowering.options import (
    ALL,
    HOIST_BYTES,
    CompileOptions,
    checked_nodes,
    names_of,
    storage_of,
)
from graphbraid.fullgraph.model.as_written import AsWritten
from graphbraid.fullgraph.model.modes import in_mode, plain_tensors
from graphbraid.fullgraph.model.source import Source
from graphbraid.fullgraph.model.watch import ModelWatch, Snapshot
from graphbraid.fullgraph.program import Program, same_program
from graphbraid.fullgraph.program.refusal import NotLoweredError, explained, failed
from graphbraid.fullgraph.runner import Runner
from graphbraid.graph import Graph
from graphbraid.machine.rates import Rates
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from graphbraid.fullgraph.explain.floor import Floor

_MOST_FORMS = 4
"""Readings of one model that are kept: it goes back and forth between modes."""
_LOCKS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_MAKING_LOCKS = threading.Lock()


def lock_of(model: nn.Module) -> threading.RLock:
    """The lock of all engines of a model: one call at a time, since modes and buffers are the model's."""
    with _MAKING_LOCKS:
        return _LOCKS.setdefault(model, threading.RLock())


@dataclass
class _Reading:
    """A model as it was at one moment: its program, or why it has none."""

    seen: Snapshot
    program: Program | None
    why: NotLoweredError | None
    runner: Runner | None = None


class Engine:
    """Trains one model on one whole graph.

    ``engine()`` gives the outputs of the training nodes, through which ``loss.backward()`` flows into the
    model's parameters; they stay the user's own, and any torch optimizer works. Made by
    :func:`graphbraid.compile`. One call at a time: threads wait for each other.

    Args:
        model: see :func:`graphbraid.fullgraph.program.read.read_model`.
        graph: features and edges; used in place.
        nodes: ids, each once, or a mask: whose outputs are trained on.
        passes: names of the lowering passes that may run.
        rates: what the cost model weighs; None: this machine's, measured once
            (:func:`.kept_rates.measured_rates`), and trials where they are close.
        device: where to run; None: where the model's parameters are.
        storage: see :func:`graphbraid.compile`.
        hoist_bytes: see :func:`graphbraid.compile`.
        locality_bytes: see :func:`graphbraid.compile`.
        cache_bytes: of the processor's cache, what rows find room in; None: this machine's.
        evidence: see :func:`graphbraid.compile`.
        data: the user's own, where ``graph`` was made of it.

    Raises:
        NotLoweredError: names the part of the model that has no lowered form.
        ConfigError: no pass has such a name, a node is out of range or named twice, or the parameters are not
            on ``device``.
        DataError: the graph has no features.
        ResourceError: there is too little memory; says how much is needed and what would fit.
    """

    @typed
    def __init__(
        self,
        model: nn.Module,
        graph: Graph,
        nodes: Any,
        *,
        passes: Iterable[str] = ALL,
        rates: Rates | None = None,
        device: Device | torch.device | str | None = None,
        storage: str = "float32",
        hoist_bytes: int = HOIST_BYTES,
        locality_bytes: int = LOCALITY_BYTES,
        cache_bytes: int | None = None,
        evidence: Evidence | None = None,
        data: Any = None,
    ) -> None:
        self.model = model
        self._device = device_for(model, device)
        self._options = CompileOptions(
            passes=names_of(passes),
            device=self._device,
            storage=storage_of(storage),
            hoist_bytes=hoist_bytes,
            locality_bytes=locality_bytes,
            cache_bytes=cache_bytes,
            rates=rates,
            evidence=evidence,
        )
        self._nodes = checked_nodes(nodes, graph)
        self._lock = lock_of(model)
        self._readings: list[_Reading] = []
        with self._lock, plain_tensors():
            self._watch = ModelWatch(model)
            self._source = Source(graph, data)
            reading = self._now()
            runner = self._runner(reading)
            if runner is None:
                assert reading.why is not None
                raise reading.why
            self.runner: Runner = runner
            """Runs what was lowered last."""

    # ---- running

    def __call__(self) -> Tensor:
        """``(len(nodes), width)`` outputs of the training nodes, in their order; differentiable.

        What the model would give now, in the mode it is in. One forward pass at a time: the next call writes
        over what a backward pass of the last one needs, and a backward pass that comes too late raises
        RuntimeError.
        """
        with self._lock, plain_tensors():
            reading = self._now()
            runner = self._runner(reading)
            if runner is None:
                rows: Tensor = self._as_written().rows(self._nodes.to(self._device.place))
                return rows
            self.runner = runner
            return runner()

    def predict(self) -> Tensor:
        """``(num_nodes, width)`` outputs of every node, as in evaluation."""
        with self._lock, plain_tensors(), torch.no_grad(), in_mode(self.model, training=False):
            reading = self._now()
            runners = (r.runner for r in self._readings if r.runner is not None)
            runner = next((r for r in runners if reading.program is None or r.serves(reading.program)), None)
            runner = runner or self._runner(reading)
            if runner is None or reading.program is None:
                out: Tensor = self._as_written()()
                return out
            return runner.predict(reading.program)

    # ---- what it says of itself

    @property
    def why(self) -> NotLoweredError | None:
        """Why the model, as it is now, runs as it is written; None where it is lowered."""
        with self._lock, plain_tensors():
            return self._now().why

    @property
    def lowered(self) -> Lowered:
        """What ran last, as it was lowered: print it to see the program, its levels and every decision."""
        return self.runner.lowered

    @property
    def program(self) -> Program:
        """The lowered program that ran last."""
        return self.runner.lowered.program

    @property
    def nbytes(self) -> int:
        """Bytes that training takes beside the graph, its features and the parameters.

        On a device also what it gets of the graph and its features.
        """
        return self.runner.nbytes

    @property
    def evidence(self) -> Evidence:
        """What choices were weighed by: another engine that is given it lowers alike, to the same bits."""
        with self._lock, plain_tensors():
            with in_mode(self.model, training=False):
                evaluated = self._now().program
            return self.runner.evidence(evaluated)

    def first_not_finite(self) -> str:
        """After outputs that are not finite: the operation and the first node where forward went wrong."""
        with self._lock:
            return self.runner.first_not_finite()

    def floor(self, *, measure: bool = False) -> Floor:
        """What a step cannot avoid at this machine's rates, per operation.

        Args:
            measure: also time some steps, task by task, on copies of the parameters and of all they are kept
                in: nothing of the model's, nor torch's random state, changes. Takes as much memory again
                as :attr:`nbytes`.

        Raises:
            ResourceError: there is too little memory to measure.
        """
        with self._lock, plain_tensors():
            return self.runner.floor(measure=measure)

    def explain(self, *, measure: bool = False) -> str:
        """The lowered program and every decision: what it saves, what it was chosen over, and the floor.

        Args:
            measure: as :meth:`floor`.
        """
        with self._lock, plain_tensors():
            reading = self._now()
            runner = self._runner(reading)
            if runner is None:
                assert reading.why is not None
                return explained(reading.why)
            self.runner = runner
            return runner.explain(measure=measure)

    # ---- reading

    def _now(self) -> _Reading:
        """The model as it is now, read anew where it or the graph has changed."""
        if torch.is_autocast_enabled(self._device.place.type):
            why = NotLoweredError("autocast", "kernels run in float32", "a call outside of autocast")
            return _Reading(self._watch.now(), None, why)
        if self._source.has_changed():
            self._source = self._source.anew()
            self._readings.clear()
        for reading in reversed(self._readings):
            if self._watch.is_still(reading.seen):
                return reading
        self._watch = ModelWatch(self.model)
        reading = self._read(self._watch.now())
        self._readings = [*self._readings[1 - _MOST_FORMS :], reading]
        return reading

    def _read(self, now: Snapshot) -> _Reading:
        try:
            program = self._source.read(self.model)
        except NotLoweredError as why:
            return _Reading(now, None, why)
        known = (r for r in self._readings if r.program is not None and r.seen.numbers == now.numbers)
        alike = next((r for r in known if r.program is not None and same_program(r.program, program)), None)
        if alike is not None:  # nothing of it mattered
            return _Reading(now, alike.program, None, alike.runner)
        return _Reading(now, program, None)

    def _runner(self, reading: _Reading) -> Runner | None:
        """What runs a reading's program; None where it has none, which ``reading.why`` then explains."""
        if reading.runner is None and reading.program is not None:
            try:
                reading.runner = Runner(self._lower(reading.program))
            except GraphbraidError:
                raise
            except NotLoweredError as why:
                reading.program, reading.why = None, why
            except Exception as error:  # a model that runs must not fail for being lowered
                reading.program, reading.why = None, failed(self.model, error)
        return reading.runner

    def _lower(self, program: Program) -> Lowered:
        return lower(program, self._source.graph, self._nodes, self._options)

    def _as_written(self) -> AsWritten:
        return self._source.as_written(self.model, self._device.place)


__all__ = ["Engine", "lock_of"]

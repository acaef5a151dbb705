"""ModelTracker: the snapshots of a model that may change between calls, and the runner of each.

Each call checks whether the model, its graph or the user's data have changed since the model was read. If so,
it is read again. Several snapshots are kept, for a model that alternates between modes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.errors import ConfigError, DataError, GraphbraidError
from graphbraid.fullgraph.device import HOST, on_place
from graphbraid.fullgraph.lowering.lower_program import Lowered, lower_program
from graphbraid.fullgraph.lowering.options import CompileOptions, checked_nodes, needs_lowering
from graphbraid.fullgraph.measured.rates import costs_for
from graphbraid.fullgraph.program import NotLoweredError, Program, same_program
from graphbraid.fullgraph.ranks.ranks import Ranks, lower_part
from graphbraid.fullgraph.reading.as_written import AsWritten
from graphbraid.fullgraph.reading.modes import why_not_now
from graphbraid.fullgraph.reading.source import Source
from graphbraid.fullgraph.reading.watch import ModelWatch, options_of
from graphbraid.fullgraph.runner import Runner
from graphbraid.graph import Graph

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

    Args:
        given: distinct ids, a mask or the name of a split.
        source: the graph, and the data behind it.

    Raises:
        ConfigError: a node is out of range or named twice.
        DataError: there is no such split, or it does not fit the graph.
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
    """A model and its graph, followed from call to call.

    Args:
        model: the model; its parameters stay the user's own.
        source: the graph, and the data behind it, in their current state.
        nodes: the training nodes, as distinct ids, a mask or the name of a split.
        options: options of the lowering.
        ranks: the ranks that run the program together. If None, there is one.
        strict: whether the program may have no graph breaks.

    Raises:
        ConfigError: a node is out of range or named twice.
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
            self.source = self.source.anew()
            self._asked = TrainingNodes(self._asked.given, self.source)
            self._snapshots.clear()
            self._num_changes = 0
        if (why := self._why_not_now()) is not None:
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

    def _why_not_now(self) -> NotLoweredError | None:
        """Return why no model can be lowered at this moment, so that it runs as written; None if it can."""
        if (why := why_not_now(self._options.device.place.type)) is not None:
            return why
        if self.differentiates_twice and torch.is_grad_enabled():
            return NotLoweredError("backward", "its gradients were differentiated again (create_graph=True)")
        return None

    def runner_of(self, snapshot: ModelSnapshot) -> Runner | None:
        """Return the runner of a snapshot's program; None if there is none, and ``snapshot.why`` says why."""
        if snapshot.runner is None and snapshot.program is not None:
            try:
                snapshot.runner = Runner(self._lower(snapshot.program), self._ranks)
            except GraphbraidError:
                raise
            except NotLoweredError as why:
                snapshot.program, snapshot.why = None, why
            except Exception as error:  # lowering must never make a model fail that runs as written
                snapshot.program, snapshot.why = None, NotLoweredError.of_failure(self._model, error)
        return snapshot.runner

    def runner_serving(self, snapshot: ModelSnapshot) -> Runner | None:
        """Return a runner of any snapshot that can run this one's program; if there is none, its own."""
        runners = (r.runner for r in self._snapshots if r.runner is not None)
        runner = next((r for r in runners if snapshot.program is None or r.serves(snapshot.program)), None)
        return runner or self.runner_of(snapshot)

    def as_written(self) -> AsWritten:
        """Return a runner of the model as it is written.

        Raises:
            ConfigError: features are streamed, which a model as written cannot read.
        """
        if self._options.features is not None:
            raise ConfigError(needs_lowering(self.now().why))
        return self.source.as_written(self._model, self._options.device.place)

    def _read(self, now: ModelWatch) -> ModelSnapshot:
        try:
            program = self.source.read(self._model, self._breaks_at)
            if program.returned is not None and self._ranks is not None:
                raise NotLoweredError("forward", "it returns several matrices", "one result")
        except NotLoweredError as why:
            return ModelSnapshot(now, None, why)
        known = (r for r in self._snapshots if r.seen is not None and r.seen.numbers == now.numbers)
        alike = next((r for r in known if r.program is not None and same_program(r.program, program)), None)
        if alike is not None:  # the change did not affect the program
            return ModelSnapshot(now, alike.program, None, alike.runner)
        return ModelSnapshot(now, program, None)

    def _lower(self, program: Program) -> Lowered:
        if self._ranks is not None and self._ranks.part is not None:
            costs = costs_for(program, self._ranks.part.graph, self._options)
            return lower_part(program, self._ranks, self.nodes, self._options, costs)
        return lowered_on_host(program, self.source.graph_for(program), self.nodes, self._options)


def lowered_on_host(program: Program, graph: Graph, nodes: Tensor, options: CompileOptions) -> Lowered:
    """Lower a program over a graph, by this machine's costs. A graph on a device is copied to the host."""
    graph = graph if program.by_relation else on_place(graph, HOST.place)
    return lower_program(program, graph, nodes, options, costs_for(program, graph, options))

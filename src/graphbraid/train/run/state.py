"""RunState: what a run needs of its Trainer, and what it changes there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from graphbraid.graph import Graph
from graphbraid.train.config import TrainConfig
from graphbraid.train.inference.metrics import metric_names, monitored
from graphbraid.train.records import Progress, Status
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.task import Task, task_of

if TYPE_CHECKING:
    from graphbraid.collective import Plan
    from graphbraid.collective.run.protocols import Accelerator


@dataclass(kw_only=True, eq=False)
class RunState:
    """One run: what it is given, and where it stands.

    ``Trainer.fit`` begins with a fresh one; the Trainer's attributes of the same names show it to callbacks.
    """

    config: TrainConfig
    """How to train; its mode is ``sampled`` or ``full``."""
    graph: Graph
    """Topology, features, labels and splits."""
    runner: ModelRunner
    """The model; in mode ``full`` the run gives it an engine."""
    accelerator: Accelerator | None
    """Prepares and transfers mini-batches; None: the runner's device does."""
    info: Mapping[str, Any]
    """Plain values to keep with the run."""
    mode_reason: str
    """Why mode ``auto`` took the mode it took; empty where the user chose it."""

    uncompiled_reason: str = ""
    """Why mode ``full`` runs the model as it is; empty where it is compiled."""
    plan: Plan | None = None
    """Who prepares the mini-batches, once that is planned."""
    steps_per_epoch: int | None = None
    """Optimizer steps of an epoch, once they are known."""
    progress: Progress = field(default_factory=Progress)
    """Where the run stands."""
    stop_status: Status | None = None
    """How the run is to end after the step under way; None: it goes on."""

    @cached_property
    def task(self) -> Task:
        """What the graph's labels describe."""
        return task_of(self.graph)

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics an evaluation computes."""
        return metric_names(self.task, self.config.metrics)

    @cached_property
    def monitored(self) -> tuple[str, bool]:
        """The metric that says which epoch is best, and whether larger is better."""
        return monitored(self.task, self.metrics, self.config.monitor)

    def request_stop(self, status: Status) -> None:
        """End the run after the step or epoch under way; the first wish counts."""
        if self.stop_status is None:
            self.stop_status = status

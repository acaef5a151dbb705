"""RunState: the state that a run shares with its Trainer, and the signals that end a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from graphbraid.graph import Graph
from graphbraid.train.config import TrainConfig
from graphbraid.train.inference.metrics import metric_names, monitored
from graphbraid.train.records import Progress, Status
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.task import Task

if TYPE_CHECKING:
    from graphbraid.collective import Plan
    from graphbraid.collective.run.stages import Accelerator
    from graphbraid.distributed import Communicator

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequested(Exception):  # noqa: N818 (it ends an evaluation and is not an error)
    """An evaluation was cut short by a signal; the trainer catches this."""


class SignalGuard:
    """A context manager that records the first SIGINT or SIGTERM in :attr:`signal` instead of raising.

    The second one raises ``KeyboardInterrupt``. Outside the main thread, where Python does not allow signal
    handlers to be set, the guard does nothing.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._former: dict[int, Any] = {}

    def __enter__(self) -> SignalGuard:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            # A handler that was not set from Python (None) cannot be restored from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._former = {}

    def check(self) -> None:
        """Raise :class:`StopRequested` if a signal was received."""
        if self.signal is not None:
            raise StopRequested

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


@dataclass(kw_only=True, eq=False)
class RunState:
    """The inputs of one run and its current state.

    ``Trainer.fit`` begins with a new one, which callbacks see through the Trainer's attributes of the same
    names.
    """

    config: TrainConfig
    """Options of the run; the mode is ``sampled`` or ``full``."""
    graph: Graph
    """Topology, features, labels and splits."""
    runner: ModelRunner
    """Runner of the model; in mode ``full`` the run sets its engine."""
    accelerator: Accelerator | None
    """Device that prepares and transfers mini-batches. If None, the runner's device."""
    comm: Communicator | None = None
    """Ranks that share the run. If None, there is one."""
    info: Mapping[str, Any]
    """Plain values to keep with the run."""
    mode_reason: str
    """Reason for the mode that ``auto`` chose; empty if the mode was given."""

    uncompiled_reason: str = ""
    """Reason why mode ``full`` runs the model uncompiled; empty if it is compiled."""
    plan: Plan | None = None
    """Plan for preparing mini-batches; None before it is made."""
    placement: str = ""
    """Where a device that samples reads what batches are made of, after the last epoch; empty without one."""
    steps_per_epoch: int | None = None
    """Number of optimizer steps per epoch; None before it is known."""
    progress: Progress = field(default_factory=Progress)
    """Position of the run."""
    stop_status: Status | None = None
    """Status with which the run will end after the current step; None if it continues."""

    @cached_property
    def task(self) -> Task:
        """Task that the graph's labels describe."""
        return self.runner.task()

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that an evaluation computes."""
        return metric_names(self.task, self.config.metrics)

    @cached_property
    def monitored(self) -> tuple[str, bool]:
        """Metric that decides which epoch is best, and whether larger is better."""
        return monitored(self.task, self.metrics, self.config.monitor)

    def request_stop(self, status: Status) -> None:
        """End the run after the current step or epoch; the first request counts."""
        if self.stop_status is None:
            self.stop_status = status

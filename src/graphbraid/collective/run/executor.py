"""Executor: runs a plan with real threads, as an iterator over batches in step order.

It follows the rules of ``simulator.py``: workers prepare the next steps of route 0 while a host buffer is
free, one thread copies in step order while a device buffer is free, and the caller's thread lets the device
prepare its own batches whenever the next batch is requested. Thus ``for batch in executor`` runs the paper's
dual-buffer schedule (MorphGL), with the caller's training step as its model stage. Routes, buffers and
durations do not change any batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import TypeVar

import torch

from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.plan.scheduler import Limits, one_sided
from graphbraid.collective.plan.simulator import CPU, GPU, Stage, StageRun
from graphbraid.collective.run.dual_buffer import DualBuffer
from graphbraid.collective.run.operators import Operators
from graphbraid.collective.run.replanner import Replanner, Replanning
from graphbraid.collective.run.stages import DeviceMemoryError, WorkerDiedError
from graphbraid.errors import ConfigError, ResourceError
from graphbraid.sampling.minibatch.mini_batch import MiniBatch

_log = logging.getLogger(__name__)

MOST_TRIES = 30
"""Largest number of schedules simulated when the rest of an epoch is planned anew."""


class Executor:
    """An iterator over the batches of steps ``[start, stop)`` of an epoch, prepared according to a plan.

    Batches come in step order. Iterate it once, and close it (or use ``with``) if the iteration may end
    early. Routes of the plan and ``num_steps`` are those of the whole epoch. Without ``replanning`` the plan
    is kept.

    Raises:
        ConfigError: the plan has the device prepare batches, and no operator is registered for that.
    """

    def __init__(
        self,
        operators: Operators,
        plan: Plan,
        *,
        num_steps: int,
        epoch: int = 0,
        start: int = 0,
        stop: int | None = None,
        replanning: Replanning | None = None,
    ) -> None:
        if plan.num_cpu < plan.num_batches and operators.device_batching is None:
            raise ConfigError(
                f"the plan lets the device prepare {100 * (1 - plan.split):.0f} % of the batches, but no "
                "operator is registered for batching on it; use plan='cpu'"
            )
        self.plan = plan
        """Plan in force; a new one may replace it when durations drift."""
        self.events: list[str] = []
        """Messages about departures from the plan: fewer buffers, new plans, a lost route."""
        self.ops: list[StageRun] = []
        """Stages that ran, in the simulator's format, in seconds since the first batch was requested."""
        self._operators, self._epoch, self._first = operators, epoch, start
        self._ahead = operators.batching_ahead
        last = num_steps if stop is None else stop
        self._steps = DualBuffer(
            plan.routes(num_steps)[start:last] if num_steps else b"",
            cbs=plan.cbs,
            gbs=plan.gbs,
            most_cbs=plan.most_cbs or plan.cbs,
            most_gbs=plan.most_gbs or plan.gbs,
        )
        self._crew = Crew()
        self._changed = self._crew.changed  # every use of the steps holds it
        self._started = False
        self._origin = 0.0
        self._lost: int | None = None  # the route whose operator died
        self._replanner: Replanner | None = None
        if replanning is not None and plan.times.uva is not None:  # otherwise there is no choice
            self._replanner = Replanner(plan.times, replanning, start_thread=self._crew.start, say=self._say)

    def __iter__(self) -> Generator[MiniBatch]:
        """Yield the batches; ResourceError if the device has no memory for a single batch."""
        assert not self._started, "an executor runs once"
        self._started = True
        self._origin = time.perf_counter()
        try:
            for i in range(self.plan.workers):
                self._crew.start(f"worker-{i}", partial(self._work, i))
            self._crew.start("copy", self._copy)
            for position in range(self._steps.num_steps):
                yield from self._train(position, self._next(position))
        finally:
            self.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the threads, each after its current batch, and drop all batches."""
        self._crew.stop()
        self._operators.forget()
        for batch in self._steps.clear():
            self._operators.transfer.free(batch)

    # ---- the caller's thread: batching on the device, and training

    def _train(self, position: int, batch: MiniBatch) -> Generator[MiniBatch]:
        """Yield a batch to the caller, whose training step has ended when it requests the next one."""
        model, started = self._operators.model, self._now()
        ready = model.begin(batch)
        try:
            yield ready
            self._begin_next()
        finally:  # also if the caller stops iterating after this step
            model.end(batch)
            self._operators.transfer.free(batch)
            with self._changed:
                self._note("model", position, started)
                self._steps.put_trained()
                self._changed.notify_all()
        with self._changed:
            self._replan_if_due()

    def _next(self, position: int) -> MiniBatch:
        """Return the batch of a position, after the device has filled its buffer."""
        while True:
            with self._changed:
                self._crew.raise_error()
                mine = self._steps.claim_transfer(GPU)
                if mine is None:
                    batch = self._steps.take(position)
                    if batch is not None:
                        return batch
                    self._changed.wait()
                    continue
            self._transfer(mine, "uva")

    def _begin_next(self) -> None:
        """Let the device sample the batch it prepares next while it still trains, if its operator can."""
        if self._ahead is None:
            return
        with self._changed:
            position = self._steps.next_on_device()
        if position is not None:
            self._ahead.begin(self._epoch, self._first + position)

    # ---- transfers in step order: copies on a thread of their own, batching on the device on the caller's

    def _transfer(self, position: int, stage: Stage) -> None:
        started = self._now()
        try:
            if stage == "dma":
                batch = self._operators.transfer(self._steps.prepared(position))
            else:
                assert self._operators.device_batching is not None
                batch = self._operators.device_batching(self._epoch, self._first + position)
        except (DeviceMemoryError, torch.OutOfMemoryError) as error:
            self._give_back(position, error)
            return
        except WorkerDiedError as error:
            if stage == "dma":
                raise
            self._lose_route(GPU, position, error)
            return
        with self._changed:
            self._note(stage, position, started)
            self._steps.put_on_device(position, batch)
            self._changed.notify_all()

    def _give_back(self, position: int, error: BaseException) -> None:
        """Handle a lack of device memory: go on with fewer buffers and retry the step when one is free."""
        with self._changed:
            before = self._steps.gbs
            if not self._steps.shrink(position):
                raise ResourceError(
                    f"the device has no memory for a single mini-batch (step {self._first + position}): "
                    f"{error}. Lower batch_size or the fanouts."
                ) from error
            self._say(
                f"device memory ran out at step {self._first + position}: {self._steps.gbs} batches are held "
                f"there instead of {before}; no step is lost ({error})",
                logging.WARNING,
            )
            self._changed.notify_all()

    def _lose_route(self, route: int, position: int, error: WorkerDiedError) -> None:
        """Handle the loss of a route: move the step and all steps that have not begun to the other route.

        Raises:
            WorkerDiedError: there is no other route.
        """
        other = CPU + GPU - route
        with self._changed:
            if self._lost == other or (other == GPU and self._operators.device_batching is None):
                raise error
            moved = self._steps.move(position, route)
            if self._lost is None:
                self._lost, self._replanner = route, None
                self.plan = one_sided(self.plan, other, cbs=self._steps.cbs, gbs=self._steps.gbs)
                whose = "the device's" if route == GPU else "the CPU's"
                self._say(
                    f"{whose} batching was lost at step {self._first + position}: {moved} steps take "
                    f"the other route; no step is lost ({error})",
                    logging.WARNING,
                )
            self._changed.notify_all()

    # ---- other threads

    def _work(self, worker: int) -> None:
        while (position := self._crew.wait_for(self._claim_preparation)) is not None:
            self._prepare(position, worker)

    def _prepare(self, position: int, worker: int) -> None:
        started = self._now()
        try:
            batch = self._operators.prepare(self._epoch, self._first + position)
        except WorkerDiedError as error:
            self._lose_route(CPU, position, error)
            return
        with self._changed:
            self._note("cpu", position, started, worker)
            self._steps.put_prepared(position, batch)
            self._changed.notify_all()

    def _claim_preparation(self) -> int | None:
        position = self._steps.claim_preparation()
        if position is not None:
            coming = self._steps.next_to_prepare(self._operators.lookahead)
            self._operators.claim(
                self._epoch, self._first + position, [self._first + later for later in coming]
            )
        return position

    def _copy(self) -> None:
        while (position := self._crew.wait_for(lambda: self._steps.claim_transfer(CPU))) is not None:
            self._transfer(position, "dma")

    # ---- durations and replanning

    def _now(self) -> float:
        return time.perf_counter() - self._origin

    def _note(self, stage: Stage, position: int, started: float, worker: int = 0) -> None:
        ended = self._now()
        self.ops.append(StageRun(stage, self._first + position, started, ended, worker))
        if self._replanner is not None:
            self._replanner.drift.note(stage, ended - started)

    def _replan_if_due(self) -> None:
        """Adopt a new plan for the steps that have not begun, once durations have drifted and it is ready."""
        if self._replanner is None:
            return
        steps, trained = self._steps, self._steps.trained
        horizon, next_step = steps.horizon(), self._first + trained
        left = steps.num_steps - horizon
        limits = Limits(most_cbs=steps.most_cbs, most_gbs=steps.most_gbs, most_tries=MOST_TRIES)
        plan = self._replanner.poll(self.plan, trained, left, step=next_step, limits=limits)
        if plan is None:
            return
        steps.follow(plan.routes(left) if left else b"", cbs=plan.cbs, gbs=plan.gbs)
        self.plan = plan
        share = f"{100 * plan.split:.0f} % of the batches on the CPU"
        self._say(f"new plan from step {self._first + horizon}: {share}")

    def _say(self, text: str, level: int = logging.INFO) -> None:
        self.events.append(text)
        _log.log(level, text)


T = TypeVar("T")

JOIN_SECONDS = 30.0
"""Longest wait in seconds for a thread to finish its current batch when the crew stops."""


class Crew:
    """A group of threads that take work from a shared state."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """Condition that every use of the shared state holds and every change to it notifies."""
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None
        self._stopped = False

    def start(self, name: str, run: Callable[[], None]) -> None:
        """Start a thread named ``graphbraid-NAME`` that calls ``run``."""
        thread = threading.Thread(target=self._guarded, args=(run,), name=f"graphbraid-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait_for(self, claim: Callable[[], T | None]) -> T | None:
        """Call ``claim`` under the condition until it returns something; return that, or None on stopping."""
        with self.changed:
            while not self._stopped:
                found = claim()
                if found is not None:
                    return found
                self.changed.wait()
        return None

    def raise_error(self) -> None:
        """Raise the first error that ended a thread, if any; the caller must hold the condition."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Let each thread end after its current piece of work, and wait for all."""
        with self.changed:
            self._stopped = True
            self.changed.notify_all()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)
        self._threads = []

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            with self.changed:
                self._error = self._error or error
                self.changed.notify_all()

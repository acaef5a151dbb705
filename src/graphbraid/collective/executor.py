"""Executor: runs a plan with real threads, as an iterator over batches in step order.

The rules are the simulator's (see there): workers prepare the next steps of route 0 while a host buffer is
free, one thread copies in step order while a device buffer is free, and the caller's thread lets the device
prepare its own batches whenever it asks for the next one. So ``for batch in executor`` is the paper's
dual-buffer schedule, and the caller's training step is its model stage. Which step takes which route, how
many buffers there are and how long anything takes changes no batch.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
import time
from collections.abc import Callable, Generator
from types import TracebackType

import torch

from graphbraid.collective.dispatcher import epoch_bound
from graphbraid.collective.drift import Drift, Replanning
from graphbraid.collective.plan import Plan
from graphbraid.collective.routes import CPU, GPU
from graphbraid.collective.scheduler import Limits, make_plan, simulated
from graphbraid.collective.simulator import Op, Stage
from graphbraid.collective.stages import DeviceMemoryError, Operators, WorkerDiedError
from graphbraid.collective.times import Profile, StageTimes
from graphbraid.errors import ConfigError, ResourceError
from graphbraid.sampling.minibatch import MiniBatch

_log = logging.getLogger(__name__)

JOIN_SECONDS = 30.0
"""Longest wait for a thread's current batch when the executor stops."""
LEAST_GAIN = 1.05
"""The rest of an epoch is planned anew where it would else take this much longer than its bound."""
PLANNING_SWITCH_SECONDS = 2e-4
"""How long the planning thread may keep Python's lock from the others; usually they would wait for 5 ms."""
_planning = threading.Lock()  # the interval is the whole process's


class Executor:
    """The batches of steps ``[start, stop)`` of an epoch, prepared as a plan says, in step order.

    Use it once, as an iterator, and close it (``with`` does) if it may end early.

    Args:
        operators: of each stage.
        plan: who prepares what. Its routes are those of the whole epoch.
        num_steps: steps of the whole epoch.
        epoch: which epoch.
        start: first step.
        stop: step to stop before; None: the epoch's end.
        replanning: plan anew when durations drift; None: keep the plan.

    Raises:
        ConfigError: the plan has the device prepare batches and it has no operator for that.
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
                "operator for that is registered for it; use plan='cpu'"
            )
        self.plan = plan
        """The plan in force; drift may replace it."""
        self.events: list[str] = []
        """What happened beside the plan: fewer buffers, new plans, a route that was lost."""
        self.ops: list[Op] = []
        """What ran when, as the simulator gives it; seconds from the first batch being asked for."""
        self._operators, self._epoch, self._first = operators, epoch, start
        last = num_steps if stop is None else stop
        self._routes = bytearray(plan.routes(num_steps)[start:last]) if num_steps else bytearray()
        self._num_steps = len(self._routes)
        self._cbs, self._gbs = plan.cbs, plan.gbs
        self._most_cbs, self._most_gbs = plan.most_cbs or plan.cbs, plan.most_gbs or plan.gbs
        self._full_at = -1  # the position it last ran out at
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None
        self._stopped = self._started = False
        self._origin = 0.0
        # Positions count from the first step that this executor runs.
        self._next_cpu = 0  # no step of route 0 before it is unclaimed
        self._claimed = 0  # no worker has begun a step from here on
        self._held = 0  # host buffers
        self._under_way: set[int] = set()  # workers prepare them
        self._prepared: dict[int, MiniBatch] = {}
        self._on_device: dict[int, MiniBatch] = {}
        self._next_transfer = self._trained = 0
        self._link_free = True
        self._drift = None if replanning is None else Drift(plan.times, replanning)
        self._replanning = replanning
        self._lost: int | None = None  # the route whose operator died
        self._planned_at = 0
        self._planner: threading.Thread | None = None
        self._new_plan: Plan | None = None
        self._kept_with: StageTimes | None = None

    def __iter__(self) -> Generator[MiniBatch]:
        """The batches.

        Raises:
            ResourceError: the device has no memory for a single batch.
        """
        assert not self._started, "an executor runs once"
        self._started = True
        self._origin = time.perf_counter()
        try:
            self._start_threads()
            for position in range(self._num_steps):
                yield from self._train(position, self._next(position))
        finally:
            self.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the threads, each after the batch it is at, and let go of all batches."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)
        self._threads, self._planner = [], None
        for batch in self._on_device.values():
            self._operators.transfer.free(batch)
        self._on_device.clear()
        self._prepared.clear()

    # ---- the caller's thread: the device's own batching, and training

    def _train(self, position: int, batch: MiniBatch) -> Generator[MiniBatch]:
        """Hand a batch to the caller; when it asks for the next one, its step is over."""
        model, started = self._operators.model, self._now()
        ready = model.begin(batch)
        try:
            yield ready
        finally:  # also where the caller leaves after this step
            model.end(batch)
            self._operators.transfer.free(batch)
            with self._changed:
                self._note("model", position, started)
                self._trained += 1
                self._changed.notify_all()
        with self._changed:
            self._replan_if_due()

    def _next(self, position: int) -> MiniBatch:
        """The batch of a position; the device fills its buffer first."""
        while True:
            with self._changed:
                self._raise_error()
                mine = self._claim_transfer(GPU)
                if mine is None:
                    if position in self._on_device:
                        return self._on_device.pop(position)
                    self._changed.wait()
                    continue
            self._transfer(mine, "uva")

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    # ---- transfers, in step order: copies in a thread, the device's own batching in the caller's

    def _claim_transfer(self, route: int) -> int | None:
        """The next position if its transfer may start now and takes this route; the link is then taken."""
        position = self._next_transfer
        if not self._link_free or position >= self._num_steps or self._routes[position] != route:
            return None
        if position - self._trained >= self._gbs or (route == CPU and position not in self._prepared):
            return None
        self._link_free = False
        self._next_transfer += 1
        return position

    def _transfer(self, position: int, stage: Stage) -> None:
        started = self._now()
        try:
            batch = self._run_transfer(position, stage)
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
            self._link_free = True
            if stage == "dma":
                del self._prepared[position]
                self._held -= 1
            self._on_device[position] = batch
            self._changed.notify_all()

    def _run_transfer(self, position: int, stage: Stage) -> MiniBatch:
        if stage == "dma":
            return self._operators.transfer(self._prepared[position])
        assert self._operators.device_batching is not None
        return self._operators.device_batching(self._epoch, self._first + position)

    def _give_back(self, position: int, error: BaseException) -> None:
        """Device memory ran out: go on with fewer buffers; the step is tried again when one is free."""
        with self._changed:
            self._link_free = True
            self._next_transfer = position
            others = position - self._trained
            if others == 0 and self._full_at == position:  # not even with nothing of ours there
                raise ResourceError(
                    f"the device has no memory for a single mini-batch (step {self._first + position}): "
                    f"{error}. Lower batch_size or the fanouts."
                ) from error
            self._full_at = position
            before, self._gbs = self._gbs, max(1, min(self._gbs // 2, others))
            self._most_gbs = self._gbs  # of later plans, too
            self._say(
                f"device memory ran out at step {self._first + position}: {self._gbs} batches are held "
                f"there instead of {before}; no step is lost ({error})",
                logging.WARNING,
            )
            self._changed.notify_all()

    def _lose_route(self, route: int, position: int, error: WorkerDiedError) -> None:
        """The operator of a route died: the step and those nobody has begun take the other one.

        Raises:
            WorkerDiedError: there is no other.
        """
        other = CPU + GPU - route
        with self._changed:
            if self._lost == other or (other == GPU and self._operators.device_batching is None):
                raise error
            if route == GPU:  # in step order, so none after it has been begun
                self._link_free, self._next_transfer = True, position
            else:
                self._under_way.discard(position)
                self._held -= 1
            begun = self._under_way.union(self._prepared)
            moved = [p for p in range(self._next_transfer, self._num_steps) if self._routes[p] == route]
            moved = [p for p in moved if p not in begun]
            for p in moved:
                self._routes[p] = other
            self._next_cpu = self._next_transfer
            if self._lost is None:
                self._follow_only(other)
                whose = "the device's" if route == GPU else "the CPU's"
                self._say(
                    f"{whose} batching was lost at step {self._first + position}: {len(moved)} steps take "
                    f"the other route; no step is lost ({error})",
                    logging.WARNING,
                )
            self._changed.notify_all()

    def _follow_only(self, route: int) -> None:
        """From now on, and in later epochs, every batch takes this route."""
        plan = self.plan
        one_sided = dataclasses.replace(
            plan,
            times=dataclasses.replace(plan.times, uva=plan.times.uva or plan.times.cpu),
            num_cpu=plan.num_batches if route == CPU else 0,
            stock=None,
            cbs=self._most_cbs,
            gbs=self._most_gbs,
            runner_ups=(),
        )
        self._lost, self._replanning = CPU + GPU - route, None
        self._cbs, self._gbs = self._most_cbs, self._most_gbs
        self.plan = dataclasses.replace(one_sided, predicted_seconds=simulated(one_sided).seconds)

    # ---- other threads

    def _start_threads(self) -> None:
        for i in range(self.plan.workers):
            self._start(f"worker-{i}", self._work, i)
        self._start("copy", self._copy)

    def _start(self, name: str, loop: Callable[..., None], *arguments: int) -> threading.Thread:
        thread = threading.Thread(
            target=self._guarded, args=(loop, *arguments), name=f"graphbraid-{name}", daemon=True
        )
        self._threads.append(thread)
        thread.start()
        return thread

    def _guarded(self, loop: Callable[..., None], *arguments: int) -> None:
        """Run a thread's loop; its error surfaces at the caller's next step, with its trace."""
        try:
            loop(*arguments)
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _work(self, worker: int) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._can_prepare())
                if self._stopped:
                    return
                position = self._next_cpu
                self._next_cpu = position + 1
                self._claimed = max(self._claimed, position + 1)
                self._held += 1
                self._under_way.add(position)
                self._operators.claim(self._epoch, self._first + position)
            started = self._now()
            try:
                batch = self._operators.prepare(self._epoch, self._first + position)
            except WorkerDiedError as error:
                self._lose_route(CPU, position, error)
                continue
            with self._changed:
                self._note("cpu", position, started, worker)
                self._under_way.discard(position)
                self._prepared[position] = batch
                self._changed.notify_all()

    def _can_prepare(self) -> bool:
        """Whether a step of route 0 is left and a host buffer free; ``_next_cpu`` is then that step.

        Of steps that a lost route left behind, the one that is transferred next may find all buffers held by
        later ones, which wait for it; it gets one more.
        """
        found = self._routes.find(CPU, self._next_cpu)
        while found in self._under_way or found in self._prepared:
            found = self._routes.find(CPU, found + 1)
        self._next_cpu = self._num_steps if found < 0 else found
        is_waited_for = self._lost is not None and found == self._next_transfer
        return found >= 0 and (self._held < self._cbs or is_waited_for)

    def _copy(self) -> None:
        while True:
            with self._changed:
                mine: int | None = None
                while not self._stopped and (mine := self._claim_transfer(CPU)) is None:
                    self._changed.wait()
                if mine is None:
                    return
            self._transfer(mine, "dma")

    # ---- durations, and what follows from them

    def _now(self) -> float:
        return time.perf_counter() - self._origin

    def _note(self, stage: Stage, position: int, started: float, worker: int = 0) -> None:
        ended = self._now()
        self.ops.append(Op(stage, self._first + position, started, ended, worker))
        if self._drift is not None:
            self._drift.note(stage, ended - started)

    def _replan_if_due(self) -> None:
        """Start planning when durations drifted; put a plan that is ready in force."""
        if self._drift is None or self._replanning is None or self._drift.times.uva is None:
            return  # without a second route there is nothing to decide
        if self._new_plan is not None:
            self._adopt(self._new_plan)
        elif self._kept_with is not None:  # it serves the new durations as well as another would
            self._drift.reset(self._kept_with)
            self._planned_at, self._planner, self._kept_with = self._trained, None, None
        elif self._planner is None and self._trained - self._planned_at >= self._replanning.patience:
            left = self._num_steps - self._horizon()
            if left > 1 and (changed := self._drift.changed()):
                self._plan_anew(left, changed)

    def _plan_anew(self, left: int, changed: dict[Stage, float]) -> None:
        assert self._drift is not None
        times = self._drift.current()
        limits = Limits(most_cbs=self._most_cbs, most_gbs=self._most_gbs, most_tries=30)
        ratios = ", ".join(f"{stage} x{ratio:.2f}" for stage, ratio in changed.items())
        drifted, old = f"durations drifted at step {self._first + self._trained} ({ratios})", self.plan

        def plan() -> None:
            if simulated(old, times, left).seconds <= LEAST_GAIN * epoch_bound(times, left).seconds:
                self._kept_with = times
                return
            self._say(f"{drifted}: planning anew")
            with _planning:
                interval = sys.getswitchinterval()
                sys.setswitchinterval(PLANNING_SWITCH_SECONDS)
                try:
                    self._new_plan = make_plan(Profile(times=(times,)), left, limits)
                finally:
                    sys.setswitchinterval(interval)

        self._planner = self._start("planner", plan)

    def _adopt(self, plan: Plan) -> None:
        """Give the steps that nobody has begun the new plan's routes."""
        assert self._drift is not None
        horizon = self._horizon()
        left = self._num_steps - horizon
        if left > 0:
            self._routes[horizon:] = plan.routes(left)
            self._next_cpu = self._claimed
        self._cbs, self._gbs = plan.cbs, min(plan.gbs, self._most_gbs)
        self.plan = plan
        self._drift.reset(plan.times)
        self._planned_at, self._planner, self._new_plan = self._trained, None, None
        self._say(
            f"new plan from step {self._first + horizon}: {100 * plan.split:.0f} % of the batches on the CPU"
        )

    def _horizon(self) -> int:
        """The first position from which on no thread has begun to prepare any."""
        return max(self._claimed, self._next_transfer)

    def _say(self, text: str, level: int = logging.INFO) -> None:
        self.events.append(text)
        _log.log(level, text)

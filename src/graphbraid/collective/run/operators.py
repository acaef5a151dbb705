"""Operators: the operators of one loader's stages, made for its device and called by whoever runs a plan.

RowsAhead announces feature rows before they are gathered. A source that keeps only some rows in memory
(:class:`graphbraid.sampling.rows.by_id.FeatureSource`) evicts best if it knows which rows are read next. So
the workers sample some steps ahead, announce them in the order of the steps, and gather their rows in that
order, too. If such a step takes the other route after all, only the time of its sampling is lost: a batch is
a pure function.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from graphbraid.collective.run.lookahead import APART, KEPT_BATCHES, Key, RowBuffer
from graphbraid.collective.run.stages import (
    Batching,
    Context,
    Model,
    Transfer,
    completes_rows,
    find,
    made_by,
    make_operator,
)
from graphbraid.errors import ConfigError
from graphbraid.graph import ScaledFeatures, SparseFeatures
from graphbraid.sampling.cpu import COUNTED
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.rows.by_id import FeatureSource, RowPart
from graphbraid.sampling.rows.device_cache import DeviceCache

_UNANNOUNCED = -1


@dataclass(slots=True)
class _ClaimedStep:
    """A step that is claimed or will be, as far as it is prepared."""

    is_begun: bool = False
    batch: MiniBatch | None = None
    """Its batch without features; None before it is sampled, and if sampling failed."""
    number: int | None = None
    """Number that its announcement returned; None before."""
    split: tuple[Tensor, Tensor] | None = None
    """Its rows that are not hot, and each row's slot, from :meth:`DeviceCache.split`; None before."""


class RowsAhead:
    """Samples steps ahead, announces them and gathers their rows; called by several workers at once.

    Rows that are ``hot`` on the batches' device are neither announced nor gathered.
    """

    def __init__(
        self, rows: FeatureSource, sample: Callable[[int, int], MiniBatch], hot: DeviceCache | None = None
    ) -> None:
        self._rows, self._sample, self._hot = rows, sample, hot
        self._changed = threading.Condition()  # every use of what follows holds it, and never for long
        self._steps: dict[Key, _ClaimedStep] = {}  # in the order of their announcements
        self._unannounced: deque[Key] = deque()
        self._latest: Key = (-1, -1)  # the last step that was put behind those to announce
        self._claims: deque[Key] = deque()  # claimed steps whose rows are not gathered yet
        self._until: dict[Key, Key] = {}  # by claim: the last step to announce before its rows are gathered
        self._announcing = threading.Lock()
        self._gather_seconds = 0.0

    @property
    def lookahead(self) -> int:
        """Number of coming steps that :meth:`claim` should be told."""
        return self._rows.lookahead

    @property
    def gather_seconds(self) -> float:
        """Seconds in which rows were gathered."""
        with self._changed:
            return self._gather_seconds

    def claim(self, epoch: int, step: int, coming: Sequence[int]) -> None:
        """Say that a step is about to be prepared, and which will be after it, in the order of their use."""
        key = (epoch, step)
        with self._changed:
            if key in self._until:  # a second claim, as by a profiler: its batch is not announced
                return
            keys = [key, *((epoch, later) for later in coming)]
            for each in keys:
                self._expect(each)
            self._claims.append(key)
            self._until[key] = keys[-1]

    def prepare(self, epoch: int, step: int) -> MiniBatch:
        """Prepare the batch of a step with its rows; one that nobody claimed is not announced."""
        key = (epoch, step)
        with self._changed:
            until = self._until.pop(key, None)
        if until is None:
            return self._gathered(self._sample(epoch, step), _UNANNOUNCED, None)
        try:
            self._announce_to(until)
            with self._changed:
                self._changed.wait_for(lambda: self._claims[0] == key)
                known = self._steps[key]
            batch = self._sample(epoch, step) if known.batch is None else known.batch
            number = _UNANNOUNCED if known.number is None else known.number
            return self._gathered(batch, number, known.split)
        finally:
            self._end_turn(key)

    def forget(self) -> None:
        """Forget all steps; to be called when nobody prepares one."""
        with self._changed:
            for names in (self._steps, self._unannounced, self._claims, self._until):
                names.clear()
            self._latest = (-1, -1)
        self._rows.forget()

    def _expect(self, key: Key) -> None:
        """Put a step behind those to announce; one that comes out of order is not announced."""
        if key in self._steps:
            return
        if key > self._latest:
            self._latest = key
            self._unannounced.append(key)
            self._steps[key] = _ClaimedStep()
        else:
            self._steps[key] = _ClaimedStep(is_begun=True, number=_UNANNOUNCED)

    def _announce_to(self, last: Key) -> None:
        """Wait until all steps up to ``last`` are announced; sample those that no other worker samples."""
        while (key := self._claim_sample(last)) is not None:
            try:
                batch = self._sample(*key)
            except BaseException:
                self._put(key, None)  # whoever waits for it goes on; its own worker tries again
                raise
            self._put(key, batch)
        with self._changed:
            self._changed.wait_for(lambda: last not in self._unannounced)

    def _claim_sample(self, last: Key) -> Key | None:
        with self._changed:
            for key in self._unannounced:
                if not self._steps[key].is_begun:
                    self._steps[key].is_begun = True
                    return key
                if key == last:
                    break
        return None

    def _put(self, key: Key, batch: MiniBatch | None) -> None:
        """Keep what was sampled, and announce all steps whose turn has come."""
        with self._changed:
            known = self._steps[key]
            known.batch = batch
            if batch is None:
                known.number = _UNANNOUNCED
        # Taken before the condition, never while it is held: announcing may have to wait for a gather.
        with self._announcing:
            while (first := self._next_sampled()) is not None:
                next_key, step = first
                if step.batch is not None:
                    step.number = self._announce(step, step.batch.n_id)
                with self._changed:
                    self._unannounced.remove(next_key)
                    self._changed.notify_all()

    def _next_sampled(self) -> tuple[Key, _ClaimedStep] | None:
        with self._changed:
            if not self._unannounced:
                return None
            key = self._unannounced[0]
            step = self._steps[key]
            return (key, step) if step.batch is not None or step.number is not None else None

    def _announce(self, step: _ClaimedStep, n_id: Tensor) -> int:
        if self._hot is None:
            return self._rows.announce(n_id)
        step.split = self._hot.split(n_id)
        return self._rows.announce(n_id[step.split[0]])

    def _gathered(self, batch: MiniBatch, number: int, split: tuple[Tensor, Tensor] | None) -> MiniBatch:
        started = time.perf_counter()
        if self._hot is None:
            batch.x = self._rows.gather(batch.n_id, batch=number)
        else:
            missing, slots = self._hot.split(batch.n_id) if split is None else split
            self._hot.count(slots, len(missing))
            rows = self._rows.gather(batch.n_id[missing], batch=number)
            batch.send_part(RowPart(rows=rows, slots=slots, first=APART, generation=0))
        with self._changed:
            self._gather_seconds += time.perf_counter() - started
        return batch

    def _end_turn(self, key: Key) -> None:
        """Let the next claim gather; steps before this one that nobody claimed have taken the other route."""
        with self._changed:
            self._claims.remove(key)
            passed = [k for k in self._steps if k <= key and k not in self._claims]
            for k in passed:
                if k not in self._unannounced:
                    del self._steps[k]
            self._changed.notify_all()


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Operators:
    """The operators of one loader."""

    cpu_batching: Batching
    device_batching: Batching | None
    """Operator by which the device prepares batches; None if it cannot."""
    transfer: Transfer
    model: Model
    row_buffer: RowBuffer | None = None
    """Rows that the device has; None without hot rows and look-ahead."""
    rows_ahead: RowsAhead | None = None
    """Gathers the rows of batches if features are not all in memory; None if they are."""

    @property
    def lookahead(self) -> int:
        """Number of coming steps that :meth:`claim` should be told."""
        return 0 if self.rows_ahead is None else self.rows_ahead.lookahead

    def claim(self, epoch: int, step: int, coming: Sequence[int] = ()) -> None:
        """Announce that the CPU is about to prepare a step; to be called in the order of the copies.

        ``coming`` has up to :attr:`lookahead` steps that will be claimed after it.
        """
        if self.row_buffer is not None:
            self.row_buffer.claim(epoch, step)
        if self.rows_ahead is not None:
            self.rows_ahead.claim(epoch, step, coming)

    def forget(self) -> None:
        """Forget claimed steps that will not be prepared; to be called when no thread prepares one."""
        if self.rows_ahead is not None:
            self.rows_ahead.forget()

    def prepare(self, epoch: int, step: int) -> MiniBatch:
        """Prepare the mini-batch of a claimed step on the CPU."""
        if self.rows_ahead is not None:
            return self.rows_ahead.prepare(epoch, step)
        if self.row_buffer is None:
            return self.cpu_batching(epoch, step)
        with self.row_buffer.preparing(epoch, step):
            return self.cpu_batching(epoch, step)

    @property
    def batching_ahead(self) -> Any:
        """The device's batching if it can begin a batch before it is requested; else None."""
        return self.device_batching if hasattr(self.device_batching, "begin") else None

    @property
    def is_resident(self) -> bool:
        """Whether the device prepares batches without using the link, as all it reads is in its memory.

        Meaningful once the device has prepared a batch; False if its operator does not report placements.
        """
        placement = getattr(self.device_batching, "placement", {})
        return set(placement.values()) == {"device"}

    def explain(self) -> str:
        """Say what the sampling device holds and reads; empty if its operator does not."""
        explain: Callable[[], str] = getattr(self.device_batching, "explain", str)
        return explain()

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds of sampling and gathering on the CPU; 0 if its operator does not count them.

        Raises:
            ConfigError: the operator's counts lack ``sample``, ``gather`` or ``batches``.
        """
        if not hasattr(self.cpu_batching, "stage_seconds"):
            return dict.fromkeys(COUNTED, 0.0)
        seconds: dict[str, float] = self.cpu_batching.stage_seconds()
        if not {*COUNTED} <= seconds.keys():
            raise ConfigError(
                f"stage_seconds() of {type(self.cpu_batching).__name__} must give 'sample', 'gather' and "
                f"'batches'; it gives {', '.join(map(repr, seconds)) or 'nothing'}"
            )
        if self.rows_ahead is not None:
            return seconds | {"gather": seconds["gather"] + self.rows_ahead.gather_seconds}
        return seconds

    @classmethod
    def of(cls, context: Context) -> Operators:
        """Make the operators registered for the context's device; ConfigError if it has none for a stage."""
        hardware = context.hardware
        context = dataclasses.replace(context, row_buffer=_row_buffer(context))
        own = None if hardware == "cpu" else find("batching", hardware)
        rows = context.source.rows if context.gather else None
        rows_ahead, on_host = None, context
        if rows is not None and rows.in_memory is None:
            on_host = dataclasses.replace(context, gather=False, row_buffer=None)
        cpu_batching = make_operator("batching", context.host, on_host)
        if rows is not None and rows.in_memory is None:
            rows_ahead = RowsAhead(rows, cpu_batching, None if context.row_buffer is None else rows.hot)
        return cls(
            cpu_batching=cpu_batching,
            rows_ahead=rows_ahead,
            device_batching=None if own is None else made_by(own, "batching", hardware, context),
            transfer=make_operator("transfer", hardware, context),
            model=make_operator("model", hardware, context),
            row_buffer=context.row_buffer,
        )


def can_look_ahead(context: Context) -> bool:
    """Return whether look-ahead is possible: dense features in memory are gathered, and the transfer fits."""
    rows = context.source.rows
    in_memory = context.gathered_rows is not None or (rows is not None and rows.in_memory is not None)
    return context.gather and in_memory and completes_rows(find("transfer", context.hardware))


def _row_buffer(context: Context) -> RowBuffer | None:
    """Make what knows the rows that the device has; None if there are none that the transfer can use."""
    looks_ahead = context.lookahead and can_look_ahead(context)
    has_hot = context.hot is not None and completes_rows(find("transfer", context.hardware))
    if not (looks_ahead or has_hot):
        return None
    x = context.source.graph.x if context.source.rows is None else context.source.rows
    assert x is not None
    assert not isinstance(x, SparseFeatures | ScaledFeatures), "rows of int8 have a source of their own"
    return RowBuffer(x, kept_batches=KEPT_BATCHES if looks_ahead else 0, hot=context.hot)

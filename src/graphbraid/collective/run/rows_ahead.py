"""RowsAhead: the feature rows of batches that the CPU prepares, announced before they are gathered.

A source that keeps only some rows in memory (:class:`graphbraid.sampling.rows.by_id.FeatureSource`) evicts
best if it knows which rows are read next. So the workers sample some steps ahead, announce them in the order
of the steps, and gather their rows in that order, too. If such a step takes the other route after all, only
the time of its sampling is lost: a batch is a pure function.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from graphbraid.collective.run.lookahead import APART, Key
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

    Args:
        rows: the features.
        sample: prepares a step's batch without features.
        hot: rows that the batches' device has, which are neither announced nor gathered. If None, none.
    """

    def __init__(
        self, rows: FeatureSource, sample: Callable[[int, int], MiniBatch], hot: DeviceCache | None = None
    ) -> None:
        self._rows, self._sample, self._hot = rows, sample, hot
        self._changed = threading.Condition()  # every use of what follows holds it, and never for long
        self._steps: dict[Key, _ClaimedStep] = {}  # in the order of their announcements
        self._unannounced: deque[Key] = deque()
        self._latest: Key = (-1, -1)  # of those to announce
        self._claims: deque[Key] = deque()  # not gathered yet
        self._until: dict[Key, Key] = {}  # of a claim: the last step to announce before it is gathered
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
            if key in self._until:  # a second one, as a profiler claims; it prepares unannounced
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
        with self._announcing:  # in order; not under the condition, as rows may be busy with a gather
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

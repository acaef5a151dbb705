"""predict(): an epoch of mini-batches on some ranks, each with a share of every batch, step by step.

A step is run through on the rank that is latest in it, on two resources that work at the same time: its
cores, and its link (:class:`.Traffic`). The other ranks wait for it: a bucket's sum begins when it has all
its gradients. In the next step, another rank may be the latest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphbraid.fullgraph.scale.cluster import Cluster, ring_bytes
from graphbraid.fullgraph.scale.traffic import Traffic
from graphbraid.train.scaling.times import EpochSize, ShareTimes, ValidationTimes


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedStep:
    """A step on some ranks."""

    seconds: float
    compute_seconds: float
    """Time that the slowest rank computes."""
    moving_seconds: float
    """Time that its cores take to send and receive sums, computing or waiting meanwhile."""
    link_seconds: float
    """Time that its link is busy."""
    sent_bytes: float
    """Bytes that each rank sends, and receives."""

    def bound_seconds(self, prepare_seconds: float) -> float:
        """Return what no overlap can beat: what cores do, the link, or preparing, whichever is longest."""
        return max(self.compute_seconds + self.moving_seconds, self.link_seconds, prepare_seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochPrediction:
    """An epoch on some ranks."""

    num_ranks: int
    seconds: float
    """Seconds of the whole epoch."""
    train_seconds: float
    """Seconds of its steps, with the wait for the first batch."""
    validation_seconds: float
    """Seconds of its share of a validation; 0 if none was asked for."""
    compute_seconds: float
    """Time that the slowest rank of each step computes."""
    uneven_seconds: float
    """How much of it a mean share would not take."""
    moving_seconds: float
    """Time that its cores take to send and receive sums, computing or waiting meanwhile."""
    link_seconds: float
    """Time that its link is busy with sums."""
    sent_bytes: float
    """Bytes of sums that each rank sends, and receives."""

    @property
    def waiting_seconds(self) -> float:
        """Time for which the slowest rank's cores neither compute nor move bytes: for the link or a batch."""
        return max(0.0, self.train_seconds - self.compute_seconds - self.moving_seconds)


def simulate(times: ShareTimes, cluster: Cluster, *, batches: float = 1.0) -> PredictedStep:
    """Run a step through on the slowest rank.

    Args:
        times: how long it takes for its share.
        cluster: the ranks and their network.
        batches: batches whose gradients the step adds up, only those of the last one while it goes back; a
            part of one has as much of its times, but for the update's.

    The next share is taken while the sums are on their way, upon which another one is prepared: what of that
    fits into the wait for the link hinders nobody.
    """
    clock = _SlowestRank(times.num_ranks, cluster)
    last = min(1.0, batches)
    clock.compute((batches - last) * times.slowest_seconds)
    done = 0.0
    for bucket in times.buckets:
        clock.compute((bucket.ready - done) * last * times.slowest_seconds)
        clock.add_up(bucket.nbytes)
        done = bucket.ready
    clock.compute((1 - done) * last * times.slowest_seconds)
    clock.add_up(times.tail_bytes)
    clock.wait()
    clock.compute(times.update_seconds)
    clock.prepare(batches * times.hindered_seconds)
    return PredictedStep(
        seconds=max(clock.now, batches * times.prepare_seconds / cluster.speed),
        compute_seconds=clock.computed,
        moving_seconds=clock.traffic.moved,
        link_seconds=clock.traffic.sent,
        sent_bytes=clock.sent_bytes,
    )


def predict(
    times: ShareTimes, epoch: EpochSize, cluster: Cluster, validation: ValidationTimes | None = None
) -> EpochPrediction:
    """Predict an epoch.

    Args:
        times: how long the ranks take for their shares of a whole batch.
        epoch: its steps.
        cluster: the ranks and their network.
        validation: its share of a validation. If None, it has none.
    """
    steps = [(count, batches, simulate(times, cluster, batches=batches)) for count, batches in epoch.steps()]
    excess = (times.slowest_seconds - times.pass_seconds) / cluster.speed
    train = times.first_seconds / cluster.speed + sum(count * step.seconds for count, _, step in steps)
    validated = 0.0
    if validation is not None:
        validated = validation_seconds(times.num_ranks, validation, cluster) / validation.every
    return EpochPrediction(
        num_ranks=times.num_ranks,
        seconds=train + validated,
        train_seconds=train,
        validation_seconds=validated,
        compute_seconds=_total(steps, "compute_seconds"),
        uneven_seconds=sum(count * batches * excess for count, batches, _ in steps),
        moving_seconds=_total(steps, "moving_seconds"),
        link_seconds=_total(steps, "link_seconds"),
        sent_bytes=_total(steps, "sent_bytes"),
    )


def validation_seconds(num_ranks: int, times: ValidationTimes, cluster: Cluster) -> float:
    """Return the time in which ranks compute the outputs, the first one gets those of others, and scores."""
    seconds = (times.outputs_seconds + times.score_seconds) / cluster.speed
    if num_ranks == 1:
        return seconds
    num_bytes = times.row_bytes * (num_ranks - 1) / num_ranks
    link = cluster.exchange_seconds(num_ranks, num_bytes)
    return seconds + max(link, cluster.moving_seconds(num_bytes, num_ranks - 1))


def _total(steps: Sequence[tuple[int, float, PredictedStep]], name: str) -> float:
    return float(sum(count * getattr(step, name) for count, _, step in steps))


class _SlowestRank:
    """The time of the slowest rank's cores and of its link."""

    def __init__(self, num_ranks: int, cluster: Cluster) -> None:
        self._num_ranks, self._cluster = num_ranks, cluster
        self.traffic = Traffic()
        self.now = self.computed = self.sent_bytes = 0.0

    def compute(self, seconds: float) -> None:
        """Compute for so long, as measured."""
        seconds /= self._cluster.speed
        self.now = self.traffic.computed(self.now, seconds)
        self.computed += seconds

    def add_up(self, num_bytes: float) -> None:
        """Begin a sum over all ranks, which go round a ring."""
        if self._num_ranks == 1:
            return
        sent = ring_bytes(self._num_ranks, num_bytes)
        self.sent_bytes += sent
        seconds = self._cluster.all_reduce_seconds(self._num_ranks, num_bytes)
        self.traffic.send(self.now, seconds, self._cluster.summing_seconds(self._num_ranks, num_bytes))

    def wait(self) -> None:
        """Wait for all sums."""
        self.now = self.traffic.waited(self.now)

    def prepare(self, seconds: float) -> None:
        """Let preparing take so much of the cores, as measured, of which waits until now are filled first."""
        seconds /= self._cluster.speed
        idle = max(0.0, self.now - self.computed - self.traffic.moved)
        taken = max(0.0, seconds - idle)
        self.now += taken
        self.computed += taken


__all__ = ["EpochPrediction", "PredictedStep", "predict", "simulate", "validation_seconds"]

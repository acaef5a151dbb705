"""Predictions for many ranks: the cluster, its network formula, and an epoch of mini-batches on many ranks.

A message takes ``latency_seconds``, and each of its bytes ``1 / bandwidth_bytes`` (the alpha-beta model).
Computing hides transfers: both at once take the longer of the two times.

For mini-batches, a rank's share of a batch is a batch of as many seeds: each number of ranks is measured as a
run of its own. Gradients go round a ring in buckets. The backward pass hides all but the last one, and
preparing the next share hides the last.
"""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

from torch import nn

from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.distributed.ranks.gradients import GradientSum, bytes_of, in_buckets, tail_bytes
from graphbraid.errors import ConfigError
from graphbraid.estimates.memory import sampled_needs
from graphbraid.estimates.seconds import tried_epoch
from graphbraid.estimates.sizes import SAMPLED
from graphbraid.estimates.trial import Trial, repeated, timed
from graphbraid.files.schema import SavedRecord, check_numbers
from graphbraid.graph import Graph
from graphbraid.machine.measurements import OtherPrograms, is_disturbed
from graphbraid.train import runtime
from graphbraid.train.config import TrainConfig
from graphbraid.train.option_checks import config_of_rank
from graphbraid.train.run.ranks import NUM_EXTRA
from graphbraid.train.run.setup import check_fanouts
from graphbraid.train.step.step import make_loader

TYPICAL_MESSAGE_SECONDS, TYPICAL_BYTE_SECONDS = 1e-4, 5e-10
"""Seconds of one core for a message, and for a byte, sent and received by TCP."""


class Sending(NamedTuple):
    """The messages that a rank sends, one after the other. It receives as much at the same time."""

    messages: int
    nbytes: float


def exchange(num_ranks: int, nbytes: float) -> Sending:
    """Return the transfer of rows from each rank to each other one.

    ``nbytes`` is the larger of the bytes that the busiest rank sends and receives.
    """
    return Sending(num_ranks - 1, nbytes)


def ring_sum(num_ranks: int, nbytes: float) -> Sending:
    """Return the transfer of a sum over all ranks along a ring; all bytes go round twice."""
    return Sending(2 * (num_ranks - 1), 2 * (num_ranks - 1) / num_ranks * nbytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster(SavedRecord):
    """Equal ranks, and a network with the same rate between any two of them.

    The defaults are those of 10 Gbit/s Ethernet. A file has the fields that differ: ``{"graphbraid":
    "cluster", "bandwidth_bytes": 1.25e8}``.

    Raises:
        ConfigError: a field is out of range.
    """

    KIND: ClassVar[str] = "cluster"

    latency_seconds: float = 5e-5
    """Seconds of a message beside its bytes (alpha)."""
    bandwidth_bytes: float = 1.25e9
    """Bytes per second that a rank can send while it receives as many (1 / beta)."""
    byte_processor_seconds: float | None = None
    """Seconds of all of a rank's processors for one byte sent and one received, lost to computing. If None,
    the command takes a typical cost of TCP, divided by this machine's number of cores. Elsewhere, None is
    0."""
    message_processor_seconds: float | None = None
    """Seconds of all of a rank's processors for one message sent and one received, beside their bytes:
    threads wake up and call the system. If None, as for ``byte_processor_seconds``."""
    speed: float = 1.0
    """Speed of a rank as a multiple of the measured process's."""
    memory_bytes: int | None = None
    """Memory of a rank. If None, the forecast does not say whether a graph fits."""

    def __post_init__(self) -> None:
        check_numbers(self, ("bandwidth_bytes", "speed", "memory_bytes"), positive=True)
        seconds = ("latency_seconds", "byte_processor_seconds", "message_processor_seconds")
        check_numbers(self, seconds)

    def moving_seconds(self, transfer: Sending) -> float:
        """Return the seconds in which a rank's cores move a transfer's bytes and do not compute."""
        messages = (self.message_processor_seconds or 0.0) * transfer.messages
        return (messages + (self.byte_processor_seconds or 0.0) * transfer.nbytes) / self.speed

    def link_seconds(self, transfer: Sending) -> float:
        """Return the seconds of a transfer on the link, at least the time of the cores for it."""
        sent = transfer.messages * self.latency_seconds + transfer.nbytes / self.bandwidth_bytes
        return max(sent, self.moving_seconds(transfer))


@dataclass(kw_only=True, slots=True)
class RankEpoch:
    """A predicted epoch on some ranks; times and bytes are those of the busiest rank."""

    num_ranks: int
    memory_bytes: float
    """Peak memory."""
    compute_seconds: float = 0.0
    moving_seconds: float = 0.0
    """Seconds in which its cores send and receive and do not compute."""
    link_seconds: float = 0.0
    """Seconds in which its link is busy."""
    waiting_seconds: float = 0.0
    """Seconds in which its cores neither compute nor move bytes."""
    sent_bytes: float = 0.0
    """The larger of the bytes sent and received."""
    most_seconds: float | None = None
    """Seconds if nodes have random owners; None if a partition into as many parts was made."""
    details: dict[str, Any] = field(default_factory=dict)
    """Further fields of predictions of mini-batches; empty for whole graphs."""

    def run(
        self,
        cluster: Cluster,
        compute: float,
        *transfers: Sending,
        hiding: float | None = None,
        times: float = 1,
    ) -> None:
        """Run an operation: compute while transfers go one after the other.

        Of the measured seconds ``compute``, all or ``hiding`` can run during transfers. There are ``times``
        such operations.
        """
        moving = sum(map(cluster.moving_seconds, transfers))
        link = sum(map(cluster.link_seconds, transfers))
        busy = (compute if hiding is None else hiding) / cluster.speed + moving
        self.compute_seconds += times * compute / cluster.speed
        self.moving_seconds += times * moving
        self.link_seconds += times * link
        self.waiting_seconds += times * max(0.0, link - busy)
        self.sent_bytes += times * sum(transfer.nbytes for transfer in transfers)

    @property
    def seconds(self) -> float:
        """Seconds of computing, moving bytes, and waiting for the rest of the transfers."""
        return self.compute_seconds + self.moving_seconds + self.waiting_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksForecast:
    """Predicted epochs of one graph on numbers of ranks."""

    name: str
    num_nodes: int
    num_edges: int
    epochs: tuple[RankEpoch, ...]
    """By ascending number of ranks; the first is for one rank."""
    assumptions: tuple[str, ...]
    """Assumptions of the predictions, a sentence each."""
    epoch: dict[str, int] | None = None
    """Training nodes, batch size and batches of a step; None for whole-graph training."""

    def speedup(self, epoch: RankEpoch) -> float:
        """Return how many times as fast as one rank it is."""
        return self.epochs[0].seconds / epoch.seconds

    def to_json(self) -> dict[str, Any]:
        """Return the forecast as JSON holds it."""
        found = asdict(self)
        found["predictions"] = found.pop("epochs")
        for plain, epoch in zip(found["predictions"], self.epochs, strict=True):
            plain.update(plain.pop("details"), seconds=epoch.seconds, speedup=self.speedup(epoch))
        return found


SECONDS = 1.5
"""Approximate seconds to measure one number of ranks."""
_BACKWARD = 2 / 3
"""Backward pass's part of a step; it completes gradients evenly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareTimes:
    """Times and bytes of one rank for its share of a whole batch."""

    num_ranks: int
    num_batches: float
    """Number of whole batches in an epoch; a smaller last batch counts as a fraction."""
    num_steps: int
    """Number of sums of gradients in an epoch."""
    step_seconds: float
    """Seconds of a step with nothing beside it."""
    cycle_seconds: float
    """Seconds from one step to the next, while later shares are prepared."""
    buckets: tuple[int, ...]
    """Bytes of the gradients in each message, in the order in which they are sent."""
    tail_bytes: int
    """Bytes of a step's last sum: the loss, and flags of the gradients that exist."""
    nodes: float
    """Mean number of nodes in some shares."""
    memory_bytes: int
    sum_seconds: float = 0.0
    """Seconds of a rank's own work for the sums of a step: it copies gradients to messages and back."""
    late_seconds: float = 0.0
    """Seconds by which the latest rank takes longer for a batch than a mean one, in the mean over batches."""


def predict_sampled(times: ShareTimes, cluster: Cluster, alone: ShareTimes | None = None) -> RankEpoch:
    """Predict an epoch.

    The nodes of shares are compared with those of ``alone``, one rank with the whole batch.
    """
    ranks, epoch = times.num_ranks, RankEpoch(num_ranks=times.num_ranks, memory_bytes=times.memory_bytes)
    *early, last = [ring_sum(ranks, nbytes) for nbytes in times.buckets]
    step = min(times.step_seconds, times.cycle_seconds)  # noise may make it longer
    after_first = (1 - times.buckets[0] / sum(times.buckets)) * _BACKWARD * step
    # Of the batches that a step adds up, the backward of the last one sends the gradients.
    count = times.num_steps
    part = min(1.0, times.num_batches / count)
    epoch.run(cluster, times.cycle_seconds, times=times.num_batches - part * count)
    epoch.run(cluster, part * step + times.sum_seconds, *early, hiding=part * after_first, times=count)
    tail = ring_sum(ranks, times.tail_bytes)
    epoch.run(cluster, part * (times.cycle_seconds - step), last, tail, times=count)
    epoch.waiting_seconds += times.num_batches * times.late_seconds / cluster.speed
    epoch.details = {
        "nodes": times.nodes,
        "read_by": ranks * times.nodes / (alone or times).nodes,
        "times": times,
    }
    return epoch


def forecast_sampled(
    model: nn.Module,
    graph: Graph,
    config: TrainConfig,
    *,
    counts: Sequence[int],
    cluster: Cluster,
    seconds: float = SECONDS,
) -> RanksForecast:
    """Predict epochs on mini-batches from steps on shares of them, on copies of the model.

    ``counts`` are numbers of ranks, ascending from 1. Measuring one takes about ``seconds``.
    """
    config = _checked(graph, config)
    check_fanouts(model, config)
    num_seeds = Trial(model, graph, config).nodes.numel()
    most = min(config.batch_size, num_seeds)
    if counts[-1] > most:
        why = "batch_size" if config.batch_size <= num_seeds else f"{num_seeds} training nodes and batch_size"
        raise ConfigError(
            f"{counts[-1]} ranks are more than a batch has seeds ({why}={config.batch_size}), and each "
            f"trains on its own part of every batch; predict up to {most} ranks, or give a larger batch_size"
        )
    found: list[ShareTimes] = []
    others = OtherPrograms()
    with runtime.torch_settings(config), runtime.random_state_kept():
        for count in counts:
            trial = Trial(model, graph, config.updated(batch_size=max(1, round(most / count))))
            found.append(_measured(trial, count, num_seeds / most, seconds))
    return RanksForecast(
        name=graph.name or "the graph at hand",
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        epochs=tuple(predict_sampled(times, cluster, alone=found[0]) for times in found),
        assumptions=tuple(_assumptions(config, others.share())),
        epoch={"num_seeds": num_seeds, "batch_size": most, "accumulate": config.accumulate},
    )


def _checked(graph: Graph, config: TrainConfig) -> TrainConfig:
    if config.task == "link":
        raise ConfigError("several ranks share batches of labelled nodes; task='link' has none")
    graph.check_one_type("a prediction for several ranks")
    if config.device != "cpu":
        raise ConfigError(
            f"device={config.device!r}: ranks are predicted on CPUs, where a share can be timed step by "
            "step; leave it out"
        )
    for name in ("host", "hot", "tiers"):
        if (value := getattr(config, name)) is not None:
            raise ConfigError(
                f"{name}={value!r}: ranks are predicted with all features in the memory of each; leave it out"
            )
    if config.plan is not None:
        raise ConfigError(
            f"plan={config.plan!r}: ranks are predicted on CPUs, and ranks' plans are for devices; leave it "
            "out"
        )
    config, _ = config_of_rank(config, 0)
    return config.updated(mode="sampled", trace=None, out_dir=None, checkpoint_every_steps=None, resume=False)


def _measured(trial: Trial, num_ranks: int, num_batches: float, seconds: float) -> ShareTimes:
    trial.try_model()
    config, groups = trial.config, in_buckets(trial.runner.model.parameters())
    buckets = tuple(map(bytes_of, groups))
    with make_loader(trial.runner, config, trial.nodes) as loader:
        # Whole batches only: the last of an epoch may be small.
        batches = loader.batches(0, 0, min(SAMPLED, max(1, trial.nodes.numel() // config.batch_size)))
        first = next(batches)
        nodes = fmean([first.num_nodes, *(batch.num_nodes for batch in batches)])
    step = repeated(lambda: timed(lambda: trial.step(first)), most=seconds / 3)
    sums = 0.0
    if num_ranks > 1:
        alone = GradientSum(Communicator(), trial.runner.model.parameters(), num_extra=NUM_EXTRA)
        with contextlib.closing(alone):
            sums = repeated(lambda: timed(lambda: alone.finish([0.0] * NUM_EXTRA)), most=seconds / 10)
    # The trial's epoch has a step for each rank and batch.
    steps = list[float]()
    epoch, _ = tried_epoch(trial, seconds=seconds, steps_seconds=steps)
    memory = sampled_needs(trial).host.must_bytes
    return ShareTimes(
        num_ranks=num_ranks,
        num_batches=num_batches,
        num_steps=math.ceil(num_batches / config.accumulate),
        step_seconds=step,
        cycle_seconds=epoch.known * config.batch_size / trial.nodes.numel(),
        buckets=buckets,
        tail_bytes=tail_bytes(sum(map(len, groups)), NUM_EXTRA),
        nodes=nodes,
        memory_bytes=memory + (sum(buckets) if num_ranks > 1 else 0),
        sum_seconds=sums,
        late_seconds=late_seconds(steps, num_ranks, config.accumulate),
    )


def late_seconds(steps: Sequence[float], num_ranks: int, accumulate: int = 1) -> float:
    """Return by how many seconds the latest rank takes longer for a batch than a mean one, in the mean.

    The time of each rank is taken as an independent draw from one rank's times. Ranks wait for each other
    only in the sums, so long and short batches between two sums even out. ``steps`` has the seconds of one
    rank's batches, one after another; it may be empty.
    """
    # One iterator, repeated, makes groups of ``accumulate``; strict=False drops an incomplete last one.
    between = sorted(map(fmean, zip(*[iter(steps)] * accumulate, strict=False)))
    count = len(between)
    if not count or num_ranks == 1:
        return 0.0
    # The draws of all ranks are among the k smallest values with probability (k / count) ** num_ranks. The
    # largest draw is the k-th value with the difference between this probability and that for k - 1.
    chances = [((place + 1) / count) ** num_ranks - (place / count) ** num_ranks for place in range(count)]
    largest = sum(chance * seconds for chance, seconds in zip(chances, between, strict=True))
    return max(0.0, largest - fmean(between))


def _assumptions(config: TrainConfig, others: float | None) -> list[str]:
    threads = f"{config.workers} sampling thread{'s' * (config.workers > 1)}"
    said = [
        "Every number of ranks was measured: steps on batches of a rank's number of seeds, with the threads "
        f"that a rank has, {threads} preparing later ones; nothing is extrapolated.",
        "Graph and features are in the memory of every rank, which gathers its own rows there.",
        "A last batch of fewer seeds takes as much less.",
        "Validation, test and checkpoints are not in it.",
    ]
    if others is not None and is_disturbed(others):
        said.append(
            f"Other programs used {others:.0%} of the cores meanwhile; measure again while nothing else runs."
        )
    return said


SAMPLED_ASSUMPTIONS = (
    "Ranks are alike and reach each other at their full rate; what they share on one machine, such as its "
    "memory, is not in it.",
    "Gradients go round a ring in buckets while backward computes the next ones; preparing the next share "
    "hides the last bucket. Copies of gradients are timed; adding them is not counted.",
    "In each step ranks wait for the latest one. How late it is follows from how much "
    "one rank's steps differ.",
    "Read by: the mean number of ranks that read a node of a batch.",
    "What ranks agree on between epochs is not in it.",
)
"""Assumptions of all forecasts of mini-batches."""

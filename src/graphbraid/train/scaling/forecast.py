"""forecast_shares(): epochs of a run on mini-batches on numbers of ranks, with what they rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from graphbraid.errors import ConfigError
from graphbraid.estimates.memory import sampled_needs
from graphbraid.estimates.trial import Trial
from graphbraid.fullgraph.scale.cluster import Cluster
from graphbraid.fullgraph.scale.forecast import Range
from graphbraid.graph import Graph
from graphbraid.loader import BatchLoader
from graphbraid.machine.contention import OtherPrograms, is_disturbed
from graphbraid.train import runtime
from graphbraid.train.config import TrainConfig
from graphbraid.train.run.ranks import config_of_rank
from graphbraid.train.scaling.measure import SECONDS, measured
from graphbraid.train.scaling.memory import rank_needs
from graphbraid.train.scaling.simulate import EpochPrediction, predict
from graphbraid.train.scaling.sizes import ShareSizes, sampled_sizes
from graphbraid.train.scaling.times import EpochSize, ShareTimes, ValidationTimes
from graphbraid.train.scaling.validation import measured_validation
from graphbraid.train.step.feed import make_loader
from graphbraid.train.step.preflight import check_fanouts

_OF_ONE_RANK = ("host", "hot", "tiers")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankForecast:
    """An epoch on some ranks, and what was measured for it."""

    prediction: EpochPrediction
    times: ShareTimes
    sizes: ShareSizes
    memory_bytes: int
    """Bytes of a rank at its peak, without pages of files that the system can drop."""
    range: Range
    """Seconds of the epoch by the lower and by the upper cost of moving a byte."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareForecast:
    """Predictions for one run."""

    name: str
    num_nodes: int
    num_edges: int
    epoch: EpochSize
    assumptions: tuple[str, ...]
    """What the predictions rest on, a sentence each."""
    ranks: tuple[RankForecast, ...]
    """Epochs by ascending number of ranks; the first is for one rank."""

    def speedup(self, found: RankForecast) -> float:
        """Return how many times as fast as one rank it is."""
        return self.ranks[0].prediction.seconds / found.prediction.seconds

    def repeats(self, found: RankForecast) -> float:
        """Return the nodes of all shares of a batch by those of the batch: how many ranks read a row."""
        return found.sizes.num_ranks * found.sizes.mean_nodes / self.ranks[0].sizes.mean_nodes

    def to_json(self) -> dict[str, Any]:
        """Return the forecast as JSON holds it."""
        return {
            "name": self.name,
            "num_nodes": self.num_nodes,
            "num_edges": self.num_edges,
            "epoch": asdict(self.epoch),
            "assumptions": self.assumptions,
            "predictions": [self._plain(found) for found in self.ranks],
        }

    def _plain(self, found: RankForecast) -> dict[str, Any]:
        most = found.sizes.most
        return asdict(found.prediction) | {
            "waiting_seconds": found.prediction.waiting_seconds,
            "speedup": self.speedup(found),
            "range_seconds": found.range,
            "memory_bytes": found.memory_bytes,
            "share": {
                "sampled_batches": len(found.sizes.steps),
                "nodes": found.sizes.mean_nodes,
                "edges": found.sizes.mean_edges,
                "most_nodes": most.nodes,
                "most_edges": most.edges,
                "imbalance": found.sizes.imbalance,
                "repeats": self.repeats(found),
            },
            "times": asdict(found.times),
        }


def forecast_shares(
    model: nn.Module,
    graph: Graph,
    config: TrainConfig,
    *,
    counts: Sequence[int],
    cluster: Cluster,
    moving: Range | None = None,
    validates: bool = False,
    seconds: float = SECONDS,
) -> ShareForecast:
    """Predict epochs on mini-batches from steps on shares of them, on copies of the model.

    Args:
        model: the model.
        graph: the graph, with labels and training nodes.
        config: options of the run; its mode does not matter.
        counts: numbers of ranks, ascending, the first of them 1.
        cluster: the ranks and their network.
        moving: processor seconds between which moving a byte was measured; None takes the cluster's as exact.
        validates: whether an epoch has its share of a validation.
        seconds: that measuring a number of ranks takes, about.

    Raises:
        ConfigError: there are more ranks than a batch has seeds, or several ranks do not train in this way.
        DataError: the graph has no features, labels or training nodes.
    """
    config = _checked(graph, config)
    with runtime.torch_settings(config), runtime.random_state_kept():
        check_fanouts(model, config)
        trial = Trial(model, graph, config)
        epoch = _epoch_of(trial, counts)
        if validates and trial.val_nodes is None:
            raise ConfigError(
                "a validation was asked for, but the graph has no split 'val', or eval_every is 0; leave it "
                "out"
            )
        trial.try_model()
        ranks, others = _measured_ranks(
            trial, counts, epoch, cluster, moving, validates=validates, seconds=seconds
        )
    return ShareForecast(
        name=graph.name or "the graph at hand",
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        epoch=epoch,
        assumptions=_assumptions(trial, ranks, others, validates=validates),
        ranks=ranks,
    )


def _checked(graph: Graph, config: TrainConfig) -> TrainConfig:
    """Return the options that the ranks train by."""
    if config.task == "link":
        raise ConfigError("several ranks share batches of labelled nodes; task='link' has none")
    graph.check_one_type("a prediction for several ranks")
    if config.device != "cpu":
        raise ConfigError(
            f"device={config.device!r}: ranks are predicted on CPUs, where a share can be timed step by "
            "step; leave it out"
        )
    for name in _OF_ONE_RANK:
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


def _epoch_of(trial: Trial, counts: Sequence[int]) -> EpochSize:
    """Return the size of an epoch, whose batches have a seed for each rank at least."""
    batch_size, num_seeds = trial.config.batch_size, trial.nodes.numel()
    most = min(batch_size, num_seeds)
    if counts[-1] > most:
        why = "batch_size" if batch_size <= num_seeds else f"{num_seeds} training nodes and batch_size"
        raise ConfigError(
            f"{counts[-1]} ranks are more than a batch has seeds ({why}={batch_size}), and each trains on "
            f"its own part of every batch; predict up to {most} ranks, or give a larger batch_size"
        )
    return EpochSize(num_seeds=num_seeds, batch_size=most, accumulate=trial.config.accumulate)


def _measured_ranks(
    trial: Trial,
    counts: Sequence[int],
    epoch: EpochSize,
    cluster: Cluster,
    moving: Range | None,
    *,
    validates: bool,
    seconds: float,
) -> tuple[tuple[RankForecast, ...], float | None]:
    """Return the forecasts, and the share of the cores that other programs had while times were measured."""
    config, found = trial.config, []
    with make_loader(trial.runner, config, trial.nodes) as loader:
        sizes = sampled_sizes(_without_features(loader), counts, seconds=seconds)
        alone, others = sampled_needs(trial), OtherPrograms()
        for shares in sizes:
            times = measured(trial, loader, shares, seconds=seconds)
            validation = measured_validation(trial, shares.num_ranks) if validates else None
            needs = rank_needs(trial, loader, alone, shares)
            found.append(
                RankForecast(
                    prediction=predict(times, epoch, cluster, validation),
                    times=times,
                    sizes=shares,
                    memory_bytes=needs.must_bytes,
                    range=_range(times, epoch, cluster, validation, moving),
                )
            )
        share = others.share()
    return tuple(found), share


def _without_features(loader: BatchLoader) -> BatchLoader:
    """Return a loader of the same batches, which gathers nothing."""
    return BatchLoader(loader.graph, replace(loader.settings, gather=False))


def _range(
    times: ShareTimes,
    epoch: EpochSize,
    cluster: Cluster,
    validation: ValidationTimes | None,
    moving: Range | None,
) -> Range:
    costs = moving or (cluster.byte_processor_seconds,) * 2
    low, high = (
        predict(times, epoch, replace(cluster, byte_processor_seconds=cost), validation).seconds
        for cost in costs
    )
    return low, high


def _assumptions(
    trial: Trial, ranks: Sequence[RankForecast], others: float | None, *, validates: bool
) -> tuple[str, ...]:
    config, batches = trial.config, [len(found.sizes.steps) for found in ranks]
    count = f"{min(batches)} to {max(batches)}" if min(batches) < max(batches) else str(batches[0])
    threads = f"{config.workers} sampling thread{'s' * (config.workers > 1)}"
    said = [
        f"Every number of ranks was measured: all shares of {count} batches of "
        f"{min(config.batch_size, trial.nodes.numel())} seeds were sampled, median and largest ones trained "
        f"on with the threads that a rank has, {threads} preparing later ones; nothing is extrapolated.",
        "Graph and features are in the memory of every rank, which gathers its own rows there.",
        "A last batch of fewer seeds takes as much less.",
    ]
    if config.accumulate > 1:
        said.append(
            "Of the batches that a step adds up, one rank's shares are taken to be the largest of all."
        )
    if validates:
        said.append(
            f"A validation ({config.eval_mode}) every {config.eval_every} epochs: each rank computes its "
            "part, the first one gets all outputs and scores them."
        )
    else:
        said.append("Validation, test and checkpoints are not in it.")
    if is_disturbed(others):
        said.append(
            f"Other programs used {others:.0%} of the cores meanwhile; measure again while nothing else runs."
        )
    return tuple(said)


SHARE_ASSUMPTIONS = (
    "Ranks are alike and reach each other at their full rate; what they share on one machine, as its memory, "
    "is not in it.",
    "Sums of gradients go off in buckets while backward runs, and round a ring, once the slowest rank has "
    "them; the link takes one at a time.",
    "Ranks wait in each step for the one that is latest in it: its step is as much longer than a mean one as "
    "the longest of that many of the steps timed here.",
    "What moving bytes takes of the cores is taken from computing, evenly over the time they travel.",
    "What ranks agree on between epochs is not in it.",
)
"""What all forecasts of mini-batches rest on."""

__all__ = ["SHARE_ASSUMPTIONS", "RankForecast", "ShareForecast", "forecast_shares"]

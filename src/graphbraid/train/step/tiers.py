"""The tiers of feature rows that a run's options ask for."""

from __future__ import annotations

from graphbraid.features import Score, TieredFeatures, score
from graphbraid.graph import Graph
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.train.config import TrainConfig


def make_tiers(graph: Graph, config: TrainConfig) -> TieredFeatures | None:
    """Make the tiers of ``config.host``, memory filled with the rows that training reads most; None without.

    Raises:
        DataError: the features are not dense or not mapped from a store.
        ConfigError: the memory holds no row.
        ResourceError: the memory is not free, or the file cannot be read.
    """
    if config.host is None:
        return None
    return TieredFeatures.build(graph, host=config.host, score=_expected_reads(graph, config))


def _expected_reads(graph: Graph, config: TrainConfig) -> Score | None:
    """Reads of each row that an epoch is expected to take; None where that decides nothing."""
    train = graph.splits.get("train")
    if config.host in (0, "all") or train is None or not train.numel():
        return None
    return score(
        graph,
        "inclusion",
        sampler=SamplerConfig(fanouts=config.fanouts, replace=config.replace, layout=config.layout),
        schedule=SeedSchedule(
            seeds=train, batch_size=config.batch_size, shuffle=True, drop_last=False, seed=config.seed
        ),
    )

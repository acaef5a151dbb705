"""The tiers of feature rows and adjacency lists that a run's options ask for."""

from __future__ import annotations

import logging

from graphbraid.features import HostTiers, expected_list_blocks, score
from graphbraid.graph import Graph
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.train.config import TrainConfig

_log = logging.getLogger(__name__)


def make_tiers(graph: Graph, config: TrainConfig) -> HostTiers | None:
    """Make the tiers of ``config.host``, memory filled with what training reads most; None without.

    Raises:
        DataError: the features are not dense or not mapped from a store.
        ConfigError: the memory holds no row.
        ResourceError: the memory is not free, or a file cannot be read.
    """
    if config.host is None:
        return None
    row_reads = list_blocks = None
    walked = _sampling(graph, config)
    if walked is not None:
        sampler, schedule = walked
        row_reads = score(graph, "inclusion", sampler=sampler, schedule=schedule)
        list_blocks = expected_list_blocks(graph.csc, sampler, schedule)
    tiers = HostTiers.build(graph, host=config.host, row_reads=row_reads, list_reads=list_blocks)
    _log.info("%s", tiers.reason)
    return tiers


def _sampling(graph: Graph, config: TrainConfig) -> tuple[SamplerConfig, SeedSchedule] | None:
    """How the run samples; None where that decides nothing."""
    train = graph.splits.get("train")
    if config.host in (0, "all") or train is None or not train.numel():
        return None
    return (
        SamplerConfig(fanouts=config.fanouts, replace=config.replace, layout=config.layout),
        SeedSchedule(
            seeds=train, batch_size=config.batch_size, shuffle=True, drop_last=False, seed=config.seed
        ),
    )

"""The tiers of feature rows and adjacency lists that a run's options ask for."""

from __future__ import annotations

import logging

from torch import Tensor

from graphbraid.features import HostTiers, Score, TieredFeatures, expected_list_blocks, score
from graphbraid.features.row_budgets import options_for
from graphbraid.graph import Graph
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.train.config import TrainConfig

_log = logging.getLogger(__name__)


def make_tiers(graph: Graph, config: TrainConfig) -> HostTiers | None:
    """Make the tiers of ``config.host`` and ``config.hot``, filled with what training reads most.

    Returns:
        The tiers; None if the config asks for none.

    Raises:
        DataError: the features are not dense or not mapped from a store.
        ConfigError: the memory holds no row.
        ResourceError: the memory is not free, or a file cannot be read.
    """
    if config.host is None and not config.hot:
        return None
    if config.mode == "full":  # whose steps keep what they read in order
        rows = TieredFeatures.build(graph, host=0, disk=options_for(config.host or 0))
        return HostTiers(features=rows, topology=None, reason="steps read the features in blocks")
    row_reads = list_blocks = None
    walked = _sampling(graph, config)
    if walked is not None:
        sampler, schedule = walked
        # Inclusion probabilities fail where neighbours are each other's neighbours, which a trial finds.
        row_reads = score(graph, "auto", sampler=sampler, schedule=schedule, as_reads=True)
        if config.host is not None:
            list_blocks = expected_list_blocks(graph.csc, sampler, schedule)
    tiers = HostTiers.build(
        graph, host=config.host, hot=config.hot or 0, row_reads=row_reads, list_reads=list_blocks
    )
    _log.info("%s", tiers.reason)
    return tiers


def _sampling(graph: Graph, config: TrainConfig) -> tuple[SamplerConfig, SeedSchedule] | None:
    """How the run samples; None where that decides nothing."""
    train = graph.splits.get("train")
    ranks_nothing = config.host in (0, "all", None) and config.hot in (0, "all", None)
    if ranks_nothing or train is None or not train.numel():
        return None
    return _sampler(config), _schedule(config, train)


def expected_reads(graph: Graph, config: TrainConfig) -> Score:
    """Return the reads of each row that an epoch of training is expected to take.

    Raises:
        DataError: the graph has no split ``train``.
    """
    schedule = _schedule(config, graph.split("train"))
    return score(graph, "inclusion", sampler=_sampler(config), schedule=schedule)


def expected_list_reads(graph: Graph, config: TrainConfig) -> float:
    """Return the blocks of adjacency lists that an epoch of training reads from a store that holds none.

    Raises:
        DataError: the graph has no split ``train``.
    """
    schedule = _schedule(config, graph.split("train"))
    return float(expected_list_blocks(graph.csc, _sampler(config), schedule).sum())


def _sampler(config: TrainConfig) -> SamplerConfig:
    return SamplerConfig(fanouts=config.fanouts, replace=config.replace, layout=config.layout)


def _schedule(config: TrainConfig, train: Tensor) -> SeedSchedule:
    return SeedSchedule(
        seeds=train, batch_size=config.batch_size, shuffle=True, drop_last=False, seed=config.seed
    )

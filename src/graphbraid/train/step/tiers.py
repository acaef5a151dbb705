"""The tiers of rows and adjacency lists that a run's options request, and the reads of each epoch."""

import logging
from collections.abc import Callable

from torch import Tensor

from graphbraid.features import HostTiers, Score, TieredFeatures, expected_list_blocks
from graphbraid.features.budgets import options_for
from graphbraid.features.scores.choice import RunTime
from graphbraid.features.scores.score import reads_of_run
from graphbraid.graph import Graph
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.train.config import TrainConfig
from graphbraid.train.step.step import ALONE, Share

_log = logging.getLogger(__name__)


def make_tiers(
    graph: Graph,
    config: TrainConfig,
    *,
    run_time: Callable[[], RunTime | None] = lambda: None,
    reads: Score | None = None,
    share: Share = ALONE,
) -> HostTiers | None:
    """Make the tiers of ``config.host`` and ``config.hot``, filled with the most read rows and lists.

    ``run_time`` says how long the run will take, and is asked where rows are ranked. Without ``reads``, from
    :func:`expected_reads`, they are found there, too.

    Returns:
        The tiers; None if the config asks for none.
    """
    if config.host is None and not config.hot:
        return None
    if config.mode == "full":  # whose steps keep what they read in order
        rows = TieredFeatures.build(graph, host=0, disk=options_for(config.host or 0))
        return HostTiers(features=rows, topology=None, reason="steps read the features in blocks")
    row_reads, list_blocks = None, None
    train = graph.splits.get("train")
    ranks_nothing = config.host in (0, "all", None) and config.hot in (0, "all", None)
    if not ranks_nothing and train is not None and train.numel() > 0:
        row_reads = reads or expected_reads(graph, config, run_time(), share=share)
        if config.host is not None:
            schedule = _schedule(config, train, share)
            list_blocks = expected_list_blocks(graph.csc, _sampler(config), schedule)
    tiers = HostTiers.build(
        graph, host=config.host, hot=config.hot or 0, row_reads=row_reads, list_reads=list_blocks
    )
    _log.info("%s", tiers.reason)
    if row_reads is not None:
        _log.info("tiers are filled by the score %s: %s", row_reads.kind, row_reads.reason)
    return tiers


def expected_reads(
    graph: Graph,
    config: TrainConfig,
    run_time: RunTime | None,
    *,
    most_epochs: int | None = None,
    share: Share = ALONE,
) -> Score:
    """Return the reads of each row that an epoch of training takes, by the score that a run's tiers have.

    As many epochs are looked ahead as 2 % of the run's time allows. Where that is none, some batches say
    which other score to take: inclusion fails where neighbours are each other's neighbours. Nothing is looked
    ahead without ``run_time``, and at most ``most_epochs``, or all of the run's.

    Raises:
        DataError: the graph has no split ``train``.
    """
    return reads_of_run(
        graph,
        run_time,
        sampler=_sampler(config),
        schedule=_schedule(config, graph.split("train"), share),
        epochs=config.epochs if most_epochs is None else min(most_epochs, config.epochs),
    )


def expected_list_reads(graph: Graph, config: TrainConfig) -> float:
    """Return the blocks of adjacency lists that an epoch of training reads from a store that holds none.

    Raises:
        DataError: the graph has no split ``train``.
    """
    schedule = _schedule(config, graph.split("train"))
    return float(expected_list_blocks(graph.csc, _sampler(config), schedule).sum())


def _sampler(config: TrainConfig) -> SamplerConfig:
    return SamplerConfig(fanouts=config.fanouts, replace=config.replace, layout=config.layout)


def share_of(share: Share, config: TrainConfig, train: Tensor) -> Share:
    """Return a share, or the whole where a rank would have no seeds.

    For that the run will be refused, or a rank has next to nothing to read.
    """
    return ALONE if share.num_ranks > min(config.batch_size, train.numel()) else share


def _schedule(config: TrainConfig, train: Tensor, share: Share = ALONE) -> SeedSchedule:
    share = share_of(share, config, train)
    return SeedSchedule(
        seeds=train,
        batch_size=config.batch_size,
        shuffle=True,
        drop_last=False,
        seed=config.seed,
        part=share.rank,
        num_parts=share.num_ranks,
    )

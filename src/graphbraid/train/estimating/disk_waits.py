"""How much longer a run's training takes where it waits for rows of a store's file."""

from __future__ import annotations

from torch import Tensor

from graphbraid.arguments import as_budget
from graphbraid.estimates.trial import PartSeconds, Trial
from graphbraid.features import DiskRows, Score
from graphbraid.features.budgets.row_budgets import hot_ids_in, options_for, order_of
from graphbraid.features.budgets.sizing import list_bytes
from graphbraid.features.tiers.tier_report import Served
from graphbraid.graph import SparseFeatures
from graphbraid.graph.scaled_features import kept_row_bytes, stored_rows
from graphbraid.train.estimating.memory.sampled import are_mapped
from graphbraid.train.estimating.tiers import TieredRun, rows_per_second
from graphbraid.train.step.tiers import expected_list_reads


def may_wait(trial: Trial, host: int | str | None) -> bool:
    """Return whether a run with so much memory for tiers may wait for a store's file."""
    return host is not None and host != "all" and are_mapped(trial.graph)


def disk_waits(
    trial: Trial, reads: Tensor, train_seconds: float, *, host: int | str, rate: float | None = None
) -> PartSeconds:
    """Return how many seconds longer an epoch's training takes as it reads the disk.

    Rows are read ahead of their use: an epoch takes as long as the slower of training and reading.

    Args:
        trial: the run; :func:`may_wait` says that it may.
        reads: ``(num_nodes,)`` of each row in an epoch, by which tiers are filled.
        train_seconds: of an epoch with its rows at hand.
        host: memory for rows and lists.
        rate: rows that come from the file at random in a second. If None, it is measured.
    """
    graph, config = trial.graph, trial.config
    rows, x = stored_rows(graph.x), graph.x
    assert rows is not None, "the features are mapped"
    assert not isinstance(x, SparseFeatures | None), "the features are dense"
    disk = DiskRows.behind(rows, options=options_for(host))
    rate = rows_per_second(disk) if rate is None else rate
    size, lists = as_budget(host, "host"), list_bytes(graph)
    run = TieredRun(
        graph=graph,
        reads=Score(values=reads, kind="inclusion", seconds=0.0),
        served=Served(reads),
        epoch_reads=float(reads.sum()),
        list_reads=expected_list_reads(graph, config) if lists and not size else 0.0,
        num_batches=-(-trial.nodes.numel() // config.batch_size),
        rows_per_second=rate,
        is_here=True,
        buffer_bytes=disk.buffer_bytes,
        list_bytes=lists,
    )
    num_hot = 0
    if config.hot:
        num_hot = len(hot_ids_in(config.hot, order_of(reads), max(kept_row_bytes(x), 1)))
    asked = run.disk_reads(size, num_hot)
    longer = max(0.0, asked / rate - train_seconds)
    return PartSeconds(longer, f"{asked:,.0f} reads an epoch at {rate:,.0f} a second")


__all__ = ["disk_waits", "may_wait"]

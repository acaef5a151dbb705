"""Epochs of mini-batches on many ranks, for ``graphbraid plan --ranks --mode sampled``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphbraid.cli.common import out_console, plain, say
from graphbraid.cli.steps.scale_text import network_sentences, with_range

if TYPE_CHECKING:
    from graphbraid.cli.run.settings import ResolvedRun
    from graphbraid.fullgraph.scale.cluster import Cluster
    from graphbraid.train.scaling.forecast import ShareForecast


def forecast_of(
    run: ResolvedRun,
    counts: list[int],
    cluster: Cluster,
    moving: tuple[float, float] | None,
    *,
    validates: bool,
) -> ShareForecast:
    """Return predictions for the run, from its shares measured here.

    Args:
        run: the options of the run.
        counts: numbers of ranks, ascending, the first of them 1.
        cluster: the ranks and their network.
        moving: processor seconds between which moving a byte was measured, if it was.
        validates: whether epochs have their share of a validation.

    Raises:
        ConfigError: there are more ranks than a batch has seeds, or ranks do not train the run together.
    """
    from graphbraid.cli.run.learning import learning
    from graphbraid.train.scaling.forecast import forecast_shares

    made = learning(run)
    return forecast_shares(
        made.model,
        made.graph,
        made.run.train,
        counts=counts,
        cluster=cluster,
        moving=moving,
        validates=validates,
    )


def show_shares(found: ShareForecast, cluster: Cluster, moving: str) -> None:
    """Print the table, and what it rests on; ``moving`` says where the cost of a byte is from."""
    from rich.table import Table

    from graphbraid.collective.plan.times import format_seconds
    from graphbraid.files.writing import format_bytes
    from graphbraid.train.scaling.forecast import SHARE_ASSUMPTIONS

    console, epoch = out_console(), found.epoch
    title = (
        f"{plain(found.name)}: {found.num_nodes:,} nodes, {found.num_edges:,} edges, "
        f"{epoch.num_seeds:,} training nodes in batches of {epoch.batch_size:,}"
    )
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    columns = ("ranks", "an epoch", "computing", "uneven", "moving bytes", "on the link", "waiting")
    validates = any(rank.prediction.validation_seconds for rank in found.ranks)
    for column in (
        *columns,
        *(["validation"] if validates else []),
        *("speedup", "nodes of a share", "read by", "sums sent", "memory"),
    ):
        table.add_column(column, justify="right")
    for rank in found.ranks:
        p = rank.prediction
        is_too_large = cluster.memory_bytes is not None and rank.memory_bytes > cluster.memory_bytes
        table.add_row(
            str(p.num_ranks),
            with_range(p.seconds, rank.range),
            *map(format_seconds, (p.compute_seconds, p.uneven_seconds, p.moving_seconds)),
            *map(format_seconds, (p.link_seconds, p.waiting_seconds)),
            *([format_seconds(p.validation_seconds)] if validates else []),
            f"{found.speedup(rank):.2f}",
            f"{rank.sizes.mean_nodes:,.0f}",
            f"{found.repeats(rank):.2f}",
            format_bytes(round(p.sent_bytes)),
            format_bytes(rank.memory_bytes) + " (too much)" * is_too_large,
        )
    console.print(table)
    for sentence in found.assumptions:
        say(console, "  {}", sentence)
    console.print()
    for sentence in (_COLUMNS, *network_sentences(cluster, moving), *SHARE_ASSUMPTIONS):
        say(console, "{}", sentence)


_COLUMNS = (
    "Computing is the slowest rank's in each step, uneven what it computes longer than a mean one; waiting "
    "is for the link or a batch; read by: the number of ranks, in the mean, that read a node of a batch."
)

__all__ = ["forecast_of", "show_shares"]

"""HostTiers: one budget of memory for a stored graph's feature rows and adjacency lists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import as_budget
from graphbraid.errors import ConfigError
from graphbraid.features.budgets import (
    Curve,
    hot_ids_in,
    list_blocks,
    order_of,
    require_free,
    row_bytes_kept,
    split,
    values_of,
)
from graphbraid.features.budgets import list_options_for as list_options
from graphbraid.features.budgets import options_for as row_options
from graphbraid.features.rows.caches import checked_score
from graphbraid.features.rows.disk import DiskRows
from graphbraid.features.scores import walks
from graphbraid.features.tiers.tiered_features import TieredFeatures
from graphbraid.features.tiers.topology import ListParts, TieredTopology
from graphbraid.files import mapped
from graphbraid.files.block_sums import BLOCK_BYTES
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.scaled_features import ScaledFeatures, kept_row_bytes, stored_rows
from graphbraid.sampling.config import SamplerConfig, SeedSchedule
from graphbraid.signatures import typed


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class HostTiers:
    """Feature rows and adjacency lists of a stored graph, some in memory, the others in its files."""

    features: TieredFeatures
    """The rows; loaders and Trainers take them as ``tiers``."""
    topology: TieredTopology | None
    """The lists; loaders and Trainers take them as ``topology``. None if the topology is not mapped."""
    reason: str
    """The division of memory and its reasons, in words."""

    @classmethod
    @typed
    def build(
        cls,
        graph: Graph,
        *,
        host: int | str | None,
        hot: int | str = 0,
        row_reads: Any = None,
        list_reads: Tensor | None = None,
        policy: str = "belady",
    ) -> HostTiers:
        """Divide memory between rows and lists by the disk reads that each saves per byte.

        Args:
            graph: dense features mapped from a store. Its topology is placed if it is also mapped.
            host: memory for both and for their bookkeeping, in bytes or as ``"4GiB"``; 0 reads everything
                from the files. ``"all"``, or more than both need, keeps everything in memory. None: the graph
                is used as it is.
            hot: memory of each device for feature rows, as in :class:`TieredFeatures`.
            row_reads: ``(num_nodes,)`` reads of each row in a period, such as expected reads of an epoch, or
                a record with them as ``values`` (:func:`graphbraid.features.score`). None: in proportion to a
                node's number of out-edges.
            list_reads: ``(num_nodes,)`` blocks read in the same period for each list that is not held
                (:func:`expected_list_blocks`). None: one block for each read.
            policy: policy of the rows, as in :class:`TieredFeatures`.

        Raises:
            ConfigError: a size is invalid, or too small for the bookkeeping and one row.
            DataError: the features are not dense or not mapped from a store, or reads do not fit the graph.
            ResourceError: the memory is not free, or a file cannot be read.
        """
        x, indices = graph.x, graph.csc.indices
        features: dict[str, Any] = {"policy": policy, "score": row_reads, "hot": hot}
        if host is None:
            alone = TieredFeatures.build(graph, **features)
            return cls(features=alone, topology=None, reason="the host has the graph as it is")
        stored = stored_rows(x)
        if stored is None or mapped.find(indices.data_ptr(), indices.nbytes) is None:
            alone = TieredFeatures.build(graph, host=host, **features)
            return cls(features=alone, topology=None, reason="the topology is in memory: all is for rows")
        rows = DiskRows.behind(stored, options=row_options(host))
        parts = ListParts.of(graph, list_options(host))
        scaled = isinstance(x, ScaledFeatures)
        notes, kept = row_bytes_kept(rows, ranked=row_reads is not None, scaled=scaled)
        whole = parts.whole_bytes + notes + kept * len(stored)
        budget = min(as_budget(host, "host"), whole)
        require_free(budget, f"host={host!r}")
        features["disk"] = rows.options
        if budget in (0, whole):
            return cls(
                features=TieredFeatures.build(graph, host="all" if budget else 0, **features),
                topology=parts.hold(None if budget else torch.empty(0, dtype=torch.int64)),
                reason="memory holds everything" if budget else "memory holds nothing",
            )
        least = notes + kept + parts.notes_bytes
        if budget < least:
            raise ConfigError(
                f"host={host!r} holds no row: the bookkeeping of all {len(stored):,} rows and adjacency "
                f"lists, and a row, take {format_bytes(least)}. Give more, or 0 to read all from the files"
            )
        reads = _reads_of_host(graph, row_reads, hot)
        curves = (_curve_of_lists(parts, graph, list_reads), _curve_of_rows(rows, reads, kept))
        num_lists, num_rows = _divided(budget - notes, parts, curves)
        holds_all = num_lists == len(curves[0])
        return cls(
            features=TieredFeatures.build(graph, host=notes + kept * max(num_rows, 1), **features),
            topology=parts.hold(None if holds_all else curves[0].order[:num_lists], curves[0]),
            reason=_said(budget, curves, (num_lists, num_rows)),
        )

    def explain(self) -> str:
        """Return the division of memory, and the tiers of rows and lists, in words."""
        parts = [self.reason] + ([] if self.topology is None else [self.topology.explain()])
        return "\n\n".join([*parts, self.features.explain()])


@typed
def expected_list_blocks(csc: Csc, sampler: SamplerConfig, schedule: SeedSchedule) -> Tensor:
    """Return the expected number of blocks that an epoch reads for each list that is not held.

    Each hop that draws from a list reads it, and each draw touches a block. So lists are read more often than
    rows, which a batch reads once.

    Returns:
        ``(num_nodes,)`` float64.
    """
    degrees, blocks = csc.degrees(), torch.zeros(csc.num_dst, dtype=torch.float64)
    for fanout, reads in walks.expansions(csc, sampler, schedule):
        if fanout:
            blocks += reads * list_blocks(degrees, fanout, csc.indices.itemsize)
    return blocks


def _curve_of_lists(parts: ListParts, graph: Graph, reads: Tensor | None) -> Curve:
    return parts.curve(
        walks.out_degree(graph.csc) if reads is None else checked_score(reads, parts.num_nodes)
    )


def _reads_of_host(graph: Graph, score: Any, hot: int | str) -> Tensor:
    """Return each row's reads from the host; rows that devices keep have none."""
    known = None if score is None else checked_score(values_of(score), graph.num_nodes)
    reads = (walks.out_degree(graph.csc) if known is None else known).double()
    x = graph.x
    if as_budget(hot, "hot") and isinstance(x, Tensor | ScaledFeatures):
        reads = reads.clone()
        reads[hot_ids_in(hot, order_of(reads), kept_row_bytes(x))] = 0.0
    return reads


def _curve_of_rows(rows: DiskRows, reads: Tensor, kept: int) -> Curve:
    """The curve of the rows, by blocks read, like that of the lists."""
    # Rows begin at a block: one that divides it lies in a single one.
    straddle = 0.0 if BLOCK_BYTES % rows.row_bytes == 0 else (rows.row_bytes - 1) / BLOCK_BYTES
    blocks = max(1.0 + straddle, rows.row_bytes / BLOCK_BYTES)
    return Curve.of(reads * blocks, kept)


def _divided(room: int, parts: ListParts, curves: tuple[Curve, Curve]) -> tuple[int, int]:
    """Return the numbers of lists and rows that a budget holds beside bookkeeping; one row at least.

    If all lists fit, their bookkeeping is smaller, and more rows fit.
    """
    [lists, rows] = curves
    num_lists, num_rows = split(room - parts.notes_bytes, curves)
    if num_lists == len(lists):
        return num_lists, split(room - parts.whole_bytes, [rows])[0]
    if num_rows == 0:
        [num_lists] = split(room - parts.notes_bytes - int(rows.size[0]), [lists])
        num_rows = 1
    return num_lists, num_rows


def _said(budget: int, curves: Iterable[Curve], counts: tuple[int, int]) -> str:
    held = [
        f"{format_bytes(curve.num_bytes(count))} to {count:,} of {len(curve):,} {name} "
        f"({curve.share(count):.1%} of what they are expected to cost)"
        for name, curve, count in zip(("adjacency lists", "feature rows"), curves, counts, strict=True)
    ]
    return f"host {format_bytes(budget)}: " + " and ".join(held) + ", by reads of the disk saved per byte"

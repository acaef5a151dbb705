"""Features: tiers that store feature rows and bring them to the model.

:func:`score` finds the rows that are read most, :func:`batch_reads` the rows that each coming batch reads;
:func:`reorder` renumbers a graph's nodes, for example with those read most often first;
:class:`TieredFeatures` keeps some rows in memory and reads the others from a store's file;
:class:`TieredTopology` does the same for adjacency lists, and :class:`HostTiers` divides one budget between
both.
"""

from typing import TYPE_CHECKING

from graphbraid.lazy import names_of

if TYPE_CHECKING:
    from graphbraid.features.reordering import Reordered, reorder
    from graphbraid.features.rows.caches import POLICIES, RowCache
    from graphbraid.features.rows.disk import DiskOptions, DiskRows
    from graphbraid.features.scores.choice import coverage
    from graphbraid.features.scores.score import KINDS, Score, score
    from graphbraid.features.scores.walks import batch_reads
    from graphbraid.features.tiers.tier_report import CurvePoint, TierReport, TierRow
    from graphbraid.features.tiers.tiered_features import TieredFeatures
    from graphbraid.features.tiers.topology import HostTiers, TieredTopology, expected_list_blocks
    from graphbraid.graph.orders import ORDERS, order_by
    from graphbraid.sampling.rows.by_id import TierCounts

__all__ = [
    "KINDS",
    "ORDERS",
    "POLICIES",
    "CurvePoint",
    "DiskOptions",
    "DiskRows",
    "HostTiers",
    "Reordered",
    "RowCache",
    "Score",
    "TierCounts",
    "TierReport",
    "TierRow",
    "TieredFeatures",
    "TieredTopology",
    "batch_reads",
    "coverage",
    "expected_list_blocks",
    "order_by",
    "reorder",
    "score",
]

__getattr__ = names_of(
    __name__,
    {
        "reordering": "Reordered reorder",
        "rows.caches": "POLICIES RowCache",
        "rows.disk": "DiskOptions DiskRows",
        "scores.choice": "coverage",
        "scores.score": "KINDS Score score",
        "scores.walks": "batch_reads",
        "tiers.tier_report": "CurvePoint TierReport TierRow",
        "tiers.tiered_features": "TieredFeatures",
        "tiers.topology": "HostTiers TieredTopology expected_list_blocks",
        ".graph.orders": "ORDERS order_by",
        ".sampling.rows.by_id": "TierCounts",
    },
)

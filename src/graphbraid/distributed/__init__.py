"""Distributed training: a graph divided among ranks, and their exchanges.

:func:`partition` decides which part owns which node; :func:`split` cuts the graph into the parts' local and
remote graphs; :func:`save_partition` keeps them in a folder, from which each rank reads its own. :func:`init`
joins the ranks that a launcher has started.
"""

from typing import TYPE_CHECKING

from graphbraid.lazy import names_of

if TYPE_CHECKING:
    from graphbraid.distributed.partitioning.choose import partition
    from graphbraid.distributed.partitioning.records import (
        STRATEGIES,
        Attempt,
        Partition,
        PartitionOptions,
        is_partition,
    )
    from graphbraid.distributed.parts.report import PartitionReport, PartSize, report_of
    from graphbraid.distributed.parts.saving import SavedPartition, save_partition
    from graphbraid.distributed.parts.split import Division, Part, split
    from graphbraid.distributed.ranks.communicator import Communicator
    from graphbraid.distributed.ranks.joining import current, init
    from graphbraid.distributed.shards.sharded_graph import ShardedGraph

__all__ = [
    "STRATEGIES",
    "Attempt",
    "Communicator",
    "Division",
    "Part",
    "PartSize",
    "Partition",
    "PartitionOptions",
    "PartitionReport",
    "SavedPartition",
    "ShardedGraph",
    "current",
    "init",
    "is_partition",
    "partition",
    "report_of",
    "save_partition",
    "split",
]

__getattr__ = names_of(
    __name__,
    {
        "partitioning.choose": "partition",
        "partitioning.records": "STRATEGIES Attempt Partition PartitionOptions is_partition",
        "parts.report": "PartitionReport PartSize report_of",
        "parts.saving": "SavedPartition save_partition",
        "parts.split": "Division Part split",
        "ranks.communicator": "Communicator",
        "ranks.joining": "current init",
        "shards.sharded_graph": "ShardedGraph",
    },
)

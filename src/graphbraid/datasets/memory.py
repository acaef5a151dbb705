"""What reading a graph takes at its peak, compared with the free memory before anything is read.

In a container the system ends a process that takes more than its limit without a word; this says so before.
The bytes per edge are peaks of a run of six million edges, arrays read included, rounded up.
"""

from __future__ import annotations

from pathlib import Path

from graphbraid.errors import ResourceError
from graphbraid.files.writing import format_bytes
from graphbraid.machine.hardware import free_memory_bytes

EDGE_BYTES = 24
"""Beside the edge list itself: both ends, their order, the finished topology."""
TABLE_EDGE_BYTES = 75
"""Of an edge table: a batch's columns, ids, and their numbers."""
CHANGED_EDGE_BYTES = 48
"""Of an edge that is read again to be symmetrized or deduplicated: the old graph and the new one."""
GENERATED_EDGE_BYTES = 24
"""Of an embedded dataset with its features."""
_SAMPLE = 1 << 16


def require_memory(num_bytes: int, what: str) -> None:
    """Refuse what takes more than the free memory, within a container's limits.

    Raises:
        ResourceError: it does; says how much is needed and how much is there.
    """
    free = free_memory_bytes()
    if free is not None and num_bytes > free:
        raise ResourceError(
            f"{what} takes about {format_bytes(num_bytes)} of memory; {format_bytes(free)} are free. Use a "
            "machine or container with more, or convert the graph there and open the store here"
        )


def table_bytes(file: Path) -> int:
    """What reading an edge table takes, by its size and the length of its first lines; 0 where not known."""
    if file.suffix not in (".csv", ".tsv", ".txt"):
        return 0
    with file.open("rb") as stream:
        sample = stream.read(_SAMPLE)
    lines = max(1, sample.count(b"\n"))
    return file.stat().st_size * lines // max(1, len(sample)) * TABLE_EDGE_BYTES

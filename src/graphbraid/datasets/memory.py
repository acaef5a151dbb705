"""Peak memory of reading a graph, compared with the free memory before anything is read.

In a container, a process that exceeds the memory limit is killed without a message; this check fails with one
beforehand. The bytes per edge were measured as the peak with six million edges, including the arrays read,
rounded up.
"""

from __future__ import annotations

from pathlib import Path

from graphbraid.errors import ResourceError
from graphbraid.files.opening import open_file
from graphbraid.files.writing import format_bytes
from graphbraid.machine.hardware import free_memory_bytes

EDGE_BYTES = 24
"""Bytes per edge beside the edge list itself: both ends, their order, the finished topology."""
TABLE_EDGE_BYTES = 75
"""Bytes per edge of reading an edge table: the columns of a batch, ids, and their numbers."""
CHANGED_EDGE_BYTES = 48
"""Bytes per edge of symmetrizing or deduplicating: the old graph and the new one."""
GENERATED_EDGE_BYTES = 24
"""Bytes per edge of generating an embedded dataset with its features."""
_SAMPLE = 1 << 16


_ELSEWHERE = "Use a machine or container with more, or convert the graph there and open the store here"


def require_memory(num_bytes: int, what: str, advice: str = _ELSEWHERE) -> None:
    """Check that ``num_bytes`` of memory are free, within a container's limits.

    Raises:
        ResourceError: they are not; the message says how much is needed and how much is free.
    """
    free = free_memory_bytes()
    if free is not None and num_bytes > free:
        raise ResourceError(
            f"{what} takes about {format_bytes(num_bytes)} of memory; {format_bytes(free)} are free. {advice}"
        )


def table_bytes(file: Path) -> int:
    """Estimate the memory to read an edge table from its size and its first lines; 0 if not known."""
    if file.suffix not in (".csv", ".tsv", ".txt"):
        return 0
    with open_file(file) as stream:
        sample = stream.read(_SAMPLE)
    lines = max(1, sample.count(b"\n"))
    return file.stat().st_size * lines // max(1, len(sample)) * TABLE_EDGE_BYTES

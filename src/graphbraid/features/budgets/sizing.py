"""How much memory feature rows and adjacency lists may take, from what is free and what else a run needs."""

from __future__ import annotations

from dataclasses import dataclass

from graphbraid.files import mapped
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph
from graphbraid.graph.scaled_features import stored_rows

RESERVE_SHARE = 0.1
"""Share of the free memory that is left to the system and to what no estimate sees."""
LEAST_RESERVE_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class HostBudget:
    """The memory for a stored graph that ``tiers="auto"`` takes."""

    host: int | None
    """Bytes, as ``HostTiers.build`` takes them; None: no tiers, the graph is used as it is."""
    free_bytes: int | None
    """Memory that may be taken; None if it is not known."""
    needed_bytes: int
    """What the run needs beside the graph that is placed."""
    reserve_bytes: int
    """What is left free."""
    reason: str


def list_bytes(graph: Graph) -> int:
    """Return the bytes of the adjacency lists that a store's file holds; 0 if they are in memory."""
    indptr, indices = graph.csc.indptr, graph.csc.indices
    return indptr.nbytes + indices.nbytes if mapped.find(indices.data_ptr(), indices.nbytes) else 0


def host_budget(
    graph: Graph, *, free_bytes: int | None, needed_bytes: int, with_lists: bool = True
) -> HostBudget:
    """Choose the memory for a graph's feature rows and adjacency lists.

    Args:
        graph: what is placed.
        free_bytes: memory that the run may take; None if it is not known.
        needed_bytes: what it needs of that beside the rows, and beside the lists that are placed.
        with_lists: whether adjacency lists are placed, too.
    """

    def chosen(host: int | None, reason: str, reserve: int = 0) -> HostBudget:
        return HostBudget(
            host=host,
            free_bytes=free_bytes,
            needed_bytes=needed_bytes,
            reserve_bytes=reserve,
            reason=reason,
        )

    x = stored_rows(graph.x)
    if x is None or graph.x is None:
        return chosen(None, "no tiers: only dense features are put in tiers")
    if mapped.find(x.data_ptr(), x.nbytes) is None:
        return chosen(None, "no tiers: the features are in memory, and no store's file holds them")
    if free_bytes is None:
        return chosen(None, "no tiers: the free memory is not known")
    reserve = max(int(RESERVE_SHARE * free_bytes), LEAST_RESERVE_BYTES)
    left = free_bytes - needed_bytes - reserve
    words = (
        f"{format_bytes(free_bytes)} less {format_bytes(needed_bytes)} for the rest of the run and a reserve "
        f"of {format_bytes(reserve)}"
    )
    whole = graph.x.nbytes + (list_bytes(graph) if with_lists else 0)
    parts = "rows and lists" if with_lists and list_bytes(graph) else "rows"
    if whole <= left:
        return chosen(None, f"no tiers: all {format_bytes(whole)} of {parts} fit ({words})", reserve)
    if left < x.shape[0] * _NOTES_BYTES + _LEAST_BYTES:
        return chosen(0, f"all {parts} from the files: no memory is left for them ({words})", reserve)
    return chosen(left, f"{format_bytes(left)} for {parts}: {words}", reserve)


_NOTES_BYTES = 40  # of each row and list, in memory or not
_LEAST_BYTES = 1 << 20  # buffers of requests, and some rows

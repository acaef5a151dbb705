"""METIS, through pymetis: partitions with few cut edges, and the reasons for which it gives none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.distributed.partitioning.loads import imbalance, part_loads
from graphbraid.distributed.partitioning.repair import repaired
from graphbraid.errors import GraphbraidError
from graphbraid.files.writing import format_bytes
from graphbraid.graph import edges
from graphbraid.graph.csc import Csc
from graphbraid.machine.hardware import free_memory_bytes

INSTALL = 'pip install "graphbraid[metis]"'
EDGE_BYTES = 112
"""Bytes at the peak, per edge of the symmetric graph in each direction: that graph, its copy in METIS's
64-bit ids and the coarser graphs. Of 1.2 million random edges it is 109."""


class RefusedError(GraphbraidError):
    """METIS gives no partition of this graph; the message says why."""


@dataclass(frozen=True, eq=False, slots=True)
class Symmetric:
    """A graph without directions and self-loops, as METIS takes it."""

    csc: Csc
    """Each edge in both directions; weight: how many edges of the graph it stands for, None if all alike."""


def symmetric(csc: Csc) -> Symmetric:
    """Return the graph that METIS cuts: the weight of its cut is the number of edges cut."""
    counted = Csc(csc.indptr, csc.indices, csc.num_src, torch.ones(csc.num_edges), trusted=True)
    both = edges.symmetrize(counted, weights="sum", keep_edge_id=False).csc
    both = edges.remove_self_loops(both, keep_edge_id=False).csc
    weight = both.weight
    assert weight is not None
    if weight.numel() and bool((weight == weight[0]).all()):
        both = Csc(both.indptr, both.indices, both.num_src, trusted=True)
    return Symmetric(both)


def refusal(csc: Csc, num_parts: int) -> str:
    """Return why METIS cannot be asked for a partition, or an empty text if it can."""
    if _pymetis() is None:
        return f"pymetis is not installed: {INSTALL}"
    if num_parts > csc.num_dst:
        return f"there are more parts ({num_parts}) than nodes ({csc.num_dst})"
    if csc.num_edges == 0:
        return "the graph has no edges"
    free, needed = free_memory_bytes(), 2 * EDGE_BYTES * csc.num_edges
    if free is not None and needed > free:
        return f"METIS takes up to {format_bytes(needed)} of memory; {format_bytes(free)} are free"
    return ""


def metis(
    graph: Symmetric,
    loads: Tensor,
    num_parts: int,
    *,
    tolerance: float,
    recursive: bool,
    limit: int,
    seed: int,
) -> Tensor:
    """Ask METIS for a partition, and repair what exceeds the limit.

    METIS ends well even where a part is heavier than its tolerance: nodes of such parts then move to the
    part of most of their neighbours that has room (:mod:`.repair`).

    Args:
        graph: Symmetric, with an edge.
        loads: ``(num_nodes,)`` int64 weights of the nodes.
        num_parts: Number of parts, at least 2 and at most the number of nodes.
        tolerance: METIS's own, such as 1.03.
        recursive: Bisect recursively instead of k-way.
        limit: Largest load of a part.
        seed: Of METIS's random numbers.

    Returns:
        ``(num_nodes,)`` int32 part of each node.

    Raises:
        RefusedError: METIS failed, left a part empty, or a part is too heavy even when repaired.
    """
    part_of = _asked(graph.csc, loads, num_parts, tolerance=tolerance, recursive=recursive, seed=seed)
    sums = part_loads(part_of, loads, num_parts)
    before = imbalance(sums)
    if int(sums.max()) > limit:
        part_of, sums = repaired(graph.csc, part_of, loads, sums, limit)
    if int(sums.max()) > limit:
        raise RefusedError(
            f"its heaviest part has {before:.2f} times the mean load, repaired {imbalance(sums):.2f}"
        )
    empty = int((torch.bincount(part_of, minlength=num_parts) == 0).sum())
    if empty:
        raise RefusedError(f"it leaves {empty} of {num_parts} parts empty")
    return part_of


def _asked(
    csc: Csc, loads: Tensor, num_parts: int, *, tolerance: float, recursive: bool, seed: int
) -> Tensor:
    pymetis = _pymetis()
    assert pymetis is not None
    dtype = torch.int64 if pymetis.zero_copy_dtype().itemsize == 8 else torch.int32

    def array(values: Tensor) -> Any:
        return values.to(dtype).numpy()

    # METIS's ufactor: thousandths above 1. Heavy edges are matched first by default (SHEM).
    options = pymetis.Options(ufactor=round(1000 * (tolerance - 1)), seed=seed)
    adjacency = pymetis.CSRAdjacency(array(csc.indptr), array(csc.indices))
    weight = None if csc.weight is None else array(csc.weight)
    try:
        found = pymetis.part_graph(
            num_parts,
            adjacency,
            vweights=array(loads),
            eweights=weight,
            recursive=recursive,
            options=options,
        )
    except (RuntimeError, MemoryError) as error:
        raise RefusedError(f"METIS failed: {error}") from error
    return torch.as_tensor(found.vertex_part, dtype=torch.int32)


def _pymetis() -> Any | None:
    try:
        import pymetis
    except ImportError:
        return None
    return pymetis

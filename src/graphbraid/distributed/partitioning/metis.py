"""METIS by pymetis, and the repair of parts that it leaves too heavy, at the cost of few cut edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.distributed.partitioning.records import imbalance, part_loads
from graphbraid.distributed.partitioning.streaming import is_hub, place, relieve
from graphbraid.errors import GraphbraidError
from graphbraid.files.writing import format_bytes
from graphbraid.graph import edges
from graphbraid.graph.csc import Csc, indptr_of, ranges
from graphbraid.machine.hardware import free_memory_bytes

INSTALL = 'pip install "graphbraid[metis]"'
EDGE_BYTES = 112
"""Bytes at the peak, per edge of the symmetric graph in each direction: that graph, its copy in METIS's
64-bit ids and the coarser graphs. Of 1.2 million random edges it is 109."""
_BESIDE_BYTES = 32 << 20
"""Kept free beside the edges: the library itself, and heaps of threads. A container kills what takes more."""


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
    if load_pymetis() is None:
        return f"pymetis is not installed: {INSTALL}"
    if num_parts > csc.num_dst:
        return f"there are more parts ({num_parts}) than nodes ({csc.num_dst})"
    if csc.num_edges == 0:
        return "the graph has no edges"
    free, needed = free_memory_bytes(), 2 * EDGE_BYTES * csc.num_edges + _BESIDE_BYTES
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
    """Ask METIS for a partition, and repair parts that exceed the limit.

    METIS ends well even where a part is heavier than its tolerance: nodes of such parts then move to the
    part of most of their neighbours that has room (:func:`repaired`).

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
    part_of = asked_metis(graph.csc, loads, num_parts, tolerance=tolerance, recursive=recursive, seed=seed)
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


def asked_metis(
    csc: Csc, loads: Tensor, num_parts: int, *, tolerance: float, recursive: bool, seed: int
) -> Tensor:
    """Return METIS's own partition, ``(num_nodes,)`` int32, whatever its balance.

    Raises:
        RefusedError: METIS failed.
    """
    pymetis = load_pymetis()
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


def load_pymetis() -> Any | None:
    """Return the pymetis module; None if it is not installed."""
    try:
        import pymetis
    except ImportError:
        return None
    return pymetis


PASSES = 8
"""Most passes over the nodes of parts that are too heavy."""

_Rows = tuple[Tensor, Tensor, Tensor | None]


def repaired(csc: Csc, part_of: Tensor, loads: Tensor, sums: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Move nodes of the parts above the limit, those with the least weight of neighbours in their part first.

    Each goes to the part with room that holds most of its neighbours. Once its part is below the limit, a
    node only moves where it has more neighbours. A part that is too heavy by its hubs alone gives one of them
    to another, which makes room for it in the next pass.

    Args:
        csc: Symmetric adjacency, its weights the edges each one stands for.
        part_of: ``(num_nodes,)`` int32.
        loads: ``(num_nodes,)`` int64, of the nodes.
        sums: ``(num_parts,)`` int64, of the parts.
        limit: Largest load of a part.

    Returns:
        New ``part_of`` and ``sums``; a part may still be above the limit.
    """
    part_of, sums = part_of.clone(), sums.clone()
    hubs = is_hub(loads, int(sums.sum()), sums.numel(), limit).nonzero().squeeze(1)
    for _ in range(PASSES):
        nodes = (sums > limit)[part_of].nonzero().squeeze(1)
        if not nodes.numel():
            break
        nodes = nodes[_inside(_rows(csc, nodes), part_of[nodes], part_of).argsort(stable=True)]
        place(nodes, _rows(csc, nodes), loads[nodes], part_of, sums, most=limit, price=0.0)
        relieve(part_of, sums, hubs, loads[hubs], limit)
    return part_of, sums


def _rows(csc: Csc, nodes: Tensor) -> _Rows:
    """Return ``indptr``, ``indices`` and ``weight`` of the rows of some nodes."""
    counts = csc.degrees()[nodes]
    at = ranges(csc.indptr[nodes], counts)
    return indptr_of(counts), csc.indices[at], None if csc.weight is None else csc.weight[at]


def _inside(rows: _Rows, own: Tensor, part_of: Tensor) -> Tensor:
    """Return the weight of each row's neighbours that are in the row's own part."""
    indptr, indices, weight = rows
    row = torch.arange(own.numel()).repeat_interleave(indptr.diff())
    is_inside = (part_of[indices.long()] == own[row]).float()
    return torch.zeros(own.numel()).index_add_(0, row, is_inside if weight is None else is_inside * weight)

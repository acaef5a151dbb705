"""Symmetry: an undirected graph's adjacency serves as its own transpose."""

from __future__ import annotations

import torch

from graphbraid.fullgraph.program import Decision
from graphbraid.topology import Csc


def with_shared_transpose(csc: Csc, wanted: bool) -> tuple[Csc, Decision]:
    """The adjacency, knowing itself as its transpose where each edge is stored both ways.

    Not with weights: their order in the transpose must be known anyway.
    """
    if not wanted or csc.weight is not None:
        what = "edge weights need the transpose's order" if wanted else "switched off"
        return csc, Decision(name="symmetry", taken=False, what=what)
    ordered, _ = csc.sort_rows()
    shared = Csc(ordered.indptr, ordered.indices, ordered.num_src, trusted=True)
    reverse = shared.reversed()
    if not (torch.equal(reverse.indptr, shared.indptr) and torch.equal(reverse.indices, shared.indices)):
        return csc, Decision(name="symmetry", taken=False, what="edges are not stored both ways")
    shared._reversed = shared
    saves = f"{csc.nbytes / 1e6:.3g} MB"
    return shared, Decision(
        name="symmetry", taken=True, what="the adjacency is its own transpose", saves=saves
    )

"""Symmetry: an undirected graph's adjacency serves as its own transpose."""

from __future__ import annotations

import torch

from graphbraid.fullgraph.program import Decision
from graphbraid.graph.csc import Csc


def with_shared_transpose(csc: Csc, wanted: bool, ordered: bool = False) -> tuple[Csc, Decision]:
    """Return the adjacency, marked as its own transpose if each edge is stored in both directions.

    This does not apply to weighted edges, nor where edges must keep their order (``ordered``) because they
    have features: their positions in the transpose are needed anyway.
    """
    if not wanted or csc.weight is not None or ordered:
        of_edges = "edge features need" if ordered else "edge weights need"
        what = f"{of_edges} the transpose's order" if wanted else "switched off"
        return csc, Decision(name="symmetry", taken=False, what=what)
    rising, _ = csc.sort_rows()
    shared = Csc(rising.indptr, rising.indices, rising.num_src, trusted=True)
    reverse = shared.reversed()
    if not (torch.equal(reverse.indptr, shared.indptr) and torch.equal(reverse.indices, shared.indices)):
        return csc, Decision(name="symmetry", taken=False, what="edges are not stored both ways")
    shared.keep_as_own_reverse()
    saves = f"{csc.nbytes / 1e6:.3g} MB"
    return shared, Decision(
        name="symmetry", taken=True, what="the adjacency is its own transpose", saves=saves
    )

"""Symmetry: an undirected graph's adjacency serves as its own transpose."""

from __future__ import annotations

import torch

from graphbraid.fullgraph.program import Decision
from graphbraid.topology import Csc


def with_shared_transpose(csc: Csc, wanted: bool) -> tuple[Csc, Decision]:
    """The adjacency, knowing itself as its transpose where each edge is stored both ways with one weight."""
    if not wanted:
        return csc, Decision(name="symmetry", taken=False, what="not looked for")
    ordered, _ = csc.sort_rows()
    reverse = Csc(ordered.indptr, ordered.indices, ordered.num_src, ordered.weight)
    reverse = reverse.reversed() if csc.weight is None else reverse.transpose()[0]
    same = torch.equal(reverse.indptr, ordered.indptr) and torch.equal(reverse.indices, ordered.indices)
    if same and csc.weight is not None:
        assert reverse.weight is not None
        assert ordered.weight is not None
        same = torch.equal(reverse.weight, ordered.weight)
    if not same:
        return csc, Decision(name="symmetry", taken=False, what="edges are not stored both ways")
    shared = Csc(ordered.indptr, ordered.indices, ordered.num_src, ordered.weight)
    shared._reversed = shared
    saves = f"{csc.nbytes / 1e6:.3g} MB"
    return shared, Decision(
        name="symmetry", taken=True, what="the adjacency is its own transpose", saves=saves
    )

"""The scaled Laplacian of Chebyshev polynomials, as an aggregation with the factors of PyG's ``ChebConv``."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.graph.csc import Csc
from graphbraid.ops.aggregation import Aggregation

LAPLACIANS: dict[str, str | None] = {"laplacian": None, "laplacian sym": "sym", "laplacian rw": "rw"}
"""PyG's name of the normalisation for each Laplacian kind of adjacency."""


def scaled_laplacian(csc: Csc, normalization: str | None) -> Aggregation:
    """Return the aggregation by ``2 L / lambda_max - I`` of a graph without its stored self-loops.

    ``L`` is ``I - D^-1/2 A D^-1/2`` (sym), ``I - A D^-1`` (rw) or ``D - A`` (None), and ``lambda_max`` is
    twice its largest entry, PyG's default. A node's degree is the sum of the weights of the edges that
    *leave* it, as in PyG.

    Args:
        csc: in-edges, with weights of any sign.
        normalization: ``sym``, ``rw`` or None.
    """
    weight = torch.ones(csc.num_edges) if csc.weight is None else csc.weight.float()
    sources, destinations = csc.indices.long(), csc.destinations().long()
    weight = weight.masked_fill(sources == destinations, 0.0)
    degree = torch.zeros(csc.num_src).index_add_(0, sources, weight)
    src, dst = _scales(degree, normalization)
    entries = weight * (src[sources] * dst[destinations])
    diagonal = degree if normalization is None else torch.ones(csc.num_src)
    largest = (
        torch.cat((-entries[sources != destinations], diagonal)).max() if csc.num_src else torch.ones(())
    )
    scale = 1 / largest  # 2 / lambda_max
    loop = scale * diagonal - 1
    if bool((loop == 0).all()):
        return Aggregation(csc=csc, weight=csc.weight, src_scale=src, dst_scale=-scale * dst, skip_loops=True)
    if normalization is None:  # self-loops share the rows' factor
        return Aggregation(
            csc=csc,
            weight=csc.weight,
            dst_scale=(-scale).expand(csc.num_dst).clone(),
            loop=-loop / scale,
            loop_scale=1.0,
            skip_loops=True,
        )
    assert csc.weight is not None  # without weights the diagonal holds the largest entry
    return Aggregation(csc=csc, weight=-scale * entries, loop=loop, loop_scale=1.0, skip_loops=True)


def _scales(degree: Tensor, normalization: str | None) -> tuple[Tensor, Tensor]:
    """Return the factors of sources and of destinations; they are 0 for nodes without edges."""
    ones = torch.ones_like(degree)
    if normalization is None:
        return ones, ones
    power = degree.pow(-0.5 if normalization == "sym" else -1.0)
    power = power.masked_fill(power == float("inf"), 0.0)
    return (power, power) if normalization == "sym" else (power, ones)


__all__ = ["LAPLACIANS", "scaled_laplacian"]

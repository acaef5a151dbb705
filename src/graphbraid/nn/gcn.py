"""GCNConv, the graph convolution of Kipf and Welling, and its normalisation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.errors import ConfigError
from graphbraid.graph.csc import Csc
from graphbraid.graph.scans import native_for, tracing
from graphbraid.nn.conv import Conv, LayerInput, zero_bias
from graphbraid.nn.linear import Linear
from graphbraid.nn.pyg_layers import pyg_layer
from graphbraid.ops import Aggregation, aggregate_linear
from graphbraid.ops.kernels import sum_dtype
from graphbraid.ops.library import derived, opaque, stored_loops
from graphbraid.signatures import typed


@typed
class GCNConv(Conv):
    r"""Graph convolution of "Semi-Supervised Classification with Graph Convolutional Networks".

    .. math:: X' = \hat{D}^{-1/2} \hat{A} \hat{D}^{-1/2} X W

    Equal to PyTorch Geometric's layer of the same name on the same edges, with the same parameters
    (``lin.weight``, ``bias``), with one exception: ``improved`` always adds self-loops of weight 2, as its
    documentation says, while PyG 2.8 adds weight 1 to edges without weights. Edge weights are the graph's
    ``csc.weight``, or an ``edge_weight`` given with an ``edge_index``, and are not learned.

    For blocks, see :func:`gcn_norm`. Self-loops are added inside the kernel; no edge list is rebuilt.

    Args:
        in_channels: width of the input.
        out_channels: width of the output.
        improved: add self-loops of weight 2.
        add_self_loops: whether to add self-loops. If None, as ``normalize``.
        normalize: whether to normalise by degrees; if False, the layer is a plain weighted sum.
        bias: whether to learn an additive bias.

    Raises:
        ConfigError: self-loops are requested without normalisation.
    """

    keeps_result = False
    takes_weights = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        improved: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
    ):
        super().__init__()
        if add_self_loops is None:
            add_self_loops = normalize
        if add_self_loops and not normalize:
            raise ConfigError(
                "GCNConv adds self-loops only when it normalises; set normalize=True or add_self_loops=False"
            )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.improved, self.add_self_loops, self.normalize = improved, add_self_loops, normalize
        self.lin = Linear(in_channels, out_channels, bias=False, init="glorot")
        self.bias = zero_bias(out_channels, bias=bias)

    def reset_parameters(self) -> None:
        """Draw the weight anew; set the bias to 0."""
        self.lin.reset_parameters()
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def to_pyg(self) -> nn.Module:
        """Return PyG's layer of the same name with a copy of the weights.

        Raises:
            ConfigError: ``improved``, for which PyG's layer adds other self-loops.
        """
        if self.improved and self.add_self_loops:
            raise ConfigError(
                "to_pyg of GCNConv(improved=True): PyG's layer adds self-loops of weight 1, not 2, to edges "
                "without weights"
            )
        same = ("in_channels", "out_channels", "add_self_loops", "normalize")
        return pyg_layer(self, *same, bias=self.bias is not None)

    def combine(self, x: LayerInput, csc: Csc) -> Tensor:
        """Compute the layer without its bias."""
        self.check(x, csc)
        if self.normalize:
            dtype = sum_dtype(self.lin.weight.dtype)
            how = gcn_norm(csc, add_self_loops=self.add_self_loops, improved=self.improved, dtype=dtype)
        else:
            how = Aggregation(csc=csc, weight=csc.weight)
        return aggregate_linear(how, x, self.lin.weight)


@typed
def gcn_norm(
    csc: Csc, *, add_self_loops: bool = True, improved: bool = False, dtype: torch.dtype = torch.float32
) -> Aggregation:
    """Return the symmetrically normalised adjacency of :class:`GCNConv`, with implicit self-loops.

    Follows PyG's ``gcn_norm``: stored self-loops are replaced by one of weight 1 (2 if ``improved``) or, on a
    weighted graph, keep their weight (the last one's, if there are several).

    On a block without ``src_degree``, degrees are counted in the block, which equals PyG's layer on the
    block's edges among its ``num_src`` nodes. A source that is not a destination has no in-edges there and
    degree 1. With ``src_degree``, both sides use the graph's degrees, and the sum over sampled neighbours is
    scaled up by degree over sampled degree. This is an unbiased estimate of the layer on the whole graph, and
    equal to it if all neighbours are taken. Where a weight is below 0, all must be.
    """
    fill = 2.0 if improved else 1.0
    if tracing():  # no value is known, so that none may be trivial
        wide = dtype == torch.float64
        args = (csc.weight, csc.src_degree, csc.src_loop, add_self_loops, fill, wide)
        found = iter(_factors(csc, *args))
        src_scale, dst_scale = next(found), next(found)
        loop = next(found) if add_self_loops and csc.weight is not None else None
        weight, skip = None if csc.src_degree is None else next(found), add_self_loops
    else:
        key = ("gcn_norm", add_self_loops, improved, dtype)
        src_scale, dst_scale, loop, weight, skip = derived(
            csc, key, lambda: _gcn_factors(csc, add_self_loops, fill, dtype)
        )
    return Aggregation(
        csc=csc,
        weight=csc.weight if weight is None else weight,
        src_scale=src_scale,
        dst_scale=dst_scale,
        loop=loop,
        loop_scale=(fill if loop is None else 1.0) if add_self_loops else 0.0,
        skip_loops=skip,
    )


def _factor_shapes(a: Any) -> list[Tensor]:
    dtype, num_dst = torch.float64 if a.wide else torch.float32, a.csc.num_dst
    sizes = [a.csc.num_src, num_dst]
    sizes += [min(a.csc.num_src, num_dst)] if a.add_self_loops and a.weight is not None else []
    sizes += [a.csc.num_edges] if a.src_degree is not None else []
    return [a.csc.indptr.new_empty(size, dtype=dtype) for size in sizes]


@opaque("gcn_factors", _factor_shapes)
def _factors(  # noqa: PLR0917 - a library operator's arguments
    csc: Csc,
    weight: Tensor | None,
    src_degree: Tensor | None,
    src_loop: Tensor | None,
    add_self_loops: bool,
    fill: float,
    wide: bool,
) -> tuple[Tensor, ...]:
    """Return :func:`_gcn_factors` that may not be trivial: loops on a weighted graph, weights on a block."""
    block = Csc(csc.indptr, csc.indices, csc.num_src, weight, src_degree, src_loop, trusted=True)
    dtype = torch.float64 if wide else torch.float32
    src_scale, dst_scale, loop, factors, _ = _gcn_factors(block, add_self_loops, fill, dtype)
    if loop is None and add_self_loops and weight is not None:
        loop = dst_scale.new_full((min(csc.num_src, csc.num_dst),), fill)
    return tuple(one for one in (src_scale, dst_scale, loop, factors) if one is not None)


def _gcn_factors(
    csc: Csc, add_self_loops: bool, fill: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, bool]:
    """Return ``src_scale, dst_scale, loop, weight, skip_loops``; loop and weight are None if trivial."""
    kernels = native_for(csc.indices)
    if kernels and csc.weight is None and csc.src_degree is None and dtype == torch.float32:
        scale = csc.indptr.new_empty(csc.num_src, dtype=dtype)
        skips = kernels.gcn_scale(csc.indptr, csc.indices, fill if add_self_loops else 0.0, scale)
        return scale, scale if csc.num_src == csc.num_dst else scale[: csc.num_dst], None, None, skips
    loops = stored_loops(csc) if add_self_loops else None
    degree = _degrees(csc, loops, dtype)
    loop = None
    if loops is not None and csc.weight is not None:
        loop = degree.new_full((min(csc.num_src, csc.num_dst),), fill)
        loop[csc.indices[loops].long()] = csc.weight[loops].to(dtype)
    own: Tensor | float = loop if loop is not None else fill if add_self_loops else 0.0
    if csc.src_degree is not None:
        src_scale, dst_scale, weight = _graph_factors(csc, degree, fill if add_self_loops else None)
        return src_scale, dst_scale, loop, weight, loops is not None
    dst_scale = _inverse_sqrt(degree + own)
    src_scale = dst_scale
    if csc.num_src != csc.num_dst:
        outer = degree.new_full((csc.num_src - csc.num_dst,), fill if add_self_loops else 0.0)
        src_scale = torch.cat((dst_scale, _inverse_sqrt(outer)))
    return src_scale, dst_scale, loop, None, loops is not None


def _graph_factors(csc: Csc, sampled: Tensor, fill: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``src_scale, dst_scale, weight`` of a block with degrees; ``fill`` is None without loops."""
    assert csc.src_degree is not None
    degree, own = csc.src_degree.to(sampled.dtype), csc.src_loop
    total = degree if fill is None else degree + fill
    if own is not None and fill is None:
        degree = total = degree + own.nan_to_num(0.0)
    elif own is not None and fill is not None and csc.weight is not None:
        total = degree + own.nan_to_num(fill)  # a weighted self-loop keeps its weight
    src_scale = _inverse_sqrt(total)
    dst_scale = src_scale[: csc.num_dst]
    # Each edge stands for degree / sampled edges of the graph, and the self-loop for itself.
    factor = degree[: csc.num_dst] / sampled.clamp(min=torch.finfo(torch.float32).tiny)
    if csc.weight is not None:
        # With weights below 0 loaders draw all in-neighbours, and sums of weights may be 0.
        factor = torch.where((csc.weight < 0).any(), 1.0, factor)
    weight = factor[csc.destinations().long()]
    if csc.weight is not None:
        weight = weight * csc.weight
    return src_scale, dst_scale, weight


def _degrees(csc: Csc, loops: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the ``(num_dst,)`` sums of in-edges' weights, without the edges at positions ``loops``."""
    if csc.weight is None:
        degree = csc.degrees().to(dtype)
        if loops is not None:
            degree -= torch.bincount(csc.indices[loops].long(), minlength=csc.num_dst)
        return degree
    weight = csc.weight.to(dtype)
    if loops is not None:
        weight = weight.clone()
        weight[loops] = 0
    return Aggregation(csc=csc, weight=weight).forward(weight.new_ones(csc.num_src, 1)).squeeze(1)


def _inverse_sqrt(degree: Tensor) -> Tensor:
    """Return ``degree ** -0.5``, and 0 for a degree of 0."""
    scale = degree.pow(-0.5)
    return scale.masked_fill_(scale == torch.inf, 0.0)

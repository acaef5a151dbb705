"""Attention over in-neighbours: the softmax of edges, GAT and GATv2 in one pass, and dot products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.arguments import as_count, as_number, check_tensor, check_type
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc
from graphbraid.graph.scans import tracing
from graphbraid.ops import reference
from graphbraid.ops.kernels import Watched, backend, check_row_dtype, new_rows, sum_dtype
from graphbraid.ops.library import AnySeed, once_differentiable, operator, run
from graphbraid.ops.linear import dense_linear, kernels_for
from graphbraid.ops.message_kernel import aggregate_steps, dot_backward
from graphbraid.ops.message_steps import MessageOp, MessageStep
from graphbraid.ops.rng import row_ids, seed_of_call
from graphbraid.signatures import typed


@typed
def edge_softmax(csc: Csc, logits: Tensor) -> Tensor:
    """Compute the softmax over the in-edges of each destination, per head.

    Args:
        csc: the graph or block.
        logits: ``(num_edges,)`` or ``(num_edges, heads)``; 16-bit types are computed in float32.

    Returns:
        Coefficients of the same shape and dtype; those of a destination sum to 1.

    Raises:
        DataError: ``logits`` does not have one row per edge.
    """
    check_row_dtype(check_tensor(logits, "logits"), "logits")
    if logits.ndim not in (1, 2) or logits.shape[0] != csc.num_edges:
        raise DataError(
            f"logits must have one row per edge ({csc.num_edges}); got shape {tuple(logits.shape)}"
        )
    matrix = (logits if logits.ndim == 2 else logits.unsqueeze(1)).to(sum_dtype(logits.dtype))
    return _edge_softmax(matrix, csc).reshape(logits.shape).to(logits.dtype)


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, csc: Csc) -> Tensor:
        logits = logits.detach().contiguous()
        alpha = torch.empty_like(logits)
        backend(logits).edge_softmax(csc.indptr, logits, alpha)
        ctx.csc = csc
        ctx.save_for_backward(alpha)
        return alpha

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (alpha,) = ctx.saved_tensors
        out = torch.empty_like(alpha)
        backend(grad).edge_softmax_backward(ctx.csc.indptr, alpha.detach(), grad.contiguous(), out)
        return out, None


_edge_softmax = operator("edge_softmax", _EdgeSoftmax, lambda a: a.logits.new_empty(a.logits.shape))


def gat_attention(
    csc: Csc,
    x: Tensor,
    src_logit: Tensor,
    dst_logit: Tensor,
    *,
    negative_slope: float = 0.2,
    self_loops: bool = True,
    dropout: float = 0.0,
    edge_logit: Tensor | None = None,
) -> Tensor:
    """Sum in-neighbours' rows weighted by GAT's attention: a softmax of additive logits.

    Per head ``out[v] = sum of alpha[e] * x[u]`` over the edges ``e = u -> v``, where ``alpha`` is the softmax
    over ``v``'s edges of ``leaky_relu(src_logit[u] + dst_logit[v])``. The backward pass recomputes the
    coefficients; on a CPU nothing is stored per edge, on a CUDA device one number per edge and head.

    Args:
        csc: the graph or block.
        x: ``(num_src, heads * channels)``, head by head; float32, float64, float16 or bfloat16.
        src_logit: ``(num_src, heads)``.
        dst_logit: ``(num_dst, heads)``.
        negative_slope: slope of the leaky ReLU below zero.
        self_loops: give each of the first ``min(num_src, num_dst)`` nodes one self-loop, which replaces any
            stored ones.
        dropout: probability of dropping a coefficient; pass 0 when not training.
        edge_logit: ``(num_edges + number of self-loops, heads)``, added to the logits before the leaky ReLU;
            the rows of the self-loops stand behind those of the edges. On the CPU. None for zeros.

    Returns:
        ``(num_dst, heads * channels)`` of ``x``'s dtype; zeros for a node without edges.

    Raises:
        ConfigError: the slope is not finite, ``dropout`` not in [0, 1), or ``csc`` no Csc.
        DataError: shapes or dtypes do not fit.
    """
    for logit, name in ((src_logit, "src_logit"), (dst_logit, "dst_logit")):
        check_tensor(logit, name, ndim=2, floating=True)
    heads = src_logit.shape[-1]
    _check(csc, x, "x", heads)
    if src_logit.shape != (csc.num_src, heads) or dst_logit.shape != (csc.num_dst, heads):
        raise DataError(
            f"logits must be ({csc.num_src}, heads) by source and ({csc.num_dst}, heads) by destination; "
            f"got {tuple(src_logit.shape)} and {tuple(dst_logit.shape)}"
        )
    dtype = sum_dtype(x.dtype)
    how = _how(csc, negative_slope, self_loops, dropout)
    of_edges = _edge_logits(edge_logit, x, csc.num_edges + how[1], heads)
    return _gat(x, src_logit.to(dtype), dst_logit.to(dtype), of_edges, csc, how)


def _edge_logits(edge_logit: Tensor | None, x: Tensor, count: int, heads: int) -> Tensor | None:
    """Return the logits of edges and self-loops, checked, in the dtype of the sums."""
    if edge_logit is None:
        return None
    check_tensor(edge_logit, "edge_logit", floating=True)
    if edge_logit.shape != (count, heads) or x.device.type != "cpu":
        raise DataError(
            f"edge_logit must be {(count, heads)} on the CPU, a row for each edge and then for each "
            f"self-loop; got {tuple(edge_logit.shape)} on {edge_logit.device}"
        )
    return edge_logit.to(sum_dtype(x.dtype))


def head_dot(rows: Tensor, *vectors: Tensor) -> Tensor:
    """Multiply ``(num_rows, heads * channels)`` rows by ``(1, heads, channels)`` vectors, head by head.

    It is one matrix product, ``(num_rows, num_vectors * heads)``; results of the first vector come first.
    """
    att = torch.cat(vectors)
    count, heads = att.shape[:2]
    if heads == 1:
        return dense_linear(rows, att[:, 0].to(rows.dtype))
    spread = att[..., None] * torch.eye(heads, dtype=att.dtype, device=att.device)[:, None]
    return dense_linear(rows, spread.permute(0, 3, 1, 2).reshape(count * heads, -1).to(rows.dtype))


def scored_attention(
    csc: Csc,
    x: Tensor,
    scored: Tensor,
    vectors: Sequence[Tensor],
    *,
    negative_slope: float = 0.2,
    self_loops: bool = True,
    dropout: float = 0.0,
    edge_logit: Tensor | None = None,
) -> Tensor:
    """Sum in-neighbours' rows like :func:`gat_attention`, with the logits that vectors give ``scored`` rows.

    There are two vectors, ``(1, heads, channels)`` each: for the sources, and for the destinations, which are
    a prefix of the sources. If ``scored`` is ``x``, backward adds the gradient through the logits into the
    gradient of ``x``: there is no second array of that size. All else is as in :func:`gat_attention`.
    """
    heads, compiled = vectors[0].shape[1], False
    how: dict[str, Any] = {"negative_slope": negative_slope, "self_loops": self_loops, "dropout": dropout}
    if x is scored and not tracing() and not torch.is_autocast_enabled(x.device.type):
        compiled = kernels_for(x, *(one[0] for one in vectors)) is not reference
    fits = x.shape == (csc.num_src, vectors[0].numel()) and csc.num_dst <= csc.num_src
    if not compiled or not fits:
        both = head_dot(scored, *vectors)
        logits = both[:, :heads], both[: csc.num_dst, heads:]
        return gat_attention(csc, x, *logits, edge_logit=edge_logit, **how)
    _check(csc, x, "x", heads)
    given = _how(csc, **how)
    of_edges = _edge_logits(edge_logit, x, csc.num_edges + given[1], heads)
    found: Tensor = run(_ScoredGat, x, *vectors, of_edges, csc, given)
    return found


def gatv2_attention(
    csc: Csc,
    x_src: Tensor,
    x_dst: Tensor,
    att: Tensor,
    *,
    negative_slope: float = 0.2,
    self_loops: bool = True,
    dropout: float = 0.0,
    edges: AttendedFeatures | None = None,
) -> Tensor:
    """Sum in-neighbours' rows weighted by GATv2's attention.

    Like :func:`gat_attention`, with the logit ``<att[h], leaky(x_src[u, h] + x_dst[v, h])>``.

    Args:
        csc: the graph or block.
        x_src: ``(num_src, heads * channels)``, head by head; also the rows that are summed.
        x_dst: ``(num_dst, heads * channels)`` of the same dtype.
        att: ``(heads, channels)``.
        negative_slope: slope of the leaky ReLU below zero.
        self_loops: give each of the first ``min(num_src, num_dst)`` nodes one self-loop, which replaces any
            stored ones.
        dropout: probability of dropping a coefficient; pass 0 when not training.
        edges: features of the edges, whose linear map joins the sum inside the leaky ReLU. On the CPU.

    Returns:
        ``(num_dst, heads * channels)``; zeros for a node without edges.

    Raises:
        ConfigError: the slope is not finite, ``dropout`` not in [0, 1), or ``csc`` no Csc.
        DataError: shapes or dtypes do not fit.
    """
    check_tensor(att, "att", ndim=2, floating=True)
    _check(csc, x_src, "x_src", att.shape[0])
    if check_tensor(x_dst, "x_dst").dtype != x_src.dtype:
        raise DataError(f"x_src and x_dst must have one dtype; got {x_src.dtype} and {x_dst.dtype}")
    if x_dst.shape != (csc.num_dst, x_src.shape[1]) or att.numel() != x_src.shape[1]:
        raise DataError(
            f"x_dst must be ({csc.num_dst}, {x_src.shape[1]}) and att (heads, channels) with as "
            f"many numbers as x_src has columns; got {tuple(x_dst.shape)} and {tuple(att.shape)}"
        )
    how = _how(csc, negative_slope, self_loops, dropout)
    att = att.to(sum_dtype(x_src.dtype))
    of_edges: tuple[Tensor | None, ...] = (None, None, None)
    if edges is not None:
        check_type(edges, "edges", AttendedFeatures, "an ops.attention.AttendedFeatures")
        edges.check(csc, x_src, how[1])
        of_edges = edges.weight, edges.features, edges.of_loops.expand(how[1], -1)
    return _gatv2(x_src, x_dst, att, *of_edges, csc, how)


@dataclass(frozen=True, eq=False, slots=True)
class AttendedFeatures:
    """Features of edges that an attention maps linearly; they have no gradient, their map has."""

    features: Tensor
    """``(num_edges, num_edge_features)`` of the rows' dtype."""
    of_loops: Tensor
    """``(number of self-loops, num_edge_features)``, or one row for all self-loops."""
    weight: Tensor
    """``(heads * channels, num_edge_features)``."""

    def check(self, csc: Csc, rows: Tensor, num_loops: int) -> None:
        """Raise DataError unless the features fit the graph and rows of its nodes."""
        width = self.weight.shape[-1]
        loops = 1 if self.of_loops.shape[0] == 1 else num_loops
        given = {"features": (self.features, csc.num_edges), "of_loops": (self.of_loops, loops)}
        given["weight"] = self.weight, rows.shape[1]
        for name, (tensor, count) in given.items():
            is_known = tensor.dtype == rows.dtype and tensor.device == rows.device
            if not is_known or rows.device.type != "cpu" or tensor.shape != (count, width):
                raise DataError(
                    f"{name} of edges must be {rows.dtype} of shape ({count}, {width}) on the CPU; got "
                    f"{tensor.dtype} of {tuple(tensor.shape)} on {tensor.device}"
                )


def _how(
    csc: Csc, negative_slope: float, self_loops: bool, dropout: float
) -> tuple[float, int, float, AnySeed]:
    """Return slope, number of self-loops, dropout probability and its seed, as the kernels take them."""
    slope = as_number(negative_slope, "negative_slope")
    dropout = as_number(dropout, "dropout", least=0, below=1)
    num_loops = min(csc.num_src, csc.num_dst) if self_loops else 0
    return slope, num_loops, dropout, seed_of_call() if dropout > 0 else 0


def _check(csc: Csc, x: Tensor, name: str, heads: int) -> None:
    check_type(csc, "csc", Csc, "a Csc", error=ConfigError)
    check_row_dtype(check_tensor(x, name), name)
    if x.ndim != 2 or x.shape[0] != csc.num_src or heads < 1 or x.shape[1] % heads or not x.shape[1]:
        raise DataError(
            f"{name} must be ({csc.num_src}, heads * channels) for {heads} heads; got shape {tuple(x.shape)}"
            + ("" if x.shape[-1:] != (0,) else ", which has no channels")
        )


class _Gat(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,
        x: Tensor,
        src_logit: Tensor,
        dst_logit: Tensor,
        edge_logit: Tensor | None,
        csc: Csc,
        how: tuple[float, int, float, AnySeed],
    ) -> Tensor:
        edges = {} if edge_logit is None else {"edge_logit": edge_logit.detach().contiguous()}
        return _gat_forward(ctx, (x, src_logit, dst_logit), edges, csc, how)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grads, to_edges = _backward(ctx, "gat_backward", grad)
        return *grads, to_edges, None, None


def _gat_forward(
    ctx: Any,
    given: tuple[Tensor, Tensor, Tensor],
    edges: dict[str, Tensor],
    csc: Csc,
    how: tuple[float, int, float, AnySeed],
    **more: Tensor,
) -> Tensor:
    """Run GAT's forward kernel on rows and logits, like :func:`_forward`."""
    x, _, dst_logit = given
    out, kept = new_rows(x, csc.num_dst, x.shape[1]), [dst_logit.new_empty(dst_logit.shape)]
    if any(ctx.needs_input_grad):
        kept += [new_rows(kept[0], *out.shape), torch.empty_like(kept[0])]
    return _forward(ctx, "gat_forward", given, edges, csc, how, out, *kept, **more)


class _ScoredGat(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,
        x: Tensor,
        of_src: Tensor,
        of_dst: Tensor,
        edge_logit: Tensor | None,
        csc: Csc,
        how: tuple[float, int, float, AnySeed],
    ) -> Tensor:
        ctx.vectors = torch.cat((of_src.detach(), of_dst.detach())).flatten(1)
        logits = new_rows(x, csc.num_src, of_src.shape[1]), x.new_empty(csc.num_dst, of_dst.shape[1])
        edges = {} if edge_logit is None else {"edge_logit": edge_logit.detach().contiguous()}
        return _gat_forward(ctx, (x, *logits), edges, csc, how, att=ctx.vectors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        att, grad_att = ctx.vectors, torch.empty_like(ctx.vectors)
        (to_x, to_logits, _), to_edges = _backward(ctx, "gat_backward", grad, att=att, grad_att=grad_att)
        return to_x, *grad_att.view(2, 1, to_logits.shape[1], -1), to_edges, None, None


_gat = operator("gat_attention", _Gat, lambda a: a.x.new_empty(a.csc.num_dst, a.x.shape[1]))


class _Gatv2(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,
        x_src: Tensor,
        x_dst: Tensor,
        att: Tensor,
        edge_weight: Tensor | None,
        edge_features: Tensor | None,
        loop_features: Tensor | None,
        csc: Csc,
        how: tuple[float, int, float, AnySeed],
    ) -> Tensor:
        edges = {}
        if edge_weight is not None and edge_features is not None and loop_features is not None:
            edges = {"edge_weight": edge_weight.detach().t().contiguous(), "loop_features": loop_features}
            edges["edge_features"] = edge_features.detach().contiguous()
        out, lse = new_rows(x_dst, *x_dst.shape), att.new_empty(csc.num_dst, att.shape[0])
        return _forward(ctx, "gatv2_forward", (x_src, x_dst, att), edges, csc, how, out, lse)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grads, to_weight = _backward(ctx, "gatv2_backward", grad)
        return *grads, None if to_weight is None else to_weight.t(), None, None, None, None


_gatv2 = operator("gatv2_attention", _Gatv2, lambda a: a.x_dst.new_empty(a.x_dst.shape))


def first_keys(num_dst: int) -> Tensor | None:
    """Return the number by which the mask of each destination's first edge is drawn: its id << 20.

    The other edges of a row count up from it. None if no ids are given, as :func:`row_ids` says.
    """
    ids = row_ids(num_dst)
    return None if ids is None else ids << _EDGE_BITS


_EDGE_BITS = 20  # rows of up to 2**20 edges: no two edges have one key


def _forward(  # noqa: PLR0917 - as the kernels take them
    ctx: Any,
    name: str,
    given: tuple[Tensor, ...],
    edges: dict[str, Tensor],
    csc: Csc,
    how: tuple[Any, ...],
    out: Tensor,
    *kept: Tensor,
    **more: Tensor,
) -> Tensor:
    """Run a forward kernel. Keep its inputs, its result and ``kept``, which it wrote, for backward.

    ``edges`` has the arrays that the kernel reads for each edge, by name; the first one has a gradient.
    ``more`` has its other arguments, which are not kept.
    """
    inputs = [t.detach().contiguous() for t in given]
    ctx.first_keys = first_keys(csc.num_dst) if how[2] > 0 else None
    call = getattr(backend(out), name)
    call(csc.indptr, csc.indices, *inputs, *how, out, *kept, first_keys=ctx.first_keys, **edges, **more)
    ctx.csc, ctx.how, ctx.edges = csc, how, tuple(edges)
    ctx.save_for_backward(*edges.values(), *inputs, out, *kept)
    return out


def _backward(ctx: Any, name: str, grad: Tensor, **more: Tensor) -> tuple[list[Tensor], Tensor | None]:
    """Run a backward kernel; return the gradients of rows and logits, and of the edges' first array or None.

    ``more`` has other arguments of the kernel, by name.
    """
    saved, names = ctx.saved_tensors, ctx.edges  # read once: a checkpoint gives each tensor once
    # Behind the edges' arrays come three inputs, the result and the log-sum-exp; then what else was kept.
    edges, (*inputs, out, lse) = saved[: len(names)], saved[len(names) : len(names) + 5]
    grads = [new_rows(t, *t.shape) for t in inputs]
    to_edges = torch.empty_like(edges[0]) if edges else None
    more |= zip(names, edges, strict=True)
    if to_edges is not None:
        more[f"grad_{names[0]}"] = to_edges
    ways = both_ways(ctx.csc, with_ids=needs_ids(grad, ctx.how[2]) or bool(edges))
    kernel, kept = getattr(backend(grad), name), saved[len(names) + 5 :]
    results = out.detach(), lse, grad.contiguous(), *grads, *kept
    kernel(*ways, *inputs, *ctx.how, *results, first_keys=ctx.first_keys, **more)
    return grads, to_edges


def needs_ids(rows: Tensor, p: float) -> bool:
    """Return whether the backward kernels for ``rows`` need edge ids; compiled ones only under dropout."""
    kernels = backend(rows)
    return p > 0 or not (kernels is native.kernels() or isinstance(kernels, Watched))


def both_ways(csc: Csc, *, with_ids: bool = True) -> tuple[Tensor, ...]:
    """Return the edges grouped by destination and by source, as the backward kernels take them.

    The last tensor has the ids of the transpose's edges, and may be empty without ``with_ids``.
    """
    if with_ids:
        transposed, perm = csc.transpose()
    else:
        transposed, perm = csc.reversed(), csc.indptr.new_empty(0)
    return csc.indptr, csc.indices, transposed.indptr, transposed.indices, perm


_DOT = (
    MessageStep(MessageOp.SOURCE, 0),
    MessageStep(MessageOp.DESTINATION, 0),
    MessageStep(MessageOp.MULTIPLY, 0, 1),
    MessageStep(MessageOp.SUM_COLUMNS, 2),
    MessageStep(MessageOp.SOFTMAX, 3),
    MessageStep(MessageOp.SOURCE, 1),
    MessageStep(MessageOp.MULTIPLY, 5, 4),
)
"""Dot-product attention as the steps of a message."""


@typed
def dot_attention(csc: Csc, query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """Sum in-neighbours' values weighted by dot-product attention, per head.

    ``out[v, h] = sum of softmax(<query[v, h], key[u, h]>) * value[u, h]`` over the edges ``u -> v``, the
    attention of "Attention Is All You Need" on a graph's edges. A factor of the products is part of the keys.
    Several relations are one graph whose sources are each relation's own rows, and share the softmax.

    Forward walks the edges once, and keeps no number per edge. Backward computes the coefficients again, once
    by destination and once by source. On another device it is the message of :func:`.aggregate_steps`.

    Args:
        csc: the graph or block.
        query: ``(num_dst, heads * channels)``, float32 or, on the CPU, float64, head by head.
        key: ``(num_src, heads * channels)`` of the same dtype.
        value: ``(num_src, heads * channels)`` of the same dtype.
        heads: number of heads.

    Returns:
        ``(num_dst, heads * channels)``; zeros for a node without in-edges.

    Raises:
        ConfigError: ``heads`` is not positive.
        DataError: ``csc`` is no Csc, or shapes, dtypes or devices do not fit.
    """
    heads = as_count(heads, "heads", least=1)
    width = check_tensor(query, "query", ndim=2, floating=True).shape[1]
    num_src, on_cpu = csc.num_src, query.device.type == "cpu"
    for rows, name, count in (
        (query, "query", csc.num_dst),
        (key, "key", num_src),
        (value, "value", num_src),
    ):
        check_tensor(rows, name, ndim=2, floating=True)
        if rows.shape != (count, width) or not width or width % heads:
            raise DataError(
                f"{name} must be ({count}, heads * channels) for {heads} heads, with as many columns as "
                f"query has ({width}); got shape {tuple(rows.shape)}"
            )
        is_known = rows.dtype == torch.float32 or (on_cpu and rows.dtype == torch.float64)
        if not is_known or rows.dtype != query.dtype or rows.device != query.device:
            raise DataError(
                "query, key and value must be float32, or all float64 on the CPU, and on one device; "
                f"{name} is {rows.dtype} on {rows.device}"
            )
    if not on_cpu:
        return aggregate_steps(
            csc, _DOT, sources=(key, value), destinations=(query,), width=width, heads=heads
        )
    return _dot_attention(query, key, value, csc, heads)


class _DotAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, csc: Csc, heads: int
    ) -> Tensor:
        given = [t.detach().contiguous() for t in (value, key, query)]
        out, (top, log) = new_rows(query, *query.shape), query.new_empty(2, csc.num_dst, heads)
        backend(out).dot_forward(csc.indptr, csc.indices, *given, 1.0, out, top, log)
        ctx.csc = csc
        ctx.save_for_backward(*given, out, top, log)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *given, out, top, log = ctx.saved_tensors
        query, key, value = (
            new_rows(t, *t.shape) if needed else None
            for t, needed in zip(reversed(given), ctx.needs_input_grad, strict=False)
        )
        results = out.detach(), top, log
        to = value, key, query
        dot_backward(ctx.csc, (*given, 1.0), results, grad.contiguous(), to, adds=False)
        return query, key, value, None, None


_dot_attention = operator("dot_attention", _DotAttention, lambda a: a.query.new_empty(a.query.shape))

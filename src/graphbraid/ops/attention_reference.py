# ruff: noqa: PLR0917 - the kernels take their arguments by position
"""Plain PyTorch twins of the attention and epilogue kernels, part of :mod:`graphbraid.ops.reference`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from graphbraid.ops.dropout import keep_mask


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype rows of ``dtype`` are summed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def destinations(indptr: Tensor) -> Tensor:
    """``(num_edges,)`` int64 destination of each edge."""
    nodes = torch.arange(indptr.numel() - 1, device=indptr.device)
    return torch.repeat_interleave(nodes, indptr.diff())


def edge_softmax(indptr: Tensor, logits: Tensor, out: Tensor) -> None:
    """Twin of the kernel of that name."""
    out.copy_(_softmax(logits, destinations(indptr), indptr.numel() - 1)[0])


def edge_softmax_backward(indptr: Tensor, alpha: Tensor, grad: Tensor, out: Tensor) -> None:
    """Twin of the kernel of that name."""
    dst = destinations(indptr)
    total = alpha.new_zeros(indptr.numel() - 1, alpha.shape[1]).index_add_(0, dst, alpha * grad)
    out.copy_(alpha * (grad - total[dst]))


def gat_forward(
    indptr: Tensor,
    indices: Tensor,
    src: Tensor,
    src_logit: Tensor,
    dst_logit: Tensor,
    slope: float,
    num_loops: int,
    p: float,
    seed: int,
    out: Tensor,
    lse: Tensor,
    above: Tensor | None = None,
    share: Tensor | None = None,
    first_keys: Tensor | None = None,
    edge_logit: Tensor | None = None,
) -> None:
    """Twin of the kernel of that name."""
    edges = _edges(indptr, indices, num_loops, first_keys)
    z = src_logit[edges[0]] + dst_logit[edges[1]]
    if edge_logit is not None:
        z = z + edge_logit[_places(indptr, indices, num_loops)]
    alpha, rows = _attend(src, F.leaky_relu(z, slope), edges, p, seed, out, lse)
    if above is not None and share is not None:
        is_above = (z > 0).to(alpha.dtype)
        share.zero_().index_add_(0, edges[1], alpha * is_above)
        above.zero_().index_add_(0, edges[1], (rows * is_above[:, :, None]).flatten(1))


def gatv2_forward(
    indptr: Tensor,
    indices: Tensor,
    src: Tensor,
    dst: Tensor,
    att: Tensor,
    slope: float,
    num_loops: int,
    p: float,
    seed: int,
    out: Tensor,
    lse: Tensor,
    first_keys: Tensor | None = None,
) -> None:
    """Twin of the kernel of that name."""
    edges = _edges(indptr, indices, num_loops, first_keys)
    z = _heads(src, att.shape[0])[edges[0]] + _heads(dst, att.shape[0])[edges[1]]
    _attend(src, (F.leaky_relu(z, slope) * att).sum(-1), edges, p, seed, out, lse)


def gat_backward(
    indptr: Tensor,
    indices: Tensor,
    t_indptr: Tensor,
    t_indices: Tensor,
    perm: Tensor,
    src: Tensor,
    src_logit: Tensor,
    dst_logit: Tensor,
    slope: float,
    num_loops: int,
    p: float,
    seed: int,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    grad_src: Tensor,
    grad_src_logit: Tensor,
    grad_dst_logit: Tensor,
    above: Tensor | None = None,
    share: Tensor | None = None,
    first_keys: Tensor | None = None,
    edge_logit: Tensor | None = None,
    grad_edge_logit: Tensor | None = None,
) -> None:
    """Twin of the kernel of that name; of what the forward kept it needs the log-sum-exp only."""
    del t_indptr, t_indices, perm, above, share
    edges = _edges(indptr, indices, num_loops, first_keys)
    if grad.shape[1] < src.shape[1]:
        grad = grad.repeat(1, src_logit.shape[1])
    z = src_logit[edges[0]] + dst_logit[edges[1]]
    if edge_logit is not None:
        z = z + edge_logit[_places(indptr, indices, num_loops)]
    alpha = (F.leaky_relu(z, slope) - lse[edges[1]]).exp()
    rows, part = _softmax_grad(src, alpha, edges, p, seed, out, grad)
    part = torch.where(z > 0, part, part * slope)
    grad_src.copy_(torch.zeros_like(grad_src, dtype=rows.dtype).index_add_(0, edges[0], rows))
    grad_src_logit.zero_().index_add_(0, edges[0], part)
    grad_dst_logit.zero_().index_add_(0, edges[1], part)
    if grad_edge_logit is not None:
        grad_edge_logit.zero_()[_places(indptr, indices, num_loops)] = part


def gatv2_backward(
    indptr: Tensor,
    indices: Tensor,
    t_indptr: Tensor,
    t_indices: Tensor,
    perm: Tensor,
    src: Tensor,
    dst: Tensor,
    att: Tensor,
    slope: float,
    num_loops: int,
    p: float,
    seed: int,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    grad_src: Tensor,
    grad_dst: Tensor,
    grad_att: Tensor,
    first_keys: Tensor | None = None,
) -> None:
    """Twin of the kernel of that name; needs no transpose."""
    del t_indptr, t_indices, perm
    edges = _edges(indptr, indices, num_loops, first_keys)
    z = _heads(src, att.shape[0])[edges[0]] + _heads(dst, att.shape[0])[edges[1]]
    leaky = F.leaky_relu(z, slope)
    alpha = ((leaky * att).sum(-1) - lse[edges[1]]).exp()
    rows, part = _softmax_grad(src, alpha, edges, p, seed, out, grad)
    through = (part[:, :, None] * torch.where(z > 0, att, att * slope)).flatten(1)
    grad_src.copy_(torch.zeros_like(grad_src, dtype=rows.dtype).index_add_(0, edges[0], rows + through))
    grad_dst.copy_(torch.zeros_like(grad_dst, dtype=rows.dtype).index_add_(0, edges[1], through))
    grad_att.copy_(_column_sums((part[:, :, None] * leaky).flatten(1)).view_as(grad_att))


def epilogue(
    x: Tensor,
    bias: Tensor | None,
    act: int,
    slope: float,
    p: float,
    seed: int | Tensor,
    out: Tensor,
    ids: Tensor | None = None,
) -> None:
    """Twin of ``epilogue.inl``; ``act`` numbers as there."""
    y = x.to(sum_dtype(x.dtype))
    y = y if bias is None else y + bias
    y = (y, y.relu(), F.leaky_relu(y, slope), F.elu(y))[act]
    out.copy_(y if p == 0 else y * _mask(y.shape, p, seed, y, ids))


def epilogue_backward(
    grad: Tensor,
    out: Tensor,
    act: int,
    slope: float,
    p: float,
    seed: int | Tensor,
    grad_x: Tensor,
    grad_bias: Tensor | None,
    ids: Tensor | None = None,
) -> None:
    """Twin of the kernel of that name: the activation's slope from its output."""
    y, g = out.to(sum_dtype(out.dtype)), grad.to(sum_dtype(out.dtype))
    if p > 0:
        g, y = g * _mask(y.shape, p, seed, y, ids), y * (1 - p)
    below = (torch.ones_like(y), torch.zeros_like(y), torch.full_like(y, slope), y + 1)[act]
    g = torch.where(y > 0, g, g * below)
    grad_x.copy_(g)
    if grad_bias is not None:
        grad_bias.copy_(_column_sums(g))


def _column_sums(rows: Tensor) -> Tensor:
    """Sums over rows, in order: ``sum(0)`` splits them by the number of threads, which changes the bits."""
    only = torch.zeros(rows.shape[0], dtype=torch.int64, device=rows.device)
    return rows.new_zeros(1, rows.shape[1]).index_add_(0, only, rows)[0]


def _mask(shape: torch.Size, p: float, seed: int | Tensor, like: Tensor, ids: Tensor | None) -> Tensor:
    rows = torch.arange(shape[0], device=like.device) if ids is None else ids
    return keep_mask(rows, shape[1], p, seed).to(like.dtype) / (1 - p)


def _edges(
    indptr: Tensor, indices: Tensor, num_loops: int, first_keys: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Source, destination and dropout key of each edge walked; implicit self-loops come after the stored.

    Keys of a row count up from its own in ``first_keys``, ``(num_dst,)`` int64; the loop comes last. Without
    them rows follow each other with a place for a loop at the end of each.
    """
    src, dst = indices.long(), destinations(indptr)
    first = indptr[:-1] + torch.arange(indptr.numel() - 1, device=indptr.device)
    if first_keys is not None:
        first = first_keys
    keys = torch.arange(src.numel(), device=src.device) + (first - indptr[:-1])[dst]
    if num_loops:
        kept = src != dst
        loops = torch.arange(num_loops, device=src.device)
        src, dst = torch.cat((src[kept], loops)), torch.cat((dst[kept], loops))
        keys = torch.cat((keys[kept], (first + indptr.diff())[:num_loops]))
    return src, dst, keys


def _places(indptr: Tensor, indices: Tensor, num_loops: int) -> Tensor:
    """Where the numbers of the edges walked stand, in the order of :func:`_edges`: the loops' after all."""
    places = torch.arange(indices.numel(), device=indices.device)
    if not num_loops:
        return places
    loops = torch.arange(num_loops, device=indices.device) + indices.numel()
    return torch.cat((places[indices.long() != destinations(indptr)], loops))


def _heads(rows: Tensor, heads: int) -> Tensor:
    return rows.to(sum_dtype(rows.dtype)).reshape(rows.shape[0], heads, rows.shape[1] // heads)


def _softmax(logits: Tensor, dst: Tensor, num_dst: int) -> tuple[Tensor, Tensor]:
    """Coefficients, and the log of each row's sum of exponentials (0 in an empty row)."""
    at = dst[:, None].expand_as(logits)
    top = logits.new_full((num_dst, logits.shape[1]), -torch.inf).scatter_reduce_(0, at, logits, "amax")
    powers = (logits - top[dst]).exp()
    total = logits.new_zeros(num_dst, logits.shape[1]).index_add_(0, dst, powers)
    return powers / total[dst], torch.where(total == 0, 0, top + total.log())


def _attend(
    src: Tensor,
    logits: Tensor,
    edges: tuple[Tensor, Tensor, Tensor],
    p: float,
    seed: int,
    out: Tensor,
    lse: Tensor,
) -> tuple[Tensor, Tensor]:
    """Each edge's coefficients before dropout, and the rows it adds to its destination by head."""
    alpha, sums = _softmax(logits, edges[1], out.shape[0])
    rows = _heads(src, logits.shape[1])[edges[0]] * (alpha * _edge_mask(edges, alpha, p, seed))[:, :, None]
    out.copy_(rows.new_zeros(out.shape).index_add_(0, edges[1], rows.flatten(1)))
    lse.copy_(sums)
    return alpha, rows


def _edge_mask(edges: tuple[Tensor, Tensor, Tensor], alpha: Tensor, p: float, seed: int) -> Tensor:
    if p == 0:
        return torch.ones_like(alpha)
    return keep_mask(edges[2], alpha.shape[1], p, seed).to(alpha.dtype) / (1 - p)


def _softmax_grad(
    src: Tensor,
    alpha: Tensor,
    edges: tuple[Tensor, Tensor, Tensor],
    p: float,
    seed: int,
    out: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor]:
    """Each edge's part of the source rows' gradient through the sum, and the gradient of its logit."""
    heads = alpha.shape[1]
    mask = _edge_mask(edges, alpha, p, seed)
    grads = _heads(grad, heads)
    reached = (grads[edges[1]] * _heads(src, heads)[edges[0]]).sum(-1)
    part = alpha * (mask * reached - (grads * _heads(out, heads)).sum(-1)[edges[1]])
    return (grads[edges[1]] * (alpha * mask)[:, :, None]).flatten(1), part

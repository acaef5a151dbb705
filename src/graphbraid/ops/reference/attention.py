# ruff: noqa: PLR0917 - the kernels take their arguments by position
"""Plain PyTorch twins of the attention kernels, part of :mod:`graphbraid.ops.reference`."""

import torch
import torch.nn.functional as F
from torch import Tensor

from graphbraid.ops.library import sum_dtype
from graphbraid.ops.reference.rows import Ids, Indices, Indptr, Matrix, column_sums
from graphbraid.ops.rng import keep_mask


def destinations(indptr: Tensor) -> Tensor:
    """Return the ``(num_edges,)`` int64 destination of each edge."""
    nodes = torch.arange(indptr.numel() - 1, device=indptr.device)
    return torch.repeat_interleave(nodes, indptr.diff())


def edge_softmax(indptr: Indptr, logits: Matrix, out: Matrix) -> None:
    """Twin of the kernel of that name."""
    out.copy_(_softmax(logits, destinations(indptr), indptr.numel() - 1)[0])


def edge_softmax_backward(indptr: Indptr, alpha: Matrix, grad: Matrix, out: Matrix) -> None:
    """Twin of the kernel of that name."""
    dst = destinations(indptr)
    total = alpha.new_zeros(indptr.numel() - 1, alpha.shape[1]).index_add_(0, dst, alpha * grad)
    out.copy_(alpha * (grad - total[dst]))


def gat_forward(
    indptr: Indptr,
    indices: Indices,
    src: Matrix,
    src_logit: Matrix,
    dst_logit: Matrix,
    slope: float,
    num_loops: int,
    p: float,
    seed: int,
    out: Matrix,
    lse: Matrix,
    above: Matrix | None = None,
    share: Matrix | None = None,
    first_keys: Ids | None = None,
    edge_logit: Matrix | None = None,
    att: Matrix | None = None,
) -> None:
    """Twin of the kernel of that name."""
    if att is not None:
        make_logits(src, att, (src_logit, dst_logit))
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
    indptr: Indptr,
    indices: Indices,
    src: Matrix,
    dst: Matrix,
    att: Matrix,
    slope: float,
    num_loops: int,
    p: float,
    seed: int,
    out: Matrix,
    lse: Matrix,
    first_keys: Ids | None = None,
    edge_features: Matrix | None = None,
    loop_features: Matrix | None = None,
    edge_weight: Matrix | None = None,
) -> None:
    """Twin of the kernel of that name."""
    edges = _edges(indptr, indices, num_loops, first_keys)
    features = _features(indptr, indices, num_loops, edge_features, loop_features)
    z = _joined(src, dst, att, edges, features, edge_weight)
    _attend(src, (F.leaky_relu(z, slope) * att).sum(-1), edges, p, seed, out, lse)


def gat_backward(
    indptr: Indptr,
    indices: Indices,
    t_indptr: Indptr,
    t_indices: Indices,
    perm: Ids,
    src: Matrix,
    src_logit: Matrix,
    dst_logit: Matrix,
    slope: float,
    num_loops: int,
    p: float,
    seed: int,
    out: Matrix,
    lse: Matrix,
    grad: Matrix,
    grad_src: Matrix,
    grad_src_logit: Matrix,
    grad_dst_logit: Matrix,
    above: Matrix | None = None,
    share: Matrix | None = None,
    first_keys: Ids | None = None,
    edge_logit: Matrix | None = None,
    grad_edge_logit: Matrix | None = None,
    att: Matrix | None = None,
    grad_att: Matrix | None = None,
) -> None:
    """Twin of the kernel of that name; of the forward pass's results it needs only the log-sum-exp."""
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
    to_rows = torch.zeros_like(grad_src, dtype=rows.dtype).index_add_(0, edges[0], rows)
    grad_src_logit.zero_().index_add_(0, edges[0], part)
    grad_dst_logit.zero_().index_add_(0, edges[1], part)
    if att is not None and grad_att is not None:
        add_through_logits(src, att, (grad_src_logit, grad_dst_logit), to_rows, grad_att)
    grad_src.copy_(to_rows)
    if grad_edge_logit is not None:
        grad_edge_logit.zero_()[_places(indptr, indices, num_loops)] = part


def make_logits(src: Tensor, att: Tensor, logits: tuple[Tensor, Tensor]) -> None:
    """Write the logits of rows, their products with the vectors; see :func:`add_through_logits`."""
    for vector, to in zip(att, logits, strict=True):
        count, heads = to.shape
        to.copy_((_heads(src[:count], heads) * _heads(vector[None], heads)).sum(-1))


def add_through_logits(
    src: Tensor, att: Tensor, grads: tuple[Tensor, Tensor], to_rows: Tensor, grad_att: Tensor
) -> None:
    """Add the gradient through the logits to that of rows; write that of ``(2, heads * channels)`` vectors.

    They are for logits of sources and of the first rows, the destinations. ``grads`` are the gradients of
    both, ``(num_src, heads)`` and ``(num_dst, heads)``.
    """
    for vector, of_logits, to in zip(att, grads, grad_att, strict=True):
        count, heads = of_logits.shape
        part = of_logits[:, :, None] * _heads(vector[None], heads)
        to_rows[:count] += part.flatten(1).to(to_rows.dtype)
        to.copy_(column_sums((of_logits[:, :, None] * _heads(src[:count], heads)).flatten(1)))


def gatv2_backward(
    indptr: Indptr,
    indices: Indices,
    t_indptr: Indptr,
    t_indices: Indices,
    perm: Ids,
    src: Matrix,
    dst: Matrix,
    att: Matrix,
    slope: float,
    num_loops: int,
    p: float,
    seed: int,
    out: Matrix,
    lse: Matrix,
    grad: Matrix,
    grad_src: Matrix,
    grad_dst: Matrix,
    grad_att: Matrix,
    first_keys: Ids | None = None,
    edge_features: Matrix | None = None,
    loop_features: Matrix | None = None,
    edge_weight: Matrix | None = None,
    grad_edge_weight: Matrix | None = None,
) -> None:
    """Twin of the kernel of that name; needs no transpose."""
    del t_indptr, t_indices, perm
    edges = _edges(indptr, indices, num_loops, first_keys)
    features = _features(indptr, indices, num_loops, edge_features, loop_features)
    z = _joined(src, dst, att, edges, features, edge_weight)
    leaky = F.leaky_relu(z, slope)
    alpha = ((leaky * att).sum(-1) - lse[edges[1]]).exp()
    rows, part = _softmax_grad(src, alpha, edges, p, seed, out, grad)
    through = (part[:, :, None] * torch.where(z > 0, att, att * slope)).flatten(1)
    grad_src.copy_(torch.zeros_like(grad_src, dtype=rows.dtype).index_add_(0, edges[0], rows + through))
    grad_dst.copy_(torch.zeros_like(grad_dst, dtype=rows.dtype).index_add_(0, edges[1], through))
    grad_att.copy_(column_sums((part[:, :, None] * leaky).flatten(1)).view_as(grad_att))
    if grad_edge_weight is not None and features is not None:
        for row, feature in zip(grad_edge_weight, features.t(), strict=True):
            row.copy_(column_sums(feature[:, None] * through))


def dot_forward(
    indptr: Indptr,
    indices: Indices,
    src: Matrix,
    key: Matrix,
    dst: Matrix,
    scale: float,
    out: Matrix,
    top: Matrix,
    log: Matrix,
    edge_features: Matrix | None = None,
    edge_weight: Matrix | None = None,
    mixed: Matrix | None = None,
) -> None:
    """Twin of the kernel of that name."""
    edges, heads = _edges(indptr, indices, 0, None), top.shape[1]
    own, (features, mapped) = torch.arange(len(indices)), _mapped_edges(edge_features, edge_weight)
    logits = (_heads(dst, heads)[edges[1]] * _heads(key[edges[0]] + mapped, heads)).sum(-1) * scale
    at = edges[1][:, None].expand_as(logits)
    top.zero_().scatter_reduce_(0, at, logits, "amax", include_self=False)
    values = src[edges[0]] + mapped
    alpha, _ = _attend(values, logits - top[edges[1]], (own, *edges[1:]), 0.0, 0, out, log)
    if mixed is not None:
        mixed.zero_().index_add_(0, edges[1], (features[:, :, None] * alpha[:, None]).flatten(1))


def dot_backward(
    indptr: Indptr,
    indices: Indices,
    t_indptr: Indptr,
    t_indices: Indices,
    src: Matrix,
    key: Matrix,
    dst: Matrix,
    scale: float,
    out: Matrix,
    top: Matrix,
    log: Matrix,
    grad: Matrix,
    grad_src: Matrix | None,
    grad_key: Matrix | None,
    grad_dst: Matrix | None,
    adds: bool,
    perm: Ids | None = None,
    grad_logit: Matrix | None = None,
    edge_features: Matrix | None = None,
    edge_weight: Matrix | None = None,
    mixed: Matrix | None = None,
    grad_edge_weight: Matrix | None = None,
) -> None:
    """Twin of the kernel of that name; needs no transpose, and keeps nothing in ``grad_logit``."""
    del t_indptr, t_indices, perm, grad_logit, mixed
    edges, heads = _edges(indptr, indices, 0, None), top.shape[1]
    own, (features, mapped) = torch.arange(len(indices)), _mapped_edges(edge_features, edge_weight)
    queries, keys = _heads(dst, heads)[edges[1]], _heads(key[edges[0]] + mapped, heads)
    alpha = ((queries * keys).sum(-1) * scale - top[edges[1]] - log[edges[1]]).exp()
    rows, part = _softmax_grad(src[edges[0]] + mapped, alpha, (own, *edges[1:]), 0.0, 0, out, grad)
    part = part[:, :, None] * scale
    given = (grad_src, 0, rows), (grad_key, 0, part * queries), (grad_dst, 1, part * keys)
    for to, end, of_edges in given:
        if to is not None:
            (to if adds else to.zero_()).index_add_(0, edges[end], of_edges.flatten(1))
    if grad_edge_weight is not None:
        grad_edge_weight.copy_(features.t() @ (rows + (part * queries).flatten(1)))


def _mapped_edges(features: Tensor | None, weight: Tensor | None) -> tuple[Tensor, Tensor | float]:
    """Return the features of edges, with a last 1 if their map has a bias, and the mapped rows; or 0."""
    if features is None or weight is None:
        return torch.empty(0), 0.0
    if len(weight) > features.shape[1]:
        features = torch.cat((features, features.new_ones(len(features), 1)), 1)
    return features, features @ weight


def _edges(
    indptr: Tensor, indices: Tensor, num_loops: int, first_keys: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return source, destination and dropout key of each edge, stored edges first, implicit self-loops last.

    A row's keys count up from its entry in ``first_keys``, ``(num_dst,)`` int64, with the self-loop last.
    Without ``first_keys``, rows follow each other, each with room for a self-loop at its end.
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
    """Return the position of each edge's values, in the order of :func:`_edges`; self-loops come last."""
    places = torch.arange(indices.numel(), device=indices.device)
    if not num_loops:
        return places
    loops = torch.arange(num_loops, device=indices.device) + indices.numel()
    return torch.cat((places[indices.long() != destinations(indptr)], loops))


def _features(
    indptr: Tensor, indices: Tensor, num_loops: int, of_edges: Tensor | None, of_loops: Tensor | None
) -> Tensor | None:
    """Return the features of the edges in the order of :func:`_edges`."""
    if of_edges is None or of_loops is None:
        return None
    return torch.cat((of_edges, of_loops))[_places(indptr, indices, num_loops)]


def _joined(
    src: Tensor,
    dst: Tensor,
    att: Tensor,
    edges: tuple[Tensor, Tensor, Tensor],
    features: Tensor | None,
    weight: Tensor | None,
) -> Tensor:
    """Return the input of GATv2's leaky ReLU: the sum of both ends' rows and the edges' mapped features."""
    heads = att.shape[0]
    z = _heads(src, heads)[edges[0]] + _heads(dst, heads)[edges[1]]
    return z if features is None or weight is None else z + _heads(features @ weight, heads)


def _heads(rows: Tensor, heads: int) -> Tensor:
    return rows.to(sum_dtype(rows.dtype)).reshape(rows.shape[0], heads, rows.shape[1] // heads)


def _softmax(logits: Tensor, dst: Tensor, num_dst: int) -> tuple[Tensor, Tensor]:
    """Return the coefficients and the log-sum-exp of each row (0 in an empty row)."""
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
    """Write the result; return each edge's coefficients before dropout and its weighted rows, by head."""
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
    """Return each edge's part of the source rows' gradient through the sum, and its logit's gradient."""
    heads = alpha.shape[1]
    mask = _edge_mask(edges, alpha, p, seed)
    grads = _heads(grad, heads)
    reached = (grads[edges[1]] * _heads(src, heads)[edges[0]]).sum(-1)
    part = alpha * (mask * reached - (grads * _heads(out, heads)).sum(-1)[edges[1]])
    return (grads[edges[1]] * (alpha * mask)[:, :, None]).flatten(1), part

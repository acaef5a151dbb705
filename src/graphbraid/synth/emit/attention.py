"""Calls of the attention of GAT and GATv2, and of what surrounds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from graphbraid.fullgraph import NotLoweredError

if TYPE_CHECKING:
    from graphbraid.synth.emit.calls import CallWriter


def gat_forward(w: CallWriter, at: int, indptr: Tensor, indices: Tensor, *rest: Any) -> list[str]:
    """Write the forward kernel."""
    src, src_logit, dst_logit, slope, num_loops, p, seed, *written, first_keys, edge_logit = rest
    _refuse_edge_features(edge_logit)
    rows = _matrices(w, at, src, src_logit, dst_logit)
    how = _how(w, at, (slope, num_loops, p, seed), first_keys)
    return [f"gat_forward({w.edges(indptr, indices)}, {rows}, {how}, {_matrices(w, at, *written)});"]


def gat_backward(w: CallWriter, at: int, indptr: Tensor, indices: Tensor, *rest: Any) -> list[str]:
    """Write the kernel of the gradients."""
    t_indptr, t_indices, perm, src, src_logit, dst_logit, slope, num_loops, p, seed, *rest_ = rest
    *matrices, first_keys, edge_logit, _ = rest_
    _refuse_edge_features(edge_logit)
    ids = w.memory.pointer(perm, at, "edges")
    edges = f"{w.edges(indptr, indices)}, {w.edges(t_indptr, t_indices)}, {ids}"
    rows = _matrices(w, at, src, src_logit, dst_logit)
    how = _how(w, at, (slope, num_loops, p, seed), first_keys)
    return [f"gat_backward({edges}, {rows}, {how}, {_matrices(w, at, *matrices)});"]


def gatv2_forward(w: CallWriter, at: int, indptr: Tensor, indices: Tensor, *rest: Any) -> list[str]:
    """Write the forward kernel of attention that needs the rows of both ends."""
    src, dst, att, slope, num_loops, p, seed, out, lse, named = rest
    _refuse_edge_features(named.get("edge_features"))
    how = _how(w, at, (slope, num_loops, p, seed), named["first_keys"])
    rows, written = _matrices(w, at, src, dst, att), _matrices(w, at, out, lse)
    return [f"gatv2_forward({w.edges(indptr, indices)}, {rows}, {how}, {written});"]


def gatv2_backward(w: CallWriter, at: int, indptr: Tensor, indices: Tensor, *rest: Any) -> list[str]:
    """Write the kernel of its gradients."""
    t_indptr, t_indices, perm, src, dst, att, slope, num_loops, p, seed, *matrices, named = rest
    _refuse_edge_features(named.get("edge_features"))
    ids = w.memory.pointer(perm, at, "edges")
    edges = f"{w.edges(indptr, indices)}, {w.edges(t_indptr, t_indices)}, {ids}"
    how = _how(w, at, (slope, num_loops, p, seed), named["first_keys"])
    rows, written = _matrices(w, at, src, dst, att), _matrices(w, at, *matrices)
    return [f"gatv2_backward({edges}, {rows}, {how}, {written});"]


def spread_heads(w: CallWriter, at: int, vector: Tensor, out: Tensor) -> list[str]:
    """Write a vector of each head to its own rows and column."""
    w.memory.make(out, "heads")
    _, heads, channels = vector.shape
    numbers = w.memory.pointer(vector, at, "vector")
    return [f"spread_heads({numbers}, {heads}, {channels}, {w.memory.matrix(out, at)});"]


def own_heads(w: CallWriter, at: int, gram: Tensor, out: Tensor) -> list[str]:
    """Write the columns of each row's own head."""
    w.memory.make(out, "heads")
    return [f"own_heads({w.memory.matrix(gram, at)}, {w.memory.pointer(out, at, 'gradient')});"]


def mean_of_heads(w: CallWriter, at: int, by_head: Tensor, out: Tensor) -> list[str]:
    """Write the mean over heads."""
    return [f"mean_of_heads({_matrices(w, at, by_head, out)});"]


def repeat_heads(w: CallWriter, at: int, rows: Tensor, factor: float, out: Tensor) -> list[str]:
    """Write rows to every head's columns."""
    matrix = w.memory.matrix
    return [f"repeat_heads({matrix(rows, at)}, static_cast<float>({factor!r}), {matrix(out, at)});"]


def _matrices(w: CallWriter, at: int, *tensors: Tensor | None) -> str:
    return ", ".join(w.memory.matrix(tensor, at) for tensor in tensors)


def _how(w: CallWriter, at: int, numbers: tuple[Any, ...], keys: Tensor | None) -> str:
    slope, num_loops, p, seed = numbers
    drawn = w.seed(p, seed)
    return f"Attention{{{slope!r}, {num_loops}, {p!r}, {drawn}, {w.memory.pointer(keys, at, 'keys')}}}"


def _refuse_edge_features(logits: Tensor | None) -> None:
    if logits is not None:
        raise NotLoweredError("synthesis", "attention reads edge features", "a model without them")


WRITERS: dict[str, Callable[..., list[str]]] = {
    "gat_forward": gat_forward,
    "gat_backward": gat_backward,
    "gatv2_forward": gatv2_forward,
    "gatv2_backward": gatv2_backward,
    "spread_heads": spread_heads,
    "own_heads": own_heads,
    "mean_of_heads": mean_of_heads,
    "repeat_heads": repeat_heads,
}
"""The writers by the name of the call."""

__all__ = ["WRITERS"]

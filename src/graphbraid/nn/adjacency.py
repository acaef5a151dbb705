"""What layers and models take as edges: a Csc, blocks, or PyG's plain ``edge_index``."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from graphbraid.errors import DataError
from graphbraid.interop.convert import plain
from graphbraid.topology import Csc, coo_to_csc, index_dtype

_kept = WeakTensorKeyDictionary()
"""``edge_index`` -> (its version, number of nodes, the adjacency): an epoch over the whole graph reads the
same tensor again and again."""


def as_csc(edge_index: Csc | Tensor, num_nodes: int) -> Csc:
    """The adjacency of a layer over ``num_nodes`` nodes: itself, or that of an edge list.

    The adjacency of a tensor is kept for as long as the tensor lives and is not changed in place.

    Args:
        edge_index: a :class:`~graphbraid.topology.Csc`, or ``(2, num_edges)`` int32 or int64 ids: sources
            above destinations.
        num_nodes: rows of ``x``, which has one for each node.

    Raises:
        DataError: it is neither, or an id is outside ``[0, num_nodes)``; names the first.
    """
    if isinstance(edge_index, Csc):
        return edge_index
    _check_edge_list(edge_index)
    if edge_index.is_inference():  # has no version, so a change would pass unseen
        return _make(edge_index, num_nodes)
    known: tuple[int, int, Csc] | None = _kept.get(edge_index)  # type: ignore[no-untyped-call]
    if known is not None and known[:2] == (edge_index._version, num_nodes):
        return known[2]
    made = _make(edge_index, num_nodes)
    _kept[edge_index] = (edge_index._version, num_nodes, made)
    return made


def _make(edge_index: Tensor, num_nodes: int) -> Csc:
    src, dst = plain(edge_index.detach()).unbind()
    if not src.numel():  # an empty list may have any dtype
        src, dst = src.to(index_dtype(num_nodes)), dst.to(index_dtype(num_nodes))
    csc, _ = coo_to_csc(src, dst, num_nodes, num_nodes, keep_perm=False)
    return csc


def _check_edge_list(edge_index: object) -> None:
    if not isinstance(edge_index, Tensor):
        raise DataError(
            "edges must be an edge_index of shape (2, num_edges), a Csc, or the blocks of a mini-batch; got "
            f"{type(edge_index).__name__}"
        )
    if (
        edge_index.is_nested
        or edge_index.layout != torch.strided
        or edge_index.ndim != 2
        or edge_index.shape[0] != 2
    ):
        kind = f"{edge_index.layout} of shape "
        described = "a nested tensor" if edge_index.is_nested else f"{kind}{tuple(edge_index.shape)}"
        raise DataError(f"edge_index must be a dense tensor of shape (2, num_edges); got {described}")

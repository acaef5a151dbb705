"""Conversion of the edges that layers and models accept: a Csc, blocks, or PyG's ``edge_index``."""

import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from graphbraid.arguments import check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc, coo_to_csc, index_dtype
from graphbraid.graph.interop.convert import plain
from graphbraid.graph.scans import tracing
from graphbraid.ops.library import opaque, refuse_jit_trace

_Made = TypeVar("_Made")


class MadeOfTensors:
    """Cache of results computed from tensors, valid while these live and are not written to.

    Full-graph training passes the same tensors again and again.
    """

    def __init__(self) -> None:
        self._kept = WeakTensorKeyDictionary()

    def get(self, tensors: Sequence[Tensor], key: Hashable, make: Callable[[], _Made]) -> _Made:
        """Return the result of ``make`` for these tensors and this key; call it if it is not cached."""
        if any(one.is_inference() for one in tensors):  # without a version counter a change goes unnoticed
            return make()
        first, *others = tensors
        versions = [(one._version, _address(one)) for one in tensors]  # `one.data = other` leaves the version
        known = self._kept.get(first)  # type: ignore[no-untyped-call]
        if (
            known is None
            or known[0] != versions
            or any(a() is not b for a, b in zip(known[1], others, strict=False))
        ):
            known = self._kept[first] = versions, [weakref.ref(one) for one in others], {}
        made: dict[Hashable, _Made] = known[2]
        if key not in made:
            made[key] = make()
        return made[key]


def _address(one: Tensor) -> int:
    try:
        return one.data_ptr()
    except RuntimeError:  # a wrapper of torch.func, which has no memory and whose data cannot be replaced
        return 0


_ADJACENCIES = MadeOfTensors()


def as_csc(edge_index: Csc | Tensor, num_nodes: int, edge_weight: Tensor | None = None) -> Csc:
    """Return the adjacency over ``num_nodes`` nodes of an edge list, or the adjacency passed in itself.

    The adjacency made from a tensor is cached for as long as the tensor (with weights, both tensors) lives
    and is not changed in place.

    Args:
        edge_index: a :class:`~graphbraid.graph.csc.Csc`, or ``(2, num_edges)`` int32 or int64 ids, with
            sources in the first row and destinations in the second.
        num_nodes: number of nodes, which is the number of rows of ``x``.
        edge_weight: ``(num_edges,)`` finite numbers that float32 represents exactly; only with an edge list.

    Raises:
        DataError: ``edge_index`` is neither, an id is outside ``[0, num_nodes)``, or the weights do not fit;
            the message names the first fault.
    """
    if isinstance(edge_index, Csc):
        if edge_weight is not None:
            raise DataError("edge_weight goes with an edge_index; a Csc has its own, csc.weight")
        return edge_index
    refuse_jit_trace()
    check_edge_list(edge_index)
    if tracing():
        return traced_csc(edge_index, num_nodes, num_nodes, edge_weight)
    if edge_weight is None:
        return _ADJACENCIES.get([edge_index], num_nodes, lambda: _made(edge_index, num_nodes))
    _check_weight(edge_weight, edge_index)
    make = partial(_made_weighted, edge_index, num_nodes, edge_weight)
    return _ADJACENCIES.get([edge_weight, edge_index], num_nodes, make)


def traced_csc(edge_index: Tensor, num_src: int, num_dst: int, edge_weight: Tensor | None = None) -> Csc:
    """Return the adjacency of an edge list while torch traces, when it is not known yet."""
    if edge_weight is not None:
        _check_weight(edge_weight, edge_index)
    indptr, indices, *rest = _arrays_of(edge_index, num_src, num_dst, edge_weight)
    return Csc(indptr, indices, num_src, rest[0] if rest else None, trusted=True)


def _shapes(a: Any) -> list[Tensor]:
    num_edges, dtype = a.edge_index.shape[1], index_dtype(max(a.num_src, a.num_dst))
    indptr = a.edge_index.new_empty(a.num_dst + 1, dtype=torch.int64)
    weight = [] if a.edge_weight is None else [a.edge_weight.new_empty(num_edges, dtype=torch.float32)]
    return [indptr, a.edge_index.new_empty(num_edges, dtype=dtype), *weight]


@opaque("csc_of_edges", _shapes)
def _arrays_of(
    edge_index: Tensor, num_src: int, num_dst: int, edge_weight: Tensor | None
) -> tuple[Tensor, ...]:
    if num_src == num_dst:
        csc = as_csc(edge_index, num_src, edge_weight)
    else:
        csc, _ = coo_to_csc(*ends_of(edge_index, max(num_src, num_dst)), num_src, num_dst, keep_perm=False)
    # Copies, since torch.compile may write to results that it no longer needs, and as_csc keeps its own.
    return tuple(array.clone() for array in (csc.indptr, csc.indices, csc.weight) if array is not None)


def _check_weight(edge_weight: Tensor, edge_index: Tensor) -> None:
    """Check everything that can differ from call to call, without reading values."""
    check_tensor(edge_weight, "edge_weight", ndim=1)
    if edge_weight.shape[0] != edge_index.shape[1]:
        raise DataError(
            f"edge_weight must have one number per edge ({edge_index.shape[1]}); got {edge_weight.shape[0]}"
        )
    if edge_weight.requires_grad and torch.is_grad_enabled():
        raise DataError(
            "edge_weight requires a gradient, which the layers do not compute: detach it, or build the layer "
            "on ops.spmm(csc, x, weight=...), which does"
        )


def _as_float32(edge_weight: Tensor) -> Tensor:
    """Return the weights as float32, or raise DataError if that changes a value."""
    weight = edge_weight.detach().to(torch.float32)
    changed = (weight.to(edge_weight.dtype) != edge_weight).nonzero()
    if changed.numel() and not edge_weight[changed[0]].isnan():
        at = int(changed[0])
        raise DataError(
            f"edge_weight must hold numbers of float32; edge_weight[{at}] is {edge_weight[at].item()!r}, "
            "which is none. Pass edge_weight.float() if the nearest one will do"
        )
    return weight


def _made_weighted(edge_index: Tensor, num_nodes: int, edge_weight: Tensor) -> Csc:
    weight = _as_float32(edge_weight)
    csc, perm = coo_to_csc(*ends_of(edge_index, num_nodes), num_nodes, num_nodes)
    return Csc(csc.indptr, csc.indices, num_nodes, weight if perm is None else weight[perm])


def _made(edge_index: Tensor, num_nodes: int) -> Csc:
    return coo_to_csc(*ends_of(edge_index, num_nodes), num_nodes, num_nodes, keep_perm=False)[0]


def ends_of(edge_index: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Return sources and destinations; an empty list may have any dtype."""
    src, dst = plain(edge_index.detach()).unbind()
    if not src.numel():
        src, dst = src.to(index_dtype(num_nodes)), dst.to(index_dtype(num_nodes))
    return src, dst


def check_edge_list(edge_index: object) -> None:
    """Raise DataError unless ``edge_index`` is a dense tensor of shape (2, num_edges)."""
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

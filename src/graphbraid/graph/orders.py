"""Orders of a graph's nodes: permutations whose i-th entry is the node that comes i-th.

They place nodes next to each other that are read often or in succession. Full-graph training renumbers nodes
so that rows share the cache; :mod:`graphbraid.features`, so that a row's tier follows from its number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.arguments import check_tensor
from graphbraid.errors import DataError
from graphbraid.graph import orders_reference
from graphbraid.graph.csc import Csc, index_dtype
from graphbraid.graph.scans import ID_DTYPES, native_for
from graphbraid.signatures import typed


@typed
def order_by(values: Tensor) -> Tensor:
    """Return the nodes in descending order of their values; equal values keep the order of their nodes.

    Args:
        values: ``(num_nodes,)`` real numbers, such as scores of how often each node is read.

    Returns:
        ``(num_nodes,)`` int64.

    Raises:
        DataError: The values are not 1-d real numbers, or one of them is NaN.
    """
    if values.ndim != 1 or values.dtype.is_complex or values.is_meta:
        raise DataError(
            f"values must be 1-d real numbers, one for each node; got {values.dtype} of shape "
            f"{tuple(values.shape)} on {values.device}"
        )
    if values.dtype.is_floating_point and bool(values.isnan().any()):
        node = int(values.isnan().int().argmax())
        raise DataError(f"values must be numbers, which have an order; that of node {node} is nan")
    return values.argsort(descending=True, stable=True)


def degree_order(csc: Csc) -> Tensor:
    """Return the nodes, ``(num_src,)`` int64, with those read most often (by out-degree) first."""
    return torch.bincount(csc.indices, minlength=csc.num_src).argsort(descending=True, stable=True)


def community_order(csc: Csc) -> Tensor:
    """Return the nodes, ``(num_dst,)`` int64, with those of a community next to each other.

    Incremental aggregation as in Arai et al., "Rabbit Order": each node, in ascending order of degree, joins
    the neighbouring community with the largest gain in modularity. Runs on one thread, so that the order is
    always the same.
    """
    out = torch.empty(csc.num_dst, dtype=torch.int64)
    (native.kernels() or orders_reference).community_order(csc.indptr, csc.indices, out)
    return out


def rcm_order(csc: Csc) -> Tensor:
    """Return the nodes, ``(num_dst,)`` int64, by reverse Cuthill-McKee: neighbours get close numbers.

    Ignores the directions of edges. Computed by SciPy on one thread, with a copy of the edges in both
    directions.
    """
    import numpy as np
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    if csc.num_dst == 0:
        return torch.empty(0, dtype=torch.int64)
    there = np.ones(csc.num_edges, np.bool_)  # bool: sums of repeated edges cannot overflow to zero
    adjacency = csr_matrix((there, csc.indices.numpy(), csc.indptr.numpy()), (csc.num_dst, csc.num_src))
    order = reverse_cuthill_mckee(adjacency, symmetric_mode=False)
    return torch.from_numpy(order.astype(np.int64))


ORDERS: Mapping[str, Callable[[Csc], Tensor]] = MappingProxyType(
    {"degree": degree_order, "rcm": rcm_order, "communities": community_order}
)
"""Functions that compute an order from the topology alone, by name."""


def inverse_of(order: Tensor) -> Tensor:
    """Return each node's position in an order: ``inverse[order[i]] == i``, in its narrowest dtype.

    DataError names the first entry of ``order``, ``(num_nodes,)``, that makes it no permutation.
    """
    check_tensor(order, "order")
    if order.ndim != 1 or order.dtype not in ID_DTYPES:
        raise DataError(
            f"order must be a 1-d int32 or int64 tensor of node ids; got {order.dtype} of shape "
            f"{tuple(order.shape)}"
        )
    order = order.contiguous()
    inverse = torch.empty(order.numel(), dtype=index_dtype(order.numel()), device=order.device)
    kernels = native_for(order)
    wrong = int((orders_reference if kernels is None else kernels).invert_order(order, inverse))
    if wrong >= 0:
        raise DataError(_no_permutation(order, wrong))
    return inverse


def _no_permutation(order: Tensor, wrong: int) -> str:
    node, count = int(order[wrong]), order.numel()
    needed = f"order must name each of the {count} nodes once"
    if not 0 <= node < count:
        return f"{needed}; order[{wrong}] is {node}, which is none of them"
    first = int((order == node).int().argmax())
    named = torch.zeros(count, dtype=torch.bool, device=order.device)
    named[order[(order >= 0) & (order < count)].long()] = True
    missing = int((~named).int().argmax())
    return f"{needed}; order[{wrong}] is {node}, as order[{first}] is, and node {missing} is missing"

"""Which of equal largest messages PyG's maximum gives its gradient to: seen on two of them, once.

It is PyG's choice of kernel that decides: ``torch.scatter_reduce`` shares, and counts its own initial zero
where the maximum is 0; ``torch.sparse.mm`` and torch-scatter give all to one.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any, cast

import torch
from torch import Tensor

from graphbraid.fullgraph.program.readers.reading import LayerCall
from graphbraid.ops.spmm_max import Ties

_SEEN: dict[tuple[tuple[float, ...], tuple[float, ...]], Ties] = {
    ((1.0, 0.0), (1.0, 0.0)): "first",
    ((0.5, 0.5), (0.5, 0.5)): "shared",
    ((0.5, 0.5), (1 / 3, 1 / 3)): "shared with zero",
}
"""By the gradients of two messages, both 1 and both 0."""


def ties_of(call: LayerCall) -> Ties:
    """What becomes of ties in a layer of PyG that takes the maximum, SAGEConv or GraphConv.

    Raises:
        NotLoweredError: it is none of what the kernels do, or PyG itself fails.
    """
    layer, kind = call.layer, cast("Any", type(call.layer))
    device = next(layer.parameters()).device
    try:
        seen = _probe(kind, call.edges.sparse, layer.fuse, layer.aggr_module._deterministic, device)
    except (RuntimeError, NotImplementedError, ImportError) as error:
        raise call.refuse(f"with aggr='max' fails by itself here: {error}") from error
    found = _SEEN.get(seen)
    if found is None or (found == "first" and device.type != "cpu"):  # of a race, the first may win by chance
        shares = " and ".join(str(tuple(round(share, 3) for share in pair)) for pair in seen)
        raise call.refuse(f"with aggr='max' shares the gradient of two equal ones and two zeros as {shares}")
    return found


@functools.cache
def _probe(
    kind: Any, sparse: bool, fuse: bool, deterministic: bool, device: torch.device
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The gradients of two equal messages to a third node: of ones, and of zeros."""
    with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng():
        layer = kind(1, 1, aggr="max", bias=False).to(device)
        layer.fuse, layer.aggr_module._deterministic = fuse, deterministic
        with torch.no_grad():
            for weight in layer.parameters():
                weight.fill_(1.0)
        edges = torch.tensor([[0, 1], [2, 2]], device=device)
        if sparse:
            edges = _sparse(edges.flip(0))
        ones_and_zeros = []
        for value in (1.0, 0.0):
            x = torch.full((3, 1), value, device=device, requires_grad=True)
            (grad,) = torch.autograd.grad(layer(x, edges)[2], x)
            ones_and_zeros.append(tuple(round(share * 6) / 6 for share in grad.flatten().tolist()[:2]))
    first, second = ones_and_zeros
    return first, second


def _sparse(places: Tensor) -> Tensor:
    with warnings.catch_warnings():  # of PyTorch, to whoever made the model's own
        warnings.simplefilter("ignore")
        ones = torch.ones(places.shape[1], device=places.device)
        return torch.sparse_coo_tensor(places, ones, (3, 3)).to_sparse_csr()


__all__ = ["ties_of"]

"""How PyG's maximum divides its gradient among equal messages, found by running it on two of them, once.

It depends on the kernel that PyG chooses: ``torch.scatter_reduce`` shares the gradient, and counts its own
initial zero where the maximum is 0; ``torch.sparse.mm`` and torch-scatter give all of it to one message.
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
"""Kinds by the gradients of two equal messages: first of two ones, then of two zeros."""


def ties_of(call: LayerCall) -> Ties:
    """Return how a PyG layer that takes the maximum, SAGEConv or GraphConv, treats ties.

    Raises:
        NotLoweredError: no kernel treats ties in this way, or PyG itself fails.
    """
    layer, kind = call.layer, cast("Any", type(call.layer))
    device = next(layer.parameters()).device
    try:
        seen = _probe(kind, call.edges.sparse, layer.fuse, layer.aggr_module._deterministic, device)
    except (RuntimeError, NotImplementedError, ImportError) as error:
        raise call.refuse(f"with aggr='max' fails by itself here: {error}") from error
    found = _SEEN.get(seen)
    if found is None or (found == "first" and device.type != "cpu"):  # in a race the first may win by chance
        shares = " and ".join(str(tuple(round(share, 3) for share in pair)) for pair in seen)
        raise call.refuse(f"with aggr='max' shares the gradient of two equal ones and two zeros as {shares}")
    return found


@functools.cache
def _probe(
    kind: Any, sparse: bool, fuse: bool, deterministic: bool, device: torch.device
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the gradients of two equal messages to a third node: of ones, and of zeros."""
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
    with warnings.catch_warnings():  # PyTorch has warned the user already about the model's own sparse matrix
        warnings.simplefilter("ignore")
        ones = torch.ones(places.shape[1], device=places.device)
        return torch.sparse_coo_tensor(places, ones, (3, 3)).to_sparse_csr()


__all__ = ["ties_of"]

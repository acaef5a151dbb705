"""How far a model reads from its seeds: this is what a rank needs of a mini-batch."""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from graphbraid.train.config import TrainConfig


def depth(model: nn.Module, config: TrainConfig) -> int:
    """Return the number of hops that messages travel in a module that is not from ``graphbraid.nn``."""
    if config.hops is not None:
        return config.hops
    beside = _of_other_relations(model)
    convs = [m for m in model.modules() if callable(getattr(m, "propagate", None)) and id(m) not in beside]
    return sum(map(_hops_of, convs)) or len(config.fanouts)


def _hops_of(conv: nn.Module) -> int:
    """Return the number of hops of a layer: powers as of TAGConv, or rounds as of ARMAConv."""
    found = [n for name in ("K", "num_layers") if isinstance(n := getattr(conv, name, 1), Integral)]
    return max(1, *map(int, found))


def _of_other_relations(model: nn.Module) -> set[int]:
    """Return the ids of the modules that work beside another one, as a layer's do for each relation.

    PyG's ``HeteroConv`` and ``to_hetero`` keep them in a dict whose keys join the names of a relation.
    """
    by_relation = (
        m for m in model.modules() if isinstance(m, nn.ModuleDict) and all("__" in key for key in m)
    )
    others = (one for layer in by_relation for one in list(layer.values())[1:])
    return {id(part) for one in others for part in one.modules()}


def reach_of(model: nn.Module, config: TrainConfig, *, by_blocks: bool) -> int | None:
    """Return how many hops of the whole batch's sample a rank keeps around its seeds.

    A layer may read its sources' own in-edges, as GCN's normalisation does: the sample then goes one hop
    beyond the model's depth. Batch normalisation needs the rows of all nodes of the whole batch, each on one
    rank, and these are as far away as there are hops. Models that are called with one block per layer read
    only these blocks.

    Args:
        model: the model.
        config: options of the run.
        by_blocks: whether the model is called with one block per layer.

    Returns:
        The number of hops. None in layout ``blocks``, where a rank samples for its own seeds alone: what a
        node draws depends on the layer, not on the other seeds.
    """
    if config.layout == "blocks":
        return None
    if by_blocks:
        return len(config.fanouts)
    hops = len(config.fanouts)
    if any(isinstance(one, _BatchNorm) for one in model.modules()):
        return hops + depth(model, config) + 1
    return max(depth(model, config), hops) + 1


_ROUNDING = 1e-4
"""Share of the largest output by which those of a node may differ between two batches with float32 sums."""
_ROUNDING_OF_16_BITS = 0.05
"""The same where sums are of bfloat16."""


def agree(outputs: Tensor, others: Tensor) -> bool:
    """Return whether the outputs of the same nodes in two batches differ by no more than rounding."""
    largest = float(outputs.abs().nan_to_num(posinf=0.0).max()) if outputs.numel() else 0.0
    rounding = _ROUNDING_OF_16_BITS if outputs.dtype.itemsize == 2 else _ROUNDING
    return torch.allclose(outputs, others, rtol=0.0, atol=rounding * largest, equal_nan=True)

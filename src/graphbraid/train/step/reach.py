"""The reach of a model from its seeds, by which a rank's share of a mini-batch is cut, and its width."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from graphbraid.fullgraph.reading.modes import DispatchMode
from graphbraid.nn import module_traits
from graphbraid.nn.module_traits import in_mode
from graphbraid.train.config import TrainConfig

if TYPE_CHECKING:
    from graphbraid.train.step.runner import ModelRunner


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
"""Most that a node's outputs may differ between two batches with float32 sums, as a share of the largest."""
_ROUNDING_OF_16_BITS = 0.05
"""The same where sums are of bfloat16."""


def agree(outputs: Tensor, others: Tensor) -> bool:
    """Return whether the outputs of the same nodes in two batches differ by no more than rounding."""
    largest = float(outputs.abs().nan_to_num(posinf=0.0).max()) if outputs.numel() else 0.0
    rounding = _ROUNDING_OF_16_BITS if outputs.dtype.itemsize == 2 else _ROUNDING
    return torch.allclose(outputs, others, rtol=0.0, atol=rounding * largest, equal_nan=True)


_TRIED_SEEDS = (3, 7)
"""Seeds of the batches that a model is run on to see its width."""


def width_of(runner: ModelRunner) -> int:
    """Return the largest number of columns that a runner's model holds for a node or an edge.

    Models of ``graphbraid.nn`` say it. Any other model is run on two small batches: a matrix that grows
    with the batch has a row for each of its nodes or edges. A model that fails on them gets width 1.

    Raises:
        ConfigError: the model is called with one block per layer, and does not say how many.
    """
    widest: int | None = module_traits.widest(runner.model)
    if widest is not None:
        return widest
    hops = module_traits.layers_of(runner.model) if runner.by_blocks else 1
    try:
        fewer, more = (_shapes_made(runner, hops, seeds) for seeds in _TRIED_SEEDS)
    except Exception:  # the run that follows says why
        return 1
    kept = {shape[0] for shape in fewer}
    return max((shape[1:].numel() for shape in more if shape[0] not in kept), default=1)


def _shapes_made(runner: ModelRunner, hops: int, num_seeds: int) -> list[torch.Size]:
    """Return the shapes of all matrices that the model computes on a small batch."""
    # Here: models of graphbraid.nn need neither.
    from graphbraid.fullgraph.batches.runner import BatchRunner
    from graphbraid.loader import LoaderSettings

    model, seeds = runner.model, runner.few_nodes(num_seeds)
    settings = LoaderSettings(num_neighbors=[2] * hops, batch_size=num_seeds, input_nodes=seeds)
    forked = torch.random.fork_rng([] if runner.device.type == "cpu" else [runner.device])
    with runner.loader(settings) as loader, in_mode(model, training=False), forked, torch.no_grad():
        batch = next(loader.batches(0))
        tried = copy.copy(runner)
        if runner.batches is not None:  # whose reason to run as written must not be these hooks
            tried.batches = BatchRunner(model, warns=False)
        with _Shapes().of_calls(model) as seen:
            tried.on_batch(batch)
    return seen.shapes


class _Shapes(DispatchMode):
    """Notes the shapes of matrices of floating-point numbers that operators return."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: list[torch.Size] = []

    @contextmanager
    def of_calls(self, model: nn.Module) -> Iterator[Self]:
        """Look at calls of the model in the ``with`` block, not at how its arguments are made."""
        enter, leave = cast("Any", self.__enter__), cast("Any", self.__exit__)
        begin = model.register_forward_pre_hook(lambda *_: enter() and None)
        end = model.register_forward_hook(lambda *_: leave(None, None, None), always_call=True)
        with begin, end:
            yield self

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        made = (one for one in tree_leaves(out) if isinstance(one, Tensor) and one.ndim >= 2)
        self.shapes += [one.shape for one in made if one.is_floating_point()]
        return out

"""Conversion of a mini-batch to the form that users get: as PyG ``Data``, pinned, transformed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphbraid.arguments import shown
from graphbraid.errors import ConfigError
from graphbraid.loader.inputs import as_ids, as_input_id
from graphbraid.sampling.minibatch.mini_batch import MiniBatch

if TYPE_CHECKING:
    from graphbraid.loader.pyg_data import SampledData


def present(
    batch: MiniBatch, *, input_id: Tensor | None, pin: bool, transform: Callable[[Any], Any] | None
) -> Any:
    """Return what a loader yields for a batch, which may be changed in place.

    Args:
        batch: the prepared mini-batch.
        input_id: ``(num_seeds,)`` values of ``batch.input_id`` by the seeds' positions. If None, the
            positions.
        pin: whether to compute all attributes and put them in page-locked memory, if there is an accelerator.
        transform: function of the batch whose result is returned. If None, the batch itself.
    """
    if input_id is not None:
        batch.input_id = input_id[batch.input_id.cpu()].to(batch.input_id.device)
    kind = pyg_batch_class()
    out: Any = batch if kind is None else kind.of(batch)
    if pin and torch.accelerator.is_available() and batch.n_id.device.type == "cpu":
        for name in batch.lazy_keys():
            batch.value(name)
        out = out.pin_memory()
    return out if transform is None else transform(out)


def check_transform(transform: Any) -> None:
    """Check that ``transform`` can be called with a batch, before any is made.

    Raises:
        ConfigError: it is neither a function nor None.
    """
    if transform is not None and not callable(transform):
        raise ConfigError(f"transform must be a function of a batch or None; got {shown(transform)}")


@functools.cache
def pyg_batch_class() -> type[SampledData] | None:
    """Return the class of batches that are PyG's ``Data`` if PyG is installed, else None."""
    try:
        from graphbraid.loader.pyg_data import SampledData
    except ModuleNotFoundError as error:
        if not is_without_pyg(error):
            raise
        return None
    return SampledData


def is_without_pyg(error: ModuleNotFoundError) -> bool:
    """Return whether a module could not be imported because PyG is not installed."""
    return (error.name or "").split(".")[0] == "torch_geometric"


def told_ids(input_nodes: Any, input_id: Any, seeds: Tensor) -> Tensor | None:
    """Return the values of ``input_id`` that batches have: those given, or for a mask the node ids.

    None stands for positions in ``input_nodes``.
    """
    if input_id is not None:
        return as_input_id(input_id, len(seeds), "seed")
    is_mask = input_nodes is not None and not isinstance(input_nodes, str)
    return seeds if is_mask and as_ids(input_nodes, "input_nodes").dtype == torch.bool else None

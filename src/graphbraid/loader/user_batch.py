"""Conversion of a mini-batch to the form that users get: as PyG ``Data``, pinned, transformed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from graphbraid.sampling.minibatch.mini_batch import MiniBatch

if TYPE_CHECKING:
    from graphbraid.loader.pyg_data import SampledData


def to_user_batch(
    batch: MiniBatch,
    *,
    input_id: Tensor | None,
    device: Any,
    pin: bool,
    transform: Callable[[Any], Any] | None,
) -> Any:
    """Return what a loader yields for a batch, which may be changed in place.

    Args:
        batch: the prepared mini-batch.
        input_id: ``(num_inputs,)`` values of ``batch.input_id`` by the inputs' positions. If None, the
            positions.
        device: where the loader's batches go.
        pin: whether to compute all attributes and put them in page-locked memory, if there is an accelerator.
        transform: function of the batch whose result is returned. If None, the batch itself.
    """
    if input_id is not None:
        batch.input_id = input_id[batch.input_id.cpu()].to(batch.input_id.device)
    pin, kind, out = pin and torch.accelerator.is_available(), pyg_batch_class(), cast("Any", batch)
    if batch.is_typed:
        if batch.layout == "subgraph" and kind is not None:
            data: Any = batch.to_data()
            on_host = device == torch.device("cpu")
            out = data.to(device) if not on_host else data.pin_memory() if pin else data
    else:
        if kind is not None:
            out = kind.of(batch)
        if pin and batch.n_id.device.type == "cpu":
            for name in batch.lazy_keys():
                batch.value(name)
            out = out.pin_memory()
    return out if transform is None else transform(out)


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

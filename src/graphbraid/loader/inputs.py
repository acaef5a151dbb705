"""Conversion of a loader's arguments to the forms that the sampler takes: fanouts, seeds, ids, devices."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import shown
from graphbraid.errors import ConfigError
from graphbraid.graph import Graph
from graphbraid.graph.interop.convert import refuse_mask_of_integers
from graphbraid.graph.scans import first_out_of_range


def as_fanouts(num_neighbors: Any) -> tuple[int, ...]:
    """Return the fanouts per hop from a list, a NumPy array, a tensor or PyG's ``NumNeighbors``.

    Raises:
        ConfigError: the argument is none of these, or gives fanouts by edge type.
    """
    values = num_neighbors
    if hasattr(values, "get_values") and hasattr(values, "values"):  # NumNeighbors
        values = values.values
    if isinstance(values, dict):
        raise ConfigError(
            "num_neighbors must be a list with a fanout per hop; a dict is for heterogeneous graphs"
        )
    try:
        return tuple(_as_whole(value) for value in values)
    except TypeError:
        raise ConfigError(
            f"num_neighbors must be a list with a fanout per hop, such as [15, 10, 5]; got {num_neighbors!r}"
        ) from None


def _as_whole(value: Any) -> Any:
    """Convert an integer of NumPy or torch to a Python int; SamplerConfig refuses what is not an integer."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return value
    try:
        return operator.index(value)
    except TypeError:  # a tensor that is not an integer
        return value


def as_seeds(input_nodes: Tensor | Sequence[int] | str | None, graph: Graph) -> Tensor:
    """Return ``(num_seeds,)`` int64 node ids from ids, a bool mask, a split's name, or None for all nodes.

    Raises:
        ConfigError: the argument is none of these, or an id is outside the graph; the message names the
            first.
        DataError: the split does not exist or is empty.
    """
    if input_nodes is None:
        return torch.arange(graph.num_nodes)
    if isinstance(input_nodes, str):
        return graph.split(input_nodes)
    return ids_or_mask(input_nodes, graph.num_nodes)


def ids_or_mask(input_nodes: Any, num_nodes: int, what: str = "input_nodes") -> Tensor:
    """Return int64 ids from ids or a bool mask of ``num_nodes`` nodes.

    Raises:
        ConfigError: they are neither, or an id is out of range.
    """
    seeds = as_ids(input_nodes, what)
    if seeds.dtype == torch.bool:
        if seeds.shape != (num_nodes,):
            raise ConfigError(f"a mask of {what} must have shape ({num_nodes},); got {tuple(seeds.shape)}")
        return seeds.nonzero().flatten()
    seeds = check_ids(seeds, num_nodes, what)
    refuse_mask_of_integers(seeds, num_nodes, what, ConfigError)
    return seeds


def as_ids(values: Any, what: str) -> Tensor:
    """Return ids or a mask as a tensor on the CPU.

    Raises:
        ConfigError: ``values`` cannot be converted to a tensor.
    """
    try:
        return torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{what} must be node ids, a mask or a split's name; got {type(values).__name__} "
            f"({error}). Pairs of a node type and ids are for heterogeneous graphs"
        ) from error


def check_ids(ids: Tensor, bound: int, what: str) -> Tensor:
    """Return ``ids`` as a 1-d int64 tensor after checking them; an empty list may have any dtype.

    Raises:
        ConfigError: they are not integers of one dimension, or one is outside ``[0, bound)``; the message
            names the first.
    """
    if ids.ndim != 1 or (ids.numel() and not is_whole(ids)):
        raise ConfigError(
            f"{what} must be a 1-d tensor of ids or a mask of all nodes; "
            f"got {ids.dtype} of shape {tuple(ids.shape)}"
        )
    ids = ids.to(torch.int64).contiguous()
    outside = first_out_of_range(ids, bound)
    if outside >= 0:
        raise ConfigError(f"{what} must be ids in [0, {bound}); {what}[{outside}] is {int(ids[outside])}")
    return ids


def is_whole(values: Tensor) -> bool:
    """Return whether the dtype of values is one of integers."""
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def check_order(value: Any, name: str) -> None:
    """Check that an order of positions in the inputs can be iterated; None stands for the loader's own.

    Raises:
        ConfigError: it cannot.
    """
    if value is not None and (not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0):
        raise ConfigError(f"{name} must be an iterable of positions of the inputs; got {shown(value)}")


def check_lists(topology: Any) -> None:
    """Check that ``topology`` is a source of adjacency lists or None.

    Raises:
        ConfigError: it is neither.
    """
    if topology is not None and inspect.getattr_static(topology, "native", None) is None:
        raise ConfigError(
            "topology must be a source of adjacency lists, such as TieredTopology, or None; got "
            f"{shown(topology)}"
        )


def as_input_id(values: Any, number: int, what: str) -> Tensor:
    """Return the values that batches have as ``input_id``, one for each of a ``number`` of ``what``.

    Raises:
        ConfigError: they are no tensor, or of another length.
    """
    try:
        ids = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"input_id must be a tensor with an entry per {what}; got {shown(values)}"
        ) from error
    if ids.shape != (number,):
        raise ConfigError(
            f"input_id must have an entry per {what}, shape ({number},); got {tuple(ids.shape)}"
        )
    return ids


def as_device(device: str | torch.device) -> torch.device:
    """Return a torch device that is present.

    Raises:
        ConfigError: there is no such device.
    """
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ConfigError(
            f"device must be a torch device such as 'cpu' or 'cuda:0', or an accelerator; got {device!r}"
        ) from None
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device={str(device)!r} needs a CUDA device that is not here ({torch.cuda.device_count()} found)"
        )
    return found


def drawn_seed(generator: torch.Generator | None = None) -> int:
    """Draw a seed in ``[0, 2**63)`` from torch's generator, as ``torch.utils.data`` does."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator))

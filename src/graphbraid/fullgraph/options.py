"""The options of :func:`graphbraid.compile`, checked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphbraid.arguments import shown
from graphbraid.errors import ConfigError, DataError
from graphbraid.fullgraph.device.device import Device
from graphbraid.graph import Graph
from graphbraid.graph.scans import check_ids

STORAGE = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def checked_passes(passes: Iterable[str], known: frozenset[str]) -> frozenset[str]:
    """The names of lowering passes.

    Raises:
        ConfigError: none has such a name.
    """
    if isinstance(passes, str) or not isinstance(passes, Iterable):
        raise ConfigError(f"passes must be names of lowering passes; got {shown(passes)}")
    if other := [name for name in passes if not isinstance(name, str)]:
        raise ConfigError(f"passes must be names of lowering passes; got {shown(other[0])} among them")
    chosen = frozenset(passes)
    if unknown := sorted(chosen - known):
        raise ConfigError(f"no lowering pass is called {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return chosen


def checked_storage(storage: str, device: Device) -> torch.dtype:
    """What rows are rounded to before they are aggregated.

    Raises:
        ConfigError: it has no such name, or cannot be on the device.
    """
    if storage not in STORAGE:
        raise ConfigError(f"storage must be one of {', '.join(STORAGE)}; got {storage!r}")
    if storage != "float32" and not device.is_host:
        raise ConfigError("on a device rows are stored in float32; storage='bfloat16' needs the CPU")
    return STORAGE[storage]


def checked_nodes(nodes: Any, graph: Graph) -> Tensor:
    """``(num_nodes,)`` int64 ids of a split's name, ids in any sequence or array, or a mask.

    Raises:
        ConfigError: there are none, or one is named twice.
        DataError: the graph has no such split, or no such node.
    """
    ids = graph.split(nodes) if isinstance(nodes, str) else _as_tensor(nodes)
    if ids.dtype == torch.bool and ids.shape == (graph.num_nodes,):
        ids = ids.nonzero().squeeze(1)
    if ids.numel() == 0:
        raise ConfigError("there are no training nodes; name at least one")
    check_ids(ids, graph.num_nodes, "training nodes")
    counts = torch.bincount(ids, minlength=graph.num_nodes)
    if int(counts.max()) > 1:
        raise ConfigError(f"training nodes must each be named once; {int(counts.argmax())} is named again")
    return ids.long()


def _as_tensor(nodes: Any) -> Tensor:
    if isinstance(nodes, Tensor):
        return nodes.detach().cpu()
    try:
        return torch.from_numpy(np.asarray(list(nodes) if isinstance(nodes, range | set) else nodes).copy())
    except (TypeError, ValueError) as error:
        raise DataError(f"training nodes must be ids, a mask or a split's name; got {nodes!r}") from error


__all__ = ["checked_nodes", "checked_passes", "checked_storage"]

"""The options of :func:`graphbraid.compile`, as a checked record that lowering and running share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphbraid.arguments import shown
from graphbraid.errors import ConfigError, DataError
from graphbraid.fullgraph.device import HOST, Device
from graphbraid.fullgraph.lowering.costs import Evidence
from graphbraid.fullgraph.lowering.passes import PASSES
from graphbraid.fullgraph.lowering.streamed import StreamedFeatures
from graphbraid.graph import Graph, NodeSet
from graphbraid.graph.scans import check_ids
from graphbraid.machine.rates import Rates
from graphbraid.signatures import typed

ALL = frozenset({*PASSES, "prune", "symmetry", "locality", "halo"})
"""Names of all lowering passes; each can be switched off."""
LEAST_SPARE_BYTES = 1 << 28
SPARE_SHARE = 4
"""A program may take one part in so many of the free memory to save time, and :data:`LEAST_SPARE_BYTES`."""
STORAGE = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def usual_spare_bytes(free_bytes: int) -> int:
    """Return the bytes that a program may take to save time where so many are free."""
    return min(max(LEAST_SPARE_BYTES, free_bytes // SPARE_SHARE), free_bytes // 2)


@typed
@dataclass(frozen=True, kw_only=True, slots=True)
class CompileOptions:
    """How a program is lowered and where it runs; see :func:`graphbraid.compile` for each option.

    Raises:
        ConfigError: a pass name is unknown, or the device does not support the storage dtype.
    """

    passes: frozenset[str] = ALL
    """Names of the lowering passes that may run."""
    device: Device = HOST
    storage: torch.dtype = torch.float32
    """Dtype to which rows may be rounded before they are aggregated."""
    spare_bytes: int | None = None
    """Bytes that may be taken to save time: features aggregated once, renumbered edges."""
    cache_bytes: int | None = None
    """Bytes of the processor's cache available to rows. If None, as measured with the rates."""
    rates: Rates | None = None
    """Rates for the cost model. If None, this machine's, measured once, with trials for close choices."""
    evidence: Evidence | None = None
    """Rates and trials of an earlier lowering, used instead of new measurements to make the same choices."""
    features: StreamedFeatures | None = None
    """Where a step reads the features block by block. If None, they lie in memory, as the graph has them."""

    def __post_init__(self) -> None:
        if unknown := sorted(self.passes - ALL):
            known = ", ".join(sorted(ALL))
            raise ConfigError(f"no lowering pass is called {unknown[0]!r}; there are {known}")
        if self.storage not in STORAGE.values():
            raise ConfigError(
                f"storage must be {' or '.join(map(str, STORAGE.values()))}; got {self.storage}"
            )
        if self.storage != torch.float32 and not self.device.is_host:
            raise ConfigError("on a device rows are stored in float32; storage='bfloat16' needs the CPU")

    def allowed_bytes(self) -> int:
        """Return the bytes that may be taken to save time, never more than half of the free memory."""
        free = self.device.free_bytes() or 0
        return min(usual_spare_bytes(free) if self.spare_bytes is None else self.spare_bytes, free // 2)

    def hoist_bytes(self) -> int:
        """Return the bytes that features aggregated once may take."""
        return self.allowed_bytes() if "hoist" in self.passes else 0

    def cache_bytes_by(self, rates: Rates) -> int:
        """Return the bytes of the processor's cache available to rows."""
        return int(rates.cache_bytes) if self.cache_bytes is None else self.cache_bytes


def names_of(passes: Iterable[str]) -> frozenset[str]:
    """Return the names of lowering passes as a set.

    Raises:
        ConfigError: ``passes`` is not an iterable of names.
    """
    if isinstance(passes, str) or not isinstance(passes, Iterable):
        raise ConfigError(f"passes must be names of lowering passes; got {shown(passes)}")
    if other := [name for name in passes if not isinstance(name, str)]:
        raise ConfigError(f"passes must be names of lowering passes; got {shown(other[0])} among them")
    return frozenset(passes)


def storage_of(storage: str) -> torch.dtype:
    """Return the dtype to which rows are rounded before they are aggregated, from its name.

    Raises:
        ConfigError: the name is unknown.
    """
    if storage not in STORAGE:
        raise ConfigError(f"storage must be one of {', '.join(STORAGE)}; got {storage!r}")
    return STORAGE[storage]


def checked_nodes(nodes: Any, graph: Graph | NodeSet) -> Tensor:
    """Return the ``(num_train,)`` int64 ids of nodes given as a split's name, ids or a mask.

    Raises:
        ConfigError: there are no nodes, or one is named twice.
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

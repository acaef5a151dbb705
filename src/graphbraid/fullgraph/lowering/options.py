"""The options of :func:`graphbraid.compile`, as a checked record that lowering and running share.

One of them is where the features come from. Those that do not lie in memory are read block by block in every
step. A product with weights needs their rows one after the other, forward and backward. An operation that
reads rows at random cannot be streamed: attention, or an aggregation, unless that is hoisted and its result
streamed instead. Nor can a row-wise function, whose result is as large as the features.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphbraid.arguments import as_size, check_type, shown
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.features import DiskOptions, TieredFeatures
from graphbraid.features.budgets import options_for
from graphbraid.features.rows.row_stream import LONGEST_ROUND
from graphbraid.files.writing import format_bytes
from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.device import HOST, Device
from graphbraid.fullgraph.lowering.costs import CostModel, Evidence, in_bytes
from graphbraid.fullgraph.lowering.passes import PASSES, through_passes
from graphbraid.graph import Graph, NodeSet
from graphbraid.graph.identity import check_made_for
from graphbraid.graph.scans import check_ids
from graphbraid.machine.hardware import Rates, free_memory_bytes
from graphbraid.sampling.rows.by_id import FeatureSource
from graphbraid.signatures import typed

STREAMED = "streamed"
"""Name of the input path."""
_SAMPLED_ROWS = 4096


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class StreamedFeatures:
    """Where a step reads features that do not lie in memory, and the memory it may take for them."""

    rows: FeatureSource
    """The rows by id."""
    host_bytes: int
    """Memory for blocks that are read and for rows that stay in memory from step to step."""

    @classmethod
    def of(cls, graph: Graph, tiers: FeatureSource | None, host: int | str | None) -> StreamedFeatures | None:
        """Return the features of a graph as :func:`graphbraid.compile` is asked for them; None: in memory.

        Args:
            graph: with dense features; mapped from a store, if ``tiers`` are not given.
            tiers: the rows by id. If None, those of the store's file.
            host: bytes or a size, ``"all"`` or 0 as in :class:`graphbraid.features.TieredFeatures`.

        Raises:
            ConfigError: a size that cannot be meant, or tiers of another shape or on a device, or no tiers.
            DataError: the features are not dense, or not mapped from a store, or tiers are of another graph.
            ResourceError: the memory is not free, or the file cannot be read.
        """
        if tiers is None and host is None:
            return None
        graph.check_one_type("features that are streamed")
        whole = 4 * graph.num_nodes * graph.num_features
        size = 4 * LONGEST_ROUND if host is None else 2 * whole if host == "all" else as_size(host, "host")
        free = free_memory_bytes()
        if host is not None and free is not None and min(size, whole) > free:
            raise ResourceError(
                f"host={host!r} takes {format_bytes(min(size, whole))} of memory; {format_bytes(free)} are "
                "free. Give less: the other rows are read from the file in every step"
            )
        if tiers is None:
            tiers = TieredFeatures.build(
                graph, host=0, disk=options_for(size) if size else DiskOptions(depth=32)
            )
        check_type(
            tiers, "tiers", FeatureSource, "TieredFeatures or another source of rows", error=ConfigError
        )
        if tiers.hot is not None:
            raise ConfigError(
                "a step reads rows on the host, and these tiers have some on devices; leave hot out."
            )
        if tuple(tiers.shape) != (graph.num_nodes, graph.num_features):
            raise ConfigError(
                f"tiers must hold the features of this graph, ({graph.num_nodes}, {graph.num_features}); got "
                f"{tuple(tiers.shape)}"
            )
        check_made_for(tiers, graph.x, "the features' tiers were")
        return cls(rows=tiers, host_bytes=size)

    def sample(self) -> Tensor:
        """Return some rows, spread evenly, that stand for all: ``(num_rows, F)`` float32."""
        count = self.rows.shape[0]
        ids = torch.arange(0, count, max(1, count // _SAMPLED_ROWS))
        return self.rows.gather(ids).to(torch.float32)


def streamed(program: ir.Program) -> ir.Program:
    """Return a program, as it was read, whose features are to be streamed; ConfigError if over relations."""
    if program.by_relation:
        raise ConfigError(
            "features are streamed in graphs of one type, and this model has layers over relations."
        )
    what = "streamed: a step reads the features in blocks, ahead of their use"
    return program.decided("input path", True, what, input_path=STREAMED)


def passed_to_stream(program: ir.Program, costs: CostModel, wanted: frozenset[str]) -> ir.Program:
    """Return a :func:`streamed` program after the passes. Only products read its features.

    More is hoisted than the usual limit of bytes allows, where that needs it.

    Raises:
        ConfigError: an operation reads the features at random; the message names it and the remedy.
    """
    passed = through_passes(program, costs, wanted)
    if _random_reader(passed) is None:
        return passed
    passed = through_passes(program, replace(costs, hoist_bytes=1 << 62), wanted | {"hoist"})
    if (reader := _random_reader(passed)) is not None:
        raise ConfigError(_refusal(passed, *reader, costs))
    return passed


def needs_lowering(why: ir.NotLoweredError | None) -> str:
    """Return the message about a model that runs as it is written, which needs all features in memory."""
    reason = "" if why is None else f", and {why.part}: {why.reason}"
    return (
        f"features that do not lie in memory are read by a lowered program alone{reason}. Leave host and "
        "tiers out, or use mini-batches (mode='sampled')."
    )


def held_rows(program: ir.Program) -> dict[str, str]:
    """Return the values that hold rows of a streamed matrix, each with the name of that matrix."""
    held = {ir.INPUT: ir.INPUT}
    for op in program.ops:
        if isinstance(op, ir.Hoisted):
            held[op.out] = op.out
        elif isinstance(op, ir.DestinationRows) and op.inputs[0] in held:
            held[op.out] = held[op.inputs[0]]
    return held


def _random_reader(program: ir.Program) -> tuple[ir.Operation, str] | None:
    """Return the first operation that reads streamed rows and is no product, with the value it reads."""
    held = held_rows(program)
    for op in program.ops:
        products = 1 if isinstance(op, ir.Linear) else 0
        read = () if isinstance(op, ir.DestinationRows | ir.Hoisted) else op.inputs[products:]
        for value in read:
            if value in held:
                return op, value
    if program.output in held:
        return program.ops[-1], program.output
    return None


def _refusal(program: ir.Program, op: ir.Operation, value: str, costs: CostModel) -> str:
    layer = program.level(value) + 1
    if isinstance(op, ir.Attention):
        why = "attends to rows of neighbours in any order before a product"
    elif isinstance(op, ir.Aggregate):
        why = "aggregates rows of neighbours, in any order, in a way that cannot be computed once"
    else:
        count = 4 * costs.rows[0] * costs.in_channels
        why = f"needs all rows at once or makes as many new ones ({in_bytes(count)})"
    return (
        f"the features do not lie in memory, and layer {layer} reads them by {op.symbol} before any product "
        f"with weights, which {why}. Begin with a linear layer (and drop out behind it), give the features "
        "memory by leaving host and tiers out, or use mini-batches (mode='sampled')."
    )


ALL = frozenset({*PASSES, "prune", "symmetry", "locality", "halo"})
"""Names of all lowering passes; each can be switched off."""
LEAST_SPARE_BYTES = 1 << 28
SPARE_SHARE = 4
"""To save time, a program may take a quarter of the free memory, and :data:`LEAST_SPARE_BYTES`."""
STORAGE = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def usual_spare_bytes(free_bytes: int) -> int:
    """Return the bytes that a program may take to save time, if ``free_bytes`` are free."""
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
    """Rates for the cost model. If None, this machine's, measured once."""
    evidence: Evidence | None = None
    """Measurements behind an earlier lowering, used instead of new ones to make the same choices."""
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
    """Return the names of lowering passes as a set; raise ConfigError unless they are names."""
    if isinstance(passes, str) or not isinstance(passes, Iterable):
        raise ConfigError(f"passes must be names of lowering passes; got {shown(passes)}")
    if other := [name for name in passes if not isinstance(name, str)]:
        raise ConfigError(f"passes must be names of lowering passes; got {shown(other[0])} among them")
    return frozenset(passes)


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

"""Copies of a step's inputs on a device, each made once; and linear maps of rows, by the faster kernel.

Graphbraid's kernel applies normalisation, self-loops and additions in one pass over the stored edges, which
all layers share. torch.sparse (cuSPARSE on CUDA) reads a CSR matrix with all of that multiplied out, made
once per map; the matrix takes 8 more bytes per edge and is kept only where it wins.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from graphbraid.errors import ConfigError
from graphbraid.fullgraph.device import Device
from graphbraid.fullgraph.lowering.levels import Block, Blocks, TypedBlock
from graphbraid.fullgraph.step.features import After, LinearMap
from graphbraid.graph.csc import Csc
from graphbraid.ops.aggregation import Aggregation, follow_up

OURS, SPARSE = "graphbraid", "torch.sparse"
VARIABLE = "GRAPHBRAID_SPMM"
"""Environment variable that forces one of the two kernels by name."""
_BUILD_BYTES = 48
"""Peak bytes per edge of making the CSR matrix, including the matrix."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpmmChoice:
    """The kernel chosen for one aggregation, and why."""

    rows: int
    edges: int
    width: int
    name: str
    """:data:`OURS` or :data:`SPARSE`."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Measured seconds of each kernel; empty if nothing was measured."""
    reason: str = ""
    """Why nothing was measured; empty if something was."""

    def __str__(self) -> str:
        took = ", ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in self.seconds.items())
        why = took or self.reason
        return f"{self.edges:,} edges to {self.rows:,} rows of {self.width}: {self.name} ({why})"


class Picker:
    """Chooses kernels by measurement and records the choices.

    Args:
        seconds: returns the time of a run, see :meth:`graphbraid.fullgraph.device.Device.seconds`.
        free_bytes: returns the bytes of free memory, or None if unknown.
        forced: name of the kernel to use. If None, the one that :data:`VARIABLE` names, or the faster one.

    Raises:
        ConfigError: the forced name is unknown.
    """

    def __init__(
        self,
        seconds: Callable[[Callable[[], object]], float],
        free_bytes: Callable[[], int | None] = lambda: None,
        forced: str | None = None,
    ) -> None:
        forced = forced or os.environ.get(VARIABLE, "").strip() or None
        if forced not in (None, OURS, SPARSE):
            raise ConfigError(f"{VARIABLE}={forced!r} names no kernel; choose {OURS!r} or {SPARSE!r}")
        self._seconds, self._free_bytes, self._forced = seconds, free_bytes, forced
        self.choices: list[SpmmChoice] = []
        """All choices so far."""

    def pick(self, how: Aggregation, x: Tensor, out: Tensor) -> tuple[str, Tensor | None]:
        """Choose the kernel that maps rows like ``x`` to rows like ``out``; return its name and matrix."""
        reason, matrix = self._why_ours(how, x), None
        seconds: dict[str, float] = {}
        name = self._forced or OURS
        if not reason and name == SPARSE:
            matrix, reason = csr_of(how), f"{VARIABLE} asks for it"
        elif not reason:
            seconds, matrix, reason = self._race(how, x, torch.empty_like(out))
            if seconds:
                name = min(seconds, key=lambda contender: seconds[contender])
        else:
            name = OURS
        rows, edges = how.csc.num_dst, how.csc.num_edges
        self.choices.append(
            SpmmChoice(rows=rows, edges=edges, width=x.shape[1], name=name, seconds=seconds, reason=reason)
        )
        return name, matrix if name == SPARSE else None

    def _why_ours(self, how: Aggregation, x: Tensor) -> str:
        if self._forced == OURS:
            return f"{VARIABLE} asks for it"
        if x.dtype != torch.float32:
            return f"torch.sparse is not measured for {x.dtype}"
        if torch.are_deterministic_algorithms_enabled():
            return "cuSPARSE does not promise the same bits twice"
        free, needed = self._free_bytes(), _BUILD_BYTES * (how.csc.num_edges + how.csc.num_dst)
        if free is not None and needed > free:
            return f"trying torch.sparse takes {needed / 1e6:,.0f} MB, {free / 1e6:,.0f} MB are free"
        return ""

    def _race(self, how: Aggregation, x: Tensor, out: Tensor) -> tuple[dict[str, float], Tensor | None, str]:
        """Time both kernels on scratch rows; return the seconds and the matrix, or why there are none."""
        try:
            matrix = csr_of(how)
            runs = {OURS: lambda: how.forward(x, out=out), SPARSE: lambda: multiply(matrix, x, None, out)}
            return {name: self._seconds(run) for name, run in runs.items()}, matrix, ""
        except RuntimeError as error:  # torch was built without it, or there is too little memory after all
            return {}, None, f"torch.sparse failed: {str(error).splitlines()[0]}"


class DeviceMap(LinearMap):
    """A linear map on a device. Each direction runs by the faster kernel for each width.

    ``reverse`` is the transposed map, None if no gradient flows. Both have their tensors on the device.
    """

    def __init__(self, how: Aggregation, reverse: Aggregation | None, picker: Picker) -> None:
        super().__init__(lambda: how)
        if reverse is not None:
            self.reverse = reverse
        self._picker = picker
        self._picked: dict[tuple[Aggregation, int, torch.dtype], str] = {}
        self._matrices: dict[Aggregation, Tensor] = {}

    def run(self, how: Aggregation, x: Tensor, out: Tensor, *, addend: Tensor | None, after: After) -> None:
        """Run one of the two maps."""
        if out.numel() == 0:
            return
        key = (how, x.shape[1], x.dtype)
        if key not in self._picked:
            self._picked[key], matrix = self._picker.pick(how, x, out)
            if matrix is not None:
                self._matrices[how] = matrix
        if self._picked[key] == OURS:
            how.forward(x, addend=addend, out=out, after=after)
        else:
            multiply(self._matrices[how], x, addend, out)
            follow_up(out, after)


def multiply(matrix: Tensor, x: Tensor, addend: Tensor | None, out: Tensor) -> None:
    """Compute ``out = matrix x (+ addend)`` by torch.sparse; ``addend`` may be ``out`` or a prefix of it."""
    if addend is None:
        torch.addmm(out, matrix, x, beta=0, out=out)  # torch.mm would make a matrix of zeros to add
        return
    count = addend.shape[0]
    if addend.data_ptr() != out.data_ptr():
        out[:count].copy_(addend)
    out[count:].zero_()
    torch.addmm(out, matrix, x, out=out)


def csr_of(how: Aggregation) -> Tensor:
    """Return an aggregation's matrix as a float32 CSR tensor, with coefficients and self-loops stored."""
    csc, num_loops = how.csc, how.num_loops
    rows, columns = csc.destinations().long(), csc.indices
    values = torch.ones(csc.num_edges, device=columns.device) if how.weight is None else how.weight.float()
    if how.skip_loops:
        values = values.masked_fill(columns == rows, 0.0)
    indptr = csc.indptr
    if num_loops:
        before = torch.arange(csc.num_dst + 1, device=columns.device).clamp_(max=num_loops)
        places = torch.arange(csc.num_edges, device=columns.device) + before[rows]
        indptr = indptr + before
        own = indptr[1 : num_loops + 1] - 1  # a row's self-loop follows its edges
        nodes = torch.arange(num_loops, device=columns.device)
        loop = nodes.new_ones(num_loops, dtype=torch.float32) if how.loop is None else how.loop.float()
        total = csc.num_edges + num_loops
        rows = rows.new_empty(total).index_copy_(0, places, rows).index_copy_(0, own, nodes)
        columns = (
            columns.new_empty(total)
            .index_copy_(0, places, columns)
            .index_copy_(0, own, nodes.to(columns.dtype))
        )
        values = values.new_empty(total).index_copy_(0, places, values)
        values.index_copy_(0, own, how.loop_scale * loop)
    src_scale, dst_scale = how.scales(torch.float32)
    if src_scale is not None:
        values = values * src_scale[columns.long()]
    if dst_scale is not None:
        values = values * dst_scale[rows]
    narrow = max(columns.numel(), csc.num_src) <= torch.iinfo(torch.int32).max
    ids = torch.int32 if narrow else torch.int64
    with warnings.catch_warnings():  # torch warns that its CSR support is in beta
        warnings.simplefilter("ignore")
        return torch.sparse_csr_tensor(
            indptr.to(ids), columns.to(ids), values, (csc.num_dst, csc.num_src), check_invariants=False
        )


WORKSPACE_BYTES = 1 << 26
"""Bytes left free beyond those counted, for cuBLAS's workspace and the kernels' partial sums."""


class DeviceCopies:
    """The arrays of an engine on a device, shared by its planned steps.

    Adjacencies and their transposes are prepared on the host, where there are kernels for it and memory to
    spare, and copied once. A block whose edges are a prefix of another block's shares them on the device too.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.place = device.place
        self.picker = Picker(device.seconds, device.free_bytes)
        self.nbytes = 0
        """Bytes copied to the device so far."""
        self._arrays: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}
        self._cscs: WeakKeyDictionary[Csc, Csc] = WeakKeyDictionary()
        self._bare: dict[int, tuple[Csc, Csc]] = {}
        self._maps: dict[tuple[Any, ...], tuple[Aggregation, DeviceMap]] = {}

    def matrix(self, host: Tensor) -> Tensor:
        """Return a copy of a tensor."""
        self.nbytes += host.nbytes
        return host.to(self.place, copy=True)

    def array(self, host: Tensor | None) -> Tensor | None:
        """Return the copy of a 1-d tensor, made once; a prefix of a tensor becomes a prefix of its copy."""
        if host is None:
            return None
        if host.numel() == 0 or not host.is_contiguous():
            return self.matrix(host)
        key = (host.data_ptr(), host.dtype)
        kept = self._arrays.get(key)
        if kept is None or kept[0].numel() < host.numel():
            self._arrays[key] = kept = (host, self.matrix(host))
        there = kept[1]
        return there if there.numel() == host.numel() else there[: host.numel()]

    def csc(self, host: Csc, *, transpose: bool = False) -> Csc:
        """Return the copy of an adjacency, with its transpose if an operation reads that.

        An adjacency that is its own transpose remains so.
        """
        there = self._cscs.get(host)
        if there is None:
            there = Csc(self._there(host.indptr), self._there(host.indices), host.num_src, trusted=True)
            there.weight = self.array(host.weight)
            self.nbytes += host.indptr.nbytes  # the kernels' partition of its rows
            self._cscs[host] = there
            if host.is_own_reverse:
                there.keep_as_own_reverse()
        if transpose and not there.has_transpose:
            there.keep_transpose(*self._transpose(host))
        return there

    def blocks(self, blocks: Blocks, walked: Collection[int] = (), *, transpose: bool = False) -> Blocks:
        """Return the copies of blocks, with transposes if an operation reads those.

        Of relations, only the edges of those ``walked`` are copied: aggregations have copies of their own.
        """
        typed = [block for block in blocks if isinstance(block, TypedBlock)]
        if typed:
            return [self._typed(block, walked, transpose=transpose) for block in typed]
        plain = [block.of(None) for block in blocks]
        return [
            Block(
                self.csc(block.csc, transpose=transpose),
                self.array(block.sources),
                self.array(block.destinations),
                None,
            )
            for block in plain
        ]

    def _typed(self, block: TypedBlock, walked: Collection[int], *, transpose: bool) -> TypedBlock:
        before, after = (
            tuple(self.array(ids) for ids in ends) for ends in (block.sources, block.destinations)
        )
        relations = {
            number: replace(one, csc=self.csc(one.csc, transpose=transpose)) if number in walked else one
            for number, one in block.relations.items()
        }
        return replace(block, relations=relations, sources=before, destinations=after)

    def aggregation(self, how: Aggregation, *, backward: bool) -> DeviceMap:
        """Return the copy of an aggregation, with its transposed map if a gradient flows through it.

        Layers with the same aggregation share one copy, and with it the choice of kernels.
        """
        factors = (how.weight, how.src_scale, how.dst_scale, how.loop)
        key = (id(how.csc), *map(id, factors), how.mean, how.loop_scale, how.skip_loops)
        for serves in {True, backward}:  # a copy with a backward map serves those without one
            if (*key, serves) in self._maps:
                return self._maps[*key, serves][1]
        reverse = self._reverse(how) if backward else None
        made = DeviceMap(self._moved(how), reverse, self.picker)
        self._maps[*key, backward] = how, made
        return made

    def forget_host(self) -> None:
        """Release the host's copies of arrays that are on the device now."""
        self._bare.clear()
        self._arrays.clear()

    def _moved(self, how: Aggregation) -> Aggregation:
        return replace(
            how,
            csc=self.csc(how.csc),
            weight=self.array(how.weight),
            src_scale=self.array(how.src_scale),
            dst_scale=self.array(how.dst_scale),
            loop=self.array(how.loop),
        )

    def _reverse(self, how: Aggregation) -> Aggregation:
        """Return the transposed map on the device."""
        return self._moved(replace(how, csc=self._bare_of(how.csc)).transposed(torch.float32))

    def _transpose(self, host: Csc) -> tuple[Csc, Tensor]:
        """Return the result of :meth:`Csc.transpose` on the device."""
        reverse, perm = self._bare_of(host).transpose()
        return self.csc(reverse), self._there(perm)

    def _bare_of(self, host: Csc) -> Csc:
        """Return ``host``, or a stand-in whose transpose is freed as soon as it is not needed."""
        if host.has_reverse:
            return host
        if id(host) not in self._bare:
            self._bare[id(host)] = (
                host,
                Csc(host.indptr, host.indices, host.num_src, host.weight, trusted=True),
            )
        return self._bare[id(host)][1]

    def _there(self, host: Tensor) -> Tensor:
        there = self.array(host)
        assert there is not None
        return there


class CopySizes(DeviceCopies):
    """Counts the bytes of :class:`DeviceCopies` without copying or transposing anything."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.place = torch.device("meta")

    def _reverse(self, how: Aggregation) -> Aggregation:
        if not how.csc.is_own_reverse:
            self._count_reverse(how.csc)
            self.nbytes += 0 if how.weight is None else how.weight.nbytes
        return self._moved(how)

    def _transpose(self, host: Csc) -> tuple[Csc, Tensor]:
        self._count_reverse(host)
        self.nbytes += 8 * host.num_edges
        return self.csc(host), torch.empty(0, device=self.place)

    def _count_reverse(self, csc: Csc) -> None:
        if id(csc) not in self._bare:
            self._bare[id(csc)] = csc, csc
            self.nbytes += csc.indices.nbytes + 2 * 8 * (csc.num_src + 1)

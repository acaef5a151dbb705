"""DeviceCopies: brings what a planned step reads every time it runs to a device, each array once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from graphbraid.fullgraph.device.device import Device
from graphbraid.fullgraph.lowering.facts import density
from graphbraid.fullgraph.lowering.levels import Block
from graphbraid.fullgraph.step.calls.seeds import Seeds, SeedsInMemory
from graphbraid.fullgraph.step.calls.spmm_choice import PickedAggregation, Picker
from graphbraid.graph.csc import Csc
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.binary import binary_bytes

WORKSPACE_BYTES = 1 << 26
"""Kept free beside what is counted: cuBLAS's workspace and the kernels' own partial sums."""


class DeviceCopies:
    """What an engine has on a device; planned steps of one engine share it.

    Adjacencies and their reverses are prepared on the host, where there are kernels for it and memory to
    spare, and copied once: blocks that are the first edges of another's stay that on the device.

    Args:
        device: where to; not the host.
        picker: chooses the kernels that aggregate.
    """

    def __init__(self, device: Device, picker: Picker | None = None) -> None:
        self.device = device
        self.place = device.place
        self.picker = picker or Picker(device.seconds, device.free_bytes)
        self.nbytes = 0
        """Bytes on the device so far."""
        self._arrays: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}
        self._cscs: WeakKeyDictionary[Csc, Csc] = WeakKeyDictionary()
        self._bare: dict[int, tuple[Csc, Csc]] = {}
        self._maps: dict[tuple[Any, ...], tuple[Aggregation, PickedAggregation]] = {}

    def matrix(self, host: Tensor) -> Tensor:
        """A copy of a tensor."""
        self.nbytes += host.nbytes
        return host.to(self.place, copy=True)

    def array(self, host: Tensor | None) -> Tensor | None:
        """A 1-d tensor's copy, made once: where the tensor starts another, so does its copy."""
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
        """An adjacency; with its transpose, where an operation reads that.

        One that is its own transpose stays so.
        """
        there = self._cscs.get(host)
        if there is None:
            there = Csc(self._there(host.indptr), self._there(host.indices), host.num_src, trusted=True)
            there.weight = self.array(host.weight)
            self.nbytes += host.indptr.nbytes  # the kernels' partition of its rows
            self._cscs[host] = there
            if host._reversed is host:
                there._reversed = there
        if transpose and there._transposed is None:
            there._transposed = self._transpose(host)
        return there

    def blocks(self, blocks: Sequence[Block], *, transpose: bool = False) -> list[Block]:
        """The way from each level to the next; with transposes, where an operation reads those."""
        return [
            Block(
                self.csc(block.csc, transpose=transpose),
                self.array(block.sources),
                self.array(block.destinations),
                None,
            )
            for block in blocks
        ]

    def aggregation(self, how: Aggregation, *, backward: bool) -> PickedAggregation:
        """An aggregation, and its transposed map where a gradient flows through it.

        Layers that aggregate alike share one, and so its choice of kernels.
        """
        factors = (how.weight, how.src_scale, how.dst_scale, how.loop)
        key = (id(how.csc), *map(id, factors), how.mean, how.loop_scale, how.skip_loops)
        for serves in {True, backward}:  # one with a backward map serves those without
            if (*key, serves) in self._maps:
                return self._maps[*key, serves][1]
        reverse = self._reverse(how) if backward else None
        made = PickedAggregation(self._moved(how), reverse, self.picker)
        self._maps[*key, backward] = how, made
        return made

    def seeds(self) -> Seeds:
        """Seeds of dropout masks in the device's memory."""
        return SeedsInMemory(self.place)

    def forget_host(self) -> None:
        """Let go of what was prepared on the host and is on the device now."""
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
        """The transposed map, on the device."""
        return self._moved(replace(how, csc=self._bare_of(how.csc)).transposed(torch.float32))

    def _transpose(self, host: Csc) -> tuple[Csc, Tensor]:
        """What :meth:`Csc.transpose` gives, on the device."""
        reverse, perm = self._bare_of(host).transpose()
        return self.csc(reverse), self._there(perm)

    def _bare_of(self, host: Csc) -> Csc:
        """``host``, or a stand-in that keeps the transpose made of it no longer than needed."""
        if host._transposed is not None or host._reversed is not None:
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
    """Counts the bytes of a copies; moves nothing and transposes nothing.

    Args:
        device: what is counted for.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.place = torch.device("meta")

    def _reverse(self, how: Aggregation) -> Aggregation:
        if how.csc._reversed is not how.csc:
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


def input_bytes(x: Tensor | SparseFeatures, nodes: Tensor | None, path: str) -> int:
    """Bytes of the features of ``nodes`` as an input path keeps them."""
    rows, columns = x.shape[0] if nodes is None else nodes.numel(), int(x.shape[1])
    if path == "dense":
        return 4 * rows * columns
    if path == "binary":
        return binary_bytes(rows, columns)
    values = int(density(x) * rows * columns)
    if nodes is not None and isinstance(x, SparseFeatures):
        values = int((x.indptr[nodes + 1] - x.indptr[nodes]).sum())
    return 2 * 8 * (values + rows + columns + 2)  # by row and by column, each with the kernels' partition

"""DeviceCopies: copies the arrays that a planned step reads in every run to a device, each of them once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from graphbraid.fullgraph.device import Device
from graphbraid.fullgraph.lowering.levels import Block, Blocks, TypedBlock
from graphbraid.fullgraph.step.epilogues import Seeds, SeedsInMemory
from graphbraid.fullgraph.step.maps import DeviceMap, Picker
from graphbraid.graph.csc import Csc
from graphbraid.ops.aggregation import Aggregation

WORKSPACE_BYTES = 1 << 26
"""Bytes left free beyond those counted, for cuBLAS's workspace and the kernels' partial sums."""


class DeviceCopies:
    """The arrays of an engine on a device, shared by its planned steps.

    Adjacencies and their transposes are prepared on the host, where there are kernels for it and memory to
    spare, and copied once. A block whose edges are a prefix of another block's shares them on the device too.

    Args:
        device: the device to copy to, other than the host.
        picker: chooses the kernels that aggregate. If None, by measurement on the device.
    """

    def __init__(self, device: Device, picker: Picker | None = None) -> None:
        self.device = device
        self.place = device.place
        self.picker = picker or Picker(device.seconds, device.free_bytes)
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

        Args:
            blocks: the edges from each level to the next.
            walked: numbers of the relations whose edges are read by more than aggregations, which have copies
                of their own; the edges of others are not copied.
            transpose: whether an operation reads transposes.
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

    def seeds(self) -> Seeds:
        """Return seeds of dropout masks in the device's memory."""
        return SeedsInMemory(self.place)

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
    """Counts the bytes of :class:`DeviceCopies` without copying or transposing anything.

    Args:
        device: the device to count for.
    """

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

"""Seconds that the pipelined kernel would take on a device, by a simulation of its blocks and warps.

No device was measured for this: tables of it stand in for recorded ones, which ``benchmarks.gpu.pipeline``
writes where there is a GPU. Blocks are given to multiprocessors in order, each to the one that is idle first;
a block works through the pairs of its warps in step, and waits for the slowest rows of each.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.fullgraph.device import DeviceLimits
from graphbraid.fullgraph.ranks.pipeline_tuner import (
    DISTANCES,
    SIZES,
    WARPS,
    Partitions,
    Setting,
    resident_blocks,
)
from graphbraid.ops.peers.pipeline_plan import PipelineConfig, interleaved

AHEAD = 4


@dataclass(frozen=True, kw_only=True)
class Ways:
    """How long a row is on its way, and how many bytes pass in a second."""

    local_seconds: float = 0.6e-6
    remote_seconds: float = 1.6e-6
    local_bytes: float = 1.5e12
    remote_bytes: float = 2.5e11
    pair_seconds: float = 0.8e-6
    """Seconds to find a pair's edges, and to write its sums."""
    block_seconds: float = 2e-6
    """Seconds to begin and end a block."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """In-edges from own and from peers' rows by destination, and the device."""

    local: Tensor
    remote: Tensor
    width: int
    limits: DeviceLimits
    ways: Ways = Ways()

    def partitions(self) -> dict[int, Partitions]:
        return {
            ps: Partitions(local=int(-(-self.local // ps).sum()), remote=int(-(-self.remote // ps).sum()))
            for ps in SIZES
        }

    def table(self) -> dict[Setting, float]:
        """Seconds of every setting, those included that are not worth a trial."""
        found = {}
        for ps in SIZES:
            sizes, num_local = self._sizes(ps)
            for dist in DISTANCES:
                work = interleaved(num_local, sizes.numel() - num_local, dist).long()
                edges = torch.where(work >= 0, sizes[work.clamp(min=0)], 0)
                for wpb in WARPS:
                    config = PipelineConfig(ps=ps, dist=dist, wpb=wpb)
                    found[ps, dist, wpb] = self._seconds(edges, sizes.numel(), config)
        return found

    def _seconds(self, edges: Tensor, num_partitions: int, config: PipelineConfig) -> float:
        """Seconds where warps have so many edges, of own rows and then of peers', in each of their pairs."""
        near, far = edges[:, : config.dist], edges[:, config.dist :]
        blocks = -(-len(edges) // config.wpb)
        near, far = (self._slowest(one, blocks, config.wpb) for one in (near, far))
        rounds = -(-torch.maximum(near, far) // AHEAD)
        slower = torch.where(far > 0, self.ways.remote_seconds, self.ways.local_seconds)
        busy = (rounds * slower + self.ways.pair_seconds).sum(1) + self.ways.block_seconds
        first = max(self._scheduled(busy.tolist(), config), self._bytes_seconds())
        return first + self._second_pass(num_partitions)

    def _sizes(self, ps: int) -> tuple[Tensor, int]:
        """Edges of each partition, local ones first, and the number of those."""
        found = []
        for degrees in (self.local, self.remote):
            count = -(-degrees // ps)
            sizes = torch.full((int(count.sum()),), ps)
            last = count.cumsum(0)[count > 0] - 1
            sizes[last] = (degrees - (count - 1) * ps)[count > 0]
            found.append(sizes)
        return torch.cat(found), found[0].numel()

    @staticmethod
    def _slowest(edges: Tensor, blocks: int, wpb: int) -> Tensor:
        whole = torch.zeros(blocks * wpb, edges.shape[1], dtype=edges.dtype)
        whole[: len(edges)] = edges
        return whole.view(blocks, wpb, -1).amax(1)

    def _scheduled(self, busy: list[float], config: PipelineConfig) -> float:
        places = self.limits.num_sms * resident_blocks(config, self.width, self.limits)
        ends = busy[:places]
        heapq.heapify(ends)
        for seconds in busy[places:]:
            heapq.heapreplace(ends, ends[0] + seconds)
        return max(ends, default=0.0)

    def _bytes_seconds(self) -> float:
        row = 4 * self.width
        local, remote = int(self.local.sum()) * row, int(self.remote.sum()) * row
        return max(local / self.ways.local_bytes, remote / self.ways.remote_bytes)

    def _second_pass(self, num_partitions: int) -> float:
        return 2 * 4 * self.width * num_partitions / self.ways.local_bytes + 5e-6


def power_law(num_rows: int, mean: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(num_rows, generator=generator).clamp_(min=1e-4).pow(-0.7)
    return (draws * mean / draws.mean()).long()


_A100 = DeviceLimits(num_sms=108, warps_per_sm=64, shared_bytes_per_sm=164 * 1024)
_SMALL = DeviceLimits(num_sms=20, warps_per_sm=48, shared_bytes_per_sm=100 * 1024, blocks_per_sm=16)
CASES: Mapping[str, Case] = {
    "dense, mostly local": Case(
        local=power_law(4000, 60, 0), remote=power_law(4000, 15, 1), width=64, limits=_A100
    ),
    "dense, mostly remote": Case(
        local=power_law(3000, 15, 2), remote=power_law(3000, 50, 3), width=64, limits=_A100
    ),
    "sparse": Case(local=power_law(60000, 4, 4), remote=power_law(60000, 4, 5), width=16, limits=_A100),
    "slow link": Case(
        local=power_law(4000, 30, 6),
        remote=power_law(4000, 30, 7),
        width=128,
        limits=_SMALL,
        ways=Ways(remote_seconds=4e-6, remote_bytes=2e10),
    ),
    "few rows": Case(local=power_law(9000, 6, 8), remote=power_law(9000, 6, 9), width=32, limits=_SMALL),
    "a graph smaller than the device": Case(
        local=power_law(40, 3, 8), remote=power_law(40, 3, 9), width=32, limits=_A100
    ),
}


def drawn_case(seed: int) -> Case:
    """Some graph, of a power law and perhaps with hubs, on some device and link."""
    draw = random.Random(seed)
    num_rows = int(10 ** draw.uniform(3, 4.4))
    local, remote = (power_law(num_rows, 10 ** draw.uniform(0.3, 1.2), seed + i) for i in (0, 1000))
    if draw.random() < 0.4:
        local[0], remote[1] = 3 * num_rows, 2 * num_rows
    ways = Ways(remote_seconds=draw.choice([1e-6, 2e-6, 4e-6]), remote_bytes=draw.choice([2e10, 1e11, 3e11]))
    width, limits = draw.choice([16, 32, 64, 128]), draw.choice([_A100, _SMALL])
    return Case(local=local, remote=remote, width=width, limits=limits, ways=ways)

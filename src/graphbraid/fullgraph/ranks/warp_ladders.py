"""The settings of the pipelined kernel that are worth a trial, by MGG's model of a device and its limits.

Section 4 of Wang et al., "MGG", with its names: ``ps`` edges of a partition, ``dist`` partitions of a kind
that a warp works on, ``wpb`` warps of a block, and ``D`` columns of a row. The paper keeps ids and partial
results of a block in shared memory, where equation 1 counts them; the kernel here keeps them in registers, of
which a multiprocessor has more bytes, so that the bound is on the safe side. Departs from the paper in where
``ps`` and ``wpb`` begin: where fewer edges or warps would leave reads or places for warps unused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from graphbraid.fullgraph.device import DeviceLimits
from graphbraid.ops.peers.pipeline_plan import MOST_WARPS, Knobs

SIZES = (4, 8, 16, 32)
"""Edges of a partition that are tried. The kernel reads four rows of a partition at a time, so that fewer
edges would leave some of these reads empty; 32 is the paper's largest."""
DISTANCES = (1, 2, 4, 8, 16)
WARPS = tuple(1 << shift for shift in range(MOST_WARPS.bit_length()))
NEARLY_ALL = 0.9
"""Least part of the highest occupancy that a number of warps must reach to be tried."""
TILE_COLUMNS = 128
"""Most columns of a row that one warp sums up; the others are those of further blocks."""
INT_BYTES = FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Partitions:
    """Numbers of neighbour partitions of one rank."""

    local: int
    """Partitions of own rows."""
    remote: int
    """Partitions of peers' rows."""


def work_per_warp(knobs: Knobs, columns: int) -> int:
    """Return the numbers that a warp adds up, ``WPW = 2 ps D dist`` (equation 1)."""
    return 2 * knobs.ps * columns * knobs.dist


def shared_bytes(knobs: Knobs, columns: int) -> int:
    """Return the bytes of a block's ids and partial results (equation 1).

    ``SMEM = ps wpb IntS + 2 wpb D FloatS``.
    """
    return knobs.ps * knobs.wpb * INT_BYTES + 2 * knobs.wpb * columns * FLOAT_BYTES


def num_warps(partitions: Partitions, dist: int) -> int:
    """Return ``ceil(max(local, remote) / dist)`` (equation 2)."""
    return _ceil(max(partitions.local, partitions.remote), dist)


def num_blocks(partitions: Partitions, knobs: Knobs, width: int) -> int:
    """Return ``ceil(numWarps / wpb)`` (equation 3), for each tile of a row's columns."""
    return _ceil(num_warps(partitions, knobs.dist), knobs.wpb) * _ceil(width, TILE_COLUMNS)


def blocks_per_sm(partitions: Partitions, knobs: Knobs, width: int, limits: DeviceLimits) -> float:
    """Return ``numBlocks / numSMs`` (equation 3): blocks that a multiprocessor works through."""
    return num_blocks(partitions, knobs, width) / limits.num_sms


def resident_blocks(knobs: Knobs, columns: int, limits: DeviceLimits) -> int:
    """Return how many blocks a multiprocessor holds at a time; 0 where one is too large."""
    by_memory = limits.shared_bytes_per_sm // shared_bytes(knobs, columns)
    return min(limits.blocks_per_sm, limits.warps_per_sm // knobs.wpb, by_memory)


def occupancy(knobs: Knobs, columns: int, limits: DeviceLimits) -> float:
    """Return the part of a multiprocessor's warps that its resident blocks have."""
    return resident_blocks(knobs, columns, limits) * knobs.wpb / limits.warps_per_sm


def is_allowed(knobs: Knobs, width: int, partitions: Partitions, limits: DeviceLimits) -> bool:
    """Return whether a setting is worth a trial.

    A block must fit, and every multiprocessor have one. Warps work on more than one partition of a kind only
    where blocks fill all places of the device: else more warps would do the same work with more reads under
    way.

    Args:
        knobs: the setting.
        width: columns of a row.
        partitions: of the busiest rank, of ``ps`` edges.
        limits: of the device.
    """
    resident = resident_blocks(knobs, min(width, TILE_COLUMNS), limits)
    blocks = num_blocks(partitions, knobs, width)
    if resident == 0 or blocks < limits.num_sms:
        return False
    return knobs.dist == 1 or blocks >= limits.num_sms * resident


def warp_ladders(
    width: int, partitions: Mapping[int, Partitions], limits: DeviceLimits
) -> tuple[dict[str, tuple[int, ...]], Callable[[Sequence[int]], bool]]:
    """Return the values of each knob, in the paper's order, and which settings of them are worth a trial.

    Numbers of warps of a block are tried with which a multiprocessor has, of the warps that it can have, all
    or nearly all. The first setting is tried in any case: of a graph that does not fill the device, there is
    no other.

    Args:
        width: columns of a row.
        partitions: of the busiest rank, for each of :data:`SIZES`.
        limits: of the device.
    """
    warps = _filling(min(width, TILE_COLUMNS), limits)
    first = (SIZES[0], DISTANCES[0], warps[0])

    def allowed(setting: Sequence[int]) -> bool:
        ps, dist, wpb = setting
        knobs = Knobs(ps=ps, dist=dist, wpb=wpb)
        return tuple(setting) == first or is_allowed(knobs, width, partitions[ps], limits)

    ladders = {"ps": SIZES, "dist": DISTANCES, "wpb": warps}
    kept = {}
    for place, (name, values) in enumerate(ladders.items()):
        settings = [(*first[:place], value, *first[place + 1 :]) for value in values]
        kept[name] = tuple(one for one, setting in zip(values, settings, strict=True) if allowed(setting))
    return kept, allowed


def _filling(columns: int, limits: DeviceLimits) -> tuple[int, ...]:
    """Return the numbers of warps of a block that leave few places for warps empty."""
    found = {wpb: occupancy(Knobs(ps=SIZES[0], wpb=wpb), columns, limits) for wpb in WARPS}
    most = max(found.values())
    return tuple(wpb for wpb, part in found.items() if part >= NEARLY_ALL * most)


def _ceil(count: int, size: int) -> int:
    return -(-count // size)


__all__ = [
    "DISTANCES",
    "SIZES",
    "WARPS",
    "Partitions",
    "blocks_per_sm",
    "is_allowed",
    "num_blocks",
    "num_warps",
    "occupancy",
    "resident_blocks",
    "shared_bytes",
    "warp_ladders",
    "work_per_warp",
]

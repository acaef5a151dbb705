"""Which parts, rows and lists of a graph a device that samples keeps, by the memory there is for them."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from torch import Tensor

from graphbraid.collective.hardware.device_budget import divide, held_list_bytes
from graphbraid.collective.hardware.device_placement import (
    PARTS,
    PlacedPart,
    choose_placement,
    may_choose_rows,
    part_bytes_of,
)
from graphbraid.collective.hardware.device_resident import Resident
from graphbraid.collective.run.stages import Context
from graphbraid.features.scores.walks import out_degree
from graphbraid.graph import ScaledFeatures, SparseFeatures
from graphbraid.graph.scaled_features import kept_row_bytes, scale_of, stored_rows
from graphbraid.ops.gather import gather_rows
from graphbraid.sampling.rows.device_cache import MAP_BYTES, DeviceCache

LOCAL_ID_BYTES = 8
"""Bytes of each node in the table of the device's sampler."""


def resident_in(room: int, context: Context) -> Resident:
    """Choose parts as far as they fit, and rows and lists of those that do not.

    Args:
        room: bytes of device memory for all of it, the sampler's table of local ids included.
        context: of the loader. Nothing is placed.
    """
    rows, sizes = context.source.rows, part_bytes_of(context)
    room -= LOCAL_ID_BYTES * context.source.graph.num_nodes
    placement = choose_placement(sizes, room)
    divides_rows = context.gathers_rows and may_choose_rows(context.source)
    if context.hot is not None or (divides_rows and placement["topology"] == "host"):
        placement = {**placement, "features": "host"}  # but for the rows that are chosen
    divides_rows &= placement["features"] == "host"
    left = room - sum(sizes[part] for part in PARTS if placement[part] == "device")
    hot = None if rows is None else rows.hot
    if placement["topology"] == "device":
        return Resident(placement=placement, rows=hot_rows_in(left, context) if divides_rows else hot)
    found = divide(left - _hot_bytes(hot, context), context, with_rows=divides_rows)
    if divides_rows and found.rows is not None:
        if len(found.rows) == context.source.graph.num_nodes:
            placement = {**placement, "features": "device"}
            return Resident(placement=placement, lists=found.lists, reason=found.reason)
        hot = _hot_rows(found.rows, context)
    return Resident(placement=placement, rows=hot, lists=found.lists, reason=found.reason)


def resident_bytes(resident: Resident, context: Context) -> Mapping[str, int]:
    """Return the device memory of what was chosen: :data:`PARTS`, ``lists``, ``rows`` and ``local ids``."""
    sizes: dict[PlacedPart, int] = part_bytes_of(context)
    held = {part: sizes[part] if resident.placement[part] == "device" else 0 for part in PARTS}
    return held | {
        "lists": 0 if resident.lists is None else held_list_bytes(resident.lists, context),
        "rows": _hot_bytes(resident.rows, context),
        "local ids": LOCAL_ID_BYTES * context.source.graph.num_nodes,
    }


def hot_rows_in(room: int, context: Context) -> DeviceCache | None:
    """Return the rows of most out-edges that fit in ``room`` bytes with their map; None if no row does."""
    x, num_nodes = context.source.graph.x, context.source.graph.num_nodes
    assert isinstance(x, Tensor | ScaledFeatures)
    num_rows = (room - MAP_BYTES * num_nodes) // max(kept_row_bytes(x), 1)
    if num_rows < 1:
        return None
    order = out_degree(context.source.graph.csc).argsort(descending=True, stable=True)
    return _hot_rows(order[:num_rows], context)


def _hot_rows(ids: Tensor, context: Context) -> DeviceCache:
    x = context.source.graph.x
    assert isinstance(x, Tensor | ScaledFeatures)
    rows = stored_rows(x)
    assert rows is not None
    return DeviceCache(ids, context.source.graph.num_nodes, functools.partial(gather_rows, rows), scale_of(x))


def _hot_bytes(hot: DeviceCache | None, context: Context) -> int:
    """Device memory of rows that the features' tiers keep there."""
    x = context.source.graph.x
    if hot is None or isinstance(x, SparseFeatures | None):
        return 0
    return hot.device_bytes(kept_row_bytes(x))

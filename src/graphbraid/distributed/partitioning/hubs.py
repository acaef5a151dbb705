"""Hubs: nodes so heavy that a part of several of them can only be relieved of one."""

from __future__ import annotations

import torch
from torch import Tensor


def is_hub(loads: Tensor, total: int, num_parts: int, limit: int) -> Tensor:
    """Return which nodes would take a part of mean load above the limit: fewer than parts over slack."""
    return loads * num_parts > limit * num_parts - total


def relieve(part_of: Tensor, sums: Tensor, hubs: Tensor, loads: Tensor, limit: int) -> None:
    """Move a hub out of each part above the limit that stays above it otherwise.

    It goes to the lightest part whose other nodes can make room for it, which is above the limit then, until
    these are placed again.

    Args:
        part_of: ``(num_nodes,)`` int32, updated.
        sums: ``(num_parts,)`` int64 loads of the parts, updated.
        hubs: ``(num_hubs,)`` int64 nodes.
        loads: ``(num_hubs,)`` int64, theirs.
        limit: Largest load of a part.
    """
    fixed = torch.zeros_like(sums).index_add_(0, part_of[hubs], loads)
    for part in (sums > limit).nonzero().squeeze(1).tolist():
        excess = int(sums[part]) - limit
        able = ((part_of[hubs] == part) & (loads >= excess)).nonzero().squeeze(1)
        if not able.numel() or sums[part] - fixed[part] >= excess:
            continue
        hub = able[loads[able].argmin()]
        load = int(loads[hub])
        has_room = fixed + load <= limit
        has_room[part] = False
        if bool(has_room.any()):
            to = int(torch.where(has_room, sums, sums.max() + 1).argmin())
            part_of[hubs[hub]] = to
            for of_parts in (sums, fixed):
                of_parts[to] += load
                of_parts[part] -= load

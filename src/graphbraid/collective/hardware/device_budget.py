"""What of a graph that does not fit is on the device: one budget for adjacency lists and feature rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.collective.run.stages import Context
from graphbraid.features.budgets.budget import Curve, split
from graphbraid.features.budgets.list_budgets import list_blocks
from graphbraid.features.scores import walks
from graphbraid.files.writing import format_bytes
from graphbraid.graph import SparseFeatures
from graphbraid.graph.csc import Csc, index_dtype
from graphbraid.graph.scaled_features import kept_row_bytes
from graphbraid.sampling.rows.device_cache import MAP_BYTES
from graphbraid.sampling.rows.transfer_counter import SECTOR_BYTES, SUM_BYTES, WEIGHT_BYTES, row_sectors


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class DeviceSplit:
    """The parts of topology and features on a device that does not hold the topology as a whole."""

    lists: Tensor | None
    """``(num_lists,)`` int64 nodes whose adjacency lists are on the device; None: none."""
    rows: Tensor | None
    """``(num_rows,)`` int64 nodes whose feature rows are there, those read most first; None: none."""
    reason: str
    """How memory is divided, in words."""


def divide(room: int, context: Context, *, with_rows: bool) -> DeviceSplit:
    """Divide device memory between adjacency lists and feature rows by the link's bytes that each saves.

    A row is read once by each batch that has its node; a list by each hop that draws among its edges, and
    every draw moves a sector of it. Both are expected under the sampler's fanouts and seeds. The items that
    save most per byte are held until nothing more fits.

    Args:
        room: bytes for both and for what is noted of them.
        context: context of the loader; its graph is on the CPU.
        with_rows: whether rows take part; else all room is for lists.
    """
    csc, x = context.source.graph.csc, context.source.graph.x
    by_list = _curve_of_lists(context)
    notes, rows_notes = _notes_of_lists(csc), MAP_BYTES * csc.num_dst
    if not with_rows or isinstance(x, SparseFeatures | None):
        [num_lists] = split(room - notes, [by_list])
        return _divided(room, (by_list, num_lists), None)
    reads = walks.inclusion(csc, context.sampler, context.schedule)
    row_bytes = max(kept_row_bytes(x), 1)
    sectors = row_sectors(x, torch.arange(csc.num_dst))
    by_row = Curve.of(reads * (sectors * SECTOR_BYTES), row_bytes)
    num_lists, num_rows = split(room - notes - rows_notes, (by_list, by_row))
    if not num_lists:  # nor is anything noted of them
        [num_rows] = split(room - rows_notes, [by_row])
    if not num_rows:
        [num_lists] = split(room - notes, [by_list])
    return _divided(room, (by_list, num_lists), (by_row, num_rows))


def _divided(room: int, lists: tuple[Curve, int], rows: tuple[Curve, int] | None) -> DeviceSplit:
    said = []
    for name, part in (("adjacency lists", lists), ("feature rows", rows)):
        if part is not None:
            curve, count = part
            said.append(
                f"{format_bytes(curve.num_bytes(count))} to {count:,} of {len(curve):,} {name} "
                f"({curve.share(count):.1%} of what they are expected to move over the link)"
            )
    return DeviceSplit(
        lists=_first(*lists),
        rows=None if rows is None else _first(*rows),
        reason=f"device {format_bytes(max(room, 0))}: " + " and ".join(said) + ", by bytes saved per byte",
    )


def _first(curve: Curve, count: int) -> Tensor | None:
    return curve.order[:count].clone() if count else None


def _notes_of_lists(csc: Csc) -> int:
    """Bytes of ``indptr`` and of the map of the nodes, which go to the device with hot lists."""
    return csc.indptr.nbytes + csc.num_dst * index_dtype(csc.num_edges).itemsize


def held_list_bytes(lists: Tensor, context: Context) -> int:
    """Bytes of the adjacency lists of ``lists``, ``(num_lists,)`` int64, on a device, with what is noted."""
    csc = context.source.graph.csc
    edge_bytes = csc.indices.itemsize + _weight_bytes(context)
    return _notes_of_lists(csc) + int(csc.degrees()[lists].sum()) * edge_bytes


def _curve_of_lists(context: Context) -> Curve:
    """The curve of the lists that are not empty."""
    csc, sampler = context.source.graph.csc, context.sampler
    degrees = csc.degrees()
    filled = degrees.nonzero().flatten()
    sectors = torch.zeros(csc.num_dst, dtype=torch.float64)
    for fanout, reads in walks.expansions(csc, sampler, context.schedule):
        if fanout:
            sectors += reads * _sectors_of(degrees, fanout, context)
    size = degrees[filled] * (csc.indices.itemsize + _weight_bytes(context))
    curve = Curve.of(sectors[filled] * SECTOR_BYTES, size)
    return Curve(order=filled[curve.order], size=curve.size, saved=curve.saved)


def _weight_bytes(context: Context) -> int:
    """Bytes of each edge that draws by weight read beside its id: running sums, or the weights."""
    if not context.sampler.weighted:
        return 0
    return SUM_BYTES if context.sampler.replace else WEIGHT_BYTES


def _sectors_of(degrees: Tensor, fanout: int, context: Context) -> Tensor:
    """Sectors that a hop reads of each list: of the drawn ids, and of the weights that decide the draws."""
    ids = list_blocks(degrees, fanout, context.source.graph.csc.indices.itemsize, SECTOR_BYTES)
    if not context.sampler.weighted:
        return ids
    if not context.sampler.replace:  # a race of all edges
        return ids + list_blocks(degrees, -1, _weight_bytes(context), SECTOR_BYTES)
    steps = (degrees + 1).log2().ceil().long()  # of a bisection for each draw
    return ids + list_blocks(degrees, 1, _weight_bytes(context), SECTOR_BYTES) * steps * fanout

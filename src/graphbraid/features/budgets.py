"""Budgets: the rows and adjacency lists that a given amount of memory holds.

Each kind has a curve: the savings of its best items by the bytes they take. The curves are merged by benefit
per byte, as the dual cache of DUCATI (Zhang et al., SIGMOD 2023) does for a GPU's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import as_budget, check_tensor, shown
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.features.rows.caches import RowCache
from graphbraid.features.rows.disk import DiskOptions, DiskRows, RowReader
from graphbraid.files import mapped
from graphbraid.files.block_sums import BLOCK_BYTES
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph
from graphbraid.graph.scaled_features import stored_rows
from graphbraid.machine.hardware import free_memory_bytes
from graphbraid.sampling.rows.device_cache import MAP_BYTES


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Curve:
    """The savings by holding the items of one kind, best first."""

    order: Tensor
    """``(num_items,)`` int64 items, largest saving per byte first, then the lower number."""
    size: Tensor
    """``(num_items,)`` int64 bytes of each, in this order."""
    saved: Tensor
    """``(num_items,)`` float64 saving by holding each, in this order; not negative."""

    @classmethod
    def of(cls, saved: Tensor, size: Tensor | int) -> Curve:
        """Order items by their savings per byte.

        Args:
            saved: ``(num_items,)`` savings by holding each item, such as reads an epoch; all curves of a
                split must use one unit. Below 0 counts as 0.
            size: ``(num_items,)`` int64 bytes, above 0; or one number for every item.

        Raises:
            DataError: their lengths differ, or they are not such numbers.
        """
        check_tensor(saved, "saved", ndim=1)
        if not isinstance(size, Tensor):
            size = torch.as_tensor(size).expand(saved.numel())
        if check_tensor(size, "size").shape != saved.shape or size.dtype != torch.int64:
            raise DataError(f"size must be int64, one for each of {saved.numel()} items; got {shown(size)}")
        saved = saved.double().clamp(min=0.0)
        if not bool(torch.isfinite(saved).all()) or (saved.numel() and int(size.min()) < 1):
            raise DataError("saved must be finite, and size at least 1")
        order = (saved / size).argsort(descending=True, stable=True)
        return cls(order=order, size=size[order], saved=saved[order])

    def __len__(self) -> int:
        return self.order.numel()

    def num_bytes(self, count: int) -> int:
        """Bytes of the first ``count`` items."""
        return int(self.size[:count].sum())

    def share(self, count: int) -> float:
        """Share of the savings of all items that the first ``count`` give."""
        total = float(self.saved.sum())
        return float(self.saved[:count].sum()) / total if total else 0.0


def split(budget: int, curves: Sequence[Curve]) -> list[int]:
    """Divide memory between kinds of items by their savings.

    Items of all kinds are taken by falling savings per byte; of equal ones, an earlier curve comes first.
    Once the next item of a curve does not fit, that curve ends, and the others go on until nothing more fits.

    Args:
        budget: bytes for all items.
        curves: one for each kind, in the same unit.

    Returns:
        Number of items held of each curve, from its first on.
    """
    counts, left = [0] * len(curves), max(budget, 0)
    is_open = list(range(len(curves)))
    while is_open:
        kind, size = _merged([curves[k] for k in is_open], [counts[k] for k in is_open])
        taken = int(torch.searchsorted(size.cumsum(0), left, right=True))  # as many of the best as fit
        left -= int(size[:taken].sum())
        for place, count in enumerate(torch.bincount(kind[:taken], minlength=len(is_open)).tolist()):
            counts[is_open[place]] += count
        if taken == kind.numel():
            break
        del is_open[int(kind[taken])]
    return counts


def _merged(curves: list[Curve], taken: list[int]) -> tuple[Tensor, Tensor]:
    """Curve number and bytes of each item that is not taken yet, best first."""
    sizes = [curve.size[count:] for curve, count in zip(curves, taken, strict=True)]
    saved = [curve.saved[count:] for curve, count in zip(curves, taken, strict=True)]
    kinds = [torch.full((size.numel(),), place, dtype=torch.uint8) for place, size in enumerate(sizes)]
    size = torch.cat(sizes)
    order = (torch.cat(saved) / size).argsort(descending=True, stable=True)
    return torch.cat(kinds)[order].long(), size[order]


RESERVE_SHARE = 0.1
"""Share of the free memory that is left for the system and for memory that no estimate counts."""
LEAST_RESERVE_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class HostBudget:
    """The memory for a stored graph that ``tiers="auto"`` takes."""

    host: int | None
    """Bytes, as ``HostTiers.build`` takes them; None: no tiers, the graph is used as it is."""
    free_bytes: int | None
    """Memory that may be taken; None if it is not known."""
    needed_bytes: int
    """Bytes that the run needs beside the placed graph."""
    reserve_bytes: int
    """Bytes that are left free."""
    reason: str


def list_bytes(graph: Graph) -> int:
    """Return the bytes of the adjacency lists that a store's file holds; 0 if they are in memory."""
    indptr, indices = graph.csc.indptr, graph.csc.indices
    return indptr.nbytes + indices.nbytes if mapped.find(indices.data_ptr(), indices.nbytes) else 0


def host_budget(
    graph: Graph, *, free_bytes: int | None, needed_bytes: int, with_lists: bool = True
) -> HostBudget:
    """Choose the memory for a graph's feature rows and, ``with_lists``, adjacency lists.

    ``free_bytes`` is what the run may take, None if not known; ``needed_bytes`` what it needs beside them.
    """

    def chosen(host: int | None, reason: str, reserve: int = 0) -> HostBudget:
        return HostBudget(
            host=host,
            free_bytes=free_bytes,
            needed_bytes=needed_bytes,
            reserve_bytes=reserve,
            reason=reason,
        )

    x = stored_rows(graph.x)
    if x is None or graph.x is None:
        return chosen(None, "no tiers: only dense features are put in tiers")
    if mapped.find(x.data_ptr(), x.nbytes) is None:
        return chosen(None, "no tiers: the features are in memory, and no store's file holds them")
    if free_bytes is None:
        return chosen(None, "no tiers: the free memory is not known")
    reserve = max(int(RESERVE_SHARE * free_bytes), LEAST_RESERVE_BYTES)
    left = free_bytes - needed_bytes - reserve
    words = (
        f"{format_bytes(free_bytes)} less {format_bytes(needed_bytes)} for the rest of the run and a reserve "
        f"of {format_bytes(reserve)}"
    )
    whole = graph.x.nbytes + (list_bytes(graph) if with_lists else 0)
    parts = "rows and lists" if with_lists and list_bytes(graph) else "rows"
    if whole <= left:
        return chosen(None, f"no tiers: all {format_bytes(whole)} of {parts} fit ({words})", reserve)
    if left < x.shape[0] * _NOTES_BYTES + _LEAST_BYTES:
        return chosen(0, f"all {parts} from the files: no memory is left for them ({words})", reserve)
    return chosen(left, f"{format_bytes(left)} for {parts}: {words}", reserve)


_NOTES_BYTES = 40  # of bookkeeping for each row and list, in memory or not
_LEAST_BYTES = 1 << 20  # buffers of requests, and some rows


_SLOT_BYTES = 32  # of bookkeeping for each row in memory: csrc/disk/row_cache.cpp, and what filled it
_SCALE_BYTES = 4  # the scale of each row of int8, in memory or not
_FEWEST_REQUESTS = 4  # under way at a time, however small the budget


def options_for(host: int | str) -> DiskOptions:
    """Options to read with a budget; requests under way take at most an eighth of it."""
    options = DiskOptions()
    size = as_budget(host, "host")
    fit = max(size // 8 // options.longest_bytes, _FEWEST_REQUESTS) if size else options.depth
    return DiskOptions(depth=min(fit, options.depth))


def row_bytes_kept(rows: RowReader, *, ranked: bool, scaled: bool = False) -> tuple[int, int]:
    """Bytes of bookkeeping for all rows if some are kept (scales included), and bytes of each kept row."""
    noted = 8 + ranked + _SCALE_BYTES * scaled
    return rows.buffer_bytes + rows.shape[0] * noted, rows.row_bytes + _SLOT_BYTES


def host_rows_in(host: int | str, rows: DiskRows, *, ranked: bool, scaled: bool = False) -> int:
    """Rows in a budget; ConfigError if none fits and it is not 0, ResourceError if above the free memory."""
    num_rows = rows.shape[0]
    notes, kept = row_bytes_kept(rows, ranked=ranked, scaled=scaled)
    whole = notes + num_rows * kept
    budget = min(as_budget(host, "host"), whole)
    if budget == 0:
        return 0
    require_free(budget, f"host={host!r}")
    held = min((budget - notes) // kept, num_rows)
    if held < 1:
        raise ConfigError(
            f"host={host!r} holds no row: the bookkeeping of all {num_rows:,} rows takes "
            f"{format_bytes(notes)}, a row {format_bytes(kept)}. Give more, or 0 to "
            "read all from the file"
        )
    return held


def hot_ids_in(hot: int | str, order: Tensor, row_bytes: int) -> Tensor:
    """The rows that a budget of device memory holds: ``(num_hot,)`` int64, empty for a budget of 0.

    The budget is for rows and the map that finds them, ``"all"`` for every row; ``order`` has those read most
    first. ConfigError: it holds no row, and is not 0.
    """
    num_rows = len(order)
    budget = as_budget(hot, "hot")
    if budget == 0 or num_rows == 0:
        return order[:0]
    held = min(budget // row_bytes, num_rows)
    if not torch.equal(order[:held], torch.arange(held)):
        held = min(max(budget - MAP_BYTES * num_rows, 0) // row_bytes, num_rows)
    if held < 1:
        raise ConfigError(
            f"hot={hot!r} holds no row: the map of all {num_rows:,} rows takes "
            f"{format_bytes(MAP_BYTES * num_rows)}, a row {format_bytes(row_bytes)}. Give more, or 0"
        )
    return order[:held]


def cache_in(
    host: int | str,
    rows: DiskRows,
    policy: str,
    score: Tensor | None,
    hot_ids: Tensor,
    *,
    scale: Tensor | None = None,
) -> RowCache:
    """A cache of a file's rows within a budget, filled with the highest rows that no device keeps.

    With a ``scale`` for each row, int8 rows are read as float32. Errors are those of :func:`host_rows_in`,
    and ConfigError for ``static`` without a score.
    """
    all_rows = rows.shape[0]
    num_rows = host_rows_in(host, rows, ranked=score is not None, scaled=scale is not None)
    if num_rows == all_rows:
        policy = "static"  # never evicts
    elif policy == "static" and num_rows and score is None:
        raise ConfigError(
            "policy='static' keeps the rows of the highest score; give score=, or another policy"
        )
    ranking = score
    if score is not None and hot_ids.numel():
        ranking = score.clone()
        ranking[hot_ids] = score.min()  # only evaluations may read them from the host
    cache = RowCache(rows, num_rows, policy=policy, score=ranking, scale=scale)
    cache.fill(_first_rows(score, num_rows, all_rows, len(hot_ids)))
    return cache


def order_of(score: Tensor) -> Tensor:
    """The rows, highest score first."""
    return score.argsort(descending=True, stable=True)


def _first_rows(score: Tensor | None, num_rows: int, all_rows: int, num_hot: int) -> Tensor:
    """The rows to fill memory with: the highest that no device keeps."""
    if num_rows == all_rows:
        return torch.arange(all_rows)
    if score is None:
        return torch.empty(0, dtype=torch.int64)
    return order_of(score)[num_hot : num_hot + num_rows]


def described(score: object) -> str:
    """Name the score that fills tiers, with the reason; empty if it has no name."""
    kind, reason = getattr(score, "kind", None), getattr(score, "reason", "")
    if not isinstance(kind, str):
        return ""
    return f"{kind}: {reason}" if reason else kind


def values_of(score: Any) -> Any:
    """The numbers of a score or of a record of it."""
    if isinstance(score, Tensor):  # which has a method of that name
        return score
    return getattr(score, "values", score)


_LONGEST_BYTES = 4 * BLOCK_BYTES


def list_options_for(host: int | str) -> DiskOptions:
    """Options to read lists with a budget; requests under way take at most an eighth of it."""
    size = as_budget(host, "host")
    whole = DiskOptions(longest_bytes=_LONGEST_BYTES)
    fit = size // 8 // _LONGEST_BYTES if size else whole.depth
    if fit >= _FEWEST_REQUESTS:
        return DiskOptions(longest_bytes=_LONGEST_BYTES, depth=min(fit, whole.depth))
    return DiskOptions(longest_bytes=BLOCK_BYTES, depth=_FEWEST_REQUESTS)


def list_blocks(degrees: Tensor, fanout: int, itemsize: int, block_bytes: int = BLOCK_BYTES) -> Tensor:
    """Expected number of blocks that are read to draw ``fanout`` edges of each list.

    ``degrees`` is ``(num_nodes,)`` int64. Edges are drawn uniformly and independently; -1 takes all. The
    result is ``(num_nodes,)`` float64; 0 for empty lists.
    """
    # A list may begin anywhere in a block, and each block boundary inside it adds one: this is the mean.
    spans = ((degrees - 1) * itemsize / block_bytes + 1.0).clamp(min=0.0) * (degrees > 0)
    if fanout < 0:
        return spans
    drawn = degrees.clamp(max=fanout).double()
    return torch.where(spans > 1.0, spans * -torch.expm1(drawn * torch.log1p(-1.0 / spans)), spans)


def require_free(num_bytes: int, what: str) -> None:
    """Raise ResourceError for a budget above the free memory."""
    free = free_memory_bytes()
    if free is not None and num_bytes > free:
        raise ResourceError(
            f"{what} takes {format_bytes(num_bytes)} of memory; {format_bytes(free)} are free. Give less: "
            "the others are read from the file"
        )

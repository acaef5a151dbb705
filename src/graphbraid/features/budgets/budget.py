"""One budget for several kinds of things that memory may hold: feature rows and adjacency lists.

Each kind has a curve: what its best items save, by the bytes they take. The curves are merged by benefit per
byte, as the dual cache of DUCATI (Zhang et al., SIGMOD 2023) does for a GPU's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.arguments import check_tensor, shown
from graphbraid.errors import DataError


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Curve:
    """What holding the best items of one kind saves, best first."""

    order: Tensor
    """``(num_items,)`` int64 items, those that save most per byte first; of equal ones the lower number."""
    size: Tensor
    """``(num_items,)`` int64 bytes of each, in this order."""
    saved: Tensor
    """``(num_items,)`` float64 that holding each saves, in this order; not negative."""

    @classmethod
    def of(cls, saved: Tensor, size: Tensor | int) -> Curve:
        """Order items by what they save per byte.

        Args:
            saved: ``(num_items,)`` that holding an item saves, in the unit of all curves of a split, such as
                reads an epoch; below 0 counts as 0.
            size: ``(num_items,)`` int64 bytes, above 0; or those of every item.

        Raises:
            DataError: they do not fit each other, or are not numbers of that kind.
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
        """Share of all that items could save that the first ``count`` save."""
        total = float(self.saved.sum())
        return float(self.saved[:count].sum()) / total if total else 0.0


def split(budget: int, curves: Sequence[Curve]) -> list[int]:
    """Divide memory between kinds of items by what it saves.

    Items of all kinds are taken by falling benefit per byte, those of an earlier curve first where it is
    equal, as long as they fit. Once the next item of a curve does not fit, no more of its items are taken,
    and the others go on, until nothing more fits.

    Args:
        budget: bytes for all items.
        curves: of each kind, in the same unit.

    Returns:
        How many of each curve's items are held, the first of its order.
    """
    counts, left = [0] * len(curves), max(budget, 0)
    is_open = list(range(len(curves)))
    while is_open:
        kind, size = _merged([curves[k] for k in is_open], [counts[k] for k in is_open])
        taken = int(torch.searchsorted(size.cumsum(0), left, right=True))
        left -= int(size[:taken].sum())
        for place, count in enumerate(torch.bincount(kind[:taken], minlength=len(is_open)).tolist()):
            counts[is_open[place]] += count
        if taken == kind.numel():
            break
        del is_open[int(kind[taken])]
    return counts


def _merged(curves: list[Curve], taken: list[int]) -> tuple[Tensor, Tensor]:
    """The curve of each item that is not taken yet, and its bytes, best first."""
    sizes = [curve.size[count:] for curve, count in zip(curves, taken, strict=True)]
    saved = [curve.saved[count:] for curve, count in zip(curves, taken, strict=True)]
    kinds = [torch.full((size.numel(),), place, dtype=torch.uint8) for place, size in enumerate(sizes)]
    size = torch.cat(sizes)
    order = (torch.cat(saved) / size).argsort(descending=True, stable=True)
    return torch.cat(kinds)[order].long(), size[order]

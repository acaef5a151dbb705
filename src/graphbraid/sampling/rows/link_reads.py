"""LinkReads: the feature rows that travelled to devices, counted by whoever moves them."""

from __future__ import annotations

import threading

from torch import Tensor

from graphbraid.sampling.rows.by_id import FeatureRows


class LinkReads:
    """Feature rows that travelled to devices since this was made; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows = self._bytes = 0

    def add(self, rows: Tensor) -> None:
        """Count rows that travel, ``(num_rows, F)``."""
        with self._lock:
            self._rows += len(rows)
            self._bytes += rows.nbytes

    @property
    def counts(self) -> tuple[int, int]:
        """Rows, and their bytes."""
        return self._rows, self._bytes


def link_of(rows: FeatureRows | None) -> LinkReads | None:
    """Return what counts the rows of a source that travel; None where it does not count them."""
    link = getattr(rows, "link", None)
    return link if isinstance(link, LinkReads) else None


def travelled(rows: FeatureRows, ids: Tensor) -> Tensor:
    """Return the rows of ``ids`` on their device; those that are not hot travel there, and are counted.

    Args:
        rows: where rows are.
        ids: ``(num_ids,)`` int64 on the device; the call waits for them.
    """
    link = link_of(rows)

    def gathered(wanted: Tensor) -> Tensor:
        found = rows.gather(wanted)
        if link is not None:
            link.add(found)
        return found

    if rows.hot is None:
        return gathered(ids.cpu()).to(ids.device)
    return rows.hot.assembled(ids, gathered)

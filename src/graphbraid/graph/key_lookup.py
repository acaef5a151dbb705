"""KeyLookup: where keys stand in a list, each of them as often as it is there, by binary search."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.graph.csc import ranges


class KeyLookup:
    """The places of each key in a list.

    Args:
        keys: ``(num_keys,)`` integers, in any order, repeated or not.
    """

    def __init__(self, keys: Tensor) -> None:
        self._keys, self._order = keys.sort(stable=True)

    def places(self, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Return where some keys stand.

        Args:
            wanted: ``(num_wanted,)`` integers of the dtype of the keys.

        Returns:
            For each pair of a wanted key and an equal one of the list their two places, int64: first in the
            order of ``wanted``, then in that of the list.
        """
        starts = torch.searchsorted(self._keys, wanted)
        counts = torch.searchsorted(self._keys, wanted, right=True) - starts
        row = torch.arange(wanted.numel(), device=wanted.device).repeat_interleave(counts)
        return row, self._order[ranges(starts, counts)]

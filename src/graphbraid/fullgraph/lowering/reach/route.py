"""Route: the rows that one of several ranks sends and receives between two levels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Route:
    """The rows that travel from a level of own rows to one of own rows and, after them, the halo's."""

    send: Tensor
    """``(num_sent,)`` int64 own rows to send, by receiver; a row goes to each rank that reads it."""
    send_rows: tuple[int, ...]
    """How many of them go to each rank."""
    receive_rows: tuple[int, ...]
    """How many halo rows come from each rank, in this order."""

    @property
    def num_sent(self) -> int:
        """Number of rows to send."""
        return sum(self.send_rows)

    @property
    def num_received(self) -> int:
        """Number of halo rows."""
        return sum(self.receive_rows)


__all__ = ["Route"]

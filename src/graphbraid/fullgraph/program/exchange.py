"""Exchange: the rows of other ranks' nodes, where the nodes of a graph are divided among ranks."""

from __future__ import annotations

from dataclasses import dataclass

from graphbraid.fullgraph.program.operations import Operation


@dataclass(frozen=True, kw_only=True)
class Exchange(Operation):
    """The rank's own rows, then those of its halo, which their owners send.

    The block between its two levels says which rows travel. A gradient travels back: owners add to a row's
    own gradient what the others have for it, in the order of the ranks.
    """

    symbol = "exchange"
    moves = True


__all__ = ["Exchange"]

"""Partition: which part owns each node, what chose it and why."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Literal

import torch
from torch import Tensor

from graphbraid.arguments import as_count, as_flag, check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.scans import Versioned, first_out_of_range, unchanged

MOST_PARTS = 1 << 16
"""Largest number of parts."""

Strategy = Literal["auto", "metis", "components", "greedy", "contiguous", "streaming", "random"]
STRATEGIES: tuple[Strategy, ...] = (
    "auto",
    "metis",
    "components",
    "greedy",
    "contiguous",
    "streaming",
    "random",
)
Balance = Literal["edges", "nodes", "work"]
BALANCES: tuple[Balance, ...] = ("edges", "nodes", "work")


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """A way of partitioning that was considered, and what came of it."""

    strategy: str
    """Its name, such as ``"metis k-way"``."""
    outcome: str
    """What it gave, or why it was not taken."""
    is_taken: bool
    """Whether the partition is the one that it gave."""


@unchanged("part_of")
@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Partition(Versioned):
    """Nodes divided among parts, each node owned by one.

    Raises:
        DataError: ``part_of`` is not 1-d int32 or names a part that is not there (says which node's).
    """

    part_of: Tensor
    """``(num_nodes,)`` int32, the part that owns each node, in ``[0, num_parts)``; a part may be empty."""
    num_parts: int
    """Number of parts."""
    strategy: str
    """What gave the partition."""
    balance: Balance
    """What was balanced: in-edges, nodes, or the work of both."""
    attempts: tuple[Attempt, ...] = ()
    """What was considered, in order; the last is what was taken."""
    mark: str = ""
    """Mark of the edges of the graph that was divided; other graphs are not cut by it. Empty: any is."""
    trusted: InitVar[bool] = False
    """Skip the scan of ``part_of``. Only for an array known to be valid."""

    def __post_init__(self, trusted: bool) -> None:
        as_count(self.num_parts, "num_parts", least=1, most=MOST_PARTS, error=DataError)
        check_tensor(self.part_of, "part_of", ndim=1)
        if self.part_of.dtype != torch.int32:
            raise DataError(f"part_of must be int32, a part for each node; got {self.part_of.dtype}")
        if as_flag(trusted, "trusted"):
            return
        node = first_out_of_range(self.part_of, self.num_parts)
        if node >= 0:
            raise DataError(
                f"part_of must name parts in [0, {self.num_parts}); that of node {node} is "
                f"{int(self.part_of[node])}"
            )

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.part_of.numel()

    def owned(self, part: int) -> Tensor:
        """Return the ids of a part's nodes, ``(num_owned,)`` int64, ascending."""
        return (self.part_of == part).nonzero().squeeze(1)

    def sizes(self) -> Tensor:
        """Return the number of nodes of each part, ``(num_parts,)`` int64."""
        return torch.bincount(self.part_of, minlength=self.num_parts)

"""A partition, how it is asked for, and how evenly it loads its parts."""

from __future__ import annotations

import os
from dataclasses import InitVar, dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from graphbraid.arguments import MOST_COUNT, as_count, as_flag, as_number, as_size, check_choice, check_tensor
from graphbraid.datasets.store.arrays import FolderKind
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc
from graphbraid.graph.scans import Versioned, first_out_of_range, unchanged
from graphbraid.signatures import typed

PARTITION = FolderKind(name="partition", manifest="partition.json", again="partition", version=2)
"""Folders of partitions; version 1 knew its graph by another checksum."""
MOST_PARTS = 1 << 16

Strategy = Literal["auto", "metis", "components", "greedy", "contiguous", "streaming", "random"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
Balance = Literal["edges", "nodes", "work"]
BALANCES: tuple[Balance, ...] = get_args(Balance)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """A method of partitioning that was considered, and its result."""

    strategy: str
    """Its name, such as ``"metis k-way"``."""
    outcome: str
    """Its result, or the reason why it was not taken."""
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
    strategy: str
    """Method of the partition."""
    balance: Balance
    """Balanced quantity: in-edges, nodes, or the work of both."""
    attempts: tuple[Attempt, ...] = ()
    """Considered methods in order; the last was taken."""
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


TOLERANCE = 1.03


@typed
@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionOptions:
    """How a graph is to be divided; :func:`.choose.partition` describes the fields.

    Raises:
        ConfigError: A field is out of its bounds, or the strategy does not read it.
    """

    num_parts: int
    """Number of parts, in ``[1, 65536]``."""
    strategy: Strategy = "auto"
    """Method that decides which part owns a node."""
    balance: Balance = "edges"
    """Balanced quantity."""
    tolerance: float = TOLERANCE
    """Largest load of a part by the least possible."""
    memory: int | str | None = None
    """Memory that streaming may take: bytes, or a size such as ``"1GiB"``; None takes what it needs."""
    seed: int = 0
    """Random seed of METIS and of random partitions."""

    def __post_init__(self) -> None:
        as_count(self.num_parts, "num_parts", least=1, most=MOST_PARTS)
        check_choice(self.strategy, "strategy", STRATEGIES)
        check_choice(self.balance, "balance", BALANCES)
        as_number(self.tolerance, "tolerance", least=1.001, most=10.0)
        as_count(self.seed, "seed", most=MOST_COUNT)
        if self.memory is not None:
            as_size(self.memory, "memory")
        if self.memory is not None and self.strategy not in ("auto", "streaming"):
            raise ConfigError(
                f"memory={self.memory!r} is for the strategy 'streaming'; {self.strategy!r} does not read it"
            )


PER_EDGE_AND_NODE: dict[Balance, tuple[int, int]] = {"edges": (1, 0), "nodes": (0, 1), "work": (1, 4)}
"""Load of an in-edge and of the node itself. Work: a row's own cost is that of four edges, as the compiled
kernels share rows among threads (``csrc/threads/balance.h``)."""


def node_loads(csc: Csc, balance: Balance) -> Tensor:
    """Return the load of each node, ``(num_nodes,)`` int64: its owner's work for it in a layer."""
    per_edge, per_node = PER_EDGE_AND_NODE[balance]
    return csc.degrees() * per_edge + per_node


def part_loads(part_of: Tensor, loads: Tensor, num_parts: int) -> Tensor:
    """Return the sum of each part's loads, ``(num_parts,)`` int64."""
    return torch.zeros(num_parts, dtype=torch.int64).index_add_(0, part_of, loads)


def imbalance(sums: Tensor) -> float:
    """Return the largest of the parts' loads by their mean; 1 where there is no load at all."""
    total = int(sums.sum())
    return float(sums.max()) * sums.numel() / total if total else 1.0


def is_partition(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` is a folder with a partition's manifest."""
    return PARTITION.is_at(path)

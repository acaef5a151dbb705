"""PartitionOptions: how a graph is to be divided."""

from __future__ import annotations

from dataclasses import dataclass

from graphbraid.arguments import MOST_COUNT, as_count, as_number, as_size, check_choice
from graphbraid.distributed.partitioning.records import BALANCES, MOST_PARTS, STRATEGIES, Balance, Strategy
from graphbraid.errors import ConfigError
from graphbraid.signatures import typed

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
    """What decides which part owns a node."""
    balance: Balance = "edges"
    """What is made equal."""
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

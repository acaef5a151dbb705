"""SamplerConfig: the options of neighbour sampling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from graphbraid.arguments import MOST_COUNT, as_count, as_flag, check_choice, shown
from graphbraid.errors import ConfigError

LAYOUTS = ("subgraph", "blocks")
MOST_HOPS = 64
"""Largest number of hops of a mini-batch."""
MOST_DRAWS = 1 << 20
"""Most draws with replacement for one node; without replacement the node's degree is the bound."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerConfig:
    """Options of neighbour sampling; with the graph and a key they determine a mini-batch."""

    fanouts: tuple[int, ...]
    """In-neighbours drawn per node at each hop, the hop nearest the seeds first; -1 takes all."""
    replace: bool = False
    """Whether to draw with replacement; a fanout above a node's degree then repeats neighbours."""
    layout: str = "subgraph"
    """Layout of a mini-batch. With ``subgraph``, each hop draws only for the nodes that the previous hop
    found (as in PyG); with ``blocks``, each hop draws anew for every node its layer computes (GraphSAGE,
    DGL)."""
    weighted: bool = False
    """Whether to draw in proportion to the graph's edge weights; a neighbour of weight 0 is never drawn."""
    return_edge_id: bool = False
    """Whether to keep the position of each sampled edge in the graph."""

    @property
    def num_neighbors(self) -> list[int]:
        """The fanouts, under PyG's name."""
        return list(self.fanouts)

    def __post_init__(self) -> None:
        for name in ("replace", "weighted", "return_edge_id"):
            object.__setattr__(self, name, as_flag(getattr(self, name), name))
        object.__setattr__(self, "fanouts", _as_fanouts(self.fanouts))
        check_choice(self.layout, "layout", LAYOUTS)
        if self.replace and -1 in self.fanouts:
            raise ConfigError("replace=True needs a fanout >= 0 at every hop; -1 takes each neighbour once")
        if self.replace and max(self.fanouts) > MOST_DRAWS:
            raise ConfigError(
                f"replace=True draws as often as the fanout says, at most {MOST_DRAWS} times; "
                f"got fanouts {list(self.fanouts)}"
            )


def _as_fanouts(fanouts: Any) -> tuple[int, ...]:
    if isinstance(fanouts, str | bytes | Mapping) or not isinstance(fanouts, Iterable):
        raise ConfigError(
            f"fanouts must be a list with a number per hop, such as (15, 10, 5); got {shown(fanouts)}"
        )
    hops = tuple(fanouts)
    if not 1 <= len(hops) <= MOST_HOPS:
        raise ConfigError(
            f"fanouts must name at least one hop, such as (15, 10, 5), and at most {MOST_HOPS}; "
            f"got {len(hops)}"
        )
    try:
        return tuple(as_count(f, f"fanouts[{hop}]", least=-1, most=MOST_COUNT) for hop, f in enumerate(hops))
    except ConfigError as error:
        raise ConfigError(f"a fanout must be an integer >= 0, or -1 for all; {error}") from None

"""SamplerConfig: how neighbours are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from graphbraid.arguments import MOST_COUNT, as_count, as_flag, check_choice, shown
from graphbraid.errors import ConfigError

LAYOUTS = ("subgraph", "blocks")
MOST_HOPS = 64
"""Hops of a mini-batch, at most."""
MOST_DRAWS = 1 << 20
"""Draws with replacement for one node, at most; without it the node's degree bounds them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerConfig:
    """What, beside graph and key, a mini-batch is a function of."""

    fanouts: tuple[int, ...]
    """In-neighbours drawn per node and hop, first hop from the seeds first; -1 takes all."""
    replace: bool = False
    """Draw with replacement: a fanout above the degree then repeats neighbours."""
    layout: str = "subgraph"
    """``subgraph``: each hop draws only for the nodes the last hop found (PyG). ``blocks``: each hop draws
    anew for every node its layer must compute (GraphSAGE, DGL)."""
    weighted: bool = False
    """Draw by the graph's edge weights; a neighbour of weight 0 is never drawn."""
    return_edge_id: bool = False
    """Keep each sampled edge's position in the graph."""

    @property
    def num_neighbors(self) -> list[int]:
        """The fanouts, by PyG's name."""
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

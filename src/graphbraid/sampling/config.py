"""SamplerConfig: how neighbours are drawn."""

from __future__ import annotations

from dataclasses import dataclass

from graphbraid.errors import ConfigError

LAYOUTS = ("subgraph", "blocks")


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

    def __post_init__(self) -> None:
        if not self.fanouts:
            raise ConfigError("fanouts must name at least one hop, such as (15, 10, 5)")
        for hop, fanout in enumerate(self.fanouts):
            if not isinstance(fanout, int) or isinstance(fanout, bool) or fanout < -1:
                raise ConfigError(
                    f"a fanout must be an integer >= 0, or -1 for all; fanouts[{hop}] is {fanout!r}"
                )
        if self.layout not in LAYOUTS:
            raise ConfigError(f"layout must be one of {', '.join(LAYOUTS)}; got {self.layout!r}")
        if self.replace and -1 in self.fanouts:
            raise ConfigError("replace=True needs a fanout >= 0 at every hop; -1 takes each neighbour once")

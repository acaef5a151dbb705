"""Small graphs whose links have times: pairs of one group that meet, some of them again and again."""

from typing import Any

import torch
from tests.train.linked_communities import GROUPS, NODES, pairs
from torch import Tensor

from graphbraid.graph import Graph

MEETS, WROTE = ("node", "meets", "node"), ("node", "wrote", "node")
NUM_LINKS = 800


def ends_and_times() -> tuple[Tensor, Tensor]:
    """Return links, repeated ones among them, and their times, of which several links share each."""
    draw = torch.Generator().manual_seed(3)
    known = pairs(500, 0, 0)
    ends = known[:, torch.randint(known.shape[1], (NUM_LINKS,), generator=draw)]
    return ends, torch.randint(200, (NUM_LINKS,), generator=draw)


def meetings(*, splits: dict[str, Tensor] | None = None, time: Tensor | None = None, **more: Any) -> Graph:
    """Return a graph of one relation whose edges have times, with features that tell the groups."""
    ends, times = ends_and_times()
    x = torch.randn(NODES, 8, generator=torch.Generator().manual_seed(1))
    x[:, :GROUPS] += 2 * torch.eye(GROUPS)[torch.arange(NODES) % GROUPS]
    return Graph.from_relations(
        {MEETS: ends},
        {"node": NODES},
        x={"node": x},
        edge_time={MEETS: times if time is None else time},
        edge_splits=None if splits is None else {MEETS: splits},
        name="meetings",
        **more,
    )


def by_time() -> dict[str, Tensor]:
    """Return splits of these links that begin where the time changes."""
    _, times = ends_and_times()
    return {
        "train": (times < 150).nonzero().flatten(),
        "val": ((times >= 150) & (times < 170)).nonzero().flatten(),
        "test": (times >= 170).nonzero().flatten(),
    }

"""A small graph of types whose links can be learned: users of a group rate the films of that group."""

from typing import Any

import torch
from torch import Tensor

from graphbraid.graph import Graph
from graphbraid.nn import RGCN, DotProduct, LinkModel

USERS, FILMS, STUDIOS, GROUPS = 90, 60, 4, 3
RATES, MADE = ("user", "rates", "film"), ("studio", "made", "film")


def films(*, splits: bool = False) -> Graph:
    """Users have no features, films do; studios come first and are joined by no link to learn."""
    draw = torch.Generator().manual_seed(0)
    user = torch.randint(USERS, (1500,), generator=draw)
    film = torch.randint(FILMS // GROUPS, (1500,), generator=draw) * GROUPS + user % GROUPS
    rates = torch.stack([user, film]).unique(dim=1)
    rates = rates[:, torch.randperm(rates.shape[1], generator=draw)]
    made = torch.stack([torch.arange(FILMS) % STUDIOS, torch.arange(FILMS)])
    x = torch.randn(FILMS, 6, generator=draw)
    x[:, :GROUPS] += torch.eye(GROUPS)[torch.arange(FILMS) % GROUPS]
    ends = None
    if splits:
        names, count = ("train", "val", "test"), rates.shape[1]
        parts = torch.arange(count).split([count - 2 * (count // 8), count // 8, count // 8])
        ends = {RATES: dict(zip(names, parts, strict=True))}
    graph = Graph.from_relations(
        {MADE: made, RATES: rates},
        {"studio": STUDIOS, "user": USERS, "film": FILMS},
        x={"film": x},
        edge_splits=ends,
        name="films",
    )
    return graph.with_reverse_relations()


def by_type(graph: Graph, seed: int = 0, **options: Any) -> LinkModel:
    """Return R-GCN, with learned rows for users and studios, and the dot product."""
    torch.manual_seed(seed)
    counts = {one: graph.nodes_of(one) for one in graph.node_types}
    encoder = RGCN(
        {one: 0 if held.x is None else held.x.shape[1] for one, held in counts.items()},
        16,
        16,
        graph.edge_types,
        **{"num_layers": 2, "dropout": 0.0} | options,
        num_nodes={one: held.num_nodes for one, held in counts.items() if held.x is None},
    )
    return LinkModel(encoder, DotProduct())


def as_pairs(ends: Tensor) -> set[tuple[int, int]]:
    """Return links as pairs of numbers."""
    return {(source, destination) for source, destination in ends.t().tolist()}

"""A small graph of two node types that can be learned, and models of PyG and of graphbraid for it."""

import torch

from graphbraid.graph import Graph

PAPERS, AUTHORS, VENUES = 300, 120, 5
WRITES, CITES, IN = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "in", "venue")


def bibliography(seed: int = 0, *, weighted: bool = False) -> Graph:
    """Papers are of the class of most of their authors and citations; their features tell it only faintly.

    Venues have no features; papers and authors have, of different widths.
    """
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (PAPERS,), generator=draw)
    field = torch.randint(3, (AUTHORS,), generator=draw)

    def pairs(num_src: int, num_dst: int, count: int) -> torch.Tensor:
        ends = (torch.randint(most, (count,), generator=draw) for most in (num_src, num_dst))
        return torch.stack(list(ends))

    def alike(edges: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        chance = torch.rand(edges.shape[1], generator=draw) < 0.15
        return edges[:, (classes[edges[0]] == y[edges[1]]) | chance]

    edges = {
        WRITES: alike(pairs(AUTHORS, PAPERS, 3000), field),
        CITES: alike(pairs(PAPERS, PAPERS, 3000), y),
        IN: pairs(PAPERS, VENUES, PAPERS),
    }
    x = torch.randn(PAPERS, 12, generator=draw)
    x[:, :3] += torch.nn.functional.one_hot(y, 3)
    authors = torch.randn(AUTHORS, 7, generator=draw)
    authors[:, :3] += 2 * torch.nn.functional.one_hot(field, 3)
    order = torch.randperm(PAPERS, generator=draw)
    splits = {"train": order[:100], "val": order[100:200], "test": order[200:]}
    weight = {CITES: torch.rand(edges[CITES].shape[1], generator=draw)} if weighted else None
    graph = Graph.from_relations(
        edges,
        {"author": AUTHORS, "paper": PAPERS, "venue": VENUES},
        x={"paper": x, "author": authors},
        y={"paper": y},
        splits={"paper": splits},
        edge_weight=weight,
        name="bibliography",
    )
    return graph.with_reverse_relations()

"""Graphs of several types for tests."""

import torch

from graphbraid.graph import Graph

PAPERS, AUTHORS, FIELDS = 40, 25, 6
WRITES, CITES, ABOUT = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "about", "field")
REVISES = ("author", "revises", "paper")


def lists(seed=0, num_edges=150):
    """Edge lists of four relations; two join the same types, one stays within a type, and repeats occur."""
    draw = torch.Generator().manual_seed(seed)

    def ids(count, most):
        return torch.randint(most, (count,), generator=draw)

    return {
        WRITES: torch.stack([ids(num_edges, AUTHORS), ids(num_edges, PAPERS)]),
        CITES: torch.stack([ids(2 * num_edges, PAPERS), ids(2 * num_edges, PAPERS)]),
        ABOUT: torch.stack([ids(num_edges, PAPERS), ids(num_edges, FIELDS)]),
        REVISES: torch.stack([ids(num_edges // 5, AUTHORS), ids(num_edges // 5, PAPERS)]),
    }


def bibliography(seed=0, *, weighted=False, num_edges=150):
    """Papers with features, labels, splits and times; authors with features; fields with none of these."""
    draw = torch.Generator().manual_seed(seed + 1)
    edges = lists(seed, num_edges)
    weight = {one: torch.rand(pairs.shape[1], generator=draw) for one, pairs in edges.items() if one != CITES}
    return Graph.from_relations(
        edges,
        {"paper": PAPERS, "author": AUTHORS, "field": FIELDS},
        x={
            "paper": torch.rand(PAPERS, 5, generator=draw),
            "author": torch.rand(AUTHORS, 3, generator=draw).half(),
        },
        y={"paper": torch.randint(4, (PAPERS,), generator=draw)},
        splits={"paper": {"train": torch.arange(PAPERS) < 20, "test": torch.arange(30, 40)}},
        node_time={"paper": torch.arange(PAPERS)},
        edge_weight=weight if weighted else None,
        edge_attr={CITES: torch.rand(edges[CITES].shape[1], 2, generator=draw)},
        edge_time={WRITES: torch.arange(edges[WRITES].shape[1])},
        name="bibliography",
    )

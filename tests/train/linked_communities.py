"""Small graphs whose links can be learned: most join nodes of one group, in several relations or in one."""

import torch
from torch import Tensor, nn

from graphbraid.graph import Graph
from graphbraid.nn import DistMult, DotProduct, GraphSAGE, LinkModel, NodeEmbedding, RGCNEncoder

NODES, GROUPS = 120, 4
LIKES, KNOWS, ODD = ("node", "likes", "node"), ("node", "knows", "node"), ("node", "odd", "node")


def pairs(count: int, shift: int, seed: int) -> Tensor:
    """Return distinct pairs from nodes of each group to such of the group ``shift`` further on, no loops."""
    draw = torch.Generator().manual_seed(seed)
    src = torch.randint(NODES, (4 * count,), generator=draw)
    dst = torch.randint(NODES // GROUPS, (4 * count,), generator=draw) * GROUPS + (src + shift) % GROUPS
    both = torch.stack([src, dst])[:, src != dst].unique(dim=1)
    return both[:, torch.randperm(both.shape[1], generator=draw)[:count]]


def one_relation(*, features: bool = True) -> Graph:
    """Return a graph without types, both directions of every edge stored."""
    edges = pairs(700, 0, 0)
    x = None
    if features:
        x = torch.randn(NODES, 8, generator=torch.Generator().manual_seed(1))
        x[:, :GROUPS] += 2 * torch.eye(GROUPS)[torch.arange(NODES) % GROUPS]
    return Graph.from_edge_index(torch.cat([edges, edges.flip(0)], 1), NODES, x=x, name="one")


def relations(*, splits: bool = True) -> Graph:
    """Return a graph of one node type and three relations, one of them of a single edge."""
    lists = {LIKES: pairs(500, 1, 0), KNOWS: pairs(400, 0, 1), ODD: torch.tensor([[0], [5]])}
    ends = None
    if splits:
        ends = {ODD: {"train": torch.arange(1)}}
        for one in (LIKES, KNOWS):
            names, count = ("train", "val", "test"), lists[one].shape[1]
            parts = torch.arange(count).split([count - 2 * (count // 10), count // 10, count // 10])
            ends[one] = dict(zip(names, parts, strict=True))
    return Graph.from_relations(lists, {"node": NODES}, edge_splits=ends, name="relations")


def sage(graph: Graph, seed: int = 0) -> LinkModel:
    """Return GraphSAGE over features, or over learned rows, with the dot product."""
    torch.manual_seed(seed)
    if graph.x is not None:
        return LinkModel(GraphSAGE(graph.num_features, 16, 16, 2, dropout=0.0), DotProduct())
    inner = GraphSAGE(16, 16, 16, 2, dropout=0.0)
    return LinkModel(NodeEmbedding(graph.num_nodes, 16, inner), DotProduct())


def rows_alone(graph: Graph, seed: int = 0, channels: int = 16) -> LinkModel:
    """Return learned rows with DistMult."""
    torch.manual_seed(seed)
    encoder: nn.Module = NodeEmbedding(graph.num_nodes, channels)
    return LinkModel(encoder, DistMult(len(graph.edge_types), channels))


def rgcn(graph: Graph, seed: int = 0) -> LinkModel:
    """Return a relational layer on learned rows, with DistMult."""
    torch.manual_seed(seed)
    count = len(graph.edge_types)
    inner = RGCNEncoder(16, 16, 16, count, 1, num_bases=2)
    return LinkModel(NodeEmbedding(graph.num_nodes, 16, inner), DistMult(count, 16))

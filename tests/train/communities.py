"""Small graphs and a model written as a PyG user would, without PyG."""

import itertools

import torch
from torch import Tensor, nn

from graphbraid.graph import Graph


class Sage(nn.Module):
    """Mean aggregation over in-neighbours, called as ``model(x, edge_index)``, with dropout."""

    def __init__(
        self, in_channels: int, out_channels: int, hidden: int = 16, num_layers: int = 2, dropout: float = 0.5
    ):
        super().__init__()
        widths = [in_channels, *[hidden] * (num_layers - 1), out_channels]
        pairs = list(itertools.pairwise(widths))
        self.own = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.neighbours = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairs)
        self.num_layers, self.dropout = num_layers, dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, destination = edge_index
        degree = torch.zeros(x.shape[0]).index_add_(0, destination, torch.ones(source.numel())).clamp(min=1)
        for i, (own, neighbours) in enumerate(zip(self.own, self.neighbours, strict=True)):
            mean = torch.zeros_like(x).index_add_(0, destination, x[source]) / degree[:, None]
            x = own(x) + neighbours(mean)
            if i < self.num_layers - 1:
                x = nn.functional.dropout(x.relu(), self.dropout, self.training)
        return x


class AsWritten(Sage):
    """The same model, which reads a number of a tensor: no trace follows it, so it runs as it is written."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        assert float(x.detach().sum()) < float("inf")
        return super().forward(x, edge_index)


def community_graph(
    num_nodes: int = 600, num_classes: int = 3, degree: int = 8, seed: int = 0, **fields: object
) -> Graph:
    """Nodes of a class link mostly to each other; features tell it only faintly. Holds an isolated node."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(num_classes, (num_nodes,), generator=generator)
    source = torch.randint(num_nodes, (num_nodes * degree,), generator=generator)
    destination = torch.randint(
        num_nodes - 1, (num_nodes * degree,), generator=generator
    )  # the last node gets no edge
    keep = (y[source] == y[destination]) | (torch.rand(source.numel(), generator=generator) < 0.2)
    x = torch.randn(num_nodes, 12, generator=generator)
    x[:, :num_classes] += nn.functional.one_hot(y, num_classes)
    order = torch.randperm(num_nodes, generator=generator)
    third = num_nodes // 3
    splits = {"train": order[:third], "val": order[third : 2 * third], "test": order[2 * third :]}
    edge_index = torch.stack([source[keep], destination[keep]])
    graph = Graph.from_edge_index(edge_index, num_nodes, x=x, y=y, splits=splits, name="communities")
    return graph.replace(**fields) if fields else graph


def new_model(graph: Graph, seed: int = 0, **options: object) -> Sage:
    """The same weights for the same seed."""
    torch.manual_seed(seed)
    return Sage(graph.num_features, graph.num_classes, **options)


def random_graph(num_nodes: int, degree: int, num_features: int, *, num_classes: int = 4) -> Graph:
    """Edges, features and three splits at random, of any size: nothing can be learned of it."""
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(num_nodes, (2, num_nodes * degree), generator=draw)
    ids = torch.randperm(num_nodes, generator=draw)
    fifth, tenth = num_nodes // 5, num_nodes // 10
    splits = {"train": ids[:fifth], "val": ids[fifth : fifth + tenth], "test": ids[-tenth:]}
    x = torch.rand(num_nodes, num_features, generator=draw)
    return Graph.from_edge_index(
        edges, num_nodes, x=x, y=ids % num_classes, splits=splits, keep_edge_id=False
    )

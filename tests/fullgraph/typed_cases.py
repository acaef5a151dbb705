"""Models of PyG over node types, lowered or left alone with a reason, and a graph for them."""

from collections.abc import Callable
from typing import Any

import torch
from tests.extras import to_hetero
from torch import Tensor, nn
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GCNConv,
    GraphConv,
    HeteroConv,
    HGTConv,
    SAGEConv,
    SumAggregation,
)

from graphbraid.graph import Graph

LOOPED = ("a", "to", "a")
COUNTS, WIDTHS = {"a": 14, "b": 9, "c": 5, "d": 17}, {"a": 6, "b": 4, "c": 4, "d": 3}
TRAIN = torch.tensor([3, 0, 12, 7])


def untidy(seed: int = 0, *, only_sources: bool = True) -> Graph:
    """Isolated nodes, loops, repeated edges, a relation without edges, and nodes that are only sources."""
    draw = torch.Generator().manual_seed(seed)

    def pairs(num_src: int, num_dst: int, count: int) -> Tensor:
        return torch.stack([torch.randint(most, (count,), generator=draw) for most in (num_src, num_dst)])

    ends = pairs(11, 11, 30)
    edges = {
        LOOPED: torch.cat([ends, ends[:, :6], torch.tensor([[2, 2], [2, 2]])], 1),
        ("b", "to", "a"): pairs(7, 11, 12),
        ("a", "back", "b"): pairs(11, 7, 9),
        ("c", "to", "b"): pairs(5, 7, 8),
        ("a", "never", "c"): torch.empty(2, 0, dtype=torch.int64),
        ("b", "again", "c"): pairs(7, 5, 6),
    }
    counts = dict(COUNTS)
    if only_sources:
        edges["d", "gives", "a"] = pairs(17, 11, 20)
    else:
        del counts["d"]
    x = {name: torch.randn(count, WIDTHS[name], generator=draw) for name, count in counts.items()}
    return Graph.from_relations(edges, counts, x=x, splits={"a": {"train": TRAIN}})


class Layers(nn.Module):
    """Some HeteroConvs with a function between; a type that gets nothing keeps what it has."""

    def __init__(self, layers: list[nn.Module], act: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.layers, self.act = nn.ModuleList(layers), act

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        for number, layer in enumerate(self.layers):
            if number:
                x_dict = {name: self.act(x) for name, x in x_dict.items()}
            x_dict = x_dict | layer(x_dict, edge_index_dict)
        return x_dict


def hetero(make: Any, aggr: str = "sum", widths: tuple[int, ...] = (8, 3)) -> Callable[[Graph], nn.Module]:
    """A maker of layers, of ``make(relation, width)`` for each relation."""

    def made(graph: Graph) -> nn.Module:
        convs = [{one: make(one, width) for one in graph.edge_types} for width in widths]
        return Layers([HeteroConv(by_relation, aggr=aggr) for by_relation in convs])

    return made


def of(kind: Any, **options: Any) -> Any:
    """A maker of one layer for two types, or one."""
    return lambda _, width: kind((-1, -1), width, **options)


def mixed(relation: Any, width: int) -> nn.Module:
    """Another class for some relations."""
    if relation == LOOPED:
        return GCNConv(-1, width)
    if relation[1] == "back":
        return GATConv((-1, -1), width, add_self_loops=False)
    return GraphConv((-1, -1), width) if relation[1] == "again" else SAGEConv((-1, -1), width)


def looped(relation: Any, width: int) -> nn.Module:
    """Attention with loops within a type."""
    return GATConv((-1, -1), width, add_self_loops=relation[0] == relation[2])


class Residual(nn.Module):
    """An input layer for each type, shared maps of both ends, norms, a residual, and outputs of one type."""

    def __init__(self, graph: Graph, conv: Any, norm: Any) -> None:
        super().__init__()
        types = graph.node_types
        self.inputs = nn.ModuleDict({name: nn.Linear(WIDTHS[name], 8) for name in types})
        self.norms = nn.ModuleDict({name: norm(8) for name in "ab"})  # what a's outputs read
        self.conv = HeteroConv({one: conv() for one in graph.edge_types}, aggr="mean")
        self.head = nn.Linear(8, 3)

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
        rows = {name: layer(x_dict[name]).relu() for name, layer in self.inputs.items()}
        found = self.conv(rows, edge_index_dict)
        again = {name: norm(found[name] + rows[name]) for name, norm in self.norms.items()}
        return self.head(self.conv(rows | again, edge_index_dict)["a"])


class Plain(nn.Module):
    """A model of one type, for ``to_hetero``."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.first, self.second, self.between = make(8), make(3), nn.ReLU()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.between(self.first(x, edge_index)), edge_index)


def transformed(make: Any, aggr: str = "sum") -> Callable[[Graph], nn.Module]:
    """A maker of what ``to_hetero`` makes of a model."""
    return lambda graph: to_hetero(Plain(make), (list(graph.node_types), list(graph.edge_types)), aggr)


def residual(conv: Any, norm: Any = nn.Identity) -> Callable[[Graph], nn.Module]:
    return lambda graph: Residual(graph, conv, norm)


HETERO = {
    "SAGEConv": hetero(of(SAGEConv)),
    "GATConv": hetero(of(GATConv, add_self_loops=False)),
    "mixed, mean": hetero(mixed, "mean"),
    "max of SAGEConv": hetero(of(SAGEConv, aggr="max"), "max"),
    "min of SAGEConv": hetero(of(SAGEConv, aggr="max"), "min"),
    "SAGEConv sum, no root": hetero(of(SAGEConv, aggr="sum", root_weight=False)),
    "SAGEConv normalised, one layer": hetero(of(SAGEConv, normalize=True), widths=(3,)),
    "GraphConv": hetero(of(GraphConv), "mean"),
    "GraphConv mean, wide": hetero(of(GraphConv, aggr="mean"), widths=(24, 3)),
    "GraphConv max": hetero(of(GraphConv, aggr="max")),
    "GATConv, heads": hetero(of(GATConv, heads=2, concat=False, residual=True, add_self_loops=False)),
    "GATConv, loops within a type": hetero(looped),
    "GATv2Conv": hetero(of(GATv2Conv, heads=2, concat=False, add_self_loops=False)),
    "three layers": hetero(mixed, widths=(8, 5, 3)),
    "GATConv, one map, layer norm": residual(lambda: GATConv(8, 8, add_self_loops=False), nn.LayerNorm),
    "GATv2Conv, one map, batch norm": residual(
        lambda: GATv2Conv(8, 8, share_weights=True, add_self_loops=False), nn.BatchNorm1d
    ),
    "SAGEConv, projected": residual(lambda: SAGEConv(8, 8, project=True)),
}


class Transformer(nn.Module):
    """HGT, whose layers take and give dicts."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        metadata = (list(graph.node_types), list(graph.edge_types))
        self.first, self.second = HGTConv(-1, 8, metadata, heads=2), HGTConv(8, 3, metadata)

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        x_dict = self.first(x_dict, edge_index_dict)
        return self.second({name: x for name, x in x_dict.items() if x is not None}, edge_index_dict)


TRANSFORMED = {
    "HGTConv": Transformer,
    "to_hetero SAGEConv": transformed(lambda width: SAGEConv((-1, -1), width)),
    "to_hetero GraphConv, mean": transformed(lambda width: GraphConv((-1, -1), width), "mean"),
    "to_hetero GATConv": transformed(lambda width: GATConv((-1, -1), width, add_self_loops=False)),
}


class OnMatrices(nn.Module):
    """A model that takes a sparse matrix for each relation, as ``ToSparseTensor`` makes it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x_dict: Any, adj_t_dict: Any) -> Any:
        return self.model(x_dict, adj_t_dict)


def on_matrices(make: Callable[[Graph], nn.Module]) -> Callable[[Graph], nn.Module]:
    return lambda graph: OnMatrices(make(graph))


MATRICES = {
    "SAGEConv on adj_t": on_matrices(HETERO["SAGEConv"]),
    "max of SAGEConv on adj_t": on_matrices(HETERO["max of SAGEConv"]),
    "GraphConv on adj_t": on_matrices(hetero(of(GraphConv))),
    "GATv2Conv on adj_t": on_matrices(HETERO["GATv2Conv"]),
    "mixed on adj_t": on_matrices(HETERO["mixed, mean"]),
    "to_hetero SAGEConv on adj_t": on_matrices(TRANSFORMED["to_hetero SAGEConv"]),
    "to_hetero GATConv on adj_t": on_matrices(TRANSFORMED["to_hetero GATConv"]),
}
"""Models that are called with sparse matrices (``tests/fullgraph/test_typed_matrices.py``)."""


class Swapped(Layers):
    """Reads a relation against its direction."""

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        return super().forward(x_dict, {one: ends.flip(0) for one, ends in edge_index_dict.items()})


class OwnSage(SAGEConv):
    """A subclass that looks at numbers of its rows."""

    def forward(self, x: Any, edge_index: Any) -> Tensor:
        return super().forward(x, edge_index) * (1 if float(x[0].detach().sum()) < 1e9 else 2)


class Other(SAGEConv):
    """A class of its own: PyG writes one ``propagate`` for a class, by the aggregation of its first layer."""


class OwnSum(SumAggregation):
    """An aggregation, which may do anything."""


def swapped(graph: Graph) -> nn.Module:
    return Swapped([HeteroConv({LOOPED: SAGEConv(6, 3)})])


LEFT_ALONE = {
    "a subclass": (hetero(of(OwnSage)), "its forward cannot be traced"),
    "edges turned round": (swapped, "flip: no operation stands for this call"),
    "an aggregation without a form": (
        hetero(of(SAGEConv, aggr=OwnSum())),
        "aggr='OwnSum()' has no lowered form",
    ),
    "outputs of one type": (residual(lambda: SAGEConv(8, 8)), "it returns rows of 'a'"),
}


def ready(make: Callable[[Graph], nn.Module], graph: Graph) -> nn.Module:
    """A model whose parameters have been made by a first run."""
    torch.manual_seed(0)
    model = make(graph)
    with torch.no_grad():
        model.eval()({name: graph.nodes_of(name).x for name in graph.node_types}, graph.to_edge_indices())
    return model.train()

"""Models that ranks train in tests, and the warnings for models that ranks cannot train alike."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from tests.distributed.training import BASE, Losses, graph_of
from torch import Tensor, nn

import graphbraid.nn as native
from graphbraid.errors import ConfigError
from graphbraid.graph import Graph
from graphbraid.train import Trainer

CHANNELS = graph_of().num_features


class Differences(pyg.MessagePassing):
    """A layer whose message no operator of the library stands for."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__(aggr="add")
        self.lin = nn.Linear(2 * channels, out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return torch.tanh(self.lin(torch.cat([x_i, x_j - x_i], 1)))


def _gin(channels: int, out: int) -> nn.Module:
    return pyg.GINConv(nn.Sequential(nn.Linear(channels, out), nn.ReLU(), nn.Linear(out, out)))


def _pna(channels: int, out: int) -> nn.Module:
    degrees = torch.tensor([5, 10, 20, 30, 5])
    return pyg.PNAConv(channels, out, ["mean", "max", "std"], ["identity", "amplification"], deg=degrees)


LAYERS: dict[str, Any] = {
    "gcn": pyg.GCNConv,
    "sage": pyg.SAGEConv,
    "sage, max": lambda channels, out: pyg.SAGEConv(channels, out, aggr="max"),
    "gin": _gin,
    "gat": pyg.GATConv,
    "gatv2": pyg.GATv2Conv,
    "pna": _pna,
    "own message": Differences,
}
NATIVE: dict[str, Any] = {
    "gcn": native.GCN,
    "sage": native.GraphSAGE,
    "gin": native.GIN,
    "gat": native.GAT,
    "gatv2": native.GATv2,
}
NORMS: dict[str, Any] = {
    "pair": pyg.PairNorm,
    "graph": lambda: pyg.GraphNorm(8),
    "instance": lambda: pyg.InstanceNorm(8),
    "layer over all rows": lambda: pyg.LayerNorm(8),
    "layer": lambda: nn.LayerNorm(8),
}


class Net(nn.Module):
    def __init__(self, layer: Any, channels: int, *, dropout: float = 0.0, norm: Any = None) -> None:
        super().__init__()
        attends = layer in (pyg.GATConv, pyg.GATv2Conv)
        options = {"dropout": dropout} if attends else {}
        self.first, self.last = layer(channels, 8, **options), layer(8, 3, **options)
        self.norm, self.dropout = nn.Identity() if norm is None else norm(), dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x, edge_index)))
        x = F.dropout(x, self.dropout, self.training)
        return self.last(x, edge_index)


class Repeated(Net):
    """Calls one layer three times, which no count of layers tells."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.relu(self.first(x, edge_index))
        for _ in range(3):
            x = F.relu(self.norm(x, edge_index))
        return self.last(x, edge_index)


def _losses(model: nn.Module, **options: Any) -> list[float] | str:
    graph = graph_of()
    given = {"epochs": 1, "batch_size": 67, "layout": "subgraph", "test_at_end": False, "eval_every": 0}
    options = BASE | given | options
    losses = Losses()
    try:
        Trainer(model, graph, callbacks=[losses], **options).fit()
    except ConfigError as error:
        if not str(error).startswith("several ranks"):
            raise
        return str(error)
    return losses.losses


def coupling(comm: Any) -> dict[str, Any]:
    """Models of which some read more of a batch than the neighbourhoods of their seeds."""
    found = {}
    for name, norm in NORMS.items():
        torch.manual_seed(0)
        found[name] = _losses(Net(pyg.SAGEConv, CHANNELS, norm=norm))
    found["out-edges"] = _losses(Net(lambda a, b: pyg.SAGEConv(a, b, flow="target_to_source"), CHANNELS))
    found["GCN, blocks"] = _losses(Net(pyg.GCNConv, CHANNELS), layout="blocks")
    for name, hops in (("repeated", None), ("repeated, hops=5", 5)):
        torch.manual_seed(0)
        model = Repeated(pyg.SAGEConv, CHANNELS, norm=lambda: pyg.SAGEConv(8, 8))
        found[name] = _losses(model, layout="subgraph", hops=hops)
    return found


def warnings_of(comm: Any, compiled: str) -> str:
    """What a run says of random numbers that PyTorch draws."""
    with told_of() as said:
        _losses(Net(pyg.SAGEConv, CHANNELS, dropout=0.5), compiled=compiled == "compiled")
    return " ".join(one for one in said if "random numbers" in one)


@contextmanager
def told_of() -> Iterator[list[str]]:
    """Collect what the library warns of."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("graphbraid")
    log.addHandler(handler)
    try:
        yield said
    finally:
        log.removeHandler(handler)


class Hetero(nn.Module):
    """Layers over the relations of types that have features."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        widths = {one: graph.nodes_of(one).x for one in graph.node_types}
        known = [one for one in graph.edge_types if None not in (widths[one[0]], widths[one[2]])]
        into = dict.fromkeys(widths, 8)
        sizes = {one: (widths[one[0]].shape[1], widths[one[2]].shape[1]) for one in known}  # type: ignore[union-attr]
        self.first = pyg.HeteroConv({one: pyg.SAGEConv(sizes[one], 8) for one in known})
        self.drop = nn.Dropout(0.3)
        self.last = pyg.HeteroConv({one: pyg.SAGEConv((into[one[0]], 8), 3, aggr="max") for one in known})

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        x_dict = {one: self.drop(rows.relu()) for one, rows in self.first(x_dict, edge_index_dict).items()}
        return self.last(x_dict, edge_index_dict)

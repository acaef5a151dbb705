"""Models by the parameters of their ``forward``, each with the call that a user of PyG would make."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.data import Data, HeteroData

NODES, EDGES, CHANNELS, CLASSES = 800, 3200, 6, 3
GRAPH_ROUTES = (
    "predict",
    "in batches",
    "evaluate",
    "compile graph",
    "fit sampled",
    "fit full",
    "estimate",
    "ranks",
)
SAMPLED = ("in batches", "evaluate", "fit sampled", "estimate", "ranks")
"""Routes that call the model on mini-batches."""


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ends(num_src: int, num_dst: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(n, (EDGES,), generator=generator) for n in (num_src, num_dst)])


def labelled(store: Any) -> Any:
    store.y = torch.arange(NODES) % CLASSES
    for name, first in (("train", 0), ("val", 80), ("test", 120)):
        store[f"{name}_mask"] = (torch.arange(NODES) >= first) & (torch.arange(NODES) < first + 40)
    return store


def features() -> Data:
    """Features, weights, and the relation of each edge."""
    more = {"edge_weight": draw(EDGES, seed=2).abs(), "edge_type": torch.arange(EDGES) % 2}
    data = Data(x=draw(NODES, CHANNELS), edge_index=ends(NODES, NODES), edge_attr=draw(EDGES, 2), **more)
    return labelled(data)


def vector() -> Data:
    """One number for each edge, called ``edge_attr``."""
    attr = draw(EDGES, seed=3).abs()
    return labelled(Data(x=draw(NODES, CHANNELS), edge_index=ends(NODES, NODES), edge_attr=attr))


RELATIONS = (("a", "to", "a"), ("b", "to", "a"), ("a", "to", "b"))


def typed() -> HeteroData:
    """Two types; of three relations two have features and one has weights."""
    data = HeteroData()
    for name in "ab":
        data[name].x, data[name].time = draw(NODES, CHANNELS, seed=ord(name)), torch.arange(NODES)
        data[name].pos = draw(NODES, 2)
    labelled(data["a"])
    for number, (src, name, dst) in enumerate(RELATIONS):
        data[src, name, dst].edge_index = ends(NODES, NODES, number)
    for one in RELATIONS[:2]:
        data[one].edge_attr = draw(EDGES, 2)
    data[RELATIONS[2]].edge_weight = draw(EDGES).abs()
    return data


def typed_vector() -> HeteroData:
    """One number for each edge of a relation, called ``edge_attr``."""
    data = typed()
    for one in RELATIONS[:2]:
        data[one].edge_attr = draw(EDGES).abs()
    return data


@dataclass
class Case:
    """A ``forward``, the layer that it calls as ``self.conv``, and PyG's call."""

    forward: Callable[..., Any]
    conv: Callable[[], nn.Module]
    plain: Callable[[nn.Module, Any], Any]
    data: Callable[[], Any] = features
    refused: Mapping[str, str] = field(default_factory=dict)
    """Routes that refuse the model, each with words of the message."""

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        model = type("Model", (nn.Module,), {"forward": self.forward})()
        model.conv, model.of_node = self.conv(), nn.Parameter(draw(NODES))
        return model


def gat(edge_dim: int | None = 2) -> nn.Module:
    return pyg.GATv2Conv(CHANNELS, CLASSES, edge_dim=edge_dim)


def gcn() -> nn.Module:
    return pyg.GCNConv(CHANNELS, CLASSES)


def by_relation(kinds: tuple[str, ...]) -> nn.Module:
    made = {
        "gat": lambda: pyg.GATv2Conv(CHANNELS, CLASSES, edge_dim=2, add_self_loops=False),
        "one": lambda: pyg.GATv2Conv(CHANNELS, CLASSES, edge_dim=1, add_self_loops=False),
        "graph": lambda: pyg.GraphConv((CHANNELS, CHANNELS), CLASSES),
        "sage": lambda: pyg.SAGEConv((CHANNELS, CHANNELS), CLASSES),
    }
    return pyg.HeteroConv({one: made[kind]() for one, kind in zip(RELATIONS, kinds, strict=True)})


def with_mask(self, x, edge_index, train_mask):
    return self.conv(x, edge_index) + train_mask.float()[:, None]


def with_ids(self, x, edge_index, n_id, *, num_nodes=None):
    return self.conv(x, edge_index) + self.of_node[n_id, None] + torch.ones(num_nodes, 1)


def of_data(self, data):
    return self.conv(data.x, data.edge_index, data.edge_attr)


def with_times(self, x_dict, edge_index_dict, time_dict):
    outputs = self.conv(x_dict, edge_index_dict)
    return {one: rows + time_dict[one][:, None] / NODES for one, rows in outputs.items()}


def everywhere(words: str, routes: tuple[str, ...] = GRAPH_ROUTES) -> dict[str, str]:
    return dict.fromkeys(routes, words)


LEFT_OUT = everywhere("takes 'edge_type', and it was left out")
ATTR = lambda m, d: m(d.x, d.edge_index, edge_attr=d.edge_attr)  # noqa: E731
PLAIN = lambda m, d: m(d.x, d.edge_index)  # noqa: E731
WEIGHT = lambda m, d: m(d.x, d.edge_index, edge_weight=d.edge_weight)  # noqa: E731
CASES = {
    "plain": Case(lambda self, x, edge_index: self.conv(x, edge_index), gcn, PLAIN),
    "other names": Case(lambda self, rows, links: self.conv(rows, links), gcn, PLAIN),
    "optional": Case(
        lambda self, x, edge_index, edge_attr=None: self.conv(x, edge_index, edge_attr), gat, ATTR
    ),
    "required": Case(lambda self, x, edge_index, edge_attr: self.conv(x, edge_index, edge_attr), gat, ATTR),
    "first": Case(
        lambda self, edge_attr, x, edge_index: self.conv(x, edge_index, edge_attr),
        gat,
        lambda m, d: m(d.edge_attr, d.x, d.edge_index),
    ),
    "keyword": Case(lambda self, x, edge_index, *, edge_attr: self.conv(x, edge_index, edge_attr), gat, ATTR),
    "any keyword": Case(lambda self, x, edge_index, **more: self.conv(x, edge_index, **more), gcn, PLAIN),
    "weight": Case(
        lambda self, x, edge_index, edge_weight=None: self.conv(x, edge_index, edge_weight), gcn, WEIGHT
    ),
    "both": Case(
        lambda self, x, edge_index, edge_weight=None, edge_attr=None: (
            self.conv(x, edge_index, edge_attr) * edge_weight.sum().sign()
        ),
        gat,
        lambda m, d: m(d.x, d.edge_index, d.edge_weight, d.edge_attr),
    ),
    "data": Case(of_data, gat, lambda m, d: m(d)),
    "ids": Case(with_ids, gcn, lambda m, d: m(d.x, d.edge_index, torch.arange(NODES), num_nodes=NODES)),
    "matrix": Case(
        lambda self, x, adj_t: self.conv(x, adj_t),
        lambda: pyg.SAGEConv(CHANNELS, CLASSES, aggr="sum"),
        lambda m, d: m(d.x, sparse(d)),
    ),
    "vector": Case(
        lambda self, x, edge_index, edge_attr=None: self.conv(x, edge_index, edge_attr), gcn, ATTR, vector
    ),
    "vector of data": Case(of_data, lambda: gat(1), lambda m, d: m(d), vector),
    "no weight": Case(
        lambda self, x, edge_index, edge_weight=None: self.conv(x, edge_index, edge_weight),
        gcn,
        PLAIN,
        vector,
    ),
    "needs weight": Case(
        lambda self, x, edge_index, edge_weight: self.conv(x, edge_index, edge_weight),
        gcn,
        PLAIN,
        vector,
        everywhere("takes 'edge_weight', and the graph has no such thing", (*GRAPH_ROUTES, "compile")),
    ),
    "relations": Case(
        lambda self, x, edge_index, edge_type: self.conv(x, edge_index, edge_type),
        lambda: pyg.RGCNConv(CHANNELS, CLASSES, 2),
        lambda m, d: m(d.x, d.edge_index, d.edge_type),
        refused=LEFT_OUT,
    ),
    "optional relations": Case(
        lambda self, x, edge_index, edge_type=None: self.conv(x, edge_index, edge_type),
        lambda: pyg.RGCNConv(CHANNELS, CLASSES, 2),
        lambda m, d: m(d.x, d.edge_index, d.edge_type),
        refused=LEFT_OUT,
    ),
    "data with positions": Case(
        lambda self, data: self.conv(
            data.x if data.pos is None else data.x + data.pos.sum(), data.edge_index
        ),
        gcn,
        lambda m, d: m(d),
        lambda: features().update({"pos": draw(NODES, 2)}),
        everywhere("reads 'pos' of the data, and it was left out"),
    ),
    "mask": Case(
        with_mask,
        gcn,
        lambda m, d: m(d.x, d.edge_index, d.train_mask),
        refused=everywhere("takes 'train_mask', which the graph has and its mini-batches have not", SAMPLED),
    ),
    "sequence": Case(
        lambda self, *args: self.conv(*args),
        lambda: pyg.Sequential("x, edge_index", [(gcn(), "x, edge_index -> x")]),
        PLAIN,
    ),
    "typed": Case(
        lambda self, x_dict, edge_index_dict, edge_attr_dict: self.conv(
            x_dict, edge_index_dict, edge_attr_dict
        ),
        lambda: by_relation(("gat", "gat", "sage")),
        lambda m, d: m(d.x_dict, d.edge_index_dict, d.edge_attr_dict),
        typed,
    ),
    "typed optional": Case(
        lambda self, x_dict, edge_index_dict, edge_attr_dict=None: self.conv(
            x_dict, edge_index_dict, edge_attr_dict=edge_attr_dict
        ),
        lambda: by_relation(("one", "one", "sage")),
        lambda m, d: m(d.x_dict, d.edge_index_dict, d.edge_attr_dict),
        typed_vector,
    ),
    "typed weight": Case(
        lambda self, x_dict, edge_index_dict, *, edge_weight_dict: self.conv(
            x_dict, edge_index_dict, edge_weight_dict=edge_weight_dict
        ),
        lambda: by_relation(("sage", "sage", "graph")),
        lambda m, d: m(d.x_dict, d.edge_index_dict, edge_weight_dict=d.edge_weight_dict),
        typed,
    ),
    "typed data": Case(
        lambda self, batch: self.conv(batch.x_dict, batch.edge_index_dict, batch.edge_attr_dict),
        lambda: by_relation(("gat", "gat", "sage")),
        lambda m, d: m(d),
        typed,
    ),
    "typed times": Case(
        with_times,
        lambda: by_relation(("sage", "sage", "sage")),
        lambda m, d: m(d.x_dict, d.edge_index_dict, d.time_dict),
        typed,
    ),
    "typed positions": Case(
        lambda self, x_dict, edge_index_dict, pos_dict=None: self.conv(x_dict, edge_index_dict),
        lambda: by_relation(("sage", "sage", "sage")),
        lambda m, d: m(d.x_dict, d.edge_index_dict, d.pos_dict),
        typed,
        everywhere("takes 'pos_dict', and it was left out"),
    ),
}


def sparse(data: Data) -> torch.Tensor:
    size = (NODES, NODES)
    return torch.sparse_coo_tensor(data.edge_index.flip(0), data.edge_weight, size).to_sparse_csr()

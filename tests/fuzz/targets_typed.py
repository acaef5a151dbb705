"""Loaders, layers and models of several node types."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from tests.fuzz.targets import Call, add
from tests.fuzz.world import CLASSES, EDGES, WIDTH, World

from graphbraid import nn
from graphbraid.loader import LinkNeighborLoader

_CITES, _WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")
_WIDTHS = {"paper": WIDTH, "author": 0}
_AUTHORS = 60


def _edge_type() -> torch.Tensor:
    return torch.arange(EDGES) % 3


def _run_model(w: World) -> Callable[[Any], Any]:
    def run(model: Any) -> Any:
        edges = {_CITES: w.edge_index, _WRITES: w.edge_index}
        return model({"paper": w.x}, edges)["paper"].shape

    return run


def _layer() -> nn.RGCNConv:
    torch.manual_seed(0)
    return nn.RGCNConv(WIDTH, 4, 3).eval()


def _model() -> nn.RGCN:
    torch.manual_seed(0)
    return nn.RGCN(_WIDTHS, 8, CLASSES, [_CITES, _WRITES], num_nodes={"author": _AUTHORS}).eval()


def _scores(w: World) -> Callable[[Any], Any]:
    def run(predictor: Any) -> Any:
        relation = None if predictor.num_relations is None else torch.zeros(w.x.shape[0], dtype=torch.int64)
        return [predictor(w.x, w.x, relation).shape, predictor.with_all(w.x[:3], w.x, _first(relation)).shape]

    return run


def _first(relation: torch.Tensor | None) -> torch.Tensor | None:
    return None if relation is None else relation[:3]


def _distmult() -> nn.DistMult:
    torch.manual_seed(0)
    return nn.DistMult(3, WIDTH)


for _kind in (nn.ComplEx, nn.TransE, nn.RotatE):
    add(
        {
            f"nn.{_kind.__name__}": lambda w, kind=_kind: Call(
                {"num_relations": 3, "channels": WIDTH}, _scores(w), exact=False, function=kind
            )
        }
    )


def _stacked(w: World) -> nn.NodeEmbedding:
    torch.manual_seed(0)
    return nn.NodeEmbedding(w.x.shape[0], WIDTH, nn.RGCNEncoder(WIDTH, 4, WIDTH, 3)).eval()


def _stores(loader: Any) -> Any:
    batches = itertools.islice(iter(loader), 2)
    return [[list(store.values()) for store in batch.stores] for batch in batches]


_CALLS = {
    "nn.RGCNConv": lambda w: Call(
        {"in_channels": WIDTH, "out_channels": 4, "num_relations": 3},
        lambda layer: layer(w.x, w.edge_index, _edge_type()).shape,
        exact=False,
    ),
    "nn.RGCNConv called": lambda w: Call({"0": w.x, "1": w.edge_index, "2": _edge_type()}, function=_layer()),
    "nn.RGCN": lambda w: Call(
        {
            "in_channels": _WIDTHS,
            "hidden_channels": 8,
            "out_channels": CLASSES,
            "edge_types": [_CITES, _WRITES],
            "num_nodes": {"author": _AUTHORS},
        },
        _run_model(w),
        exact=False,
    ),
    "nn.RGCN called": lambda w: Call(
        {"0": {"paper": w.x}, "1": {_CITES: w.edge_index, _WRITES: w.edge_index}}, function=_model()
    ),
    "nn.make_typed_model": lambda w: Call(
        {"name": "rgcn", "graph": w.typed_graph, "out_channels": CLASSES},
        lambda model: sum(p.numel() for p in model.parameters()),
        ("num_layers", "dropout", "num_bases", "act", "aggr", "nope"),
        exact=False,
    ),
    "nn.DotProduct": lambda w: Call({}, _scores(w)),
    "nn.DotProduct called": lambda w: Call({"0": w.x, "1": w.x}, function=nn.DotProduct()),
    "nn.DistMult": lambda w: Call({"num_relations": 3, "channels": WIDTH}, _scores(w), exact=False),
    "nn.DistMult called": lambda w: Call(
        {"0": w.x, "1": w.x, "2": torch.arange(w.x.shape[0]) % 3}, function=_distmult()
    ),
    "nn.DistMult.with_all": lambda w: Call(
        {"src": w.x[:3], "rows": w.x, "relation": torch.arange(3)}, function=_distmult().with_all
    ),
    "nn.EdgeDecoder": lambda _: Call({"channels": WIDTH, "out_channels": 2, "edge_channels": 0}, exact=False),
    "nn.EdgeModel": lambda _: Call(
        {"encoder": nn.GCN(WIDTH, 4, 4, 2), "decoder": nn.EdgeDecoder(4, 2)}, exact=False
    ),
    "nn.PooledModel": lambda _: Call(
        {"encoder": nn.GCN(WIDTH, 4, 4, 2), "head": torch.nn.Linear(4, 2), "readout": "sum"}, exact=False
    ),
    "nn.ShardedEmbedding": lambda _: Call({"num_nodes": 20, "channels": 4}),
    "nn.MLPPredictor": lambda w: Call(
        {"channels": WIDTH, "hidden_channels": 4, "num_layers": 2}, _scores(w), exact=False
    ),
    "nn.NodeEmbedding": lambda w: Call(
        {"num_nodes": w.x.shape[0], "channels": WIDTH, "model": None, "dropout": 0.0},
        lambda model: model(None, w.edge_index).shape,
        exact=False,
    ),
    "nn.NodeEmbedding called": lambda w: Call(
        {"x": None, "edges": w.edge_index, "edge_type": _edge_type()}, function=_stacked(w)
    ),
    "nn.BasisRGCNConv": lambda w: Call(
        {"in_channels": WIDTH, "out_channels": 4, "num_relations": 3, "num_bases": 2},
        lambda layer: layer(w.x, w.edge_index, _edge_type()).shape,
        exact=False,
    ),
    "nn.RGCNEncoder": lambda w: Call(
        {"in_channels": WIDTH, "hidden_channels": 8, "out_channels": 4, "num_relations": 3, "num_layers": 2},
        lambda model: model(w.x, w.edge_index, _edge_type()).shape,
        ("num_bases", "dropout", "act", "nope"),
        exact=False,
    ),
    "nn.LinkModel": lambda w: Call(
        {"encoder": _stacked(w), "predictor": nn.DotProduct()}, lambda model: model.num_layers
    ),
    "NeighborLoader of types": lambda w: Call(
        {
            "data": w.typed_graph,
            "num_neighbors": {_CITES: [2, 2], _WRITES: [3, 1]},
            "input_nodes": ("paper", torch.arange(9)),
            "disjoint": True,
            "batch_size": 4,
            "seed": 1,
        },
        _stores,
        ("time_attr", "input_time", "temporal_strategy", "replace", "shuffle", "subgraph_type", "input_id"),
    ),
    "LinkNeighborLoader of types": lambda w: Call(
        {
            "data": w.typed_graph,
            "num_neighbors": [2, 2],
            "edge_label_index": (_WRITES, torch.tensor([[0, 3, 5, 7, 2], [4, 1, 2, 0, 6]])),
            "neg_sampling": {"mode": "triplet", "amount": 2},
            "exclude_seed_edges": "reverse",
            "batch_size": 2,
            "seed": 1,
        },
        _stores,
        ("edge_label", "edge_label_time", "time_attr", "disjoint", "neg_sampling_ratio", "input_id"),
        function=LinkNeighborLoader,
    ),
}
add(_CALLS)

"""Graphs, their topology, and what loads from them."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.fuzz.targets import Call, add, graph_use
from tests.fuzz.world import NODES, WIDTH, World

import graphbraid as gb
from graphbraid import loader as loaders
from graphbraid import nn, ops, sampling
from graphbraid.ops import rng

# ---- graphs and topology


def _csc_use(csc: Any) -> Any:
    x = torch.ones(csc.num_src, 3)
    parts = [csc, csc.degrees(), csc.destinations(), csc.transpose()[0], csc.reversed(), csc.sort_rows()[0]]
    return [*parts, ops.spmm(csc, x), repr(csc)[:3]]


def _csc_args(w: World) -> dict[str, Any]:
    return {"indptr": w.csc.indptr, "indices": w.csc.indices, "num_src": NODES, "weight": w.csc.weight}


def _pyg_with(attribute: str) -> Callable[[World], Call]:
    def make(w: World) -> Call:
        def load(value: Any) -> Any:
            data = w.data.clone()
            data[attribute] = value
            return gb.Graph.from_pyg(data)

        return Call({"value": w.data[attribute]}, graph_use, function=load)

    return make


_ATTRIBUTES = ("edge_index", "edge_weight", "x", "y", "train_mask")
add({f"Graph.from_pyg with {name}": _pyg_with(name) for name in _ATTRIBUTES})
_METHODS = ("symmetrized", "without_duplicates", "with_self_loops", "without_self_loops", "to_edge_index")
for _name in (*_METHODS, "to_scipy", "to_pyg", "validate", "dense_x"):
    add({f"Graph.{_name}": lambda w, name=_name: Call({}, function=getattr(w.graph, name))})


# ---- sampling and loading


def _three(loader: Any) -> Any:
    out = []
    for batch in itertools.islice(iter(loader), 3):
        out.append([batch.x, batch.edge_index, batch.n_id, batch.y, getattr(batch, "e_id", None)])
    return out


def _three_in_blocks(loader: Any) -> Any:
    return [[batch.x, batch.n_id, list(batch.blocks)] for batch in itertools.islice(iter(loader), 3)]


def _loader_args(w: World) -> dict[str, Any]:
    return {
        "data": w.graph,
        "num_neighbors": [3, 3],
        "input_nodes": torch.arange(20),
        "batch_size": 8,
        "seed": 1,
    }


def _link_args(w: World) -> dict[str, Any]:
    links = torch.tensor([[0, 3, 5, 7, 2], [4, 1, 2, 0, 6]])
    return {
        "data": w.graph,
        "num_neighbors": [3, 3],
        "edge_label_index": links,
        "neg_sampling": "binary",
        "exclude_seed_edges": True,
        "batch_size": 2,
        "seed": 1,
    }


def _three_of_links(loader: Any) -> Any:
    out = []
    for batch in itertools.islice(iter(loader), 3):
        names = ("edge_label_index", "edge_label", "dst_neg_index")
        out.append([batch.x, batch.n_id, batch.edge_index, *(batch[name] for name in names if name in batch)])
    return out


_PYG_OPTIONS = (
    *("shuffle", "drop_last", "replace", "directed", "disjoint", "subgraph_type", "time_attr", "is_sorted"),
    *("persistent_workers", "pin_memory", "worker_init_fn", "filter_per_worker", "sampler", "batch_sampler"),
    *(
        "generator",
        "transform_sampler_output",
        "temporal_strategy",
        "input_time",
        "neighbor_sampler",
        "timeout",
    ),
)


def _sampled(w: World, config: Any) -> Any:
    key = rng.batch_key(0, 0, 0) if hasattr(rng, "batch_key") else 12345
    return str(sampling.sample_batch(w.csc, config, torch.arange(5), key))[:10]


_CALLS = {
    "Csc": lambda w: Call(_csc_args(w), _csc_use),
    "Csc of a block": lambda w: Call(
        _csc_args(w) | {"src_degree": torch.ones(NODES), "src_loop": torch.ones(NODES)},
        lambda csc: nn.GCNConv(WIDTH, 3)(w.x, csc).shape,
    ),
    "Graph": lambda w: Call(
        {"csc": w.csc, "edge_id": w.graph.edge_id, "x": w.x, "y": w.y, "splits": w.splits}, graph_use
    ),
    "Graph.from_edge_index": lambda w: Call(
        {
            "edge_index": w.edge_index,
            "num_nodes": NODES,
            "x": w.x,
            "y": w.y,
            "edge_weight": w.edge_weight,
            "splits": w.splits,
        },
        graph_use,
    ),
    "Graph.from_scipy": lambda w: Call({"matrix": w.graph.to_scipy(), "x": w.x}, graph_use),
    "Graph.from_pyg": lambda w: Call({"data": w.data}, graph_use),
    "Graph.split": lambda w: Call({"name": "train"}, function=w.graph.split),
    "Graph.replace": lambda w: Call(
        {"x": w.x, "y": w.y, "splits": w.splits}, graph_use, function=w.graph.replace
    ),
    "Graph.in_original_order": lambda w: Call({"values": w.csc.weight}, function=w.graph.in_original_order),
    "SparseFeatures": lambda w: Call(
        {
            "indptr": w.sparse_x.indptr,
            "indices": w.sparse_x.indices,
            "values": w.sparse_x.values,
            "num_cols": WIDTH,
        },
        lambda s: [s.to_dense(), s.rows(torch.tensor([0, 5])), ops.sparse_linear(s, torch.ones(3, WIDTH))],
    ),
    "SparseFeatures.rows": lambda w: Call({"ids": torch.tensor([3, 0, 7])}, function=w.sparse_x.rows),
    "SparseFeatures.to": lambda w: Call({"dtype": torch.float16}, function=w.sparse_x.to),
    "SparseFeatures.from_dense": lambda w: Call({"dense": w.x}),
    "SparseFeatures.from_scipy": lambda w: Call({"matrix": w.sparse_x.to_scipy()}),
    "ScaledFeatures": lambda w: Call(
        {"values": w.scaled_x.values, "scale": w.scaled_x.scale},
        lambda s: [
            s.to_dense(),
            s.rows(torch.tensor([0, 5])),
            ops.gather_rows(s.values, torch.tensor([3, 1]), scale=s.scale),
        ],
    ),
    "ScaledFeatures.rows": lambda w: Call({"ids": torch.tensor([3, 0, 7])}, function=w.scaled_x.rows),
    "ScaledFeatures.from_dense": lambda w: Call({"dense": w.x}, lambda s: s.to_dense()),
    "Hardware.detect": lambda w: Call({"root": Path("/")}, lambda h: len(h.rows()), fixed=("root",)),
    "NeighborLoader": lambda w: Call(_loader_args(w), _three, _PYG_OPTIONS),
    "NeighborLoader of Data": lambda w: Call(_loader_args(w) | {"data": w.data}, _three, _PYG_OPTIONS),
    "NeighborLoader in blocks": lambda w: Call(
        _loader_args(w) | {"layout": "blocks", "weight_attr": "edge_weight"}, _three_in_blocks
    ),
    "NeighborLoader.batches": lambda w: Call(
        {"epoch": 0, "start_step": 1, "stop_step": 3},
        _three,
        function=gb.NeighborLoader(**_loader_args(w)).batches,
    ),
    "LinkNeighborLoader": lambda w: Call(
        _link_args(w), _three_of_links, _PYG_OPTIONS, function=loaders.LinkNeighborLoader
    ),
    "ShaDowKHopSampler": lambda w: Call(
        {
            "data": w.graph,
            "depth": 2,
            "num_neighbors": 2,
            "node_idx": w.splits["train"],
            "batch_size": 4,
            "seed": 1,
        },
        lambda loader: [[b.x, b.n_id, b.edge_index, b.ptr] for b in itertools.islice(loader.batches(0), 3)],
        ("replace", "shuffle", "drop_last", "disjoint", "subgraph_type", "num_workers"),
        function=loaders.ShaDowKHopSampler,
    ),
    "ClusterData": lambda w: Call(
        {"data": w.graph, "num_parts": 4, "strategy": "greedy"},
        lambda clusters: [[b.x, b.n_id, b.edge_index] for b in (clusters[0], clusters[3])],
        ("recursive", "log", "keep_inter_cluster_edges", "sparse_format", "seed"),
        function=loaders.ClusterData,
    ),
    "ClusterLoader": lambda w: Call(
        {"cluster_data": loaders.ClusterData(w.graph, 4, strategy="greedy"), "batch_size": 2, "seed": 1},
        lambda loader: [[b.x, b.n_id, b.edge_index] for b in itertools.islice(loader.batches(0), 3)],
        ("shuffle", "drop_last", "num_workers", "prefetch_factor"),
        function=loaders.ClusterLoader,
    ),
    "LinkNeighborLoader of Data": lambda w: Call(
        _link_args(w) | {"data": w.data}, _three_of_links, _PYG_OPTIONS, function=loaders.LinkNeighborLoader
    ),
    "NegativeSampling": lambda w: Call(
        {"mode": "triplet", "amount": 2, "src_weight": None, "dst_weight": torch.ones(w.graph.num_nodes)},
        lambda how: _three_of_links(loaders.LinkNeighborLoader(**_link_args(w) | {"neg_sampling": how})),
        function=sampling.NegativeSampling,
    ),
    "MiniBatch.to": lambda w: Call({"device": "cpu"}, lambda b: b.x, fixed=("self",), function=w.batch.to),
    "SamplerConfig": lambda w: Call({"fanouts": (3, 3)}, lambda c: _sampled(w, c)),
    "SeedSchedule": lambda w: Call(
        {"seeds": torch.arange(20), "batch_size": 8, "shuffle": True, "seed": 3},
        lambda s: [s.num_steps, s.seeds_of(0, 0), s.seeds_of(1, s.num_steps - 1)],
        function=sampling.SeedSchedule,
    ),
    "sample_batch": lambda w: Call(
        {
            "graph": w.csc,
            "config": gb.SamplerConfig(fanouts=(3, 3), return_edge_id=True),
            "seeds": torch.arange(7),
            "key": 9,
        },
        lambda s: [getattr(s, name) for name in getattr(s, "__slots__", ())],
        function=sampling.sample_batch,
    ),
}
add(_CALLS)

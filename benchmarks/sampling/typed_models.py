"""Models over node types and relations, for :mod:`benchmarks.sampling.models`, on a graph like ogbn-mag.

Two layers, as in PyG's own examples on that graph. R-GCN has the relations as numbers of a graph of one type.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.utils import trim_to_layer

import graphbraid
from benchmarks.sampling.typed_graphs import mag_like
from graphbraid.loader import NeighborLoader

FANOUTS = [10, 10]
CHANNELS, CLASSES, HEADS, SEEDS = 128, 349, 4, "paper"
MATRICES = "to_hetero SAGE, adj_t"
"""The model whose edges are a sparse matrix for each relation."""
Run = Callable[[Any], Tensor]


class Layers(nn.Module):
    """Layers with ReLU between, trimmed by PyG before each if the counts by hop are given."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(
        self, x: Any, edge_index: Any, edge_type: Any = None, nodes: Any = None, edges: Any = None
    ) -> Any:
        """Return the rows of the last layer."""
        for number, layer in enumerate(self.layers):
            if nodes is not None:
                x, edge_index, edge_type = trim_to_layer(number, nodes, edges, x, edge_index, edge_type)
            x = layer(x, edge_index) if edge_type is None else layer(x, edge_index, edge_type)
            if number == 0:
                x = {name: rows.relu() for name, rows in x.items()} if isinstance(x, dict) else x.relu()
        return x


class OfTypes(nn.Module):
    """A model called with dicts, of layers that take and give them, and a map of the papers' rows."""

    def __init__(self, layers: list[nn.Module], width: int) -> None:
        super().__init__()
        self.model, self.head = Layers(layers), nn.Linear(width, CLASSES)

    def forward(self, x_dict: Any, edge_index_dict: Any, nodes: Any = None, edges: Any = None) -> Tensor:
        """Return the outputs of the papers."""
        out: Tensor = self.head(self.model(x_dict, edge_index_dict, None, nodes, edges)[SEEDS])
        return out


class Plain(nn.Module):
    """GraphSAGE of one type, for ``to_hetero``."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first = pyg.SAGEConv((CHANNELS, CHANNELS), hidden)
        self.second = pyg.SAGEConv((hidden, hidden), CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the rows of the last layer."""
        out: Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
        return out


class OnMatrices(nn.Module):
    """A model that is called with a sparse matrix for each relation."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x_dict: Any, adj_t_dict: Any) -> Tensor:
        """Return the outputs of the papers."""
        out: Tensor = self.model(x_dict, adj_t_dict)[SEEDS]
        return out


class TypedModels:
    """The models on batches of one graph.

    Args:
        share: size of the graph, as a share of ogbn-mag.
    """

    def __init__(self, share: float) -> None:
        draw = torch.Generator().manual_seed(0)
        self.data = mag_like(share).to_pyg()
        for store in self.data.node_stores:
            store.x = torch.randn(store.num_nodes, CHANNELS, generator=draw)
        papers = self.data[SEEDS]
        papers.y = torch.randint(CLASSES, (papers.num_nodes,), generator=draw)
        self.seeds = torch.randperm(papers.num_nodes, generator=draw)
        self.metadata = self.data.metadata()

    def batches(self, name: str, count: int, batch_size: int) -> list[Any]:
        """Mini-batches as PyG's data, whose labels are ``y`` of their seeds."""
        data, seeds = self.data, self.seeds[: count * batch_size]
        inputs: Any = (SEEDS, seeds)
        if name == "R-GCN":
            data, inputs = self.flat, seeds + self.first
        transform = ToSparseTensor(layout=torch.sparse_csr) if name == MATRICES else None
        options: Any = {"batch_size": batch_size, "seed": 0, "transform": transform}
        with NeighborLoader(data, FANOUTS, input_nodes=inputs, **options) as loader:
            return list(loader)

    def parts_of(self, name: str, batch: Any) -> dict[str, Any]:
        """What DGL makes its blocks of."""
        if name == "R-GCN":
            return {
                "x": {SEEDS: batch.x},
                "y": batch.y[: batch.batch_size],
                "edges": {"": batch.edge_index},
                "edge_type": batch.edge_type,
                "num_relations": len(self.metadata[1]),
                "nodes": {"": list(batch.num_sampled_nodes)},
                "num_edges": {"": list(batch.num_sampled_edges)},
            }
        return {
            "x": batch.x_dict,
            "y": batch[SEEDS].y[: batch[SEEDS].batch_size],
            "seed_type": SEEDS,
            "edges": batch.edge_index_dict,
            "nodes": {one: list(counts) for one, counts in batch.num_sampled_nodes_dict.items()},
            "num_edges": {one: list(counts) for one, counts in batch.num_sampled_edges_dict.items()},
        }

    @property
    def first(self) -> int:
        """Id of the first paper in the graph of one type."""
        names = self.data.node_types
        return sum(self.data[name].num_nodes for name in names[: names.index(SEEDS)])

    @cached_property
    def flat(self) -> Data:
        """The graph as one of one type, with the relations as numbers."""
        whole = self.data.to_homogeneous(add_node_type=False, node_attrs=["x"])
        y = torch.zeros(whole.num_nodes, dtype=torch.int64)
        y[self.first : self.first + len(self.seeds)] = self.data[SEEDS].y
        return Data(x=whole.x, edge_index=whole.edge_index, edge_type=whole.edge_type, y=y)

    def contenders(self, name: str, hidden: int) -> dict[str, tuple[nn.Module, Run]]:
        """The model as written, trimmed and compiled, with the same weights, and how each runs on a batch."""
        torch.manual_seed(0)
        written, trimmed = self._made(name, hidden)
        lowered = copy.deepcopy(written)
        engine = graphbraid.compile(OnMatrices(lowered) if name == MATRICES else lowered)
        if name == "R-GCN":

            def run(batch: Any) -> Tensor:
                out: Tensor = written(batch.x, batch.edge_index, batch.edge_type)
                return out[: batch.batch_size]

            def trim(batch: Any) -> Tensor:
                counts = batch.num_sampled_nodes, batch.num_sampled_edges
                out: Tensor = trimmed(batch.x, batch.edge_index, batch.edge_type, *counts)
                return out[: batch.batch_size]
        else:

            def run(batch: Any) -> Tensor:
                edges = batch.adj_t_dict if name == MATRICES else batch.edge_index_dict
                return _of_papers(written(batch.x_dict, edges), batch)

            def trim(batch: Any) -> Tensor:
                counts = {"nodes": batch.num_sampled_nodes_dict, "edges": batch.num_sampled_edges_dict}
                return _of_papers(trimmed(batch.x_dict, batch.edge_index_dict, **counts), batch)

        runs = {"as written": (written, run), "trim_to_layer": (trimmed, trim), "compiled": (lowered, engine)}
        if name == MATRICES:  # PyG trims no sparse matrices of PyTorch
            del runs["trim_to_layer"]
        return runs

    def _made(self, name: str, hidden: int) -> tuple[nn.Module, nn.Module]:
        """The model, and a copy that takes the counts by hop to be trimmed."""
        if name == "R-GCN":
            of = len(self.metadata[1])
            layers = [pyg.RGCNConv(CHANNELS, hidden, of), pyg.RGCNConv(hidden, CLASSES, of)]
            return (model := Layers(layers)), copy.deepcopy(model)
        if name == "HGT":
            widths = (CHANNELS, hidden), (hidden, hidden)
            stacked = [pyg.HGTConv(*width, self.metadata, HEADS) for width in widths]
            return (model := OfTypes(stacked, hidden)), copy.deepcopy(model)
        made: Any = pyg.to_hetero(Plain(hidden), self.metadata)
        own = copy.deepcopy(made)
        convs = [{one: of["__".join(one)] for one in self.metadata[1]} for of in (own.first, own.second)]
        return made, Layers([pyg.HeteroConv(by_relation, "sum") for by_relation in convs])


def _of_papers(out: Any, batch: Any) -> Tensor:
    rows: Tensor = out[SEEDS] if isinstance(out, dict) else out
    return rows[: batch[SEEDS].batch_size]

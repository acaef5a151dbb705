"""What ranks of a test train on their parts of a graph with types; each function is called with ranks."""

from dataclasses import replace
from typing import Any

import torch
import torch_geometric.nn as pyg
from tests.distributed.training import BASE, fitted, trained
from tests.train.typed_communities import CITES, bibliography
from torch import nn

from graphbraid import Graph
from graphbraid.distributed import Communicator, ShardedGraph
from graphbraid.errors import GraphbraidError
from graphbraid.graph import ScaledFeatures
from graphbraid.nn import RGCN
from graphbraid.train import Trainer


class Transformer(nn.Module):
    """A layer of HGT over the relations of types that have features."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        x = {one: graph.nodes_of(one).x for one in graph.node_types}
        self.widths = {one: rows.shape[1] for one, rows in x.items() if rows is not None}
        self.known = [one for one in graph.edge_types if one[0] in self.widths and one[2] in self.widths]
        self.layer = pyg.HGTConv(self.widths, 8, (list(self.widths), self.known), heads=2)
        self.out = nn.Linear(8, 3)

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        found = self.layer(x_dict, {one: edge_index_dict[one] for one in self.known})
        return {"paper": self.out(found["paper"])}


class WeightedCitations(nn.Module):
    """Reads the weights of one relation."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.layer = pyg.GraphConv(graph.nodes_of("paper").x.shape[1], 3)  # type: ignore[union-attr]

    def forward(self, x_dict: Any, edge_index_dict: Any, edge_weight_dict: Any) -> Any:
        return {"paper": self.layer(x_dict["paper"], edge_index_dict[CITES], edge_weight_dict[CITES])}


class AttributedCitations(nn.Module):
    """Reads the features of one relation's edges."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        channels = graph.nodes_of("paper").x.shape[1]  # type: ignore[union-attr]
        self.layer = pyg.GINEConv(nn.Linear(channels, 3), edge_dim=2)

    def forward(self, x_dict: Any, edge_index_dict: Any, edge_attr_dict: Any) -> Any:
        return {"paper": self.layer(x_dict["paper"], edge_index_dict[CITES], edge_attr_dict[CITES])}


def with_edges() -> Graph:
    """Return the graph of the tests with weights and features of citations."""
    graph = bibliography(weighted=True)
    assert graph.types is not None
    cites = graph.types.edges[CITES]
    attr = torch.rand(cites.num_edges, 2, generator=torch.Generator().manual_seed(2))
    edges = {**graph.types.edges, CITES: replace(cites, edge_attr=attr)}
    return graph.replace(types=replace(graph.types, edges=edges))


def of_int8() -> Graph:
    """Return the graph of the tests, whose papers have features of int8."""
    graph = bibliography()
    assert graph.types is not None
    papers = graph.types.nodes["paper"]
    papers = replace(papers, x=ScaledFeatures.from_dense(graph.nodes_of("paper").x))
    types = replace(graph.types, nodes={**graph.types.nodes, "paper": papers})
    return graph.replace(types=types)


def with_kept_rows(comm: Communicator, folder: str) -> dict[str, dict[str, object]]:
    """Train on features of int8 with memory for none, some and all rows of other ranks, and without parts."""
    parts, found = ShardedGraph.open(folder, comm), {}
    several = BASE | {"batch_size": 8, "epochs": 1}  # groups in an epoch
    for name, remote in (("none", None), ("some", "12KiB"), ("all", "all")):
        torch.manual_seed(0)
        trainer = Trainer(RGCN.of(parts, 8, num_layers=2), parts, **several | {"remote": remote})
        found[name] = fitted(trainer) | {"traffic": parts.shards.traffic._asdict()}
    torch.manual_seed(0)
    whole = of_int8()
    return found | {"whole": trained(whole, RGCN.of(whole, 8, num_layers=2), **several)}


class OfData(nn.Module):
    def forward(self, data: Any) -> Any:
        return data.x_dict


def refused(comm: Communicator, folder: str) -> list[str]:
    """Return why models and options are refused on parts of a graph with types."""
    parts, said = ShardedGraph.open(folder, comm), []
    calls: list[tuple[nn.Module, dict[str, Any]]] = [
        (OfData(), {}),
        (RGCN.of(parts, 8), {"mode": "full"}),
        (RGCN.of(parts, 8), {"node_type": "papers"}),
    ]
    for model, options in calls:
        try:
            Trainer(model, parts, **BASE | options)
            said.append("")
        except GraphbraidError as error:
            said.append(str(error))
    return said

"""A graph of one node type whose edges have labels, and a model of them."""

import torch

from graphbraid import Graph
from graphbraid import nn as gnn

TO = ("node", "to", "node")


def people(**more):
    """One node type: who writes to whom, with a class of each message; blocks of graphbraid's own layers."""
    drawn = torch.Generator().manual_seed(1)
    edges = torch.randint(0, 60, (2, 600), generator=drawn)
    x = torch.randn(60, 5, generator=drawn)
    y = (x[edges[0], 0] > x[edges[1], 0]).long()
    time = torch.arange(600)
    return Graph.from_relations(
        {TO: edges}, {"node": 60}, x={"node": x}, edge_y={TO: y}, edge_time={TO: time}, **more
    )


def own_model():
    torch.manual_seed(0)
    return gnn.EdgeModel(gnn.GraphSAGE(5, 16, 16, num_layers=2, dropout=0.3), gnn.EdgeDecoder(16, 2))

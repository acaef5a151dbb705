"""Layers called with a pair, the sources' rows and the destinations'; and stacks of matrices."""

import torch
import torch_geometric.nn as pyg
from tests.fullgraph.matrix.case import GAT, GIN, SAGE, Case, layer, partly
from tests.fullgraph.matrix.models import Stack, calls


def of_a_pair(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    return self.head(self.second((h, self.skip(x)), edge_index))


def of_the_same_twice(self, x, edge_index):
    h = self.first((x, x), edge_index).relu()
    return self.head(self.second((h, h), edge_index))


def sum_of_a_stack(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(torch.stack([h, self.second(h.relu(), edge_index), self.skip(x)]).sum(0))


def mean_of_a_stack(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(torch.mean(torch.stack([h, self.second(h.relu(), edge_index), h], dim=0), dim=0))


def sum_of_columns(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(h - h.sum(dim=1, keepdim=True))


def sum_of_a_stack_side_by_side(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(torch.stack([h, self.skip(x)], dim=1).sum(1))


def two_maps(i, o):
    """GAT with a map for each end, as it has between two node types."""
    return pyg.GATConv((i, i), o, heads=1)


_LOWERED = {
    "SAGEConv": SAGE,
    "GINConv": GIN,
    "SAGEConv max": layer(pyg.SAGEConv, aggr="max"),
    "GraphConv": layer(pyg.GraphConv),
    "GATConv": layer(pyg.GATConv, add_self_loops=False),
    "GATConv, a map for each end": lambda i, o: pyg.GATConv((i, i), o, add_self_loops=False),
    "GATv2Conv": layer(pyg.GATv2Conv, add_self_loops=False),
    "GATv2Conv, shared": layer(pyg.GATv2Conv, share_weights=True, add_self_loops=False),
}
PAIRS = [
    *(Case("pairs of matrices", name, lambda k=kind: calls(of_a_pair)(k)) for name, kind in _LOWERED.items()),
    Case("pairs of matrices", "GATConv, the same twice", lambda: calls(of_the_same_twice)(GAT)),
    Case("pairs of matrices", "one matrix, a map for each end", lambda: Stack(two_maps)),
    partly(
        "pairs of matrices", "GATConv with self-loops", lambda: calls(of_a_pair)(GAT), "self-loops between"
    ),
    *(
        Case("stacks", run.__name__.replace("_", " "), lambda r=run: calls(r)(SAGE))
        for run in (sum_of_a_stack, mean_of_a_stack, sum_of_a_stack_side_by_side)
    ),
    partly("stacks", "sum of columns", lambda: calls(sum_of_columns)(SAGE), "sub: it adds 1 columns to 8"),
]

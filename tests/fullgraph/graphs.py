"""Small graphs with hubs, isolated nodes, loops, repeated edges, weights, sparse rows."""

import torch
from tests.ops.graphs import square
from torch import nn

from graphbraid import Graph, SparseFeatures
from graphbraid import nn as gnn
from graphbraid.graph.csc import Csc, coo_to_csc

NUM_NODES, CHANNELS, CLASSES = 80, 12, 5


class Sine(nn.Module):
    """What no operation stands for."""

    def forward(self, x):
        return x.sin()


def unlowerable():
    """A model without a lowered form."""
    model = gnn.GCN(CHANNELS, 8, CLASSES, 2, norm="layer")
    model.norms[0] = Sine()
    return model


def make_graph(*, symmetric=False, weighted=False, sparse=False, binary="", density=1.0, seed=0, train=15):
    """A graph with ``train`` training nodes that reach only part of it.

    ``binary``: features are zeros and ``ones``, or zeros and one number a ``row``.
    """
    draw = torch.Generator().manual_seed(seed)
    csc = square(NUM_NODES, seed=seed)
    if symmetric:
        src, dst = csc.indices.long(), csc.destinations().long()
        pairs = torch.unique(torch.cat((src * NUM_NODES + dst, dst * NUM_NODES + src)))
        csc, _ = coo_to_csc(pairs % NUM_NODES, pairs // NUM_NODES, NUM_NODES, NUM_NODES)
    if weighted:
        csc = Csc(csc.indptr, csc.indices, csc.num_src, torch.rand(csc.num_edges, generator=draw) + 0.1)
    x = torch.randn(NUM_NODES, CHANNELS, generator=draw)
    x = x * (torch.rand(x.shape, generator=draw) < density)
    if binary:
        x = (x != 0) * (x[:, :1].sign() * 0.3 if binary == "row" else 1.0)
    order = torch.randperm(NUM_NODES, generator=draw)
    return Graph(
        csc=csc,
        x=SparseFeatures.from_dense(x) if sparse else x,
        y=torch.randint(0, CLASSES, (NUM_NODES,), generator=draw),
        splits={"train": order[:train], "val": order[train : train + 20], "test": order[train + 20 :]},
    )

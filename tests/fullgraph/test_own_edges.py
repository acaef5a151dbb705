"""Layers on edges that the forward makes, writes over what it has made, and results that two breaks read."""

import copy
import gc
import warnings

import pytest
import torch
import torch.nn.functional as F
from tests.beside_pyg import pyg
from tests.fullgraph.matrix.case import GAT, GCN, GIN, SAGE
from tests.fullgraph.matrix.cases_traced import Tutorial
from tests.fullgraph.matrix.compare import LEFT_ALONE, assert_alike, engine_of, verdict
from tests.fullgraph.matrix.graphs import CHANNELS, NODES, data_of
from tests.fullgraph.matrix.models import HIDDEN, calls
from torch import nn
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import degree, dropout_edge, remove_self_loops, to_undirected

import graphbraid
from graphbraid.fullgraph.program import LoweredLayer

# ---- layers and modules of the models


class Weighed(MessagePassing):
    """Weights of edges that are learned: a parameter for each end's first column."""

    def __init__(self, aggr="add"):
        super().__init__(aggr=aggr)
        self.scale = nn.Parameter(torch.rand(HIDDEN))

    def forward(self, x, edge_index):
        row, col = edge_index
        weight = torch.sigmoid((x[row] * self.scale).sum(-1) - x[col][:, 0])
        return self.propagate(edge_index, x=x, weight=weight)

    def message(self, x_j, weight):
        return weight.unsqueeze(-1) * x_j


class Featured(MessagePassing):
    """Features of edges that an MLP makes of both ends."""

    def __init__(self, aggr="max"):
        super().__init__(aggr=aggr)
        self.mlp = nn.Sequential(nn.Linear(2 * HIDDEN, HIDDEN), nn.Tanh())

    def forward(self, x, edge_index):
        row, col = edge_index
        return self.propagate(edge_index, x=x, e=self.mlp(torch.cat([x[row], x[col]], 1)))

    def message(self, x_j, e):
        return x_j + e


class Walking(nn.Module):
    """A module of the user's own inside GIN, with statistics, and its parts called by name."""

    def __init__(self, width=HIDDEN):
        super().__init__()
        self.fc, self.bn = nn.Linear(width, HIDDEN), nn.BatchNorm1d(HIDDEN)

    def forward(self, x):
        return F.relu(self.bn(self.fc(x)) * 2)


class Branching(Walking):
    """The same, with a branch on values, which no trace follows."""

    def forward(self, x):
        return super().forward(x) if x.abs().sum() > 0 else x


def gcn(**options):
    return pyg.GCNConv(HIDDEN, HIDDEN, **options)


def layer(make):
    return lambda: {"layer": make()}


# ---- forwards on edges that they make


def turned(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    return self.head(self.second(h, edge_index) + self.layer(h, edge_index.flip(0)))


def unread(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    self.layer(h, edge_index.flip(0))
    return self.head(self.second(h, edge_index))


def turned_by_rows(self, x, edge_index):
    row, col = edge_index
    h = self.first(x, edge_index).relu()
    return self.head(self.second(h, edge_index) + self.layer(h, torch.stack([col, row])))


def on_edges(make):
    """A forward whose layer runs on what ``make`` makes of the features, the edges and the layer's rows."""

    def run(self, x, edge_index):
        h = self.first(x, edge_index).relu()
        return self.head(self.layer(h, *make(x, edge_index, h)))

    return run


without_loops = on_edges(lambda x, e, h: remove_self_loops(e)[:1])
both_ways = on_edges(lambda x, e, h: [torch.cat([e, e[[1, 0]]], dim=1)])
undirected = on_edges(lambda x, e, h: [to_undirected(e, num_nodes=x.size(0))])
every_other = on_edges(lambda x, e, h: [e[:, ::2]])
no_edges = on_edges(lambda x, e, h: [e[:, :0]])
one_edge = on_edges(lambda x, e, h: [e[:, :1]])
chosen_by_rows = on_edges(lambda x, e, h: [e[:, (h[e[0]] * h[e[1]]).sum(1) > 0.1]])
weights_of_rows = on_edges(lambda x, e, h: [e, torch.sigmoid((h[e[0]] * h[e[1]]).sum(-1))])
weights_of_features = on_edges(lambda x, e, h: [e, F.cosine_similarity(x[e[0]], x[e[1]]).exp()])
in_float64 = on_edges(lambda x, e, h: [e, degree(e[0], x.size(0), dtype=torch.float64)[e[0]].to(h.dtype)])


def nearest(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    near = torch.cdist(h, h).topk(3, largest=False).indices
    edges = torch.stack([near.reshape(-1), torch.arange(h.size(0)).repeat_interleave(3)])
    return self.head(self.layer(h, edges))


def normed_before(self, x, edge_index):
    edges, weight = gcn_norm(edge_index, num_nodes=x.size(0))
    h = self.first(x, edge_index).relu()
    return self.head(self.layer(h, edges, weight) + self.second(h, edge_index))


def features_of_rows(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    e = self.part(torch.cat([h[edge_index[0]], h[edge_index[1]]], 1))
    return self.head(self.layer(h, edge_index, e).relu())


def own_layer(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    return self.head(self.second(self.layer(h, edge_index), edge_index))


def own_layer_twice(self, x, edge_index):
    h = self.layer(self.first(x, edge_index).relu(), edge_index)
    return self.head(self.layer(h, edge_index.flip(0)) + h)


def moved_edges(self, x, edge_index):
    edges = edge_index.clone()
    h = self.layer(self.first(x, edge_index).relu(), edges)
    edges[0] = edges[0].roll(1)
    return self.head(self.second(h, edges))


def moved_before(self, x, edge_index):
    edges = edge_index.clone()
    edges[0] = edges[0].roll(1)
    return self.head(self.second(self.layer(self.first(x, edge_index).relu(), edges), edges))


def a_view_of_edges_moved(self, x, edge_index):
    edges = edge_index.clone()
    row = edges[0]
    h = self.first(x, edge_index).relu()
    row += 0
    row.copy_(row.flip(0))
    return self.head(self.layer(h, edges))


def users_edges_moved(self, x, edge_index):
    row = edge_index[0]
    h = self.first(x, edge_index).relu()
    row.mul_(1)
    return self.head(self.layer(h, edge_index.flip(0)))


def a_pair_of_matrices(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    return self.head(self.layer((h, h), edge_index.flip(0)))


def first_rows_too(self, x, edge_index):
    h = h0 = self.first(x, edge_index).relu()
    return self.head(self.layer(h * 2, h0, edge_index.flip(0)))


GATV2_ON_FEATURES = {
    "heads": (HIDDEN // 2, {"heads": 2}),
    "no loops": (HIDDEN, {"add_self_loops": False, "bias": False}),
    "mean of heads": (HIDDEN, {"heads": 3, "concat": False, "residual": True, "fill_value": "add"}),
    "shared": (HIDDEN, {"share_weights": True, "fill_value": 0.5, "negative_slope": 0.0}),
    "loops of a row": (HIDDEN, {"fill_value": torch.tensor([0.1, 0.2, 0.3])}),
    "dropout": (HIDDEN, {"dropout": 1e-12}),
}
"""Columns and options of layers: width of a head, and the others by name."""
ON_EDGES = {
    "turned, GCN": (turned, GCN, layer(gcn)),
    "turned, improved": (turned, SAGE, layer(lambda: gcn(improved=True, bias=False))),
    "turned, no loops": (turned, GCN, layer(lambda: gcn(add_self_loops=False))),
    "turned, cached": (turned, GCN, layer(lambda: gcn(cached=True))),
    "turned, SAGE max": (turned, GCN, layer(lambda: pyg.SAGEConv(HIDDEN, HIDDEN, aggr="max"))),
    "turned, SAGE mean": (turned_by_rows, GCN, layer(lambda: pyg.SAGEConv(HIDDEN, HIDDEN))),
    "turned, GAT": (turned, GCN, layer(lambda: pyg.GATConv(HIDDEN, HIDDEN // 2, heads=2))),
    "turned, GATv2": (turned, GAT, layer(lambda: pyg.GATv2Conv(HIDDEN, HIDDEN // 2, heads=2))),
    "turned, SGC": (turned, GCN, layer(lambda: pyg.SGConv(HIDDEN, HIDDEN, K=2))),
    "turned, APPNP": (turned, GCN, layer(lambda: pyg.APPNP(3, 0.1))),
    "turned, TAG": (turned, GIN, layer(lambda: pyg.TAGConv(HIDDEN, HIDDEN))),
    "turned, GIN": (turned, GCN, layer(lambda: pyg.GINConv(pyg.MLP([HIDDEN, HIDDEN, HIDDEN])))),
    "turned, GIN of one's own": (turned, GCN, layer(lambda: pyg.GINConv(Walking(), train_eps=True))),
    "turned, ResGated": (turned, GCN, layer(lambda: pyg.ResGatedGraphConv(HIDDEN, HIDDEN))),
    "turned, own": (turned, GCN, layer(Weighed)),
    "unread": (unread, GCN, layer(gcn)),
    "unread, statistics": (unread, GCN, layer(lambda: pyg.GINConv(nn.BatchNorm1d(HIDDEN)))),
    "without loops": (without_loops, GCN, layer(gcn)),
    "both ways": (both_ways, SAGE, layer(lambda: pyg.GraphConv(HIDDEN, HIDDEN, aggr="mean"))),
    "undirected": (undirected, GCN, layer(gcn)),
    "every other": (every_other, GCN, layer(gcn)),
    "no edges": (no_edges, GCN, layer(gcn)),
    "no edges, GAT": (no_edges, GCN, layer(lambda: pyg.GATConv(HIDDEN, HIDDEN))),
    "no edges, own": (no_edges, GCN, layer(Featured)),
    "one edge": (one_edge, GCN, layer(lambda: pyg.SAGEConv(HIDDEN, HIDDEN, aggr="max"))),
    "chosen by rows": (chosen_by_rows, GCN, layer(gcn)),
    "nearest": (nearest, GCN, layer(lambda: pyg.SAGEConv(HIDDEN, HIDDEN))),
    "normed before": (normed_before, GCN, layer(lambda: gcn(normalize=False))),
    "normed twice": (normed_before, GCN, layer(gcn)),
    "weights of rows, GCN": (weights_of_rows, GCN, layer(gcn)),
    "weights of rows, GraphConv": (weights_of_rows, GCN, layer(lambda: pyg.GraphConv(HIDDEN, HIDDEN))),
    "weights of features": (weights_of_features, GCN, layer(gcn)),
    "features of rows, GINE": (
        features_of_rows,
        GCN,
        lambda: {"layer": pyg.GINEConv(nn.Linear(HIDDEN, HIDDEN)), "part": nn.Linear(2 * HIDDEN, HIDDEN)},
    ),
    "features of rows, GAT": (
        features_of_rows,
        GCN,
        lambda: {
            "layer": pyg.GATConv(HIDDEN, 4, heads=2, edge_dim=3),
            "part": nn.Sequential(nn.Linear(2 * HIDDEN, 3), nn.ReLU()),
        },
    ),
    **{
        f"features of rows, GATv2, {what}": (
            features_of_rows,
            GCN,
            lambda width=width, options=options: {
                "layer": pyg.GATv2Conv(HIDDEN, width, edge_dim=3, **options),
                "part": nn.Sequential(nn.Linear(2 * HIDDEN, 3), nn.ReLU()),
            },
        )
        for what, (width, options) in GATV2_ON_FEATURES.items()
    },
    "features of rows, batch norm": (
        features_of_rows,
        GCN,
        lambda: {
            "layer": pyg.GINEConv(Walking()),
            "part": nn.Sequential(nn.Linear(2 * HIDDEN, HIDDEN), nn.BatchNorm1d(HIDDEN)),
        },
    ),
    "tutorial": (own_layer, GCN, layer(Tutorial)),
    "tutorial, mean": (own_layer, GCN, layer(lambda: Tutorial(aggr="mean"))),
    "tutorial, max, twice": (own_layer_twice, GCN, layer(lambda: Tutorial(aggr="max"))),
    "learned weights": (own_layer, GCN, layer(Weighed)),
    "learned weights, max": (own_layer_twice, SAGE, layer(lambda: Weighed("max"))),
    "learned features": (own_layer, GCN, layer(Featured)),
    "learned features, twice": (own_layer_twice, GCN, layer(lambda: Featured("mean"))),
    "moved edges": (moved_edges, GCN, layer(gcn)),
    "moved before": (moved_before, GCN, layer(gcn)),
    "a view of edges moved": (a_view_of_edges_moved, GCN, layer(gcn)),
    "user's edges moved": (users_edges_moved, GCN, layer(gcn)),
    "a pair of matrices": (a_pair_of_matrices, GCN, layer(lambda: pyg.SAGEConv(HIDDEN, HIDDEN))),
    "first rows too": (first_rows_too, GCN, layer(lambda: pyg.GCN2Conv(HIDDEN, 0.1, 0.5, 1))),
    "weights of another dtype": (in_float64, GCN, layer(gcn)),
}
LEFT = {"user's edges moved", "unread, statistics"}
AS_WRITTEN = {"weights of rows, GCN", "weights of rows, GraphConv", "turned, cached"}
"""Cases in which the model, or PyG's layer in question, runs as it is written."""


def made(case):
    run, make, parts = case
    torch.manual_seed(5)
    return calls(run)(make, **parts())


def layers_of(engine):
    return [layer for op in engine.breaks for layer in op.layers]


@pytest.mark.parametrize("name", ON_EDGES)
def test_a_layer_on_edges_of_the_forward_equals_pyg(name):
    data, model = data_of("untidy"), made(ON_EDGES[name])
    engine = engine_of(model, data)
    assert (verdict(engine) == LEFT_ALONE) == (name in LEFT), engine.explain()
    if name.startswith(("turned", "learned", "weights", "features")) and name not in LEFT | AS_WRITTEN:
        assert layers_of(engine), engine.explain()
    assert_alike(model, made(ON_EDGES[name]), data, engine, steps=4)


# ---- writes over what the forward has made


def masked(self, x, edge_index):
    h = self.first(x, edge_index).sin()
    h[h > 0.5] = 0
    return self.head(self.second(h, edge_index))


def a_view_written(self, x, edge_index):
    h = self.first(x, edge_index).cos()
    part = h[:, :3]
    part.mul_(2)
    return self.head(self.second(h, edge_index))


def a_view_of_a_view(self, x, edge_index):
    h = self.first(x, edge_index).cos().view(-1, 2, HIDDEN // 2)
    h[:, 0].mul_(2)
    h.transpose(1, 2)[:, 1, 0].fill_(0.5)
    return self.head(self.second(h.flatten(1), edge_index))


def written_after_it_is_read(self, x, edge_index):
    h = self.first(x, edge_index).cos()
    out = self.second(h + 0, edge_index)
    h[:, 0] = 1
    return self.head(out + h)


def copied_before(self, x, edge_index):
    h = self.first(x, edge_index).cos()
    before = h.clone()
    h[:, 0] = 1
    return self.head(self.second(before, edge_index) + h)


def a_row_of_rows(self, x, edge_index):
    h = self.first(x, edge_index)
    h[0] = 0
    return self.head(self.second(h, edge_index))


def summed_by_hand(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    out = torch.zeros(h.size(0), h.size(1), dtype=h.dtype).index_add_(0, edge_index[1], h[edge_index[0]])
    return self.head(self.second(h, edge_index) + out)


def summed_into_zeros_like(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    out = torch.zeros_like(h)
    out.scatter_add_(0, edge_index[1][:, None].expand_as(h[edge_index[0]]), h[edge_index[0]])
    count = torch.zeros(h.size(0)).scatter_add_(0, edge_index[1], torch.ones(edge_index.size(1)))
    return self.head(self.second(h, edge_index) + out / count.clamp(min=1)[:, None])


def a_constant_written(self, x, edge_index):
    shift = torch.zeros(x.size(0), 1)
    h = self.first(x, edge_index).cos() + shift
    shift += 1
    out = self.second(h, edge_index).cos() + shift
    shift *= 3
    return self.head(out.sin() + shift)


def a_constant_written_by_rows(self, x, edge_index):
    h = self.first(x, edge_index)
    shift = torch.zeros(x.size(0), 1)
    first = h.cos() + shift
    shift += h[:, :1].sin()
    return self.head(self.second(first + shift, edge_index))


def a_constant_read_then_written(self, x, edge_index):
    h = self.first(x, edge_index)
    shift = torch.zeros(x.size(0), 1)
    out = self.second(h.cos() + shift, edge_index)
    shift += 1
    return self.head(out.sin() + shift)


def two_names(self, x, edge_index):
    h = self.first(x, edge_index).cos()
    same = h.view_as(h)
    h += 1
    same -= 0.5
    return self.head(self.second(same, edge_index) + h)


def degrees(self, x, edge_index):
    deg = degree(edge_index[1], x.size(0), dtype=x.dtype)
    h = self.first(x, edge_index).relu() * torch.log(deg + 1).unsqueeze(-1)
    return self.head(self.second(h, edge_index))


def a_parameter_written(self, x, edge_index):
    with torch.no_grad():
        self.gate.clamp_(0, 1)
    return self.head(self.second(self.first(x, edge_index) * self.gate, edge_index))


def swapped(self, x, edge_index):
    h = self.first(x, edge_index).cos()
    h[:, :2], h[:, 2:4] = h[:, 2:4].clone(), h[:, :2].clone()
    return self.head(self.second(h, edge_index))


def overlapping(self, x, edge_index):
    h = self.first(x, edge_index).cos()
    h[:, 1:] += h[:, :-1]
    return self.head(self.second(h, edge_index))


def written_by_chance(self, x, edge_index):
    noise = torch.empty(x.size(0), 1, dtype=x.dtype)
    noise.fill_(0.5).bernoulli_(1.0)
    h = self.second(self.first(x, edge_index).cos() * noise, edge_index)
    return self.head(h.cos() + noise)


def written_by_chance_and_returned(self, x, edge_index):
    noise = torch.empty(x.size(0), 1, dtype=x.dtype).bernoulli_(1.0)
    h = self.second(self.first(x, edge_index).cos() * noise, edge_index)
    return self.head(h.cos() + noise)


def a_vector_written_by_chance(self, x, edge_index):
    noise = torch.empty(x.size(0), dtype=x.dtype)
    noise.bernoulli_(1.0)
    h = self.second(self.first(x, edge_index).cos() * noise[:, None], edge_index)
    return self.head(h.cos() + noise[:, None])


def a_code_read_before_it_is_written(self, x, edge_index):
    code = self.part(self.virtual)
    before = code.cos()
    code.data.add_(1)
    h = self.first(x, edge_index) + code
    return self.head(self.second(h.sin(), edge_index) + before)


def a_mask_written(self, x, edge_index):
    mask = torch.rand(x.size(0), 1) > -1
    before = mask.float().to(x.dtype)
    mask.logical_not_()
    h = self.first(x, edge_index).cos() + mask.float().to(x.dtype)
    return self.head(self.second(h, edge_index).cos() + before)


def a_size_of_chosen_edges(self, x, edge_index):
    h = self.first(x, edge_index)
    edges = edge_index[:, (h[edge_index[0]] > h[edge_index[1]]).any(1)]
    return self.head(self.layer(h, edges, torch.ones(edges.size(1), dtype=h.dtype) * 2))


# ---- results of another form that several breaks read


def recurrent(self, x, edge_index):
    out = self.first(x, edge_index).relu()
    h = out.unsqueeze(0)
    for _ in range(3):
        out, h = self.part(self.second(out, edge_index).relu().unsqueeze(0), h)
        out = out.squeeze(0)
    return self.head(out)


def virtual_node(self, x, edge_index):
    h, virtual = self.skip(x), self.virtual
    for conv in (self.second, self.layer, self.second):
        h = h + virtual
        h = conv(h, edge_index).relu()
        virtual = virtual + self.part(h.mean(0, keepdim=True))
    return self.head(h)


def last_virtual_node_too(self, x, edge_index):
    h, virtual = self.skip(x), self.virtual
    for conv in (self.second, self.layer):
        h = conv(h + virtual, edge_index).relu()
        virtual = virtual + self.part(h.mean(0, keepdim=True))
    return self.head(h + virtual)


def a_code_of_the_graph(self, x, edge_index):
    code = self.part(self.virtual)
    h = self.first(x, edge_index) * code.cos()
    h = self.second(h, edge_index) * code.sin()
    return self.head(h.sin() + code)


def a_code_of_rows(self, x, edge_index):
    h = self.first(x, edge_index)
    code = self.part(h.amax(0))
    h = self.second(h.relu(), edge_index)
    return self.head((h * code).sin() @ code.diag() + code)


def a_code_written(self, x, edge_index):
    code = self.part(self.virtual)
    h = self.first(x, edge_index) + code
    code += 1
    return self.head(self.second(h, edge_index) * code.sin())


def scores_of_edges(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    score = self.part(h[edge_index[0]]).softmax(0)
    h = self.second(h, edge_index).index_add(0, edge_index[1], score)
    return self.head(h.cos().index_add(0, edge_index[0], score))


def sorted_rows(self, x, edge_index):
    h = self.first(x, edge_index)
    top, places = h.sort(dim=0, descending=True)
    h = self.second(h - top.values[0] if hasattr(top, "values[0]") else h - top[0], edge_index)
    return self.head(h.cos().gather(0, places))


def largest(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(self.second(h - h.max(dim=0).values + h.topk(2, dim=0).values[1], edge_index))


def stacked(self, x, edge_index):
    h = self.first(x, edge_index)
    both = torch.stack([h, self.second(h.relu(), edge_index)])
    a, b = torch.unbind(both.softmax(0), 0)
    return self.head(a * h + b)


def frozen_part(self, x, edge_index):
    h = self.first(x, edge_index)
    with torch.no_grad():
        center = h.mean(0)
    return self.head(self.second(h - center, edge_index) + center)


def detached(self, x, edge_index):
    h = self.first(x, edge_index)
    center = self.part(h.mean(0).detach())
    return self.head((self.second(h - center, edge_index) * center.sin()).cos())


def turned_part(self, x, edge_index):
    return self.head(self.second(self.part(self.first(x, edge_index).relu()), edge_index))


def hooked_weight_norm(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch has a parametrization for it now
        return nn.utils.weight_norm(module)


def vector(*more):
    return lambda: {
        "virtual": nn.Parameter(torch.rand(1, HIDDEN)),
        "layer": GIN(HIDDEN, HIDDEN),
        "part": nn.Sequential(nn.Linear(HIDDEN, HIDDEN), *copy.deepcopy(more)),
    }


def linear():
    return {"part": nn.Linear(HIDDEN, HIDDEN)}


class Norms(nn.BatchNorm1d):
    """Statistics of edges."""

    def forward(self, x):
        return super().forward(x) + 1


FORMS = {
    "masked": (masked, GCN, dict),
    "a view written": (a_view_written, GCN, dict),
    "a view of a view": (a_view_of_a_view, GCN, dict),
    "written after it is read": (written_after_it_is_read, GCN, dict),
    "copied before": (copied_before, SAGE, dict),
    "a row of rows": (a_row_of_rows, GCN, dict),
    "summed by hand": (summed_by_hand, GCN, dict),
    "summed into zeros_like": (summed_into_zeros_like, GCN, dict),
    "a constant written": (a_constant_written, GCN, dict),
    "a constant written by rows": (a_constant_written_by_rows, GCN, dict),
    "a constant read, then written": (a_constant_read_then_written, GCN, dict),
    "two names": (two_names, GCN, dict),
    "degrees": (degrees, GAT, dict),
    "written by chance": (written_by_chance, GCN, dict),
    "written by chance and returned": (written_by_chance_and_returned, GCN, dict),
    "a vector written by chance": (a_vector_written_by_chance, GCN, dict),
    "a mask written": (a_mask_written, GCN, dict),
    "a size of chosen edges": (a_size_of_chosen_edges, GCN, layer(gcn)),
    "swapped": (swapped, GCN, dict),
    "overlapping": (overlapping, GCN, dict),
    "recurrent": (recurrent, GCN, lambda: {"part": nn.GRU(HIDDEN, HIDDEN)}),
    "virtual node": (virtual_node, GCN, vector(nn.ReLU())),
    "virtual node, dropout": (virtual_node, SAGE, vector(nn.Dropout(0.0))),
    "last virtual node too": (last_virtual_node_too, GCN, vector(nn.LayerNorm(HIDDEN))),
    "a code of the graph": (a_code_of_the_graph, GCN, vector(nn.Tanh())),
    "a code of rows": (a_code_of_rows, GCN, linear),
    "a code read before it is written": (a_code_read_before_it_is_written, GCN, vector()),
    "a code written": (a_code_written, GCN, vector()),
    "scores of edges": (scores_of_edges, GCN, linear),
    "scores of edges, statistics": (scores_of_edges, GCN, lambda: {"part": Norms(HIDDEN)}),
    "sorted rows": (sorted_rows, GCN, dict),
    "largest": (largest, GCN, dict),
    "stacked": (stacked, GCN, dict),
    "frozen part": (frozen_part, GCN, dict),
    "detached": (detached, GCN, linear),
    "GIN of one's own": (turned, lambda i, o: pyg.GINConv(Walking(i)), layer(gcn)),
    "GIN of one's own, a branch": (turned, lambda i, o: pyg.GINConv(Branching(i)), layer(gcn)),
    "a parameter written": (a_parameter_written, GCN, lambda: {"gate": nn.Parameter(torch.rand(HIDDEN))}),
}
FORMS |= {
    f"{name} of a weight": (turned_part, GCN, lambda wrap=wrap: {"part": wrap(nn.Linear(HIDDEN, HIDDEN))})
    for name, wrap in {
        "weight norm": nn.utils.parametrizations.weight_norm,
        "weight norm by a hook": hooked_weight_norm,
        "spectral norm": nn.utils.parametrizations.spectral_norm,
        "orthogonal": nn.utils.parametrizations.orthogonal,
    }.items()
}
LEFT_ALONE_FORMS = {"a row of rows", "frozen part", "a parameter written", "a code written"}
LEFT_ALONE_FORMS |= {"written after it is read", "a view written", "a view of a view", "swapped"}
LEFT_ALONE_FORMS |= {"overlapping", "a code read before it is written", "a vector written by chance"}


@pytest.mark.parametrize("name", FORMS)
def test_writes_and_results_of_other_forms_equal_pyg(name):
    data, model = data_of("untidy"), made(FORMS[name])
    engine = engine_of(model, data)
    assert (verdict(engine) == LEFT_ALONE) == (name in LEFT_ALONE_FORMS), engine.explain()
    assert_alike(model, made(FORMS[name]), data, engine, steps=4)


@pytest.mark.parametrize("name", [*ON_EDGES, *FORMS])
def test_on_batches_equals_pyg_in_float64(name):
    data, case = data_of("untidy"), {**ON_EDGES, **FORMS}[name]
    model, twin = made(case).double(), made(case).double()
    engine = graphbraid.compile(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = engine(data.x.double(), data.edge_index)
    expected = twin(data.x.double(), data.edge_index)
    torch.testing.assert_close(out, expected)
    for outputs in (out, expected):
        outputs.square().sum().backward()
    for (key, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
        zero = torch.zeros_like(a)
        found, wanted = (zero if one.grad is None else one.grad for one in (a, b))
        torch.testing.assert_close(found, wanted, msg=lambda m, key=key: f"{key}: {m}")
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_spectral_norm_and_weight_norm_by_hooks_are_not_read_again_in_each_step():
    for name in ("spectral norm of a weight", "weight norm by a hook of a weight"):
        data, model = data_of("untidy"), made(FORMS[name])
        engine = engine_of(model, data)
        runner = engine.runner
        for _ in range(20):
            engine().sum().backward()
        assert engine.runner is runner
        assert engine.why is None


def test_a_hook_beside_weight_norm_leaves_the_model_alone():
    model, seen = made(FORMS["weight norm by a hook of a weight"]), []
    model.part.register_forward_pre_hook(lambda module, args: seen.append(len(args)))
    engine = engine_of(model, data_of("untidy"))
    assert verdict(engine) == LEFT_ALONE
    engine()
    assert seen


# ---- random edges, repeated calls, and changes between calls


def dropped(self, x, edge_index):
    edges, _ = dropout_edge(edge_index, p=0.4, training=self.training)
    return self.head(self.second(self.first(x, edges).relu(), edges))


def dropped_by_layer(self, x, edge_index):
    first, _ = dropout_edge(edge_index, p=0.4, training=self.training)
    second, _ = dropout_edge(edge_index, p=0.4, training=self.training, force_undirected=True)
    return self.head(self.second(self.first(x, first).relu(), second))


def masked_weights(self, x, edge_index):
    weight = (torch.rand(edge_index.size(1)) > 0.4).float()
    h = self.first(x, edge_index, weight).relu()
    return self.head(self.second(h, edge_index, weight))


def noisy(self, x, edge_index):
    noise = torch.randn(x.size(0), 1)
    h = self.second((self.first(x, edge_index) + noise).cos(), edge_index)
    return self.head(h.cos() * noise.exp())


RANDOM = {"dropped": dropped, "by layer": dropped_by_layer, "weights": masked_weights, "noisy": noisy}


@pytest.mark.parametrize("name", RANDOM)
def test_random_edges_are_those_that_pyg_draws(name):
    """The same numbers of torch's generator, in the same order; each break has those of the first."""
    data, case = data_of("untidy"), (RANDOM[name], GCN, dict)
    model, twin = made(case), made(case).double()
    engine = engine_of(model, data)
    assert verdict(engine) != LEFT_ALONE, engine.explain()
    for seed in range(4):
        torch.manual_seed(seed)
        out = engine()
        torch.manual_seed(seed)
        if name == "weights":  # the twin's weights are float64, drawn as float32
            torch.set_default_dtype(torch.float32)
        expected = twin(data.x.double(), data.edge_index)[data.train_mask]
        torch.testing.assert_close(out, expected, check_dtype=False, rtol=2e-4, atol=2e-5)
        for outputs, one in ((out, model), (expected, twin)):
            one.zero_grad()
            outputs.square().sum().backward()
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            if b.grad is not None:
                torch.testing.assert_close(a.grad, b.grad, check_dtype=False, rtol=2e-4, atol=2e-5)
    model.eval()
    twin.eval()
    if name.startswith(("dropped", "by")):
        predicted = twin(data.x.double(), data.edge_index)
        torch.testing.assert_close(engine.predict(), predicted, check_dtype=False, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["virtual node", "recurrent", "a code of rows", "GIN of one's own"])
def test_backward_of_an_earlier_call_has_that_calls_numbers(name):
    data, model, twin = data_of("untidy"), made(FORMS[name]), made(FORMS[name])
    engine, same = engine_of(model, data), engine_of(twin, data)
    first, second = engine(), engine()
    second.square().sum().backward()
    later = [p.grad for p in model.parameters()]
    model.zero_grad()
    first.square().sum().backward()  # runs the first call's forward pass again
    for a, b in zip(model.parameters(), later, strict=True):
        assert (a.grad is None) == (b is None)
        if b is not None:
            torch.testing.assert_close(a.grad, b)
    same().square().sum().backward()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        if b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad)


def test_edges_weights_and_parts_may_change_between_calls():
    case = ON_EDGES["turned, GCN"]
    data, model, twin = data_of("untidy"), made(case), made(case)
    engine = engine_of(model, data)

    def same():
        expected = twin(data.x, data.edge_index)
        torch.testing.assert_close(engine(), expected[data.train_mask], rtol=2e-4, atol=2e-5)
        torch.testing.assert_close(engine.predict(), expected, rtol=2e-4, atol=2e-5)

    same()
    data.edge_index = data.edge_index.flip(1)[:, 3:]  # another tensor
    same()
    data.edge_index[0, 0] = (data.edge_index[0, 0] + 1) % NODES  # the same one, written to
    same()
    with torch.no_grad():
        for one in (model, twin):
            one.layer.lin.weight.mul_(2)
    same()
    for one in (model, twin):
        one.layer.bias = nn.Parameter(torch.ones(HIDDEN))
    same()
    for one in (model, twin):
        torch.manual_seed(9)
        one.layer = pyg.SAGEConv(HIDDEN, HIDDEN, aggr="max")
    same()
    for one in (model, twin):
        one.layer.aggr = "mean"
        one.layer.aggr_module = pyg.SAGEConv(HIDDEN, HIDDEN, aggr="mean").aggr_module
    same()
    for one in (model, twin):
        one.layer = nn.Module()
        one.layer.forward = lambda h, edge_index: h
    same()


def test_statistics_of_a_layer_on_its_own_edges_move_once_a_step():
    case = ON_EDGES["turned, GIN"]
    data, model, twin = data_of("untidy"), made(case), made(case)
    engine = engine_of(model, data)
    outs = [engine(), engine()]
    for out in outs:
        out.sum().backward()
    engine.predict()
    for _ in range(2):
        twin(data.x, data.edge_index)
    for (name, a), b in zip(model.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


def test_constants_of_the_graph_are_computed_once_and_freed():
    case = ON_EDGES["normed before"]
    data, model = data_of("untidy"), made(case)
    engine = engine_of(model, data)
    (first,) = [op for op in engine.breaks if op.layers]
    assert len(first.calls) == 1
    assert len(first.given) == 2  # the edges with loops, and their weights
    model.eval()
    engine.predict()
    model.train()
    engine()
    again = [op for op in engine.breaks if op.layers]
    assert all(a is b for a, b in zip(first.given.values(), again[0].given.values(), strict=True))
    before = len([one for one in gc.get_objects() if isinstance(one, LoweredLayer)])
    del engine, first, again
    gc.collect()
    assert len([one for one in gc.get_objects() if isinstance(one, LoweredLayer)]) < before


def test_a_layer_on_its_own_edges_is_named_in_the_explanation():
    engine = engine_of(made(ON_EDGES["turned, GCN"]), data_of("untidy"))
    assert "layer GCNConv on its own edges, lowered" in engine.explain()


# ---- other attributes of the user's data


class OfData(nn.Module):
    """A model that takes the data, whatever these hold."""

    def __init__(self, read):
        super().__init__()
        self.read = read
        self.first, self.second = GCN(CHANNELS, HIDDEN), GCN(HIDDEN, HIDDEN)
        self.head, self.code = nn.Linear(HIDDEN, 4), nn.Linear(3, HIDDEN)

    def forward(self, data):
        x, edge_index, batch = data.x, data.edge_index, data.batch
        h = self.first(x, edge_index)
        h = self.second(self.read(self, h, data, batch).relu(), edge_index)
        return self.head(h)


def positions(self, h, data, batch):
    return h + self.code(data.pos)


def lengths(self, h, data, batch):
    row, col = data.edge_index
    weight = (data.pos[row] - data.pos[col]).norm(dim=1)
    return self.second(h, data.edge_index, weight)


def trees(self, h, data, batch):
    mean = torch.zeros(3, h.size(1), dtype=h.dtype).index_add_(0, data.tree, h)
    return h - mean[data.tree]


def labels(self, h, data, batch):
    known = F.one_hot(data.y, 8).to(h.dtype) * data.train_mask[:, None]
    return h + known


def no_batch(self, h, data, batch):
    return h if batch is None else h * 0


READS = {"positions": positions, "lengths": lengths, "trees": trees, "labels": labels, "no batch": no_batch}


@pytest.mark.parametrize("name", READS)
def test_other_attributes_of_the_data_may_be_read_and_changed(name):
    data = data_of("untidy")
    draw = torch.Generator().manual_seed(8)
    data.pos = torch.rand(NODES, 3, generator=draw)
    data.tree = torch.randint(3, (NODES,), generator=draw)
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        models.append(OfData(READS[name]))
    model, twin = models
    engine = engine_of(model, data)
    assert verdict(engine) != LEFT_ALONE, engine.explain()
    assert_alike(model, copy.deepcopy(twin), data, engine)
    twin.load_state_dict(model.state_dict())

    def same():
        torch.testing.assert_close(engine.predict(), twin.eval()(data), rtol=2e-4, atol=2e-5)

    same()
    data.pos.mul_(2)
    data.tree.add_(1).remainder_(3)
    same()
    data.pos, data.tree, data.y = data.pos + 1, data.tree.flip(0), data.y.flip(0)
    same()
    data.batch = torch.zeros(NODES, dtype=torch.int64)
    same()
    data.pos.requires_grad_()
    same()

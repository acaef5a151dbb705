"""Calls on a matrix of rows and something else: other rows, numbers, parameters, columns, shapes."""

from itertools import cycle

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from tests.fullgraph.matrix.case import BASES, GCN, SAGE, Case, left, partly
from tests.fullgraph.matrix.graphs import CHANNELS, NODES
from tests.fullgraph.matrix.models import HIDDEN, Doubled, Stack, calls, functional
from torch import nn


def gated_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * torch.sigmoid(b), a], dim=1)


def thirds(x):
    first, second, third = torch.split(x, [3, 3, 2], dim=1)
    return torch.cat([second, first * 2, third], 1)


def halves(x):
    first, second = x.split(4, dim=1)
    return torch.cat([second, first], 1)


def heads(x):
    split = x.view(-1, 2, 4)
    return torch.cat([split.mean(dim=1), split.sum(dim=-2)], 1) + split.view(-1, 8)


def a_sum_is_another(x):
    y = 0 + x
    y += x.relu()
    return y * x


def times_one_is_another(x):
    y = x * 1
    y *= 2
    return y + x


def a_view_is_the_same(x):
    x = x * 0.5
    y = x.view(x.size(0), -1)
    y += 1
    return y + x


def a_part_is_the_same(x):
    x = x * 0.5
    x[:, :4].relu_()
    return x


def an_overwritten_whole(x):
    x = x * 0.5
    part = x[:, :4]
    x += 1
    return torch.cat([part, x[:, 4:]], 1)


def a_dropout_at_rest(x):
    x = x * 0.5
    y = F.dropout(x, 0.5, training=False)
    y += 1
    return y + x


_FUNCTIONS = {
    "0 + x": lambda x: 0 + x,
    "sum([x, x.relu(), x.tanh()])": lambda x: sum([x, x.relu(), x.tanh()]),
    "1 - x": lambda x: 1 - x,
    "x + 2.5 - 1": lambda x: x + 2.5 - 1,
    "x * x.relu()": lambda x: x * x.relu(),
    "x * x": lambda x: x * x,
    "z * x + (1 - z) * x.tanh()": lambda x: x.sigmoid() * x + (1 - x.sigmoid()) * x.tanh(),
    "column * x": lambda x: torch.mul(x.sum(dim=1, keepdim=True).sigmoid(), x),
    "x * x[:, 2:3]": lambda x: x * x[:, 2:3],
    "x.mul_(y)": lambda x: (x + 1).mul_(x.relu()),
    "x / (x.abs() + 1)": lambda x: x / (x.abs() + 1),
    "1 / (1 + x.exp())": lambda x: 1 / (1 + x.exp()),
    "x.pow(2) - x ** 3": lambda x: x.pow(2) - 0.1 * x**3,
    "torch.square, sqrt, log": lambda x: torch.log(torch.sqrt(torch.square(x) + 1) + 0.5),
    "x.abs()": lambda x: x.abs(),
    "x.clamp(min=0)": lambda x: x.clamp(min=0),
    "torch.clamp(x, -0.2, 0.3)": lambda x: torch.clamp(x, -0.2, 0.3),
    "x.mean(dim=1, keepdim=True)": lambda x: x * x.mean(dim=1, keepdim=True),
    "x / x.norm(dim=1, keepdim=True)": lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1e-3),
    "torch.norm(x, p=2, dim=-1, keepdim=True)": lambda x: x * torch.norm(x, p=2, dim=-1, keepdim=True),
    "F.normalize(x)": F.normalize,
    "F.normalize(x, p=2, dim=-1)": lambda x: F.normalize(x.tanh(), p=2, dim=-1),
    "x[:, :3] beside x[..., 3:]": lambda x: torch.cat([x[:, :3], x[..., 3:]], 1),
    "x.chunk(2)": gated_half,
    "torch.split": thirds,
    "x.split": halves,
    "x.view(-1, 8)": lambda x: x.view(-1, 8),
    "x.view(x.size(0), -1)": lambda x: x.view(x.size(0), -1).reshape(x.shape[0], x.shape[1]),
    "x.squeeze(1)": lambda x: x.squeeze(1).contiguous(),
    "mean of heads": heads,
    "mean of heads of x.size(0)": lambda x: torch.cat([x.view(x.size(0), 4, -1).mean(1)] * 4, 1),
    "0 + x, then in place": a_sum_is_another,
    "x * 1, then in place": times_one_is_another,
    "x.view(...), then in place": a_view_is_the_same,
    "a dropout at rest, then in place": a_dropout_at_rest,
}
_LEFT = {
    "in place on a part": a_part_is_the_same,
    "a slice of rows that are overwritten": an_overwritten_whole,
    "x - x.mean(0)": lambda x: x - x.mean(0),
    "x[0]": lambda x: x * x[0],
    "x[:, 1]": lambda x: x + x[:, 1].unsqueeze(-1),
    "x.sum(1)": lambda x: x * x.sum(1).unsqueeze(-1),
    "column / x": lambda x: x[:, :1] / (x.abs() + 1),
    "x.norm()": lambda x: x / x.norm(),
    "x ** 0": lambda x: x + x**0,
    "2 ** x": lambda x: 2**x,
}


# ---- parameters as operands


def shifted(self, x, edge_index):
    return self.head((self.first(x, edge_index) + self.own).relu())


def scaled(self, x, edge_index):
    return self.head(self.own * self.first(x, edge_index))


def divided(self, x, edge_index):
    return self.head(self.first(x, edge_index) / self.own - self.own)


def mixed(self, x, edge_index):
    x = self.first(x, edge_index).relu()
    return self.head((1 - self.own[0]) * self.second(x, edge_index) + self.own[0] * x)


def by_softmax(self, x, edge_index):
    x = self.first(x, edge_index)
    y = self.second(x.relu(), edge_index)
    share = torch.softmax(self.own, dim=0)
    return self.head(share[0] * x + share[1] * y)


def row_of_matrix(self, x, edge_index):
    return self.head(self.first(x, edge_index) * torch.sigmoid(self.own)[1:2])


def rows_of_nodes(self, x, edge_index):
    return self.head(self.first(torch.cat([x, self.own], dim=-1), edge_index).relu())


def rows_alone(self, edge_index):
    return self.head(self.second(self.own.weight, edge_index).relu())


def rows_by_id(self, x, edge_index, n_id):
    return self.head(self.first(x, edge_index) + self.own(n_id))


def rows_by_other_id(self, x, edge_index, y):
    return self.head(self.first(x, edge_index) + self.own(y))


def by_buffer(self, x, edge_index):
    return self.head(self.first(x, edge_index) * self.own[0] + self.own[1])


class Buffered(calls(by_buffer)):
    """Numbers in a buffer."""

    def __init__(self):
        super().__init__(GCN)
        self.register_buffer("own", torch.tensor([0.5, 2.0]))


def first_nodes(data):
    data = data.subgraph(torch.arange(NODES))
    data.n_id = torch.arange(data.num_nodes)
    return data


def _own(run, make, **options):
    def model():
        return calls(run)(options.get("base", GCN), own=make())

    return model


def _numbers(*shape):
    return lambda: nn.Parameter(torch.rand(shape) + 0.5)


_OWN = {
    "x + vector": _own(shifted, _numbers(HIDDEN)),
    "x + matrix of one row": _own(shifted, _numbers(1, HIDDEN)),
    "x + number": _own(shifted, _numbers(1)),
    "number * x": _own(scaled, _numbers()),
    "vector * x": _own(scaled, _numbers(HIDDEN), base=SAGE),
    "x / number - number": _own(divided, _numbers(1)),
    "alpha[0] and 1 - alpha[0]": _own(mixed, _numbers(3)),
    "softmax of weights": _own(by_softmax, _numbers(2)),
    "a row of a matrix": _own(row_of_matrix, _numbers(3, HIDDEN)),
    "a frozen vector": _own(scaled, lambda: nn.Parameter(torch.rand(HIDDEN), requires_grad=False)),
    "numbers of a buffer": Buffered,
    "a factor of a module's own": lambda: Stack(GCN, Doubled()),
}
_ROWS = {
    "a parameter beside features": lambda: calls(rows_of_nodes)(
        lambda i, o: pyg.GCNConv(i + (i == CHANNELS) * HIDDEN, o), own=_numbers(NODES, HIDDEN)()
    ),
    "a number for each node": lambda: calls(scaled)(GCN, own=_numbers(NODES, 1)()),
    "an embedding's weight": lambda: calls(rows_alone)(GCN, own=nn.Embedding(NODES, HIDDEN)),
    "an embedding by n_id": lambda: calls(rows_by_id)(GCN, own=nn.Embedding(NODES, HIDDEN)),
}
_TORCH = {
    "Mish": nn.Mish,
    "Hardswish": nn.Hardswish,
    "Softsign": nn.Softsign,
    "LogSigmoid": nn.LogSigmoid,
    "Softshrink(0.2)": lambda: nn.Softshrink(0.2),
    "Threshold(0.1, -1)": lambda: nn.Threshold(0.1, -1.0),
    "GroupNorm": lambda: nn.GroupNorm(2, HIDDEN),
    "RMSNorm": lambda: nn.RMSNorm(HIDDEN),
    "RMSNorm(elementwise_affine=False)": lambda: nn.RMSNorm(HIDDEN, elementwise_affine=False),
    "PyG's GraphNorm": lambda: pyg.GraphNorm(HIDDEN),
    "PyG's PairNorm": pyg.PairNorm,
    "PyG's PairNorm(scale_individually=True)": lambda: pyg.PairNorm(0.5, scale_individually=True),
    "PyG's GraphSizeNorm": pyg.GraphSizeNorm,
    "PyG's MeanSubtractionNorm": pyg.MeanSubtractionNorm,
    "a class called ReLU": type("ReLU", (nn.Module,), {"forward": lambda self, x: x.abs()}),
}
_IN_PLACE = ("in place on a part", "a slice of rows that are overwritten")
OPERANDS = [
    *(
        Case("rows with rows and numbers", name, lambda c=call, b=base: functional(c)(b))
        for (name, call), base in zip(_FUNCTIONS.items(), cycle(BASES.values()))
    ),
    *(
        (left if name in _IN_PLACE else partly)(
            "rows with rows and numbers", name, lambda c=call: functional(c)(GCN)
        )
        for name, call in _LEFT.items()
    ),
    *(Case("rows with parameters", name, make) for name, make in _OWN.items()),
    *(Case("learned rows of nodes", name, make, prepare=first_nodes) for name, make in _ROWS.items()),
    partly(
        "learned rows of nodes",
        "an embedding by labels",
        lambda: calls(rows_by_other_id)(GCN, own=nn.Embedding(NODES, HIDDEN)),
        "no operation stands for Embedding",
    ),
    *(Case("run by PyTorch", name, lambda m=make: Stack(GCN, m())) for name, make in _TORCH.items()),
]

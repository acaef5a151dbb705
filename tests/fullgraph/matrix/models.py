"""The matrix's building blocks: stacks of layers, and models as people write them, good and odd."""

import torch
import torch.nn.functional as F
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES
from torch import nn

HIDDEN = 8


class Stack(nn.Module):
    """Two layers and what stands between them."""

    def __init__(self, make, between=None, hidden=HIDDEN, joined=None):
        super().__init__()
        self.first = make(CHANNELS, hidden)
        self.between = between if between is not None else nn.ReLU()
        self.second = make(joined or hidden, CLASSES)

    def forward(self, x, edge_index):
        return self.second(self.between(self.first(x, edge_index)), edge_index)


class Weighted(Stack):
    """The same with the graph's weights."""

    def forward(self, x, edge_index, edge_weight=None):
        x = self.between(self.first(x, edge_index, edge_weight))
        return self.second(x, edge_index, edge_weight)


class Calls(nn.Module):
    """A forward of one's own over two layers, a linear map and a normalisation."""

    def __init__(self, make, run, **parts):
        super().__init__()
        self.first, self.second = make(CHANNELS, HIDDEN), make(HIDDEN, HIDDEN)
        self.head, self.skip = nn.Linear(HIDDEN, CLASSES), nn.Linear(CHANNELS, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.flag = False
        for name, part in parts.items():
            setattr(self, name, part)
        self.run = run

    def forward(self, x, edge_index):
        return self.run(self, x, edge_index)


def calls(run):
    """A model class whose forward is ``run(model, x, edge_index)``: a plain method, as people write it."""
    return type("Calls", (_Body,), {"forward": run})


class _Body(Calls):
    def __init__(self, make, **parts):
        super().__init__(make, None, **parts)
        del self.run


def relu_stack(self, x, edge_index):
    """The usual forward."""
    return self.head(self.second(self.first(x, edge_index).relu(), edge_index).relu())


def frozen_norm(make):
    """A normalisation that stays in evaluation while the rest trains."""
    norm = nn.BatchNorm1d(HIDDEN)
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    model = Stack(make, nn.Sequential(norm, nn.ReLU()))
    norm.eval()
    return model


def functional(call):
    """A stack with a function between its layers."""

    def run(self, x, edge_index):
        return self.head(self.second(call(self.first(x, edge_index)), edge_index))

    return calls(run)


def negated(self, x):
    return -F.linear(x, self.weight, self.bias)


class Sine(nn.Module):
    """What has no form."""

    def forward(self, x):
        return x.sin()


def shifted(self, x):
    return nn.BatchNorm1d.forward(self, x) + 1.0


class Doubled(nn.Module):
    """A parameter of one's own."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.factor * x


def frozen(model, *names):
    """A model whose parameters with such names do not learn."""
    for name, parameter in model.named_parameters():
        if any(part in name for part in names):
            parameter.requires_grad_(False)
    return model

"""What stands between layers: modules and functions, in place or not."""

import operator
from itertools import cycle

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from tests.fullgraph.matrix.case import BASES, GCN, Case, left, partly
from tests.fullgraph.matrix.models import HIDDEN, Stack, functional, negated, shifted
from torch import nn

_MODULES = {
    "LeakyReLU(0.3)": lambda: nn.LeakyReLU(0.3),
    "ELU(alpha=0.5)": lambda: nn.ELU(0.5),
    "ReLU6": nn.ReLU6,
    "Hardtanh": nn.Hardtanh,
    "Softplus": nn.Softplus,
    "ReLU": nn.ReLU,
    "ReLU(inplace=True)": lambda: nn.ReLU(inplace=True),
    "ELU": nn.ELU,
    "LeakyReLU": nn.LeakyReLU,
    "Identity": nn.Identity,
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "Tanh": nn.Tanh,
    "Sigmoid": nn.Sigmoid,
    "Linear": lambda: nn.Linear(HIDDEN, HIDDEN),
    "Linear(bias=False)": lambda: nn.Linear(HIDDEN, HIDDEN, bias=False),
    "PyG's Linear": lambda: pyg.Linear(HIDDEN, HIDDEN),
    "BatchNorm1d": lambda: nn.BatchNorm1d(HIDDEN),
    "BatchNorm1d(affine=False)": lambda: nn.BatchNorm1d(HIDDEN, affine=False),
    "BatchNorm1d(track_running_stats=False)": lambda: nn.BatchNorm1d(HIDDEN, track_running_stats=False),
    "BatchNorm1d(momentum=None)": lambda: nn.BatchNorm1d(HIDDEN, momentum=None),
    "BatchNorm1d(eps=0.1)": lambda: nn.BatchNorm1d(HIDDEN, eps=0.1),
    "LayerNorm": lambda: nn.LayerNorm(HIDDEN),
    "LayerNorm(elementwise_affine=False)": lambda: nn.LayerNorm(HIDDEN, elementwise_affine=False),
    "LayerNorm(bias=False)": lambda: nn.LayerNorm(HIDDEN, bias=False),
    "PyG's BatchNorm": lambda: pyg.BatchNorm(HIDDEN),
    "PyG's LayerNorm(mode='node')": lambda: pyg.LayerNorm(HIDDEN, mode="node"),
    "PyG's LayerNorm": lambda: pyg.LayerNorm(HIDDEN),
    "a sequence": lambda: nn.Sequential(nn.LayerNorm(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ELU()),
    "Dropout(0)": lambda: nn.Dropout(0.0),
}
_MODULES_LEFT = {
    "a class called Tanh": type("Tanh", (nn.Module,), {"forward": lambda self, x: x.sin()}),
    "a class called Linear": lambda: type("Linear", (nn.Linear,), {"forward": negated})(HIDDEN, HIDDEN),
    "a subclass of BatchNorm1d": lambda: type("Shifted", (nn.BatchNorm1d,), {"forward": shifted})(HIDDEN),
}


ROWWISE = [
    *(
        Case("between layers", f"{name} after {base}", lambda m=make, b=base: Stack(BASES[b], m()))
        for i, (name, make) in enumerate(_MODULES.items())
        for base in ([*BASES][i % 5], [*BASES][(i + 2) % 5])
    ),
    left("between layers", "Mish(inplace=True)", lambda: Stack(GCN, nn.Mish(inplace=True)), "writes over"),
    *(partly("between layers", name, lambda m=make: Stack(GCN, m())) for name, make in _MODULES_LEFT.items()),
]


_FUNCTIONS = {
    "F.leaky_relu(x, 0.3)": lambda x: F.leaky_relu(x, 0.3),
    "F.elu(x, 0.5)": lambda x: F.elu(x, 0.5),
    "x.relu()": lambda x: x.relu(),
    "torch.relu(x)": torch.relu,
    "F.relu(input=x)": lambda x: F.relu(input=x),
    "F.relu(x, inplace=True)": lambda x: F.relu(x, inplace=True),
    "x.relu_()": lambda x: x.relu_(),
    "F.elu": F.elu,
    "F.elu(x, 1.0, False)": lambda x: F.elu(x, 1.0, False),
    "F.leaky_relu": F.leaky_relu,
    "F.leaky_relu(x, negative_slope=0.01)": lambda x: F.leaky_relu(x, negative_slope=0.01),
    "F.dropout(x, 0.0)": lambda x: F.dropout(x, 0.0),
    "F.dropout(x, 0.5, False)": lambda x: F.dropout(x, 0.5, False),
    "x + x.relu()": lambda x: x + x.relu(),
    "torch.add(x, x.relu())": lambda x: torch.add(x, x.relu()),
    "torch.add(input=x, other=x)": lambda x: torch.add(input=x, other=x),
    "x.add(x)": lambda x: x.add(x),
    "x.add_(x.relu())": lambda x: x.add_(x.relu()),
    "operator.iadd": lambda x: operator.iadd(x, x.relu()),
}
_FUNCTIONS_LEFT = {
    "torch.where": lambda x: torch.where(x > 0, x, -x),
    "x.detach()": lambda x: x.detach(),
    "x / x.norm()": lambda x: x / x.norm(),
    "x.to(torch.float64).float()": lambda x: x * x.mean(),
}
FUNCTIONS = [
    *(
        Case("functions", name, lambda c=call, b=base: functional(c)(b))
        for (name, call), base in zip(_FUNCTIONS.items(), cycle(BASES.values()))
    ),
    *(partly("functions", name, lambda c=call: functional(c)(GCN)) for name, call in _FUNCTIONS_LEFT.items()),
]

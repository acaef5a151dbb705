"""What ranks of a test learn on shares of batches by models with batch normalisation."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from tests.distributed.same_learning import CHANNELS, LAYERS, NATIVE, Hetero, Net, told_of
from tests.distributed.training import BASE, Losses, graph_of
from tests.train import linked_communities, linked_times
from tests.train.typed_communities import bibliography
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import graphbraid.nn as native
from graphbraid.errors import ConfigError, TrainingError
from graphbraid.graph import Graph
from graphbraid.nn import LinkModel
from graphbraid.train import Trainer

# Of a bias before batch normalisation, whose gradient is rounding alone, Adam would make whole steps.
OPTIONS: dict[str, Any] = BASE | {
    "epochs": 1,
    "batch_size": 67,
    "eval_every": 0,
    "optimizer": "sgd",
    "lr": 0.1,
}


def learned(model: nn.Module, graph: Graph, **options: Any) -> dict[str, Any]:
    """The losses of all steps, what the model ends with, and what was warned of."""
    losses = Losses()
    with told_of() as said:
        result = Trainer(model, graph, callbacks=[losses], **OPTIONS | options).fit()
    state = [value.double().flatten().tolist() for value in model.state_dict().values()]
    return {
        "losses": [*losses.losses, result.test["loss"]],
        "state": [one for values in state for one in values],
        "said": " ".join(one for one in said if "normalisation" in one or "random" in one),
    }


class Stack(nn.Module):
    """Layers of any kinds, with batch normalisation before, between or behind them."""

    def __init__(self, layers: list[Any], normalised: list[bool], dropout: float, **options: Any) -> None:
        super().__init__()
        widths = [CHANNELS, *[8] * (len(layers) - 1), 3]
        self.convs = nn.ModuleList(make(*ends) for make, ends in zip(layers, pairwise(widths), strict=True))
        self.norms = nn.ModuleList(
            nn.BatchNorm1d(width, **options) if used else nn.Identity()
            for width, used in zip(widths, normalised, strict=True)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for norm, conv in zip(self.norms, self.convs, strict=False):
            x = self.drop(conv(norm(x), edge_index).relu())
        return self.norms[-1](x)


class OfBias(Losses):
    """Notes how much of a running mean is the bias before its normalisation."""

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.bias, self.before, self.mean = bias, bias.detach().clone(), torch.zeros_like(bias)

    def on_step_end(self, trainer: Trainer, record: Any) -> None:
        super().on_step_end(trainer, record)
        self.mean += 0.1 * (self.before - self.mean)  # by the momentum of the normalisation
        self.before = self.bias.detach().clone()


class InDouble(nn.Module):
    """A model in float64."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.double()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.inner(x.double(), edge_index)


def drawn(comm: Any, first: str, count: str, dtype: str) -> dict[str, Any]:
    """Models and runs that numbers from ``first`` on draw."""
    found = {}
    for number in range(int(first), int(first) + int(count)):
        draw = random.Random(number)
        depth = draw.randint(1, 3)
        layers = draw.choices([*LAYERS], k=depth)
        where = [draw.random() < 0.6 for _ in range(depth)] + [draw.random() < 0.2]
        where[draw.randrange(depth)] = True
        compiled = draw.random() < 0.8
        dropout = draw.choice([0, 0.5]) if compiled else 0
        norm = {"momentum": draw.choice([0.1, 0.3, None]), "affine": draw.random() < 0.7}
        options = {
            "fanouts": tuple(draw.choice([1, 2, 4, -1]) for _ in range(depth)),
            "batch_size": draw.choice([4, 33, 67, 99, 199, 500]),  # 99 and 199 leave ranks without seeds
            "accumulate": draw.choice([1, 1, 2]),
            "layout": draw.choice(["subgraph", "blocks"]),
            "compiled": compiled,
        }
        if dtype == "float64":  # which runs as written
            dropout = 0
        if "gcn" in layers or not compiled or dtype == "float64":  # which layout blocks refuses
            options["layout"] = "subgraph"
        options["epochs"] = 1 if options["batch_size"] < 50 else 3
        torch.manual_seed(number)
        model: nn.Module = Stack([LAYERS[one] for one in layers], where, dropout, **norm)
        model = model if dtype == "float32" else InDouble(model)
        name = f"{number}: {layers}, {where}, {dropout}, {norm}, {options}"
        try:
            found[name] = learned(model, graph_of(), **options)
        except TrainingError as error:  # of a last batch of one node without neighbours
            assert "met a single node" in str(error)
            found[name] = {"losses": [], "state": [], "said": ""}
    return found


def by_adam(comm: Any) -> dict[str, Any]:
    """What Adam learns where it moves a bias before batch normalisation, whose gradient is rounding alone."""
    torch.manual_seed(0)
    model = Net(pyg.SAGEConv, CHANNELS, norm=partial(nn.BatchNorm1d, 8))
    norm, of_bias = model.norm, OfBias(model.first.lin_l.bias)
    Trainer(
        model,
        graph_of(),
        callbacks=[of_bias],
        **OPTIONS | {"optimizer": "adam", "lr": 0.01, "epochs": 10, "layout": "subgraph"},
    ).fit()
    return {
        "losses": of_bias.losses,
        "mean of rows": (norm.running_mean - of_bias.mean).tolist(),
        "variance": norm.running_var.tolist(),
        "bias": (of_bias.bias - of_bias.mean).tolist(),
    }


def by_own(comm: Any, layout: str) -> dict[str, Any]:
    """Models of graphbraid, two of them also with a last batch of fewer seeds than ranks."""
    found = {}
    for name, make in NATIVE.items():
        for batch_size in (67, 198) if name in ("sage", "gat") else (67,):
            torch.manual_seed(0)
            norm = {} if name == "gin" else {"norm": "batch"}
            model = make(CHANNELS, 8, 3, dropout=0.5, **norm)
            found[f"{name}, {batch_size}"] = learned(model, graph_of(), layout=layout, batch_size=batch_size)
    return found


class NormalisedHetero(Hetero):
    """Also normalises the rows of each node type."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.norms = nn.ModuleDict({one: nn.BatchNorm1d(8) for one in graph.node_types})

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        rows = self.first(x_dict, edge_index_dict)
        rows = {one: self.drop(self.norms[one](of_type).relu()) for one, of_type in rows.items()}
        return self.last(rows, edge_index_dict)


def typed(comm: Any) -> dict[str, Any]:
    """A model over node types, by its program and as it is written."""
    graph, found = bibliography(), {}
    for layout in ("subgraph", "blocks"):
        torch.manual_seed(0)
        options = {"layout": layout, "fanouts": (3, 2), "batch_size": 31}
        found[layout] = learned(NormalisedHetero(graph), graph, **options)
    return found


def links(comm: Any) -> dict[str, Any]:
    """Encoders of links: negatives that are drawn or shared, in both layouts."""
    graph = linked_communities.one_relation()
    cases: dict[str, dict[str, Any]] = {
        "binary": {"negatives": "binary"},
        "shared": {"negatives": "shared"},
        "blocks": {"layout": "blocks"},
    }
    return {name: _of_links(graph, **options) for name, options in cases.items()}


def _of_links(graph: Graph, **options: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    encoder: nn.Module = native.GraphSAGE(graph.num_features or 16, 16, 16, norm="batch", dropout=0.3)
    if graph.x is None:
        encoder = native.NodeEmbedding(graph.num_nodes, 16, encoder)
    given = {"layout": "subgraph", "task": "link", "num_negatives": 2, "batch_size": 90} | options
    found = learned(LinkModel(encoder, native.DotProduct()), graph, **given)
    found["losses"].pop()  # scores of links are ranked by rank 0 alone
    return found


class OfEdges(pyg.MessagePassing):
    """Normalises the rows of edges."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__(aggr="add")
        self.lin, self.norm = nn.Linear(channels, out), nn.BatchNorm1d(out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_j: Tensor) -> Tensor:
        return self.norm(x_j)


class Checkpointed(Stack):
    """Computes a layer and its normalisation once more in the backward pass."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        def first(x: Tensor) -> Tensor:
            return self.norms[1](self.convs[0](x, edge_index))

        return self.convs[1](checkpoint(first, x, use_reentrant=False), edge_index)


class Shuffled(Stack):
    """Normalises rows of nodes in another order."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows = self.convs[0](x, edge_index)
        return self.convs[1](self.norms[1](rows.flip(0)).flip(0), edge_index)


def odd(comm: Any) -> dict[str, Any]:
    """Models of which it cannot be shown that ranks normalise as one does, and one that does not train it."""
    sage = [pyg.SAGEConv, pyg.SAGEConv]
    single = partial(pyg.BatchNorm, 8, allow_single_element=True)
    makers: dict[str, Callable[[], nn.Module]] = {
        "edges": lambda: Stack([OfEdges, pyg.SAGEConv], [False] * 3, 0),
        "checkpointed": lambda: Checkpointed(sage, [False, True, False], 0),
        "shuffled": lambda: Shuffled(sage, [False, True, False], 0),
        "single": lambda: Net(pyg.SAGEConv, CHANNELS, norm=single),
        "frozen": lambda: Frozen(sage, [False, True, False], 0),
        "untracked": lambda: Untracked(sage, [False, True, False], 0),
        "weights of its own": lambda: ByFunction(sage, [False, True, False], 0),
        "without a module": lambda: ByFunction(sage, [False] * 3, 0),
        "computed": lambda: Computed(sage, [False] * 3, 0),
    }
    found = {}
    for name, make in makers.items():
        torch.manual_seed(0)
        found[name] = learned(
            make(), graph_of(), layout="subgraph", compiled=name not in ("checkpointed", "shuffled")
        )
    found["times"] = _of_links(linked_times.meetings(), temporal_strategy="uniform")
    torch.manual_seed(0)
    few = graph_of()
    few = few.replace(splits=few.splits | {"train": few.splits["train"][:2]})
    found["few"] = learned(Stack(sage, [True] * 3, 0), few, layout="subgraph", batch_size=8)
    return found


class Untracked(Stack):
    """Keeps its running statistics as they are, also in training."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.norms[1].track_running_stats = False


class ByFunction(Stack):
    """Calls the function of PyTorch, with weights that are at first those of a module."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        norm = self.norms[1]
        held = (
            (norm.running_mean, norm.running_var)
            if isinstance(norm, nn.BatchNorm1d)
            else (self.mean, self.var)
        )
        rows = self.convs[0](x, edge_index)
        rows = F.batch_norm(rows, *held, self.weight, self.weight - 1, self.training)
        return self.convs[1](rows.relu(), edge_index)


class Computed(ByFunction):
    """Computes the statistics of its rows itself, and keeps them."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows = self.convs[0](x, edge_index)
        if self.training:
            self.mean, self.var = rows.detach().mean(0), rows.detach().var(0)
        rows = (rows - self.mean) / (self.var + 1).sqrt()
        return self.convs[1](rows * self.weight, edge_index)


class Drawn(Stack):
    """Draws which of two modules normalises."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        number = int(torch.randint(1, 3, ())) if self.training else 1
        rows = self.norms[number](self.convs[0](x, edge_index))
        return self.convs[1](rows, edge_index)


def differing(comm: Any, batch_size: str) -> str:
    """What is said where each rank draws for itself which modules normalise."""
    torch.manual_seed(0)
    layers = [pyg.SAGEConv, pyg.SAGEConv, pyg.SAGEConv]
    model = Drawn(layers, [False, True, True, False], 0)
    model.convs[1] = pyg.SAGEConv(8, 3)
    try:
        learned(model, graph_of(), compiled=False, layout="subgraph", epochs=3, batch_size=int(batch_size))
    except ConfigError as error:
        return str(error)
    return ""


class Frozen(Stack):
    """Keeps its normalisation in evaluation mode."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self.norms.eval()
        return self


def lone(comm: Any) -> str:
    """What is said of a batch of one node without neighbours."""
    graph = graph_of()
    try:
        learned(native.GraphSAGE(CHANNELS, 8, 3, norm="batch"), graph, fanouts=(0, 0), batch_size=199)
    except TrainingError as error:
        return str(error)
    return ""

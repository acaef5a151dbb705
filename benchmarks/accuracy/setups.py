"""What benchmarks.accuracy.literature trains: datasets, models and hyper-parameters, as data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from graphbraid import Graph, datasets

SPLIT_SEED = 0
"""Seed of the random splits: 20 training and 30 validation nodes of each class, the rest for testing."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One row of the table: a dataset, a model and how it is trained."""

    dataset: str
    model: str
    options: dict[str, Any]
    """The model's options beside its widths of input and output."""
    train: dict[str, Any]
    """Fields of ``TrainConfig`` beside the seed."""
    prepare: dict[str, Any]
    """How the dataset is loaded: arguments of ``graphbraid.datasets.load``."""
    decay_first_layer: float | None = None
    """Weight decay of the first layer alone, as Kipf and Welling do; None: ``train`` says it for all."""
    literature: float | None = None
    """Published test accuracy in percent."""
    source: str = field(default="", compare=False)
    """Where the published figure stands."""

    @property
    def name(self) -> str:
        """``dataset/model/mode``: what ``--only`` matches."""
        return f"{self.dataset}/{self.model}/{self.train['mode']}"

    def graph(self, folder: Path) -> Graph:
        """The dataset, prepared."""
        return datasets.load(folder / f"{self.dataset}.npz", **self.prepare)

    def optimizer(self, model: nn.Module) -> str | Callable[..., torch.optim.Optimizer]:
        """Adam by name, or a function that gives the first layer a weight decay of its own."""
        if self.decay_first_layer is None:
            return "adam"
        convs = model.get_submodule("convs")
        assert isinstance(convs, nn.ModuleList)
        first = {id(p) for p in convs[0].parameters()}

        def adam_decaying_first_layer(params: list[nn.Parameter]) -> torch.optim.Adam:
            groups = [
                {"params": [p for p in params if id(p) in first], "weight_decay": self.decay_first_layer},
                {"params": [p for p in params if id(p) not in first]},
            ]
            return torch.optim.Adam(groups, lr=self.train["lr"])

        return adam_decaying_first_layer


# Repeated citations count once and a node's own loop is GCN's to add, as in the published preparation.
CITATION = {"dedupe": True, "normalize_features": True}
GCN_OPTIONS = {"hidden_channels": 16, "num_layers": 2, "dropout": 0.5, "input_dropout": 0.5}
GCN_TRAIN = {"mode": "full", "epochs": 200, "lr": 0.01, "monitor": "loss"}
GAT_OPTIONS = {
    "hidden_channels": 64,
    "num_layers": 2,
    "heads": 8,
    "out_heads": 1,
    "act": "elu",
    "dropout": 0.6,
    "input_dropout": 0.6,
    "attention_dropout": 0.6,
    "row_dropout": 0.6,
}
GAT_TRAIN = {
    "mode": "full",
    "epochs": 300,
    "lr": 0.005,
    "weight_decay": 5e-4,
    "monitor": "loss",
}
KIPF, VELICKOVIC = "Kipf and Welling 2017, table 2", "Veličković et al. 2018, table 2"

SAGE_OPTIONS = {"hidden_channels": 64, "num_layers": 2, "dropout": 0.5}
SAGE_TRAIN = {"lr": 0.01, "weight_decay": 5e-4, "monitor": "loss"}
SAMPLED: dict[str, Any] = {"mode": "sampled", "fanouts": (15, 10), "batch_size": 50, "layout": "blocks"}
FULL: dict[str, Any] = {"mode": "full", "eval_every": 2}


def _gcn(dataset: str, literature: float) -> Setup:
    return Setup(
        dataset=dataset,
        model="gcn",
        options=GCN_OPTIONS,
        train=GCN_TRAIN,
        prepare=CITATION,
        decay_first_layer=5e-4,
        literature=literature,
        source=KIPF,
    )


def _gat(dataset: str, literature: float) -> Setup:
    return Setup(
        dataset=dataset,
        model="gat",
        options=GAT_OPTIONS,
        train=GAT_TRAIN,
        prepare=CITATION,
        literature=literature,
        source=VELICKOVIC,
    )


def _sage(dataset: str, num_train: int, steps: int, **prepare: Any) -> list[Setup]:
    """The same model, optimizer and number of steps by mini-batches and by full batch."""
    epochs = steps // math.ceil(num_train / SAMPLED["batch_size"])
    sampled = Setup(
        dataset=dataset,
        model="sage",
        options=SAGE_OPTIONS,
        train=SAGE_TRAIN | SAMPLED | {"epochs": epochs},
        prepare={"normalize_features": True, "split_seed": SPLIT_SEED} | prepare,
    )
    return [sampled, replace(sampled, train=SAGE_TRAIN | FULL | {"epochs": steps})]


SETUPS = [
    _gcn("cora", 81.5),
    _gcn("citeseer", 70.3),
    _gat("cora", 83.0),
    _gat("citeseer", 72.5),
    # Its file holds most edges in one direction only; 200 steps leave both arms far from their best epoch.
    *_sage("amazon_computers", 200, 600, symmetrize=True),
    *_sage("coauthor_physics", 100, 200),
    *_sage("dblp_citation", 80, 200),
]

"""From options to graph and model: what training and predicting share."""

from __future__ import annotations

import inspect
from pathlib import Path

import torch
from torch import nn

from graphbraid import datasets
from graphbraid.cli.settings import RunSettings
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.nn import MODELS


def load_graph(settings: RunSettings) -> Graph:
    """The graph the options name, prepared as they ask.

    Raises:
        ConfigError: the kind of source does not take an option.
        DataError: no dataset or file has that name, or it is broken.
    """
    return datasets.load(
        settings.data,
        symmetrize=settings.symmetrize,
        add_self_loops=settings.add_self_loops,
        dedupe=settings.dedupe,
        normalize_features=settings.normalize_features,
        split_seed=settings.split_seed,
        **settings.data_options,
    )


def check_trainable(graph: Graph, data: str) -> None:
    """Say how to get a split where data comes without one.

    Raises:
        DataError: there is no training split.
    """
    if graph.y is not None and "train" not in graph.splits:
        raise DataError(
            f"{data} comes without a split into train, val and test; draw one with --split-seed 0"
        )


def build_model(settings: RunSettings, graph: Graph, seed: int) -> nn.Module:
    """A model with fresh weights drawn from ``seed``.

    Raises:
        ConfigError: no model has that name, or it does not take an option.
    """
    if settings.model not in MODELS:
        raise ConfigError(f"there is no model {settings.model!r}; choose one of {', '.join(MODELS)}")
    kind = MODELS[settings.model]
    taken = inspect.signature(kind).parameters
    options = {"dropout": settings.dropout, **settings.model_options}
    if settings.heads is not None:
        options["heads"] = settings.heads
    for name in options:
        if name not in taken:
            raise ConfigError(
                f"the model {settings.model!r} takes no option {name!r}; it takes {', '.join(taken)}"
            )
    torch.manual_seed(seed)
    sizes = (graph.num_features, settings.hidden_channels, graph.num_classes, settings.num_layers)
    model: nn.Module = kind(*sizes, **options)
    return model


def data_as_path(data: str) -> str:
    """The absolute path of a file or folder, so that a run can be used from elsewhere; names as they are."""
    path = Path(data).expanduser()
    return str(path.resolve()) if path.exists() else data

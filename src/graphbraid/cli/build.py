"""From options to graph and model: what training and predicting share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from graphbraid import datasets
from graphbraid.cli.settings import RunSettings
from graphbraid.errors import DataError
from graphbraid.graph import Graph
from graphbraid.nn import make_model


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
    options: dict[str, Any] = {"hidden_channels": settings.hidden_channels, "num_layers": settings.num_layers}
    options |= {"dropout": settings.dropout, **settings.model_options}
    if settings.heads is not None:
        options["heads"] = settings.heads
    torch.manual_seed(seed)
    return make_model(settings.model, graph.num_features, graph.num_classes, **options)


def data_as_path(data: str) -> str:
    """The absolute path of a file or folder, so that a run can be used from elsewhere; names as they are."""
    path = Path(data).expanduser()
    return str(path.resolve()) if path.exists() else data

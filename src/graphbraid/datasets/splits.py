"""Random splits, and the streams of the counter RNG that datasets draw from.

Draw ``i`` of a stream is ``mix(key + i·φ)``. A split depends only on the graph's labels and a seed, so one
number identifies it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphbraid.arguments import as_count
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph, NodeSet
from graphbraid.graph.checks import named
from graphbraid.graph.labelled import has_labels
from graphbraid.sampling.rng import PHI, mix, mix_array
from graphbraid.signatures import typed


def stream_key(seed: int, purpose: int) -> int:
    """Return the 64-bit key of one kind of draws under one seed.

    Raises:
        ConfigError: the seed is not a whole number of at most 64 bits.
    """
    seed = as_count(seed, "seed", most=(1 << 64) - 1)
    return mix(seed ^ mix(purpose))


def draws(key: int, count: int, first: int = 0) -> npt.NDArray[Any]:
    """Return the draws ``first``, ``first + 1``, ... of a stream as ``(count,)`` uint64."""
    return mix_array(np.arange(first, first + count, dtype=np.uint64) * np.uint64(PHI) + np.uint64(key))


_PURPOSE = 0x53504C4954  # "SPLIT": keeps these draws apart from the generator's for the same seed


@typed
def random_split(graph: Graph, *, train_per_class: int = 20, val_per_class: int = 30, seed: int = 0) -> Graph:
    """Draw the same number of training and of validation nodes from every class; the rest is for testing.

    This is the split of Shchur et al., "Pitfalls of Graph Neural Network Evaluation", whose numbers are the
    defaults.

    Args:
        graph: A graph with single-label classes; nodes without a class are in no split.
        train_per_class: Number of training nodes per class.
        val_per_class: Number of validation nodes per class.
        seed: Seed of the draws.

    Returns:
        The graph with the three splits, ids sorted.

    Raises:
        ConfigError: The labels are not single-label classes, or a count is not positive.
        DataError: A class has too few nodes; names it and its number of nodes.
    """
    return graph.replace(splits=_by_class(graph, train_per_class, val_per_class, seed))


def with_drawn_splits(graph: Graph, seed: int) -> Graph:
    """Draw new splits: by class where labels are classes, else by share; for each node type that has labels.

    Raises:
        DataError: nothing has labels, or a class or type has too few of them.
    """
    if graph.types is None:
        return graph.replace(splits=_drawn(graph, seed))
    nodes = dict(graph.types.nodes)
    labelled = [name for name, one in nodes.items() if one.y is not None]
    if not labelled:
        raise DataError("a split needs labels; no node type has any")
    for name in labelled:
        with named(f"nodes of type {name!r}"):
            nodes[name] = replace(nodes[name], splits=_drawn(nodes[name], seed))
    return graph.replace(types=replace(graph.types, nodes=nodes), schema=graph.schema)


def _drawn(nodes: Graph | NodeSet, seed: int) -> dict[str, Tensor]:
    if nodes.task == "single-label":
        return _by_class(nodes, 20, 30, seed)
    return _by_share(nodes, 0.6, 0.2, seed)


def _by_class(
    nodes: Graph | NodeSet, train_per_class: int, val_per_class: int, seed: int
) -> dict[str, Tensor]:
    if nodes.task != "single-label" or nodes.y is None:
        raise ConfigError(
            f"a split by class needs single-label classes; the labels are {nodes.task}. "
            "Use random_share_split instead."
        )
    if train_per_class < 1 or val_per_class < 1:
        raise ConfigError(
            f"train_per_class and val_per_class must be at least 1; got {train_per_class} and {val_per_class}"
        )
    labels = nodes.y.cpu().numpy()
    order = _shuffled(np.flatnonzero(labels >= 0), seed)
    order = order[np.argsort(labels[order], kind="stable")]
    classes, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    needed = train_per_class + val_per_class + 1
    if (counts < needed).any():
        at = int(np.argmax(counts < needed))
        raise DataError(
            f"class {classes[at]} has {counts[at]} labelled nodes; {train_per_class} for training, "
            f"{val_per_class} for validation and at least one for testing are needed"
        )
    place = np.arange(len(order)) - np.repeat(starts, counts)
    train = place < train_per_class
    test = place >= train_per_class + val_per_class
    parts = {"train": order[train], "val": order[~train & ~test], "test": order[test]}
    return {name: _rising(ids) for name, ids in parts.items()}


@typed
def random_share_split(graph: Graph, *, train: float = 0.6, val: float = 0.2, seed: int = 0) -> Graph:
    """Draw a share of all labelled nodes for training and for validation; the rest becomes the test split.

    It also takes multi-label and regression targets, where every node with finite targets counts as labelled,
    but for multi-label rows of -1 or -100 throughout.

    Raises:
        ConfigError: The shares are not positive or leave nothing for testing.
        DataError: Too few labelled nodes for three splits.
    """
    return graph.replace(splits=_by_share(graph, train, val, seed))


def _by_share(nodes: Graph | NodeSet, train: float, val: float, seed: int) -> dict[str, Tensor]:
    if not (train > 0 and val > 0 and train + val < 1):
        raise ConfigError(f"train and val must be positive and sum to less than 1; got {train} and {val}")
    order = _shuffled(_labelled(nodes), seed)
    first, second = round(train * len(order)), round((train + val) * len(order))
    parts = {"train": order[:first], "val": order[first:second], "test": order[second:]}
    if not all(len(ids) for ids in parts.values()):
        raise DataError(f"{len(order)} labelled nodes are too few for shares of {train} and {val}")
    return {name: _rising(ids) for name, ids in parts.items()}


def _labelled(nodes: Graph | NodeSet) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if nodes.y is None:
        raise DataError("a split needs labels; the graph has none")
    y = nodes.y.cpu()
    if nodes.task == "multi-label":
        labelled = has_labels(y)
    else:
        labelled = y >= 0 if not y.is_floating_point() else y.isfinite().reshape(len(y), -1).all(1)
    return np.flatnonzero(labelled.numpy()).astype(np.int64)


def _shuffled(
    nodes: np.ndarray[tuple[int], np.dtype[np.int64]], seed: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return nodes[np.argsort(draws(stream_key(seed, _PURPOSE), len(nodes)), kind="stable")]


def _rising(ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Tensor:
    return torch.from_numpy(np.sort(ids))

"""Features, labels and splits of a set of nodes as arrays of a store: of the whole graph, or of one type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from graphbraid.graph import ScaledFeatures, SparseFeatures
from graphbraid.graph.scaled_features import Features


def rows_to_store(
    x: Features | None, y: Tensor | None, splits: Mapping[str, Tensor], prefix: str = ""
) -> Iterator[tuple[str, Tensor]]:
    """Yield name and content of each array; names begin with ``prefix``."""
    if y is not None:
        yield f"{prefix}y", y
    if isinstance(x, SparseFeatures):
        yield f"{prefix}x_indptr", x.indptr
        yield f"{prefix}x_indices", x.indices
        yield f"{prefix}x_values", x.values
    elif isinstance(x, ScaledFeatures):
        yield f"{prefix}x", x.values
        yield f"{prefix}x_scale", x.scale
    elif x is not None:
        yield f"{prefix}x", x
    yield from splits_to_store(splits, prefix)


def splits_to_store(splits: Mapping[str, Tensor], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield name and content of the array of each split."""
    for split, ids in splits.items():
        yield f"{prefix}split_{split}", ids


def stored_features(tensors: Mapping[str, Tensor], num_features: int, prefix: str = "") -> Features | None:
    """Return the features among a store's arrays.

    Raises:
        DataError: they do not fit together.
        KeyError: sparse features, or rows of int8, lack an array.
    """
    x = tensors.get(f"{prefix}x")
    if f"{prefix}x_scale" in tensors or (x is not None and x.dtype == torch.int8):
        return ScaledFeatures(values=tensors[f"{prefix}x"], scale=tensors[f"{prefix}x_scale"])
    if f"{prefix}x_indptr" not in tensors:
        return x
    return SparseFeatures(
        indptr=tensors[f"{prefix}x_indptr"],
        indices=tensors[f"{prefix}x_indices"],
        values=tensors[f"{prefix}x_values"],
        num_cols=num_features,
    )


def stored_splits(tensors: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """Return the splits among a store's arrays by name."""
    start = f"{prefix}split_"
    return {name.removeprefix(start): ids for name, ids in tensors.items() if name.startswith(start)}

"""Input layers of models of several node types: a linear layer for features, a learned row without any."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from graphbraid.arguments import MOST_WIDTH, as_count, check_tensor, shown
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import SparseFeatures
from graphbraid.graph.scans import check_ids
from graphbraid.nn.conv import LayerInput, as_rows
from graphbraid.nn.linear import Linear
from graphbraid.ops import bias_act_dropout, dense_linear, sparse_linear


def input_layer(name: str, width: int, hidden: int, num_nodes: Mapping[str, int]) -> nn.Module:
    """Make the input layer of a node type.

    Args:
        name: name of the type.
        width: width of its features; 0 without any.
        hidden: width of the rows that the layer gives.
        num_nodes: number of nodes of the types without features.

    Raises:
        ConfigError: a number is out of range, or one of nodes is missing.
    """
    if as_count(width, f"in_channels[{name!r}]", most=MOST_WIDTH):
        return Linear(width, hidden)
    if name not in num_nodes:
        raise ConfigError(
            f"nodes of type {name!r} have no features (in_channels 0); give num_nodes[{name!r}], so that "
            "each of them gets a learned row"
        )
    count = as_count(num_nodes[name], f"num_nodes[{name!r}]")
    return nn.Embedding(count, hidden)


def input_rows(
    name: str, layer: nn.Module, x: LayerInput | None, ids: Tensor | None, *, act: str, p: float
) -> Tensor:
    """Return the rows of a node type that the first relational layer takes, ``(num_rows, hidden)``.

    Args:
        name: name of the type.
        layer: its :func:`input_layer`.
        x: ``(num_rows, width)`` features, dense or sparse; not read where rows are learned.
        ids: ``(num_rows,)`` ids of learned rows. If None, all in order.
        act: activation, which learned rows do not pass through.
        p: probability of dropping an element.

    Raises:
        DataError: features or ids do not fit.
    """
    if isinstance(layer, nn.Embedding):
        if ids is not None:
            check_ids(check_tensor(ids, f"n_id_dict[{name!r}]", ndim=1), layer.num_embeddings, "ids")
        found = layer.weight if ids is None else F.embedding(ids, layer.weight)
        return bias_act_dropout(found, None, "none", p)
    assert isinstance(layer, Linear)
    is_matrix = isinstance(x, SparseFeatures) or (isinstance(x, Tensor) and x.ndim == 2)
    if x is None or not is_matrix or x.shape[1] != layer.in_features:
        got = "none" if x is None else shown(x)
        raise DataError(
            f"nodes of type {name!r} need features of shape (num_rows, {layer.in_features}); got {got}"
        )
    x = as_rows(x)
    if isinstance(x, SparseFeatures):
        out = sparse_linear(x, layer.weight)
    else:
        out = dense_linear(x.to(layer.weight.dtype), layer.weight)
    return bias_act_dropout(out, layer.bias, act, p, inplace=True)

"""Optional attributes of a module that describe its calls and its needs; its copies and its mode."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any, TypeVar

import torch

from graphbraid.errors import ConfigError

M = TypeVar("M", bound=torch.nn.Module)


def copy_of(module: M, memo: dict[int, Any] | None = None) -> M:
    """Return a deep copy. No random numbers of the user's are drawn: PyG 2.6's linear layers draw some."""
    with torch.random.fork_rng([]):
        return copy.deepcopy(module, memo)


@contextmanager
def in_mode(model: torch.nn.Module, *, training: bool) -> Iterator[None]:
    """Put a model in training or evaluation mode, and afterwards each module back into its own mode."""
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, was_training in before:
            module.training = was_training


def takes_blocks(model: object) -> bool:
    """Return whether a model is called with one block per layer, not with PyG's ``edge_index``."""
    return bool(getattr(model, "takes_blocks", False))


def takes_typed_blocks(model: object) -> bool:
    """Return whether a model is called with one block per layer, and with the relations of its edges."""
    return bool(getattr(model, "takes_typed_blocks", False))


def takes_weights(kind: object) -> bool:
    """Return whether a layer or a model uses edge weights, so that it can be called with them."""
    return bool(getattr(kind, "takes_weights", False))


def keeps_result(layer: object) -> bool:
    """Return whether a layer's backward may read its result, which must then not be overwritten."""
    return bool(getattr(layer, "keeps_result", False))


def widest(model: object) -> int | None:
    """Return the largest number of columns that a layer holds for a node; None if the model does not say."""
    return _number(model, "widest")


def edge_bytes(model: object) -> int | None:
    """Return the bytes that a layer holds for an edge; None if the model does not say."""
    return _number(model, "edge_bytes")


def num_layers(model: object) -> int | None:
    """Return the number of a model's layers, one for each hop; None if it does not say."""
    return _number(model, "num_layers")


def layers_of(model: object) -> int:
    """Return the number of layers of a model that takes one block per layer; ConfigError if unknown."""
    layers = num_layers(model)
    if layers is None:
        raise ConfigError(
            f"{type(model).__name__} is called with one block per layer (takes_blocks), and does not say how "
            "many; give it an attribute num_layers"
        )
    return layers


def _number(model: object, name: str) -> int | None:
    number = getattr(model, name, None)
    return int(number) if isinstance(number, Integral) else None

"""Modes: a model is put into another mode for a while, and every module of it back into its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """The model as ``model.train(training)`` leaves it; afterwards every module is in the mode it was in."""
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, was_training in before:
            module.training = was_training


__all__ = ["in_mode"]

"""Modes: a model is put into another mode for a while, and every module of it back into its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
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


@contextmanager
def plain_tensors() -> Iterator[None]:
    """In inference mode, the same without it: what an engine keeps is written to in later calls."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


__all__ = ["in_mode", "plain_tensors"]

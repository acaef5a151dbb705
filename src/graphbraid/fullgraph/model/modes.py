"""Context managers for a model's training mode and torch's inference mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put a model in training or evaluation mode, and afterwards each module back into its own mode."""
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, was_training in before:
            module.training = was_training


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Leave inference mode, if it is on: what an engine stores is written to again in later calls."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


__all__ = ["in_mode", "plain_tensors"]

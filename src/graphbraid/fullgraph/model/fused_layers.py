"""Layers of PyG without a lowered form, run by fused operators inside a model that runs as it is written."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from graphbraid.fullgraph.model import fused_hgt
from graphbraid.fullgraph.program.refusal import NotLoweredError


@contextmanager
def fused_layers(model: nn.Module) -> Iterator[None]:
    """Run a model's ``HGTConv`` layers by :mod:`graphbraid.fullgraph.model.fused_hgt`, in the context.

    Outputs and gradients equal PyG's to rounding. A layer runs as it is written if it is anything but PyG's
    own class as it is. The model is left as it was found.
    """
    changed = []
    try:
        for _, layer in _found(model)[0]:
            vars(layer)["forward"] = functools.partial(fused_hgt.run, layer)
            changed.append(layer)
        yield
    finally:
        for layer in changed:
            vars(layer).pop("forward", None)


def explained_fused(model: nn.Module) -> str:
    """Return as text which layers of a model that runs as it is written are fused, and why others are not."""
    found, refused = _found(model)
    lines = []
    if found:
        names = ", ".join(name or "the model itself" for name, _ in found)
        lines.append(
            f"Fused operators run {names} (HGTConv): relations share one pass, without rows per edge, where "
            f"the call has {fused_hgt.NEEDED}."
        )
    lines += [f"Not fused: {why.part}: {why.reason}." for why in refused]
    return "\n".join(lines)


def _found(model: nn.Module) -> tuple[list[tuple[str, nn.Module]], list[NotLoweredError]]:
    """Return the layers that fused operators stand for, by name, and why not for others of their class."""
    found, refused = [], []
    for name, layer in model.named_modules():
        if not fused_hgt.is_kind(layer):
            continue
        try:
            fused_hgt.check_layer(name or type(layer).__name__, layer)
        except NotLoweredError as why:
            refused.append(why)
        else:
            found.append((name, layer))
    return found, refused


__all__ = ["explained_fused", "fused_layers"]

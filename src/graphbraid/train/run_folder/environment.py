"""The environment of a run: versions, kernels and machine."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any

import torch

import graphbraid
from graphbraid import native
from graphbraid.machine.hardware import Hardware

_PACKAGES = ("torch", "numpy", "scipy", "torchmetrics", "torch-geometric")


def environment() -> dict[str, Any]:
    """Return versions, kernel variant and machine, for ``environment.json``."""
    selection = native.active()
    return {
        "graphbraid": graphbraid.__version__,
        "python": sys.version.split()[0],
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "kernels": {"variant": selection.variant, "reason": selection.reason, "rejected": selection.rejected},
        "machine": Hardware.detect().as_dict(),
        "torch_threads": torch.get_num_threads(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

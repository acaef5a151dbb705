"""graphbraid: train graph neural networks faster on the hardware you have.

Importing this package imports nothing else. Each name below loads its module, and with it PyTorch, when it is
first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphbraid import (
        collective,
        datasets,
        distributed,
        errors,
        features,
        fullgraph,
        loader,
        machine,
        native,
        nn,
        ops,
        sampling,
        synth,
        train,
    )
    from graphbraid.errors import GraphbraidError
    from graphbraid.estimates.estimate import estimate
    from graphbraid.fullgraph import Engine, compile  # noqa: A004 - as torch.compile
    from graphbraid.graph import Graph, ScaledFeatures, SparseFeatures
    from graphbraid.graph.csc import Csc
    from graphbraid.graph.graph_set import GraphSet
    from graphbraid.loader import NeighborLoader
    from graphbraid.machine.hardware import Hardware
    from graphbraid.sampling import MiniBatch, SamplerConfig
    from graphbraid.train import RunResult, TrainConfig, Trainer

__version__ = "0.1.0"

__all__ = [
    "Csc",
    "Engine",
    "Graph",
    "GraphSet",
    "GraphbraidError",
    "Hardware",
    "MiniBatch",
    "NeighborLoader",
    "RunResult",
    "SamplerConfig",
    "ScaledFeatures",
    "SparseFeatures",
    "TrainConfig",
    "Trainer",
    "__version__",
    "collective",
    "compile",
    "datasets",
    "distributed",
    "errors",
    "estimate",
    "features",
    "fullgraph",
    "loader",
    "machine",
    "native",
    "nn",
    "ops",
    "sampling",
    "synth",
    "train",
]

_HOMES = {
    "Csc": "graph.csc",
    "Engine": "fullgraph",
    "Graph": "graph",
    "GraphSet": "graph.graph_set",
    "GraphbraidError": "errors",
    "Hardware": "machine.hardware",
    "MiniBatch": "sampling",
    "NeighborLoader": "loader",
    "RunResult": "train",
    "SamplerConfig": "sampling",
    "ScaledFeatures": "graph",
    "SparseFeatures": "graph",
    "TrainConfig": "train",
    "Trainer": "train",
    "compile": "fullgraph",
    "estimate": "estimates.estimate",
}
"""Submodule that defines each lazily exported name; a test checks that it agrees with the imports above."""

_SUBMODULES = frozenset(
    {
        "collective",
        "datasets",
        "distributed",
        "errors",
        "features",
        "fullgraph",
        "loader",
        "machine",
        "native",
        "nn",
        "ops",
        "sampling",
        "synth",
        "train",
    },
)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Identity of a run's model, graph and config, against which checkpoints are checked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph, NodeSet, ScaledFeatures, SparseFeatures, Types
from graphbraid.train.config import FREE_ON_RESUME, TrainConfig
from graphbraid.train.step.learning_rate import PER_STEP

_SAMPLES = (
    4096  # elements of each array in the graph's fingerprint: enough to tell graphs apart, quick at any size
)
_RENUMBERED = (
    " Its sizes are the same: was it renumbered (graphbraid reorder, convert --order) since? Other ids draw "
    "other mini-batches, so a run goes on only with the nodes as they were numbered."
)
_MAPPED_AROUND = 1 << 16  # bytes of a file that Linux maps where one of them is read


def model_identity(model: nn.Module) -> dict[str, Any]:
    """Return a model's class and the shapes of its parameters and buffers."""
    shapes = {
        name: f"{tuple(value.shape)} {value.dtype}"
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }
    return {"class": f"{type(model).__module__}.{type(model).__qualname__}", "shapes": shapes}


def graph_identity(graph: Graph) -> dict[str, Any]:
    """Return a graph's sizes and a fingerprint of evenly spaced elements of its arrays."""
    identity = {
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "num_features": graph.num_features,
        "splits": {name: int(ids.numel()) for name, ids in graph.splits.items()},
        "fingerprint": _fingerprint(graph),
    }
    return identity if graph.types is None else _identity_of_types(graph.types) | identity


def _identity_of_types(types: Types) -> dict[str, Any]:
    return {
        "node types": {name: nodes.num_nodes for name, nodes in types.nodes.items()},
        "relations": {"__".join(one): edges.num_edges for one, edges in types.edges.items()},
        "splits by type": {
            name: {split: int(ids.numel()) for split, ids in nodes.splits.items()}
            for name, nodes in types.nodes.items()
        },
    }


def _fingerprint(graph: Graph) -> str:
    digest = hashlib.blake2b(digest_size=16)
    arrays: list[Tensor | None] = [graph.csc.indptr, graph.csc.indices, graph.csc.weight]
    arrays += _node_arrays(graph)
    arrays += [] if graph.edge_attr is None else [graph.edge_attr]
    if graph.types is not None:
        arrays.append(graph.types.rows.indptr)
        arrays += [array for nodes in graph.types.nodes.values() for array in _node_arrays(nodes)]
        for edges in graph.types.edges.values():
            arrays += [edges.splits[name] for name in sorted(edges.splits)]
            arrays += [] if edges.time is None else [edges.time]
    for array in arrays:
        digest.update(b"none" if array is None else _some_bytes(array))
    return digest.hexdigest()


def _node_arrays(nodes: Graph | NodeSet) -> list[Tensor | None]:
    x = nodes.x
    features: list[Tensor | None]
    if isinstance(x, SparseFeatures):
        features = [x.indptr, x.indices, x.values]
    elif isinstance(x, ScaledFeatures):
        features = [x.values, x.scale]
    else:
        features = [x]
    return [nodes.y, *features, *(nodes.splits[name] for name in sorted(nodes.splits))]


def _some_bytes(array: Tensor) -> bytes:
    flat = array.detach().reshape(-1)
    if flat.numel() > _SAMPLES:
        flat = flat[torch.linspace(0, flat.numel() - 1, _SAMPLES, dtype=torch.float64).long()]
    flat = flat.clone(memory_format=torch.contiguous_format)  # also of one element, whose stride may be any
    return str((tuple(array.shape), array.dtype)).encode() + flat.view(torch.uint8).numpy().tobytes()


def looked_at_bytes(nbytes: int) -> int:
    """Return the bytes of an array mapped from a file that its fingerprint brings into memory, at most."""
    return min(nbytes, _SAMPLES * _MAPPED_AROUND)


def check_same(
    found: Mapping[str, Any], model: nn.Module, graph: Mapping[str, Any], config: TrainConfig, path: object
) -> None:
    """Check that the checkpoint ``found`` is of the given model, graph (given by its identity) and config.

    Raises:
        ConfigError: the model or an option differs; the message names the first difference.
        DataError: the graph differs.
    """
    check_same_model(found["model_identity"], model, path)
    for key, here in graph.items():
        value = found["graph_identity"].get(key)
        if value != here:
            hint = _RENUMBERED if key == "fingerprint" and "node types" not in graph else ""
            raise DataError(
                f"{path} was written while training on another graph: its {key} was {value}, this graph's "
                f"is {here}.{hint} Load the same graph with the same splits, or start anew in another "
                "out_dir."
            )
    _check_same_config(found["config"], config, path)


def check_same_model(found: Mapping[str, Any], model: nn.Module, path: object) -> None:
    """Check that the identity ``found`` is that of the given model.

    Raises:
        ConfigError: the class or a shape differs.
    """
    now = model_identity(model)
    if found["class"] != now["class"]:
        raise ConfigError(f"{path} holds a {found['class']}; the model given is a {now['class']}.")
    for name in {**found["shapes"], **now["shapes"]}:
        was, here = found["shapes"].get(name, "absent"), now["shapes"].get(name, "absent")
        if was != here:
            raise ConfigError(
                f"{path} holds another model: its {name} is {was}, the given model's is {here}. Build the "
                "model with the options of that run."
            )


def _check_same_config(found: Mapping[str, Any], config: TrainConfig, path: object) -> None:
    free = set(FREE_ON_RESUME)
    if config.scheduler in PER_STEP:  # its curve spans the whole run
        free.discard("epochs")
    now, before = config.to_json(), TrainConfig().to_json() | dict(found)  # older runs lack newer options
    for name in now:
        if name not in free and before[name] != now[name]:
            raise ConfigError(
                f"{path} was written with {name}={before[name]!r}; this run has {now[name]!r}, which "
                f"would not continue it. Give {name} as it was, or start anew in another out_dir."
            )

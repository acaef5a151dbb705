"""Identity of a run's model, graph and config, against which checkpoints are checked."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from graphbraid.datasets.store.on_disk import sums_of, tensors_of
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph, Types
from graphbraid.graph.identity import mark
from graphbraid.train.config import FREE_ON_RESUME, TrainConfig
from graphbraid.train.run_folder.contract import Contract
from graphbraid.train.step.optimizers import PER_STEP

_log = logging.getLogger(__name__)

_RENUMBERED = (
    " Its sizes are the same: was it renumbered (graphbraid reorder, convert --order) since? Other ids draw "
    "other mini-batches, so a run goes on only with the nodes as they were numbered."
)


def model_identity(model: nn.Module) -> dict[str, Any]:
    """Return a model's class and the shapes of its parameters and buffers."""
    shapes = {
        name: f"{tuple(value.shape)} {value.dtype}"
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }
    return {"class": f"{type(model).__module__}.{type(model).__qualname__}", "shapes": shapes}


def graph_identity(graph: Graph) -> dict[str, Any]:
    """Return a graph's sizes and the mark of each of its arrays."""
    identity = {
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "num_features": graph.num_features,
        "splits": {name: int(ids.numel()) for name, ids in graph.splits.items()},
        "contract": Contract.of(graph).model_dump(),
    }
    for name, array in tensors_of(graph):
        identity[f"array {name}"] = mark(array, in_blocks=bool(sums_of(name)))
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


def check_same(
    found: Mapping[str, Any], model: nn.Module, graph: Mapping[str, Any], config: TrainConfig, path: object
) -> None:
    """Check that the checkpoint ``found`` is of the given model, graph (given by its identity) and config.

    Raises:
        ConfigError: the model or an option differs; the message names the first difference.
        DataError: the graph differs.
    """
    check_same_model(found["model_identity"], model, path)
    before, now = dict(found["graph_identity"]), dict(graph)
    learned, contract = before.pop("contract", None), now.pop("contract")
    if learned is not None:  # runs of earlier versions have none
        before, now = learned | before, contract | now
    if before.pop("fingerprint", None) is not None:  # of an earlier version, which kept no marks of arrays
        _log.warning("%s is of an earlier version: its graph is compared by sizes and splits alone", path)
        now = {key: value for key, value in now.items() if not key.startswith("array ")}
    for key in {**now, **before}:
        value, here = before.get(key), now.get(key)
        if value != here:
            hint = _RENUMBERED if key.startswith("array") and "node types" not in graph else ""
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

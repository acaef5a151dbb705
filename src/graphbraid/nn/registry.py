"""Models by the names that the command line and configuration files use."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from graphbraid.arguments import check_choice
from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.graph import Graph
from graphbraid.nn.graph_model import GraphModel
from graphbraid.nn.models import GAT, GCN, GIN, MLP, GATv2, GraphSAGE
from graphbraid.nn.typed_models import RGCN
from graphbraid.signatures import typed

MODELS: dict[str, type[GraphModel]] = {
    "gcn": GCN,
    "sage": GraphSAGE,
    "gin": GIN,
    "gat": GAT,
    "gatv2": GATv2,
    "mlp": MLP,
}
TYPED_MODELS: dict[str, type[RGCN]] = {"rgcn": RGCN}
"""Likewise of several node types."""
_FROM_GRAPH = ("self", "in_channels", "out_channels", "edge_types", "num_nodes")


@typed
def make_model(name: str, in_channels: int, out_channels: int, **options: Any) -> GraphModel:
    """Make a model by name.

    Args:
        name: a key of :data:`MODELS`.
        in_channels: width of the input features.
        out_channels: number of classes, labels or target columns.
        **options: options of the model and its layers; ``hidden_channels`` defaults to 64 and ``num_layers``
            to 2.

    Raises:
        ConfigError: the name or an option is unknown (the message names the nearest known one), or a value is
            invalid.
    """
    if name not in MODELS:
        raise ConfigError(
            f"no model is called {name!r}; choose one of {', '.join(MODELS)}.{did_you_mean(name, MODELS)}"
        )
    model = MODELS[name]
    _check_options(name, options, model_options(name))
    hidden_channels = options.pop("hidden_channels", 64)
    return model(in_channels, hidden_channels, out_channels, **options)


@typed
def model_options(name: str) -> list[str]:
    """Return the names of all options of a model: its own and its layers'.

    Raises:
        ConfigError: the name is unknown; the message names the nearest known one.
    """
    check_choice(name, "a model's name", MODELS)
    model = MODELS[name]
    ignored = {"self", "in_channels", "out_channels", "options", "module", "concat"}
    sources = [inspect.signature(GraphModel.__init__), inspect.signature(model.make_layer)]
    if model.layer is not None:
        sources.append(inspect.signature(model.layer.__init__))
    names = dict.fromkeys(parameter for source in sources for parameter in source.parameters)
    return [option for option in names if option not in ignored]


@typed
def make_typed_model(name: str, graph: Graph, out_channels: int | None = None, **options: Any) -> RGCN:
    """Make a model of several node types by name.

    Args:
        name: a key of :data:`TYPED_MODELS`.
        graph: a graph with types, for which the model is made (:meth:`RGCN.of`).
        out_channels: width of the output. If None, the number of classes.
        **options: options of the model.

    Raises:
        ConfigError: the name or an option is unknown (the message names the nearest known one), or a value is
            invalid.
    """
    check_choice(name, "a model's name", TYPED_MODELS)
    own = inspect.signature(TYPED_MODELS[name].__init__).parameters
    known = [option for option in own if option not in _FROM_GRAPH]
    _check_options(name, options, known)
    return TYPED_MODELS[name].of(graph, out_channels=out_channels, **options)


def _check_options(name: str, options: Iterable[str], known: Sequence[str]) -> None:
    for option in options:
        if option not in known:
            raise ConfigError(
                f"model {name!r} has no option {option!r}.{did_you_mean(option, known)} It takes "
                f"{', '.join(known)}."
            )

"""Models by the names that the command line and configuration files use."""

from __future__ import annotations

import inspect
from typing import Any

from graphbraid.arguments import check_choice
from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.nn.models import GAT, GCN, GIN, MLP, GATv2, GraphModel, GraphSAGE
from graphbraid.signatures import typed

MODELS: dict[str, type[GraphModel]] = {
    "gcn": GCN,
    "sage": GraphSAGE,
    "gin": GIN,
    "gat": GAT,
    "gatv2": GATv2,
    "mlp": MLP,
}


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
    known = model_options(name)
    for option in options:
        if option not in known:
            raise ConfigError(
                f"model {name!r} has no option {option!r}.{did_you_mean(option, known)} It takes "
                f"{', '.join(known)}."
            )
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

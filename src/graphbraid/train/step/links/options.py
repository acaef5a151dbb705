"""What a run on links does not take so far; it is refused by name before any work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from graphbraid.errors import ConfigError
from graphbraid.nn import LinkModel
from graphbraid.train.config import TrainConfig

_TIERS = "batches of links read rows and lists in memory"
_THREADS = "batches of links are prepared by the CPU's own threads"


def config_of_links(
    model: nn.Module, config: TrainConfig, given: Mapping[str, Any], num_ranks: int
) -> TrainConfig:
    """Return the options of a run on links, whose mode is ``sampled``.

    Args:
        model: the model to train.
        config: options of the run.
        given: ``tiers``, ``topology`` and ``accelerator`` of the Trainer; None where they were not given.
        num_ranks: number of ranks that train together.

    Raises:
        ConfigError: an option does not go with links, or the model is no model of links.
    """
    if not isinstance(model, LinkModel):
        raise ConfigError(
            "task='link' trains an encoder and a predictor: give nn.LinkModel(encoder, nn.DotProduct()), or "
            f"another predictor; got {type(model).__name__}."
        )
    refused: list[tuple[str, Any, bool, str]] = [
        ("mode", config.mode, config.mode == "full", "the full-graph engine learns labels of nodes"),
        ("host", config.host, config.host is not None, _TIERS),
        ("hot", config.hot, bool(config.hot), _TIERS),
        ("tiers", config.tiers, config.tiers is not None, _TIERS),
        ("trace", config.trace, config.trace is not None, f"{_THREADS}, which keep no timeline"),
        ("plan", config.plan, config.plan is not None and config.device != "cpu", _THREADS),
        ("node_type", config.node_type, config.node_type is not None, "links are learned, not labels"),
        (
            "class_weights",
            config.class_weights,
            config.class_weights is not None,
            "links are learned, not classes",
        ),
    ]
    reasons = {"tiers": _TIERS, "topology": _TIERS, "accelerator": _THREADS}
    refused += [(name, type(one).__name__, one is not None, reasons[name]) for name, one in given.items()]
    for name, value, is_given, reason in refused:
        if is_given:
            shown = repr(value) if isinstance(value, str | int) else str(value)
            raise ConfigError(f"{name}={shown} does not go with task='link' so far: {reason}.")
    if num_ranks > 1:
        raise ConfigError(f"{num_ranks} ranks do not train on links so far: they share batches of nodes.")
    return config.updated(mode="sampled")

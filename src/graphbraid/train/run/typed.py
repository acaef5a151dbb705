"""What a run on a graph with types does not take so far; it is refused by name before any work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphbraid.errors import ConfigError
from graphbraid.graph import Graph
from graphbraid.train.config import TrainConfig

_TIERS = "tiers hold the rows and lists of one node type"
_BATCHES = "batches of several node types are prepared by the CPU's own threads"
_SAMPLED = "a graph with types is trained on by mini-batches unless mode='full' is given"


def config_by_types(
    graph: Graph, config: TrainConfig, given: Mapping[str, Any], num_ranks: int
) -> tuple[TrainConfig, str]:
    """Return the options of a run as a graph's types allow, with the reason if they decide mode ``auto``.

    Args:
        graph: the graph to train on.
        config: options of the run.
        given: ``tiers``, ``topology`` and ``accelerator`` of the Trainer; None where they were not given.
        num_ranks: number of ranks that train together.

    Raises:
        ConfigError: an option was given that does not go with the graph's types; names it and why.
    """
    if not graph.is_typed:
        if config.node_type is not None:
            raise ConfigError(
                f"node_type={config.node_type!r} chooses among node types, and the graph has one; leave it "
                "out."
            )
        return config, ""
    _check_typed(config, given, num_ranks)
    if config.mode == "auto":
        return config.updated(mode="sampled"), _SAMPLED
    return config, ""


def _check_typed(config: TrainConfig, given: Mapping[str, Any], num_ranks: int) -> None:
    """Refuse options that need a graph of one node type and one relation."""
    refused: list[tuple[str, Any, bool, str]] = [
        ("host", config.host, config.host is not None, _TIERS),
        ("hot", config.hot, bool(config.hot), _TIERS),
        ("tiers", config.tiers, config.tiers is not None, _TIERS),
        ("trace", config.trace, config.trace is not None, f"{_BATCHES}, which keep no timeline"),
        ("plan", config.plan, config.plan is not None and config.device != "cpu", _BATCHES),
    ]
    reasons = {"tiers": _TIERS, "topology": _TIERS, "accelerator": _BATCHES}
    refused += [(name, type(one).__name__, one is not None, reasons[name]) for name, one in given.items()]
    for name, value, is_given, reason in refused:
        if is_given:
            shown = repr(value) if value is None or isinstance(value, str | int) else str(value)
            raise ConfigError(f"{name}={shown} does not go with a graph with types so far: {reason}.")
    if num_ranks > 1:
        raise ConfigError(
            f"{num_ranks} ranks do not train on a graph with types so far: they share batches of one node "
            "type."
        )

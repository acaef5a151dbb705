"""Orders of nodes by name: computed from the topology, or by a score of how often each row is read."""

from __future__ import annotations

from torch import Tensor

from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.features.scores.score import score
from graphbraid.graph import Graph
from graphbraid.graph.orders import ORDERS, order_by
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.schedule import SeedSchedule

OF_GRAPH = (*ORDERS, "reverse_pagerank", "weighted_reverse_pagerank")
"""Orders that need nothing but the graph, the last one its training nodes."""
OF_SAMPLER = ("inclusion", "presampled", "auto")
"""Scores that follow a sampler from its seeds."""


def named_order(
    graph: Graph, name: str, *, sampler: SamplerConfig | None = None, schedule: SeedSchedule | None = None
) -> Tensor:
    """Return the order of a name, ``(num_nodes,)`` int64.

    Args:
        graph: The graph.
        name: One of :data:`OF_GRAPH` or :data:`OF_SAMPLER`.
        sampler: How neighbours are drawn, for :data:`OF_SAMPLER`.
        schedule: Seeds of the steps, for :data:`OF_SAMPLER`.

    Raises:
        ConfigError: There is no order of that name, or it needs a sampler.
        DataError: The graph lacks the training nodes or edge weights that the score needs.
    """
    check_order_name(name, sampled=True)
    if name in ORDERS:
        return ORDERS[name](graph.csc)
    return order_by(score(graph, name, sampler=sampler, schedule=schedule).values)


def check_order_name(name: str, option: str = "order", *, sampled: bool) -> None:
    """Check that an order of the name exists.

    Args:
        name: Name of the order.
        option: Name of the argument or option, for the message.
        sampled: Whether :data:`OF_SAMPLER` count.

    Raises:
        ConfigError: There is no order of that name; lists those there are.
    """
    known = OF_GRAPH + OF_SAMPLER if sampled else OF_GRAPH
    if name == "lookahead" and sampled:
        raise ConfigError(
            f"{option}={name}: once nodes are renumbered, the coming epochs draw other neighbours, so their "
            "reads cannot be counted before; choose presampled, which counts the reads of other epochs"
        )
    if name not in known:
        hint = (
            _with_sampler(name, option) if name in (*OF_SAMPLER, "lookahead") else did_you_mean(name, known)
        )
        raise ConfigError(f"{option} must be one of {', '.join(known)}; got {name!r}.{hint}")


def _with_sampler(name: str, option: str) -> str:
    if option.startswith("--"):
        return f" This one follows a sampler, whose options `graphbraid reorder --by {name}` takes."
    return f" This one follows a sampler: pass order_by(score(graph, {name!r}, ...).values)."

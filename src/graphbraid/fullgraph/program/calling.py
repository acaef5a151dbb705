"""How a model is called: the tensor of the graph that each parameter of its ``forward`` receives.

A model that runs as it is written is called with tensors, and a traced one in the same way with stand-ins for
them, so that the program read is the one that would run.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from graphbraid.errors import ConfigError
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.types import Relation
from graphbraid.nn import told

X, EDGES, ADJACENCY, WEIGHTS, DATA, CSC = "x", "edge_index", "adj_t", "edge_weight", "data", "csc"
EDGE_ATTR = "edge_attr"
EDGE_TYPE = "edge_type"
"""What a parameter can receive, besides attributes of the user's data: the features, the edges as a list or
as a sparse matrix, the edge weights, the data object, graphbraid's own topology, the edge features, the
relation of each edge."""
_NAMES = {
    X: ("x", "X", "feat", "feats", "feature", "features", "h", "z", "input", "inputs", "node_features"),
    EDGES: ("edge_index", "edges", "edge_idx", "ei"),
    ADJACENCY: ("adj_t", "adj", "adjacency"),
    WEIGHTS: ("edge_weight", "edge_weights", "weight", "edge_attr"),
    DATA: ("data", "batch", "graph", "g"),
}
_KNOWN = {name: what for what, names in _NAMES.items() for name in names}
_BY_PLACE = (X, EDGES)


@dataclass(frozen=True)
class Given:
    """The arguments that are available to call a model with.

    Attributes:
        has_features: whether the nodes have features.
        weighted: whether the edges have weights.
        weights_are_attr: whether the weights may be given as ``edge_attr``: the user's data has them there,
            or has no ``edge_attr`` of its own.
        edge_channels: number of edge features. If None, there are none.
        attributes: names of the attributes of the user's data; empty if there is only a graph.
        graph: the graph that the edges belong to.
        data_class: the class of the user's data.
        classes: the classes of tensors in the user's data, by the names of what parameters receive.
        relations: the relations that have edges, if the data say of each edge which it belongs to.
    """

    has_features: bool = True
    weighted: bool = False
    weights_are_attr: bool = True
    edge_channels: int | None = None
    attributes: frozenset[str] = frozenset()
    graph: Graph | None = field(default=None, compare=False)
    data_class: type | None = None
    classes: Mapping[str, type] = field(default_factory=dict)
    relations: tuple[Relation, ...] = ()

    def is_simple(self) -> bool:
        """Return whether there are no repeated edges and no self-loops."""
        return self.graph is not None and _is_simple(self.graph.csc)


@dataclass(frozen=True)
class Calling:
    """The arguments of a call, each described by the name of what it receives."""

    positional: tuple[str, ...]
    named: Mapping[str, str]

    def run(self, model: nn.Module, values: Mapping[str, Any]) -> Any:
        """Call the model with ``values``, by the names of what its parameters receive."""
        return model(
            *(values[what] for what in self.positional), **{k: values[v] for k, v in self.named.items()}
        )

    def takes(self, what: str) -> bool:
        """Return whether any argument of the call receives ``what``."""
        return what in self.positional or what in self.named.values()


def calling_of(model: nn.Module, given: Given) -> Calling:
    """Determine how to call a model.

    Parameters are recognised by PyG's names (``x``, ``edge_index``, ``adj_t``, ``edge_weight``,
    ``edge_attr``, ``data``). Any other receives the attribute of the same name of the user's data or, if it
    has no default value, is recognised by its position. Parameters with a default keep it if nothing matches.

    Raises:
        ConfigError: a parameter without a default matches nothing.
    """
    if told.takes_blocks(model):
        return Calling((X, CSC), {})
    positional, named, in_place = [], {}, True
    parameters = _parameters(model)
    both = {"edge_weight", "edge_attr"} <= {parameter.name for parameter in parameters}
    given = replace(given, weights_are_attr=given.weights_are_attr and not both)
    for place, parameter in enumerate(parameters):
        what = _given_to(parameter, place, given)
        if what is None:
            in_place = False
        elif parameter.kind is parameter.KEYWORD_ONLY or not in_place:
            named[parameter.name] = what
        else:
            positional.append(what)
    return Calling(tuple(positional), named)


def _parameters(model: nn.Module) -> list[inspect.Parameter]:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = list(inspect.signature(model.forward).parameters.values())
    named = [parameter for parameter in parameters if parameter.kind not in variadic]
    if not named and parameters:  # forward(*args) of a wrapper module
        inner = next((child for child in model.children() if callable(child.forward)), None)
        return _parameters(inner) if inner is not None else named
    return named


def _given_to(parameter: inspect.Parameter, place: int, given: Given) -> str | None:
    """Return what a parameter receives; None if it keeps its default."""
    what, needed = _by_name(parameter.name, given), parameter.default is parameter.empty
    if what == X and not needed and not given.has_features:
        return None
    if what == DATA:
        what = DATA if place == 0 and needed else None
    elif what is None and needed and place < len(_BY_PLACE):
        what = _BY_PLACE[place]
    if what is None and needed:
        raise ConfigError(
            f"the model's forward takes {parameter.name!r}, and the graph has no such thing; give it a "
            "default value, or call compile(model, data) with data that holds it"
        )
    return what


def _by_name(name: str, given: Given) -> str | None:
    if name == EDGE_ATTR and given.edge_channels is not None:
        return EDGE_ATTR
    what = _KNOWN.get(name)
    if name == EDGE_ATTR and not (given.weighted and given.weights_are_attr):
        what = None  # it has several columns, or there are weights too
    if what == EDGES and EDGES not in given.attributes and ADJACENCY in given.attributes:
        return ADJACENCY  # a sparse matrix passed under an edge list's name
    if name in given.attributes and what in (None, DATA):
        return name
    return None if what == WEIGHTS and not given.weighted else what


def _is_simple(csc: Csc) -> bool:
    """Return whether there are no repeated edges and no self-loops."""
    src, dst = csc.indices.long(), csc.destinations().long()
    edges = src * csc.num_dst + dst
    return not bool((src == dst).any()) and torch.unique(edges).numel() == edges.numel()


__all__ = [
    "ADJACENCY",
    "CSC",
    "DATA",
    "EDGES",
    "EDGE_ATTR",
    "EDGE_TYPE",
    "WEIGHTS",
    "Calling",
    "Given",
    "X",
    "calling_of",
]

"""How a model is called: which of a graph's tensors each parameter of its ``forward`` is given.

The same call is made where a model runs as it is written, with tensors, and where it is traced, with
stand-ins for them. So what is read is what would be run.
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

X, EDGES, ADJACENCY, WEIGHTS, DATA, CSC = "x", "edge_index", "adj_t", "edge_weight", "data", "csc"
EDGE_ATTR = "edge_attr"
"""What can be given beside attributes of the user's data: the features, the edges as a list or as a sparse
matrix, their weights, the whole of the data, graphbraid's own topology, the edges' features."""
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
    """What there is to call a model with.

    Attributes:
        weighted: whether the edges have weights.
        weights_are_attr: whether these are the ``edge_attr`` of the user's data, or there is no such data.
        edge_channels: columns of the edges' features; None: there are no such features.
        attributes: names that the user's own data holds; none where there is only a graph.
        graph: whose edges they are.
        data_class: the class of the user's data.
    """

    weighted: bool = False
    weights_are_attr: bool = True
    edge_channels: int | None = None
    attributes: frozenset[str] = frozenset()
    graph: Graph | None = field(default=None, compare=False)
    data_class: type | None = None

    def is_simple(self) -> bool:
        """Whether no edge stands twice and none leads from a node to itself."""
        return self.graph is not None and _is_simple(self.graph.csc)


@dataclass(frozen=True)
class Calling:
    """The arguments of a call, each named by what it is given."""

    positional: tuple[str, ...]
    named: Mapping[str, str]

    def run(self, model: nn.Module, values: Mapping[str, Any]) -> Any:
        """Call the model with these values."""
        return model(
            *(values[what] for what in self.positional), **{k: values[v] for k, v in self.named.items()}
        )

    def takes(self, what: str) -> bool:
        """Whether the call is given it."""
        return what in self.positional or what in self.named.values()


def calling_of(model: nn.Module, given: Given) -> Calling:
    """How a model is called.

    Parameters are recognised by PyG's names (``x``, ``edge_index``, ``adj_t``, ``edge_weight``,
    ``edge_attr``, ``data``), any other by the attribute of that name in the user's data, or else, where it
    has no default, by its place. What has a default is given only what is there.

    Raises:
        ConfigError: a parameter without a default has no counterpart.
    """
    if getattr(model, "takes_blocks", False):
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
    if not named and parameters:  # forward(*args), as wrappers have it
        inner = next((child for child in model.children() if callable(child.forward)), None)
        return _parameters(inner) if inner is not None else named
    return named


def _given_to(parameter: inspect.Parameter, place: int, given: Given) -> str | None:
    """What a parameter is given; None: its default."""
    what, needed = _by_name(parameter.name, given), parameter.default is parameter.empty
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
        what = None  # of several columns, or beside weights
    if what == EDGES and EDGES not in given.attributes and ADJACENCY in given.attributes:
        return ADJACENCY  # a sparse matrix under the name of a list
    if name in given.attributes and what in (None, DATA):
        return name
    return None if what == WEIGHTS and not given.weighted else what


def _is_simple(csc: Csc) -> bool:
    """Whether no edge stands twice and none leads from a node to itself."""
    src, dst = csc.indices.long(), csc.destinations().long()
    edges = src * csc.num_dst + dst
    return not bool((src == dst).any()) and torch.unique(edges).numel() == edges.numel()


__all__ = [
    "ADJACENCY",
    "CSC",
    "DATA",
    "EDGES",
    "EDGE_ATTR",
    "WEIGHTS",
    "Calling",
    "Given",
    "X",
    "calling_of",
]

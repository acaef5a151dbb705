"""Graph and model of a run on links (``--task link``)."""

from __future__ import annotations

from typing import Any

from torch import nn

from graphbraid.cli.run.build import built, load_graph, naming
from graphbraid.cli.run.settings import ResolvedRun, RunSettings
from graphbraid.errors import ConfigError
from graphbraid.graph import Graph
from graphbraid.nn import (
    MODELS,
    RGCN,
    DistMult,
    DotProduct,
    LinkModel,
    LinkPredictor,
    MLPPredictor,
    NodeEmbedding,
    RGCNEncoder,
    make_model,
)
from graphbraid.train.step.links.data import relation_learned

EMBEDDING, RELATIONAL = "embedding", "rgcn"
ENCODERS = (EMBEDDING, RELATIONAL, *MODELS)
"""Names of the encoders: learned rows alone, relational layers on them, and the models of nodes."""


def load_links(settings: RunSettings) -> Graph:
    """Load the graph whose links are learned, and check every value of it unless ``check_data`` is off.

    Raises:
        ConfigError: the kind of source does not take an option.
        DataError: no dataset or file has that name, or it is broken; says which.
    """
    graph = load_graph(settings)
    if settings.check_data:
        naming(settings.data, graph.validate)
    return graph


def build_link_model(graph: Graph, run: ResolvedRun) -> LinkModel:
    """Make an encoder, with a learned row for each node where there are no features, and a predictor.

    Raises:
        ConfigError: there is no such encoder or predictor, or it does not go with the graph or an option.
        ResourceError: weights, gradients and optimizer state need more than the free memory.
    """
    settings, name = run.settings, run.settings.model
    learned = relation_learned(graph, run.train)
    if len(graph.node_types) > 1 and name != RELATIONAL:
        raise ConfigError(
            f"--model {name} does not go with {settings.data}, a graph of several node types; "
            f"choose {RELATIONAL}"
        )
    if name not in ENCODERS:
        raise ConfigError(f"--task link needs --model to be one of {', '.join(ENCODERS)}; got {name!r}")
    if name == RELATIONAL and not graph.is_typed:
        raise ConfigError(f"--model {RELATIONAL} learns from relations, and {settings.data} has none")

    def make(**options: Any) -> nn.Module:
        several = len(graph.edge_types) > 1 and learned is None
        encoder = _by_type if len(graph.node_types) > 1 else _encoder
        return LinkModel(encoder(name, graph, options), _predictor(graph, settings, several=several))

    model = built(settings, make, run.train.seed)
    assert isinstance(model, LinkModel)
    return model


def _encoder(name: str, graph: Graph, options: dict[str, Any]) -> nn.Module:
    nodes, width = graph.nodes_of(graph.node_types[0]), options["hidden_channels"]
    if name == EMBEDDING:
        others = {
            key: value for key, value in options.items() if key not in ("hidden_channels", "num_layers")
        }
        return NodeEmbedding(nodes.num_nodes, width, **others)
    in_channels = width if nodes.x is None else int(nodes.x.shape[1])
    if name == RELATIONAL:
        rest = {key: value for key, value in options.items() if key != "hidden_channels"}
        encoder: nn.Module = RGCNEncoder(in_channels, width, width, len(graph.edge_types), **rest)
    else:
        encoder = make_model(name, in_channels, width, **options)
    return NodeEmbedding(nodes.num_nodes, width, encoder) if nodes.x is None else encoder


def _by_type(_name: str, graph: Graph, options: dict[str, Any]) -> nn.Module:
    """Make the encoder of a graph of several node types, which returns rows of each of them."""
    nodes = {name: graph.nodes_of(name) for name in graph.node_types}
    width = options["hidden_channels"]
    rest = {key: value for key, value in options.items() if key != "hidden_channels"}
    return RGCN(
        {name: 0 if one.x is None else int(one.x.shape[1]) for name, one in nodes.items()},
        width,
        width,
        graph.edge_types,
        num_nodes={name: one.num_nodes for name, one in nodes.items() if one.x is None},
        **rest,
    )


def _predictor(graph: Graph, settings: RunSettings, *, several: bool) -> LinkPredictor:
    width, kind = settings.hidden_channels, settings.predictor
    if kind is None:
        kind = "distmult" if several else "dot"
    if kind == "distmult":
        if not several:
            raise ConfigError(
                f"--predictor distmult scores links of relations, and {settings.data} has none, or one "
                "is learned; choose dot, or mlp"
            )
        return DistMult(len(graph.edge_types), width)
    return DotProduct() if kind == "dot" else MLPPredictor(width, width)

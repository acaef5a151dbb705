"""Labels of edges and of many small graphs on the command line: their data, splits and models."""

import dataclasses
import functools
from typing import Any, cast

from torch import nn

from graphbraid.cli.run.build import (
    Learning,
    Outputs,
    build_encoder,
    built,
    check_classes,
    check_values_of,
    learning,
    load_graph,
    made,
    refuse_learned,
)
from graphbraid.cli.run.settings import ResolvedRun
from graphbraid.datasets import split_edges
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import EdgeType, Graph
from graphbraid.graph.graph_set import GraphSet, types_of_sets
from graphbraid.nn import MODELS, EdgeDecoder, EdgeModel, PooledModel, make_model
from graphbraid.train.run_folder.contract import Contract
from graphbraid.train.step.links.data import relation_learned

_NEEDS = "give the relation a label: column in the description of the tables, or edge_y in Python"


def learning_edges(run: ResolvedRun) -> Learning:
    """Load and check the graph whose edges have labels, and make the model."""
    graph, relation = edges_to_learn(run)
    labels = graph.edges_of(relation)
    if labels.y is None:
        raise DataError(f"{run.settings.data}: edges of {','.join(relation)} have no labels; {_NEEDS}")
    if labels.task == "single-label":
        check_classes(labels, run.settings.data, "edge")
    check_values_of(graph, run.settings)
    outputs = Outputs.of(labels, graph.schema.class_names.get(relation))
    # The relation is kept with the run, since data to predict may have no labels.
    run = dataclasses.replace(run, train=run.train.updated(link_relation=relation))
    model = build_edge_model(graph, run, outputs.width)
    return Learning(run=run, graph=graph, labels=labels, model=model, outputs=outputs)


def edges_to_learn(run: ResolvedRun, *, splits: bool = True) -> tuple[Graph, EdgeType]:
    """Load a graph, with the split of its labelled edges that a run asks for; return the relation as well.

    Data to predict may have no labels to draw splits of.
    """
    settings = run.settings
    if settings.target is not None:
        raise ConfigError(
            f"target={settings.target!r} is a column of nodes, and task='edge' learns edges; {_NEEDS}"
        )
    graph = load_graph(dataclasses.replace(settings, split=None, split_seed=None))  # those are of nodes
    if not graph.is_typed:
        raise DataError(
            f"{settings.data} has no types, and labels of edges are those of a relation; {_NEEDS}"
        )
    relation = relation_learned(graph, run.train)
    assert relation is not None, "labels of edges are those of one relation"
    if splits and (settings.split is not None or settings.split_seed is not None):
        how = settings.split
        if how is None:
            how = "per-class" if graph.edges_of(relation).task == "single-label" else "0.6,0.2"
        graph = split_edges(graph, relation, how, seed=settings.split_seed or 0)
    return graph, relation


def build_edge_model(graph: Graph, run: ResolvedRun, num_outputs: int) -> EdgeModel:
    """Make an encoder and a decoder of the rows of both ends and of the edges' features."""
    settings = run.settings
    if settings.reciprocal or settings.predictor not in (None, "mlp", "dot"):
        given = "reciprocal" if settings.reciprocal else f"decoder {settings.predictor}"
        raise ConfigError(
            f"--{given} is for links of relations; with --task edge choose --decoder mlp, of both ends' rows "
            "side by side, or dot"
        )
    options = {"how": "dot"} if settings.predictor == "dot" else {}
    options |= {"dropout": settings.dropout} | settings.predictor_options
    attr = graph.edges_of(cast("EdgeType", relation_learned(graph, run.train))).edge_attr
    width = settings.hidden_channels

    def make(**of_encoder: Any) -> nn.Module:
        edge_channels = 0 if attr is None else int(attr.shape[1])
        decoder = functools.partial(EdgeDecoder, width, num_outputs, edge_channels=edge_channels)
        return EdgeModel(
            build_encoder(graph, settings, of_encoder, "edge"), made("the decoder", decoder, options)
        )

    return cast("EdgeModel", built(run, make))


def learning_graphs(run: ResolvedRun) -> Learning:
    """Load and check many small graphs, and make the model."""
    graph = load_graph(run.settings)
    check_values_of(graph, run.settings)
    refuse_learned(graph)
    graphs = GraphSet.from_graph(graph)
    labels, data = graphs.labels, run.settings.data
    if labels.y is None:
        raise DataError(f"{data}: the graphs have no labels; give their table a label: column, or --target")
    if "train" not in labels.splits:
        raise DataError(
            f"{data}: the graphs have no split into train, val and test; draw one with --split "
            "stratified:0.6,0.2, or name a split: column of their table"
        )
    if labels.task == "single-label":
        check_classes(labels, data, "graph")
    outputs = Outputs.of(labels, graph.schema.class_names.get(types_of_sets(graph)[1]))
    model, source = build_graph_model(graphs, run, outputs.width), Contract.of(graph)
    return Learning(run=run, graph=graphs, labels=labels, model=model, outputs=outputs, source=source)


def build_graph_model(graphs: GraphSet, run: ResolvedRun, num_outputs: int) -> PooledModel:
    """Make an encoder of nodes, a readout of each graph's rows, and a linear map of that."""
    settings, name = run.settings, run.settings.model
    for option, value in (("embedding_dim", settings.embedding_dim), ("predictor", settings.predictor)):
        if value is not None:
            raise ConfigError(f"{option}={value!r} is for one graph; leave it out with --task graph")
    if name not in MODELS:
        raise ConfigError(f"--task graph needs --model to be one of {', '.join(MODELS)}; got {name!r}")
    if not graphs.num_features:
        raise DataError(f"{settings.data}: nodes have no features, and the model needs some")
    width = settings.hidden_channels

    def make(**of_encoder: Any) -> nn.Module:
        encoder = make_model(name, graphs.num_features, width, **of_encoder)
        head = nn.Linear(width + graphs.num_graph_features, num_outputs)
        return made("the readout", functools.partial(PooledModel, encoder, head), settings.predictor_options)

    return cast("PooledModel", built(run, make))


def learning_of(run: ResolvedRun) -> Learning:
    """Load the data of a run, check it and make the model."""
    if run.train.task in ("edge", "graph"):
        return learning_edges(run) if run.train.task == "edge" else learning_graphs(run)
    return learning(run)

"""What a run learns: its graph, its model and the meaning of the model's outputs, made from its options."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torch import nn

from graphbraid.cli.run.build import build_model_for, check_trainable, labels_of, load_graph
from graphbraid.cli.run.link import build_link_model, load_links
from graphbraid.cli.run.saved_run import Outputs
from graphbraid.cli.run.settings import ResolvedRun
from graphbraid.errors import ConfigError
from graphbraid.graph import Graph, NodeSet
from graphbraid.graph.types import ONLY_NODE_TYPE
from graphbraid.train.step.typed_runner import learned_type


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Learning:
    """Graph and model of a run."""

    run: ResolvedRun
    """Options of the run, with the node type that is learned if the graph has types."""
    graph: Graph
    """The graph."""
    labels: Graph | NodeSet | None
    """Nodes whose labels are learned; None for links."""
    model: nn.Module
    """Model with new weights."""
    outputs: Outputs
    """Meaning of its outputs."""


def learning(run: ResolvedRun) -> Learning:
    """Load the graph of a run, check it and make the model.

    Raises:
        ConfigError: the model or an option does not fit.
        DataError: the data is not there, is broken, or lacks what training needs.
        ResourceError: the model's weights with what training adds need more than the free memory.
    """
    if run.train.task == "link":
        graph = load_links(run.settings)
        model = build_link_model(graph, run)
        return Learning(run=run, graph=graph, labels=None, model=model, outputs=Outputs.of_links())
    if run.settings.predictor is not None:
        raise ConfigError(
            f"predictor={run.settings.predictor!r} scores links, and task='node' has none; give --task link"
        )
    graph = load_graph(run.settings)
    check_trainable(graph, run.settings, run.train.node_type)
    if graph.is_typed:  # kept with the run, since data to predict may have no labels
        node_type = learned_type(graph, run.train.node_type)
        run = dataclasses.replace(run, train=run.train.updated(node_type=node_type))
    labels = labels_of(graph, run.train.node_type)
    return Learning(
        run=run,
        graph=graph,
        labels=labels,
        model=build_model_for(graph, run, labels.num_classes),
        outputs=Outputs.of(labels, graph.schema.class_names.get(run.train.node_type or ONLY_NODE_TYPE)),
    )

""":func:`graphbraid.fullgraph.lower`, the first step of compiling; a runner is made from its result."""

from __future__ import annotations

from typing import Any

from torch import nn

from graphbraid.fullgraph.device import HOST, device_for, on_place
from graphbraid.fullgraph.lowering.lower_program import Lowered, lower_program
from graphbraid.fullgraph.lowering.options import CompileOptions, checked_nodes
from graphbraid.fullgraph.measured.trials import costs_for
from graphbraid.fullgraph.program import NotLoweredError, Program
from graphbraid.fullgraph.reading.source import source_of
from graphbraid.graph import Graph
from graphbraid.signatures import typed


@typed
def lower(
    model: nn.Module | Program,
    graph: Graph,
    nodes: Any = "train",
    options: CompileOptions | None = None,
    *,
    node_type: str | None = None,
) -> Lowered:
    """Lower a model over a whole graph as :func:`graphbraid.compile` does; nothing runs and nothing moves.

    Example::

        print(graphbraid.fullgraph.lower(model, graph))

    Args:
        model: a model, read in its current state (see :func:`graphbraid.compile`), or its program.
        graph: a graph with features, used in place.
        nodes: the training nodes: the name of a split, distinct ids, or a mask.
        options: the decisions that may be taken and the device. If None, all decisions, on the parameters'
            device.
        node_type: see :func:`graphbraid.compile`.

    Returns:
        A frozen record; printing it shows the rates, the decisions, the program, and each level's nodes and
        edges.

    Raises:
        NotLoweredError: part of the model has no lowered form; the message names it.
        ConfigError: a node is out of range or named twice.
        DataError: the graph has no features or no such split.
    """
    if isinstance(model, Program):
        program, options = model, options or CompileOptions()
        own = graph.nodes_of(program.node_types[program.node_type(program.output)].name)
        ids = checked_nodes(nodes, own)
    else:
        options = options or CompileOptions(device=device_for(model))
        source = source_of(model, graph, node_type=node_type)
        ids, program = checked_nodes(nodes, source.nodes), source.read(model)
        if program.returned is not None:
            raise NotLoweredError("forward", "it returns several matrices", "one result")
        graph = source.graph_for(program)
    if not program.by_relation:
        graph = on_place(graph, HOST.place)
    return lower_program(program, graph, ids, options, costs_for(program, graph, options))

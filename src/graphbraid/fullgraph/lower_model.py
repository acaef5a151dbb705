""":func:`graphbraid.fullgraph.lower`, the first step of compiling; a runner is made from its result."""

from __future__ import annotations

from typing import Any

from torch import nn

from graphbraid.fullgraph.device.choosing import device_for
from graphbraid.fullgraph.lowering.lower_program import lower_program
from graphbraid.fullgraph.lowering.lowered import Lowered
from graphbraid.fullgraph.lowering.options import CompileOptions, checked_nodes
from graphbraid.fullgraph.measured.basis import basis_for
from graphbraid.fullgraph.model.source import Source
from graphbraid.fullgraph.program import Program
from graphbraid.graph import Graph
from graphbraid.signatures import typed


@typed
def lower(
    model: nn.Module | Program, graph: Graph, nodes: Any = "train", options: CompileOptions | None = None
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

    Returns:
        A frozen record; printing it shows the rates, the decisions, the program, and each level's nodes and
        edges.

    Raises:
        NotLoweredError: part of the model has no lowered form; the message names it.
        ConfigError: a node is out of range or named twice.
        DataError: the graph has no features or no such split.
    """
    ids = checked_nodes(nodes, graph)
    if isinstance(model, Program):
        program, options = model, options or CompileOptions()
    else:
        options = options or CompileOptions(device=device_for(model))
        source = Source(graph)
        program, graph = source.read(model), source.graph
    return lower_program(program, graph, ids, options, basis_for(options))


__all__ = ["lower"]

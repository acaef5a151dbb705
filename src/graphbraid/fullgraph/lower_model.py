"""lower: the first of the two steps that compiling is; a runner is made from what it gives."""

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
    """Lower a model over a whole graph, as :func:`graphbraid.compile` does; nothing runs, nothing is moved.

    Example::

        print(graphbraid.fullgraph.lower(model, graph))

    Args:
        model: see :func:`graphbraid.compile`; read as it is now. Or its program.
        graph: features and edges, used in place.
        nodes: the name of a split, ids, each once, or a mask: whose outputs are trained on.
        options: which decisions may be taken, and where it will run; None: all, where the parameters are.

    Returns:
        A record that prints: its rates, decisions, the program, the nodes and edges of its levels.

    Raises:
        NotLoweredError: names the part of the model that has no lowered form.
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

"""compile: the way into full-graph training."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.engine import ALL, Engine
from graphbraid.fullgraph.executor import Executor
from graphbraid.fullgraph.levels import whole_graph
from graphbraid.fullgraph.recognise import NotLoweredError, read_model
from graphbraid.graph import Graph


class Uncompiled:
    """Stands in for an :class:`Engine` where a model has no lowered form: runs the model as it is.

    Args:
        model: any module.
        graph: what it runs on.
        nodes: ``(num_nodes,)`` int64, whose outputs are trained on.
        why: what could not be lowered, and the reason.
    """

    def __init__(self, model: nn.Module, graph: Graph, nodes: Tensor, why: NotLoweredError) -> None:
        self._model, self._nodes, self._run = model, nodes, _runner(model, graph)
        self.why = why

    def __call__(self) -> Tensor:
        """``(len(nodes), width)`` outputs of the training nodes; differentiable."""
        return self._run().index_select(0, self._nodes)

    @torch.no_grad()
    def predict(self) -> Tensor:
        """``(num_nodes, width)`` outputs of every node, as in evaluation."""
        was_training = self._model.training
        self._model.eval()
        try:
            return self._run()
        finally:
            self._model.train(was_training)

    def explain(self) -> str:
        """Why the model runs as it is."""
        return f"Runs uncompiled. {self.why.part}: {self.why.reason}."


def compile(  # noqa: A001 - as torch.compile; always called as graphbraid.compile
    model: nn.Module, graph: Graph, *, nodes: Tensor | str = "train", passes: Iterable[str] = ALL
) -> Engine | Uncompiled:
    """Lower a model over a whole graph to the cheapest equal program.

    Example::

        engine = graphbraid.compile(model, graph)
        print(engine.explain())
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        labels = graph.y[graph.split("train")]
        for epoch in range(200):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(engine(), labels)
            loss.backward()
            optimizer.step()
        outputs = engine.predict()

    Args:
        model: of :mod:`graphbraid.nn`, or a stack of PyG's GCN, SAGE, GIN, GAT or GATv2 layers called as
            ``model(x,
            edge_index)``. Its parameters stay its own. Any other model runs uncompiled; ``explain()`` says
            why.
        graph: features and edges, used in place.
        nodes: int64 ids, each once, or the name of a split: whose outputs ``engine()`` gives.
        passes: names of the lowering passes that may run (:data:`graphbraid.fullgraph.ALL`).

    Raises:
        ConfigError: a node is out of range or named twice, or no pass has such a name.
        DataError: the graph has no features or no such split.
        ResourceError: there is too little memory; says how much is needed and what would fit.
    """
    ids = graph.split(nodes) if isinstance(nodes, str) else nodes
    try:
        return Engine(model, graph, ids, passes=passes)
    except NotLoweredError as why:
        return Uncompiled(model, graph, ids, why)


def estimated_bytes(model: nn.Module, graph: Graph) -> int:
    """Bytes that training a model on all of a graph takes at most, beside the data; nothing is allocated.

    Raises:
        NotLoweredError: the model has no lowered form.
    """
    assert graph.x is not None
    program = read_model(model, int(graph.x.shape[1]))
    executor = Executor(program, graph, whole_graph(graph.csc, program.num_levels - 1), training=True)
    transpose = graph.csc.nbytes + 8 * graph.csc.num_edges
    return executor.nbytes + transpose


def _runner(model: nn.Module, graph: Graph) -> Callable[[], Tensor]:
    if getattr(model, "takes_blocks", False):
        return lambda: model(graph.x, graph.csc)
    edge_index = torch.stack([graph.csc.indices.long(), graph.csc.destinations().long()])
    x = graph.dense_x().float()
    return lambda: model(x, edge_index)

"""compile: the way into full-graph training."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.calling import given_by
from graphbraid.fullgraph.device import Device, device_for
from graphbraid.fullgraph.engine import ALL, HOIST_BYTES, Engine
from graphbraid.fullgraph.evidence import Evidence
from graphbraid.fullgraph.executor import Executor
from graphbraid.fullgraph.levels import whole_graph
from graphbraid.fullgraph.locality import LOCALITY_BYTES
from graphbraid.fullgraph.modes import in_mode
from graphbraid.fullgraph.placement import WORKSPACE_BYTES, Sizes, on_place
from graphbraid.fullgraph.program.read import read_model
from graphbraid.fullgraph.program.refusal import NotLoweredError
from graphbraid.graph import Graph


class Uncompiled:
    """Stands in for an :class:`Engine` where a model has no lowered form: runs the model as it is.

    Args:
        model: any module.
        graph: what it runs on.
        nodes: ``(num_nodes,)`` int64, whose outputs are trained on.
        why: what could not be lowered, and the reason.
        place: where to run.
    """

    def __init__(
        self, model: nn.Module, graph: Graph, nodes: Tensor, why: NotLoweredError, place: torch.device
    ) -> None:
        self._model, self._nodes, self._run = model, nodes.to(place), _runner(model, graph, place)
        self.why = why

    def __call__(self) -> Tensor:
        """``(len(nodes), width)`` outputs of the training nodes; differentiable."""
        return self._run().index_select(0, self._nodes)

    @torch.no_grad()
    def predict(self) -> Tensor:
        """``(num_nodes, width)`` outputs of every node, as in evaluation."""
        with in_mode(self._model, training=False):
            return self._run()

    def explain(self, *, measure: bool = False) -> str:
        """Why the model runs as it is; no task of it is known, so ``measure`` changes nothing."""
        return f"Runs uncompiled. {self.why.part}: {self.why.reason}."


def compile(  # noqa: A001 - as torch.compile; always called as graphbraid.compile
    model: nn.Module,
    graph: Graph,
    *,
    nodes: Tensor | str = "train",
    passes: Iterable[str] = ALL,
    device: Device | torch.device | str | None = None,
    storage: str = "float32",
    hoist_bytes: int = HOIST_BYTES,
    locality_bytes: int = LOCALITY_BYTES,
    evidence: Evidence | None = None,
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
            ``model(x, edge_index)``, or with the graph's weights if ``forward`` takes ``edge_weight``. Its
            parameters stay its own. Any other model runs uncompiled; ``explain()`` says why.
        graph: features and edges, used in place.
        nodes: int64 ids, each once, or the name of a split: whose outputs ``engine()`` gives.
        passes: names of the lowering passes that may run (:data:`graphbraid.fullgraph.ALL`).
        device: the CPU or a CUDA device, where the parameters must be; None: where they are. What a step
            reads of the graph is copied there once; outputs are there.
        storage: ``float32``, or ``bfloat16`` to round rows before they are aggregated: sums stay float32,
            edges read half the bytes, and results differ by that rounding.
        hoist_bytes: what an aggregation of the features that is computed once may take.
        locality_bytes: what edges that are renumbered to share the cache may take beside the graph's own.
        evidence: of an earlier engine (``engine.evidence``), to lower alike and get the same bits whatever is
            measured here and now; None: this machine's rates, and a trial where they leave two choices close.

    Raises:
        ConfigError: a node is out of range or named twice, no pass or storage has such a name, or the
            parameters are not on ``device``.
        DataError: the graph has no features or no such split.
        ResourceError: there is too little memory; says how much is needed and what would fit.
    """
    ids = graph.split(nodes) if isinstance(nodes, str) else nodes
    try:
        options: dict[str, Any] = {"device": device, "storage": storage}
        options |= {"hoist_bytes": hoist_bytes, "locality_bytes": locality_bytes, "evidence": evidence}
        return Engine(model, graph, ids, passes=passes, **options)
    except NotLoweredError as why:
        return Uncompiled(model, graph, ids, why, device_for(model, device).place)


def estimated_bytes(model: nn.Module, graph: Graph, device: Device | None = None) -> int:
    """Bytes that training a model on all of a graph takes at most; nothing is allocated.

    Beside the data on the host; on a device with what is copied there.

    Raises:
        NotLoweredError: the model has no lowered form.
    """
    assert graph.x is not None
    with in_mode(model, training=True):
        program = read_model(model, int(graph.x.shape[1]), given_by(graph))
    steps = whole_graph(graph.csc, program.num_levels - 1)
    if device is not None and not device.is_host:
        planned = Executor(program, graph, steps, training=True, placement=Sizes(device))
        return planned.nbytes + WORKSPACE_BYTES
    executor = Executor(program, graph, steps, training=True)
    transpose = graph.csc.nbytes + 8 * graph.csc.num_edges
    renumbered = min(LOCALITY_BYTES, graph.csc.nbytes + 8 * graph.num_nodes)
    return executor.nbytes + transpose + renumbered


def _runner(model: nn.Module, graph: Graph, place: torch.device) -> Callable[[], Tensor]:
    if getattr(model, "takes_blocks", False):
        there = on_place(graph, place)
        return lambda: model(there.x, there.csc)
    edge_index = torch.stack([graph.csc.indices.long(), graph.csc.destinations().long()]).to(place)
    x, weight = graph.dense_x().float().to(place), graph.csc.weight
    if weight is None or "edge_weight" not in inspect.signature(model.forward).parameters:
        return lambda: model(x, edge_index)
    edge_weight = weight.to(place)
    return lambda: model(x, edge_index, edge_weight=edge_weight)

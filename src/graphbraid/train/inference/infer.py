"""Exact inference: outputs computed from all neighbours of every node, within a memory budget.

It is done in the first of three ways that fits the budget:

- *whole*: one pass over the whole graph;
- *layer-wise* (graphbraid's models): layer by layer, and within a layer by chunks of destinations whose
  in-edges and source rows fit; a layer's activations are kept in memory or, beyond the budget, in a
  temporary file;
- *expansion* (any other module): mini-batches with all neighbours of every hop and as many seeds as fit. One
  hop more than the model's depth is drawn, so that layers that use a source's own in-edges (GCN's
  normalisation) see all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from graphbraid.errors import ResourceError
from graphbraid.files.writing import format_bytes
from graphbraid.graph import ScaledFeatures, SparseFeatures
from graphbraid.graph.csc import Csc, degrees_and_loops
from graphbraid.ops.gather import gather_features, gather_rows
from graphbraid.sampling.minibatch import MiniBatch
from graphbraid.sampling.source import rows_on_device
from graphbraid.train.config import TrainConfig
from graphbraid.train.inference.activations import Activations
from graphbraid.train.step.runner import ModelRunner

Chunk = tuple[int, Tensor]
"""Position of a chunk's first node in the requested nodes, and the chunk's ``(n, width)`` float32 outputs."""
_EDGE_BYTES = 96
"""Bytes per edge of a chunk: its position, source and local ids as int64, and the temporaries of ``unique``
and of a layer's scores."""


def exact_chunks(
    runner: ModelRunner, config: TrainConfig, nodes: Tensor, *, check: Callable[[], None] = lambda: None
) -> Iterator[Chunk]:
    """Yield the outputs for ``nodes`` in chunks, in order, in evaluation mode and without gradients.

    Args:
        runner: the model and its graph.
        config: options of the run, with the memory budget.
        nodes: ``(n,)`` int64 node ids.
        check: function called between chunks, which may raise to stop.

    Raises:
        ResourceError: the budget has no room for a single node, or the disk is full.
    """
    was_training = runner.model.training
    runner.model.eval()
    try:
        for start, outputs in _chunks(runner, config, nodes, check):
            check()
            yield start, outputs.float()
    finally:
        runner.model.train(was_training)


def _chunks(
    runner: ModelRunner, config: TrainConfig, nodes: Tensor, check: Callable[[], None]
) -> Iterator[Chunk]:
    budget = config.memory_budget_bytes
    if config.mode == "full" or whole_bytes(runner) <= budget:
        with torch.no_grad():
            outputs = runner.on_graph()
        if config.mode != "full":
            runner.forget_graph()
        yield 0, outputs.index_select(0, nodes.to(outputs.device)).cpu()
    elif runner.by_layer:
        yield from _LayerWise(runner, budget, config.out_dir, check).run(nodes)
    else:
        yield from _expansion(runner, config, nodes)


def whole_bytes(runner: ModelRunner) -> int:
    """Estimate the bytes that one pass over the whole graph needs in addition to graph and features."""
    graph, widest = runner.graph, widest_layer(runner.model)
    rows = 3 * graph.num_nodes * widest * 4  # a layer's input, its transformed rows and its output
    if runner.rows is not None:  # they do not all lie in memory, where one pass would bring them
        rows += runner.features_bytes
    rows += runner.widened_bytes  # a copy, for the pass
    if runner.native:
        return rows
    edges = graph.num_edges * (
        16 + 2 * widest * 4
    )  # edge_index, and a message per edge with its index or weight
    return rows + edges + runner.made_dense_bytes


def widest_layer(model: nn.Module) -> int:
    """Return the width of the widest layer: what the model says, or the most rows of a weight.

    A weight's ``out_features`` come first.
    """
    told = getattr(model, "widest", None)
    if isinstance(told, int):
        return told
    return max((p.shape[0] for p in model.parameters() if p.ndim >= 2), default=1)


class _LayerWise:
    """A runner of a model from ``graphbraid.nn``, layer by layer over chunks of destinations."""

    def __init__(
        self, runner: ModelRunner, budget: int, folder: Path | None, check: Callable[[], None]
    ) -> None:
        self._runner, self._budget, self._folder, self._check = runner, budget, folder, check
        self._graph = runner.graph
        self._widest = widest_layer(runner.model)
        self._local = torch.full((self._graph.num_nodes,), -1, dtype=torch.int32)  # in the current chunk
        self._degree: Tensor | None = None
        self._loop: Tensor | None = None
        if runner.uses_degrees:
            self._degree, self._loop = degrees_and_loops(self._graph.csc)

    def run(self, nodes: Tensor) -> Iterator[Chunk]:
        num_layers: int = self._runner.model.num_layers  # type: ignore[assignment]
        everyone = torch.arange(self._graph.num_nodes)
        source: Activations | None = None
        for layer in range(num_layers - 1):
            source = self._whole_layer(layer, source, everyone)
        yield from self._layer(num_layers - 1, source, nodes)

    def _whole_layer(self, layer: int, source: Activations | None, everyone: Tensor) -> Activations:
        made: Activations | None = None
        for start, rows in self._layer(layer, source, everyone):
            self._check()
            if made is None:
                made = self._make_room(rows.shape[1], source)
            made.write(start, rows.float())
        assert made is not None
        return made

    def _make_room(self, width: int, source: Activations | None) -> Activations:
        held = 0 if source is None else source.memory_bytes
        fits = held + self._graph.num_nodes * width * 4 <= self._budget // 2
        return Activations(self._graph.num_nodes, width, in_memory=fits, folder=self._folder)

    def _layer(self, layer: int, source: Activations | None, nodes: Tensor) -> Iterator[Chunk]:
        in_width = self._graph.num_features if source is None else source.shape[1]
        for start, end in self._cut(nodes, in_width):
            chunk = nodes[start:end]
            src, block = self._block(chunk)
            x = _feature_rows(self._runner, src) if source is None else source.gather(src)
            with torch.no_grad(), self._runner.autocast():
                device = self._runner.device
                if device.type != "cpu":
                    x = (x.to_dense() if isinstance(x, SparseFeatures) else x).to(device)
                outputs = self._runner.model.forward_layer(layer, x, _to(block, device))  # type: ignore[operator]
            yield start, outputs.cpu()

    def _cut(self, nodes: Tensor, in_width: int) -> list[tuple[int, int]]:
        """Cut ``nodes`` into chunks whose in-edges, source rows and results fit half the budget."""
        row_bytes = (in_width + 3 * self._widest) * 4
        indptr = self._graph.csc.indptr
        edges = (indptr[nodes + 1] - indptr[nodes]).cumsum(0)
        room = self._budget // 2
        cuts, start, before = [], 0, 0
        while start < nodes.numel():
            # Each edge may bring a new source row, up to the number of nodes in the graph.
            most_edges = room // (row_bytes + _EDGE_BYTES)
            if self._graph.num_nodes * row_bytes <= room // 2:
                most_edges = max(most_edges, room // 2 // _EDGE_BYTES)
            most_nodes = max(1, room // (2 * row_bytes))
            end = int(torch.searchsorted(edges, torch.tensor(before + most_edges), right=True))
            end = max(start + 1, min(end, start + most_nodes))
            cuts.append((start, end))
            start, before = end, int(edges[end - 1])
        return cuts

    def _block(self, chunk: Tensor) -> tuple[Tensor, Csc]:
        """Return all in-edges of ``chunk`` as a block, preceded by its sources' ids, ``chunk`` first."""
        csc, local = self._graph.csc, self._local
        first, counts = csc.indptr[chunk], csc.indptr[chunk + 1] - csc.indptr[chunk]
        indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        edges = torch.arange(int(indptr[-1])) + (first - indptr[:-1]).repeat_interleave(counts)
        sources = csc.indices[edges].long()
        local[chunk] = torch.arange(chunk.numel(), dtype=torch.int32)
        others = torch.unique(sources[local[sources] < 0])
        local[others] = torch.arange(chunk.numel(), chunk.numel() + others.numel(), dtype=torch.int32)
        src, indices = torch.cat([chunk, others]), local[sources]
        local[src] = -1
        weight = None if csc.weight is None else csc.weight[edges]
        degree = None if self._degree is None else self._degree[src]
        loop = None if self._loop is None else self._loop[src]
        return src, Csc(indptr, indices, src.numel(), weight, src_degree=degree, src_loop=loop, trusted=True)


def _feature_rows(runner: ModelRunner, nodes: Tensor) -> Tensor | SparseFeatures:
    """Return the float32 feature rows of ``nodes``, dense or sparse as in the graph."""
    graph = runner.graph
    if runner.rows is not None:
        return rows_on_device(runner.rows, nodes.to(runner.device)).float()
    if isinstance(graph.x, SparseFeatures):
        return graph.x.rows(nodes).to(torch.float32)
    assert graph.x is not None
    if isinstance(graph.x, ScaledFeatures):
        return gather_features(graph.x, nodes, trusted=True)
    return gather_rows(graph.x, nodes, dtype=torch.float32, trusted=True)


def _to(csc: Csc, device: torch.device) -> Csc:
    if device.type == "cpu":
        return csc
    weight, degree, loop = (
        None if part is None else part.to(device) for part in (csc.weight, csc.src_degree, csc.src_loop)
    )
    return Csc(
        csc.indptr.to(device),
        csc.indices.to(device),
        csc.num_src,
        weight,
        src_degree=degree,
        src_loop=loop,
        trusted=True,
    )


def depth(model: nn.Module, config: TrainConfig) -> int:
    """Return the number of hops that messages travel in a module that is not from ``graphbraid.nn``."""
    if config.hops is not None:
        return config.hops
    beside = _of_other_relations(model)
    convs = [m for m in model.modules() if callable(getattr(m, "propagate", None)) and id(m) not in beside]
    counted = sum(max(1, k) if isinstance(k := getattr(m, "K", 1), int) else 1 for m in convs)
    return counted or len(config.fanouts)


def _of_other_relations(model: nn.Module) -> set[int]:
    """Return the ids of the modules that work beside another one, as a layer's do for each relation.

    PyG's ``HeteroConv`` and ``to_hetero`` keep them in a dict whose keys join the names of a relation.
    """
    by_relation = (
        m for m in model.modules() if isinstance(m, nn.ModuleDict) and all("__" in key for key in m)
    )
    others = (one for layer in by_relation for one in list(layer.values())[1:])
    return {id(part) for one in others for part in one.modules()}


def _expansion(runner: ModelRunner, config: TrainConfig, nodes: Tensor) -> Iterator[Chunk]:
    from graphbraid.loader import LoaderSettings

    num_layers: int = runner.model.num_layers if runner.native else 0  # type: ignore[assignment]
    hops = num_layers or depth(runner.model, config) + 1
    size, start = 64, 0
    while start < nodes.numel():
        part = nodes[start : start + size]
        settings = LoaderSettings(
            num_neighbors=[-1] * hops, batch_size=part.numel(), input_nodes=part, return_edge_id=False
        )
        with runner.loader(settings) as loader:
            batch = next(loader.batches(0))
        needed = _batch_bytes(runner, batch)
        if needed > config.memory_budget_bytes:
            if part.numel() == 1:
                raise ResourceError(
                    f"exact inference for node {int(part[0])} needs {format_bytes(needed)} for the "
                    f"{batch.num_nodes} nodes within {hops} hops; memory_budget_bytes allows "
                    f"{format_bytes(config.memory_budget_bytes)}. Raise it, or use mode='sampled'"
                    + (
                        "."
                        if runner.graph.is_typed
                        else ", or use a model of graphbraid.nn, which is computed layer by layer."
                    )
                )
            size = max(1, part.numel() // 2)
            continue
        with torch.no_grad():
            outputs = runner.on_batch(batch)
        yield start, outputs.cpu()
        start += part.numel()
        if needed < config.memory_budget_bytes // 4:
            size *= 2


def _batch_bytes(runner: ModelRunner, batch: MiniBatch) -> int:
    widest = widest_layer(runner.model)
    activations = batch.num_nodes * 3 * widest * 4
    return runner.rows_bytes(batch) + activations + batch.num_edges * (16 + 2 * widest * 4)

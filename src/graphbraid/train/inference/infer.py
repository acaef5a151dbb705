"""Exact inference: outputs computed from all neighbours of every node, within a memory budget.

It is done in the first of three ways that fits the budget:

- *whole*: one pass over the whole graph;
- *layer-wise* (graphbraid's models): layer by layer, and within a layer by chunks of destinations whose
  in-edges and source rows fit, of the nodes that the layers behind read; a layer's activations are kept in
  memory or, beyond the budget, in a temporary file;
- *expansion* (any other module): mini-batches with all neighbours of every hop and as many seeds as fit. One
  hop more than the model's depth is drawn, so that layers that use a source's own in-edges (GCN's
  normalisation) see all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from numbers import Integral
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from graphbraid.errors import ResourceError
from graphbraid.features.rows.row_stream import ScratchRows
from graphbraid.files.writing import format_bytes
from graphbraid.fullgraph.reading.modes import in_mode
from graphbraid.graph import ScaledFeatures, SparseFeatures
from graphbraid.graph.csc import Csc, degrees_and_loops
from graphbraid.nn import module_traits
from graphbraid.ops.gather import gather_features, gather_rows
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.source import rows_on_device
from graphbraid.train.config import TrainConfig
from graphbraid.train.step.runner import ModelRunner

Chunk = tuple[int, Tensor]
"""Position of a chunk's first node in the requested nodes, and the chunk's ``(n, width)`` float32 outputs."""


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
    with in_mode(runner.model, training=False):
        for start, outputs in _chunks(runner, config, nodes, check):
            check()
            yield start, outputs.float()


def _chunks(
    runner: ModelRunner, config: TrainConfig, nodes: Tensor, check: Callable[[], None]
) -> Iterator[Chunk]:
    budget, is_full = config.memory_budget_bytes, config.mode == "full"
    if is_full and runner.rows is not None and runner.engine is None:
        is_full = False  # before a run, whose engine streams the features, they are read by layers
    if is_full or whole_bytes(runner) <= budget:
        with torch.no_grad():
            outputs = runner.on_graph()
        if not is_full:
            runner.forget_graph()
        yield 0, outputs.index_select(0, nodes.to(outputs.device)).cpu()
    elif runner.by_layer:
        yield from LayerWise(runner, budget, config.out_dir, check).run(nodes)
    else:
        yield from _expansion(runner, config, nodes)


def whole_bytes(runner: ModelRunner) -> int:
    """Estimate the bytes that one pass over the whole graph needs in addition to graph and features."""
    graph, widest = runner.graph, runner.widest
    rows = 3 * graph.num_nodes * widest * 4  # a layer's input, its transformed rows and its output
    if runner.rows is not None:  # they do not all lie in memory, where one pass would bring them
        rows += runner.features_bytes
    rows += runner.widened_bytes  # a copy, for the pass
    if runner.native:
        return rows
    return rows + graph.num_edges * _edge_bytes(runner) + runner.made_dense_bytes


def _edge_bytes(runner: ModelRunner) -> int:
    """Estimate the bytes that a layer needs for an edge: what the model says, if it is called with blocks.

    Any other has ``edge_index``, and a message per edge with its index or weight.
    """
    edge_bytes = module_traits.edge_bytes(runner.model)
    if runner.by_blocks and edge_bytes is not None:
        return edge_bytes
    return 16 + 2 * runner.widest * 4 + 4 * runner.graph.num_edge_features


def depth(model: nn.Module, config: TrainConfig) -> int:
    """Return the number of hops that messages travel in a module that is not from ``graphbraid.nn``."""
    if config.hops is not None:
        return config.hops
    beside = _of_other_relations(model)
    convs = [m for m in model.modules() if callable(getattr(m, "propagate", None)) and id(m) not in beside]
    counted = sum(max(1, int(k)) if isinstance(k := getattr(m, "K", 1), Integral) else 1 for m in convs)
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

    num_layers = module_traits.num_layers(runner.model) if runner.by_blocks else None
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
    activations = batch.num_nodes * 3 * runner.widest * 4
    return runner.rows_bytes(batch) + activations + batch.num_edges * _edge_bytes(runner)


# ---- layer by layer

_CHUNK_EDGE_BYTES = 96
"""Bytes per edge of a chunk: its position, source and local ids as int64, and the temporaries of ``unique``
and of a layer's scores."""
_MOST_NODES = 0.5
"""Share of the nodes that a layer is computed for one by one; of more it computes all."""


class Layer(NamedTuple):
    """The activations of a layer."""

    rows: ScratchRows
    ids: Tensor | None
    """Nodes of the rows, ascending; None for all nodes."""

    def gather(self, nodes: Tensor) -> Tensor:
        """Return the rows of ``nodes``, which the layer was computed for."""
        return self.rows.gather(nodes if self.ids is None else torch.searchsorted(self.ids, nodes))


class LayerWise:
    """A runner of a model from ``graphbraid.nn``, layer by layer over chunks of destinations."""

    def __init__(
        self, runner: ModelRunner, budget: int, folder: Path | None, check: Callable[[], None]
    ) -> None:
        self._runner, self._budget, self._folder, self._check = runner, budget, folder, check
        self._graph = runner.graph
        self._widest = runner.widest
        self._local = torch.full((self._graph.num_nodes,), -1, dtype=torch.int32)  # in the current chunk
        self._degree: Tensor | None = None
        self._loop: Tensor | None = None
        if runner.uses_degrees:
            self._degree, self._loop = degrees_and_loops(self._graph.csc)

    def run(self, nodes: Tensor) -> Iterator[Chunk]:
        """Yield the outputs for ``nodes``, in order."""
        source: Layer | None = None
        *before, _ = layers = self.layers(nodes)
        for layer, ids in enumerate(before):
            source = self._whole_layer(layer, source, ids)
        yield from self._layer(len(layers) - 1, source, nodes)

    def layers(self, nodes: Tensor) -> list[Tensor | None]:
        """Return for each layer the nodes whose rows are computed on the way to ``nodes``, which come last.

        None where these are most nodes: all are computed then, in their order.
        """
        found: list[Tensor | None] = [nodes]
        read: Tensor | None = torch.unique(nodes)
        for _ in range(module_traits.layers_of(self._runner.model) - 1):
            read = None if read is None else self._with_sources(read)
            found.append(read)
        return found[::-1]

    def _with_sources(self, nodes: Tensor) -> Tensor | None:
        """Return the nodes and all sources of their in-edges, ascending; None where these are most nodes."""
        num_nodes = self._graph.num_nodes
        if nodes.numel() > _MOST_NODES * num_nodes:
            return None
        is_read = torch.zeros(num_nodes, dtype=torch.bool)
        is_read[nodes] = True
        indptr = self._graph.csc.indptr
        most_edges = max(1, self._budget // 2 // _CHUNK_EDGE_BYTES)
        ends = (indptr[nodes + 1] - indptr[nodes]).cumsum(0)
        start, before = 0, 0
        while start < nodes.numel():
            end = int(torch.searchsorted(ends, before + most_edges, right=True))
            end = max(start + 1, end)
            is_read[self._in_edges(nodes[start:end])[1]] = True
            start, before = end, int(ends[end - 1])
        found = is_read.nonzero().flatten()
        return None if found.numel() > _MOST_NODES * num_nodes else found

    def _whole_layer(self, layer: int, source: Layer | None, ids: Tensor | None) -> Layer:
        made: ScratchRows | None = None
        nodes = torch.arange(self._graph.num_nodes) if ids is None else ids
        for start, rows in self._layer(layer, source, nodes):
            self._check()
            if made is None:
                made = self.make_room(nodes.numel(), rows.shape[1], source)
            made.write(start, rows.float())
        assert made is not None
        return Layer(made, ids)

    def make_room(self, num_rows: int, width: int, source: Layer | None) -> ScratchRows:
        """Return where a layer's rows are written, beside those that it is computed from."""
        held = 0 if source is None else source.rows.memory_bytes
        fits = held + num_rows * width * 4 <= self._budget // 2
        return ScratchRows(num_rows, width, in_memory=fits, folder=self._folder)

    def _layer(self, layer: int, source: Layer | None, nodes: Tensor) -> Iterator[Chunk]:
        for start, end in self.cut(nodes, source):
            yield start, self.outputs(layer, source, nodes[start:end])

    def outputs(self, layer: int, source: Layer | None, chunk: Tensor) -> Tensor:
        """Return a layer's outputs for some nodes, from the rows of the layer before or the features."""
        src, block = self._block(chunk)
        x = _feature_rows(self._runner, src) if source is None else source.gather(src)
        with torch.no_grad(), self._runner.autocast():
            device = self._runner.device
            if device.type != "cpu":
                x = (x.to_dense() if isinstance(x, SparseFeatures) else x).to(device)
            outputs: Tensor = self._runner.model.forward_layer(layer, x, _to(block, device))  # type: ignore[operator]
        return outputs.cpu()

    def cut(self, nodes: Tensor, source: Layer | None) -> list[tuple[int, int]]:
        """Cut ``nodes`` into chunks whose in-edges, source rows and results fit half the budget."""
        in_width = self._graph.num_features if source is None else source.rows.shape[1]
        row_bytes = (in_width + 3 * self._widest) * 4
        indptr = self._graph.csc.indptr
        edges = (indptr[nodes + 1] - indptr[nodes]).cumsum(0)
        room = self._budget // 2
        cuts, start, before = [], 0, 0
        while start < nodes.numel():
            # Each edge may bring a new source row, up to the number of nodes in the graph.
            most_edges = room // (row_bytes + _CHUNK_EDGE_BYTES)
            if self._graph.num_nodes * row_bytes <= room // 2:
                most_edges = max(most_edges, room // 2 // _CHUNK_EDGE_BYTES)
            most_nodes = max(1, room // (2 * row_bytes))
            end = int(torch.searchsorted(edges, torch.tensor(before + most_edges), right=True))
            end = max(start + 1, min(end, start + most_nodes))
            cuts.append((start, end))
            start, before = end, int(edges[end - 1])
        return cuts

    def _in_edges(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return where the in-edges of each of the nodes begin, their sources, and their positions."""
        csc = self._graph.csc
        first, counts = csc.indptr[nodes], csc.indptr[nodes + 1] - csc.indptr[nodes]
        indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        edges = torch.arange(int(indptr[-1])) + (first - indptr[:-1]).repeat_interleave(counts)
        return indptr, csc.indices[edges].long(), edges

    def _block(self, chunk: Tensor) -> tuple[Tensor, Csc]:
        """Return all in-edges of ``chunk`` as a block, preceded by its sources' ids, ``chunk`` first."""
        csc, local = self._graph.csc, self._local
        indptr, sources, edges = self._in_edges(chunk)
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

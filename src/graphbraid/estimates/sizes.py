"""The sizes of a run's mini-batches, found by sampling some, and what a pass over all nodes allocates.

A pass takes memory in proportion to nodes and edges. Two graphs, one twice the size of the other, of the same
mean degree and of the graph's own feature rows therefore say what a graph of any size takes; no pass that may
not fit is run. What torch decides by size alone is not seen.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from graphbraid.errors import RunsAsWrittenWarning
from graphbraid.estimates.machine import allocation_of, may_be_tried
from graphbraid.estimates.trial import Trial
from graphbraid.graph import Graph, ScaledFeatures, SparseFeatures
from graphbraid.graph.csc import Csc
from graphbraid.graph.scaled_features import Features, given_row_bytes
from graphbraid.train.config import TrainConfig
from graphbraid.train.runtime import place_of
from graphbraid.train.step.links.runner import EndsRunner
from graphbraid.train.step.runner import ModelRunner, WholeGraph
from graphbraid.train.step.step import make_loader

FEWER = 16
"""Part of a batch's seeds on which a step or a pass is tried first."""
_PASS_BYTES = 8
"""Bytes that a pass is taken to allocate for each byte of its batch where nothing was tried."""
SAMPLED = 6
"""Batches that are sampled, spread over the first epoch."""
_SCRATCH_BYTES = 48
"""Bytes per node of a batch that a sampling thread works in: its table of ids, and its draws of a hop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSizes:
    """Sizes of the mini-batches of an epoch."""

    num_batches: int
    nodes: int
    """Nodes of the largest batch of those sampled."""
    edges: int
    """Edges of the one with most."""
    seeds: int
    row_bytes: int
    """Bytes of a gathered feature row; 0 where rows are gathered in another form or not at all."""

    @property
    def index_bytes(self) -> int:
        """Bytes of a batch without features: ids of nodes and seeds, edges and their lists."""
        return 16 * self.nodes + 4 * self.edges + 8 * self.seeds

    @property
    def feature_bytes(self) -> int:
        """Bytes of a batch's feature rows."""
        return self.nodes * self.row_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of a batch."""
        return self.index_bytes + self.feature_bytes

    def in_flight(self, workers: int, ahead: int) -> int:
        """Return the bytes of the batches prepared ahead, the one in use, and what the threads work in."""
        return min(ahead + 1, self.num_batches) * self.nbytes + workers * _SCRATCH_BYTES * self.nodes


def batch_sizes(runner: ModelRunner, config: TrainConfig, nodes: Tensor) -> BatchSizes:
    """Sample some batches without their features, and return the sizes.

    ``nodes`` are ``(n,)`` int64 seeds, or positions of links.
    """
    encoder = runner.encoder_runner() if isinstance(runner, EndsRunner) else runner
    has_types = encoder.graph.is_typed  # whose rows differ in width
    found, row_bytes = [], 0 if has_types else given_row_bytes(runner.graph.x)
    with make_loader(runner, config, nodes, gather=False, src_degree=False, num_workers=1) as loader:
        steps, inputs = len(loader), loader.schedule.seeds.numel()  # such as the questions that links ask
        seeds = min(inputs, loader.schedule.batch_size)
        # Full batches only: the last of an epoch may be small.
        full = max(inputs // loader.schedule.batch_size, 1)
        count = min(SAMPLED, full)
        for part in range(count):
            first = full * part // count
            for batch in loader.batches(0, first, first + 1):
                found.append((batch.num_nodes, batch.num_edges))
                if has_types:
                    row_bytes = max(row_bytes, encoder.rows_bytes(batch) // max(batch.num_nodes, 1))
                del batch
    return BatchSizes(
        num_batches=steps,
        nodes=max(size[0] for size in found),
        edges=max(size[1] for size in found),
        seeds=seeds,
        row_bytes=row_bytes,
    )


class SampledPass(NamedTuple):
    """What an evaluation on mini-batches holds."""

    batches: int
    """Batches prepared ahead, and the one in use."""
    nbytes: int
    """Bytes of these, and of a forward pass."""


def sampled_pass(trial: Trial, runner: ModelRunner, nodes: Tensor) -> SampledPass:
    """Return what sampled outputs of nodes take; a pass is tried, on fewer seeds if a whole one may not fit.

    ``runner`` is the trial's, or that of its encoder; ``nodes`` are ``(n,)`` int64.
    """
    config, size = trial.config, trial.config.eval_batch_size
    fanouts = config.eval_fanouts or config.fanouts
    options = config.updated(plan=None, fanouts=fanouts, batch_size=size, eval_fanouts=None)
    sizes = batch_sizes(runner, options, nodes)
    if not may_be_tried((_PASS_BYTES + config.workers + 4) * sizes.nbytes):
        options = options.updated(batch_size=-(-size // FEWER))
    with make_loader(runner, options, nodes) as loader:
        ahead, batch = loader.ahead, next(loader.batches(0, 0, 1))
        with trial.evaluating():
            forward = allocation_of(lambda: runner.on_batch(batch), trial.device).peak
    if options.batch_size < size:
        forward = int(forward * max(1.0, sizes.nodes / max(batch.num_nodes, 1)))
    held = sizes.in_flight(config.workers, ahead)
    return SampledPass(batches=min(ahead + 1, sizes.num_batches), nbytes=held + forward)


# ---- passes over the whole graph

SMALL = 1 << 18
"""Nodes and edges up to which a pass is run on the graph itself."""
_NODES, _EDGES = 1 << 13, 1 << 18
"""Size of the smaller of the two graphs, at most."""


def forward_bytes(trial: Trial) -> int:
    """Return the bytes that a forward pass in evaluation mode allocates, outputs included.

    Freed rows of the kernels' pool count until the end. For example, the sum of GAT's rows and its bias lies
    outside the pool.
    """

    def forward(graph: Graph) -> int:
        with trial.evaluating():
            runner = ModelRunner(trial.model_on(graph), graph, place_of(trial.config))
            return allocation_of(runner.on_graph, trial.device).resident

    return _scaled(trial.graph, forward)


def training_bytes(trial: Trial) -> int:
    """Return the bytes that a training step of a model that runs as it is written allocates."""
    return _scaled(trial.graph, lambda graph: _second_step(*_whole_step(trial, graph)))


def break_bytes(trial: Trial) -> int:
    """Return the bytes that a compiled step's graph breaks allocate beside its arena, and its loss."""
    from graphbraid.train.step.whole import compile_for  # here: mini-batches need no engine

    def step(graph: Graph) -> int:
        other, batch = _whole_step(trial, graph)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RunsAsWrittenWarning)  # said of the whole graph's step already
            other.runner.engine, _ = compile_for(other.runner, trial.config, batch.nodes)
        return _second_step(other, batch)

    return _scaled(trial.graph, step)


def _whole_step(trial: Trial, graph: Graph) -> tuple[Trial, WholeGraph]:
    """Return a trial of the same model on a smaller graph, and its whole graph as a batch."""
    other = Trial(trial.model_on(graph), graph, trial.config)
    assert graph.y is not None
    share = graph.num_nodes / trial.graph.num_nodes
    ids = torch.arange(max(1, int(share * trial.nodes.numel())))
    return other, WholeGraph(nodes=ids.to(trial.device), seed_y=graph.y[ids].to(trial.device))


def _second_step(trial: Trial, batch: WholeGraph) -> int:
    """Return what a step allocates; the first makes what stays, such as the optimizer's state."""
    trial.step(batch)
    trial.forget_gradients()
    return allocation_of(lambda: trial.step(batch), trial.device).peak


def _scaled(graph: Graph, measure: Callable[[Graph], int]) -> int:
    if graph.num_nodes + graph.num_edges <= SMALL:
        return measure(graph)
    degree = graph.num_edges / max(graph.num_nodes, 1)
    count = max(64, min(_NODES, graph.num_nodes // 2, int(_EDGES / max(degree, 1))))
    first, second = measure(part_of(graph, count)), measure(part_of(graph, 2 * count))
    return int(second + (second - first) * (graph.num_nodes / count - 2))


def part_of(graph: Graph, num_nodes: int) -> Graph:
    """Return a graph of the first nodes' rows and labels, with edges of the graph's mean degree at random."""
    degree = graph.num_edges / max(graph.num_nodes, 1)
    indptr = (torch.arange(num_nodes + 1) * degree).long()
    draw = torch.Generator().manual_seed(0)
    count = int(indptr[-1])
    indices = torch.randint(num_nodes, (count,), generator=draw, dtype=graph.csc.indices.dtype)
    weight = None if graph.csc.weight is None else torch.ones(count)
    ids = torch.arange(num_nodes)
    return Graph(
        csc=Csc(indptr, indices, num_nodes, weight, trusted=True),
        edge_attr=None if graph.edge_attr is None else graph.edge_attr[:count].clone(),
        x=rows_of(graph.x, ids),
        y=graph.y if graph.y is None else graph.y[:num_nodes].clone(),
        splits={"train": ids},
        trusted=True,
    )


def rows_of(x: Features | None, ids: Tensor) -> Features | None:
    """Return the feature rows of nodes, in the form of ``x``."""
    if isinstance(x, SparseFeatures):
        return x.rows(ids)
    if isinstance(x, ScaledFeatures):
        return ScaledFeatures(values=x.values[ids], scale=x.scale[ids], trusted=True)
    return x if x is None else x.index_select(0, ids)

"""How long exact inference layer by layer takes: some chunks of each layer, computed on the graph itself."""

from __future__ import annotations

import time
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from graphbraid.estimates.trial import REPEATS, PartSeconds, Trial, of_tries, timed
from graphbraid.train.inference.infer import whole_bytes
from graphbraid.train.inference.layer_wise import Layer, LayerWise
from graphbraid.train.inference.metrics import Scores, metric_names

_CPU = torch.device("cpu")
_MOST_BYTES = 1 << 30
"""Most bytes of a layer whose rows a trial writes; of a larger one smaller graphs say how long it takes."""


def are_chunks_tried(trial: Trial) -> bool:
    """Return whether exact inference goes by layers, of which a trial computes some chunks."""
    runner = trial.runner
    is_by_layer = runner.by_layer and whole_bytes(runner) > trial.config.memory_budget_bytes
    return is_by_layer and 4 * trial.graph.num_nodes * runner.widest <= _MOST_BYTES


def chunk_seconds(trial: Trial, nodes: Tensor, *, most: float) -> PartSeconds:
    """Return the time of an exact evaluation of ``nodes``, of which some chunks are computed and scored.

    Which nodes each layer is computed for, and how they are cut, is found as the evaluation itself finds it:
    a smaller graph reaches fewer, where many nodes have the same lists. Rows that a later layer reads are
    written all, as zeros.

    Args:
        trial: the run, whose runner goes by layers.
        nodes: ``(n,)`` int64 labelled node ids.
        most: seconds that this takes, about; a chunk of each layer is computed in any case.
    """
    with trial.evaluating():
        began = time.perf_counter()
        evaluation = _Evaluation(trial, nodes)
        once = time.perf_counter() - began
        parts: list[_Part] = []
        source: Layer | None = None
        for layer in range(evaluation.num_layers):
            part = evaluation.try_chunks(layer, source, most=most / evaluation.num_layers)
            parts.append(part)
            if layer < evaluation.num_layers - 1:
                began = time.perf_counter()
                source = evaluation.write(layer, source, part.width)
                once += time.perf_counter() - began
        once += timed(evaluation.scores.compute)
    spreads = [part.spread for part in parts if part.spread is not None]
    tried, count = (
        sum(counts) for counts in zip(*((part.num_tried, part.num_chunks) for part in parts), strict=True)
    )
    return PartSeconds(
        once + sum(part.seconds for part in parts),
        f"exact, {tried:,} of {count:,} chunks tried",
        sum(spreads) if spreads else None,
    )


class _Part(NamedTuple):
    """The time of a layer's chunks."""

    seconds: float
    spread: float | None
    num_tried: int
    num_chunks: int
    width: int
    """Columns of the layer's rows."""


class _Evaluation:
    """An exact evaluation by layers, of which any chunk can be computed, with its scores."""

    def __init__(self, trial: Trial, nodes: Tensor) -> None:
        labels = trial.runner.labels.y
        assert labels is not None, "the task is that of labels"
        self._nodes, self._labels, self._num_nodes = nodes, labels, trial.graph.num_nodes
        self._walk = LayerWise(trial.runner, trial.config.memory_budget_bytes, None, lambda: None)
        self._layers = self._walk.layers(nodes)
        self.num_layers = len(self._layers)
        task = trial.task.to(_CPU)
        self.scores = Scores(task, metric_names(task, trial.config.metrics), _CPU)

    def try_chunks(self, layer: int, source: Layer | None, *, most: float) -> _Part:
        """Compute chunks of a layer for about ``most`` seconds, spread evenly over all of them."""
        rows, width = self._rows(layer), 0
        cuts = self._walk.cut(rows, source)

        def compute(place: int) -> float:
            nonlocal width
            start, end = cuts[place]
            began = time.perf_counter()
            outputs = self._walk.outputs(layer, source, rows[start:end])
            if layer == self.num_layers - 1:
                self.scores.update(outputs.float(), self._labels.index_select(0, self._nodes[start:end]))
            width = outputs.shape[1]
            return time.perf_counter() - began

        first = compute(0)  # a warm-up, unless it takes long
        count = min(len(cuts), max(1, int(most / first)))
        tried = [compute(len(cuts) * place // count) for place in range(count)] if count > 1 else [first]
        spread = None
        if count >= 2 * REPEATS:
            spread = of_tries([len(cuts) * fmean(tried[place::REPEATS]) for place in range(REPEATS)]).spread
        return _Part(len(cuts) * fmean(tried), spread, count, len(cuts), width)

    def write(self, layer: int, source: Layer | None, width: int) -> Layer:
        """Write zeros as a layer's rows, by its chunks."""
        rows = self._rows(layer)
        made = self._walk.make_room(rows.numel(), width, source)
        for start, end in self._walk.cut(rows, source):
            made.write(start, torch.zeros(end - start, width))
        return Layer(made, self._layers[layer])

    def _rows(self, layer: int) -> Tensor:
        ids = self._layers[layer]
        return torch.arange(self._num_nodes) if ids is None else ids

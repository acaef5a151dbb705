"""Trials: products and aggregations of one graph, timed where rates do not tell choices apart.

Rates are measured on operands of one size; a small graph lies in the cache, its features may be narrow. Where
two choices are close by the rates, both are run, on the graph's own features and edges, as many rows as take
a few milliseconds. What was found is kept, so that later runs decide alike.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.fullgraph.device.device import Device, Run
from graphbraid.fullgraph.device.host import HOST
from graphbraid.fullgraph.lowering.evidence import sound_trials
from graphbraid.fullgraph.lowering.levels import edges_of
from graphbraid.fullgraph.step.calls.kernels import BinaryInput, Input, SparseInput
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.machine.measurements import NOT_KEPT, Kept
from graphbraid.machine.rates import Rates
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.dense import tall_gram, tall_product

VERSION = 1
"""Part of the key: another way of trying tries anew."""
RUN_SECONDS = 4e-3
"""What one run of a trial takes by the rates, at most; there are six of them."""
LEAST_ROWS = 256
MOST_BYTES = 1 << 26
"""Matrices of a trial; larger ones lie in memory as those do that rates are measured on."""

FeatureMatrix = Tensor | SparseFeatures

_log = logging.getLogger(__name__)
_doubtful: dict[Path, Mapping[str, float]] = {}
"""Trials that this process made beside other programs, by the file they would be kept in."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Something to run, and how many rows or edges it handles."""

    run: Run
    count: int


class Trials:
    """Seconds of a graph's products and aggregations, each measured once.

    Args:
        graph: its features and edges are what is tried.
        density: share of its features that is not zero.
        rates: say how many rows are tried, and stand in where a trial would take too much memory.
        found: what was found before, by what was tried.
        may_try: whether what is not in ``found`` is tried; if not, it goes by the rates.
        keep: called with all that was found after each trial.
        seconds: gives the time of a run.
    """

    def __init__(
        self,
        graph: Graph,
        density: float,
        rates: Rates,
        found: Mapping[str, float],
        *,
        may_try: bool = True,
        keep: Callable[[Mapping[str, float]], None] = lambda _: None,
        seconds: Callable[[Run], float] = lambda run: HOST.seconds(run, repeats=5),
    ) -> None:
        assert graph.x is not None
        self._csc, self._x, self._in_channels = graph.csc, graph.x, int(graph.x.shape[1])
        self._density, self._rates, self._may_try = density, rates, may_try
        self._keep, self._seconds = keep, seconds
        self.found = dict(found)
        """Seconds by what was tried: part of what a run keeps to decide alike."""

    def multiply_seconds(self, rows: int, depth: int, width: int) -> float:
        """Of a dense product: the mean of the product and its weight's gradient."""

        def make(share: float) -> _Part:
            count = _some(share, rows, 4 * depth)
            x, weight, grad = torch.ones(count, depth), torch.ones(width, depth), torch.ones(count, width)
            out, gram = torch.empty(count, width), torch.empty(width, depth)
            return _Part(lambda: (tall_product(x, weight.t(), out=out), tall_gram(grad, x, out=gram)), count)

        expected = self._rates.multiply_seconds(rows, depth, width)
        return self._tried(f"dense {rows} {depth} {width}", 2 * expected, rows, make) / 2

    def sparse_seconds(self, rows: int, width: int) -> float:
        """Of the features' product with a weight as sparse ones: the mean of both directions."""
        expected = self._rates.sparse_seconds(rows * self._in_channels * self._density, width)
        return self._input_seconds("sparse", rows, width, expected, _sparse)

    def binary_seconds(self, rows: int, width: int) -> float:
        """Of the features' product with a weight as bits: the mean of both directions."""
        expected = self._rates.binary_seconds(rows, self._in_channels, width)
        return self._input_seconds("binary", rows, width, expected, lambda x: BinaryInput(x, None))

    def aggregate_seconds(self, num_edges: int, width: int) -> float:
        """Of an aggregation of float32 rows over so many edges."""
        csc, expected = self._csc, self._rates.aggregate_seconds(num_edges, width)
        if 4 * csc.num_src * width > MOST_BYTES:
            return expected

        def make(share: float) -> _Part:
            part = _some_edges(csc, _some(share * num_edges / csc.num_edges, csc.num_dst, 0))
            x, out = torch.ones(csc.num_src, width), torch.empty(part.num_dst, width)
            how = Aggregation(csc=part)
            return _Part(lambda: how.forward(x, out=out), part.num_edges)

        return self._tried(f"aggregate {num_edges} {width}", expected, num_edges, make)

    def _input_seconds(
        self, name: str, rows: int, width: int, expected: float, take: Callable[[FeatureMatrix], Input]
    ) -> float:
        def make(share: float) -> _Part:
            count = _some(share, rows, 4 * self._in_channels)
            features, weight = take(_some_rows(self._x, count)), torch.ones(width, self._in_channels)
            out, gram = torch.empty(count, width), torch.empty_like(weight)

            def run() -> None:
                features.multiply(weight, out, add=False)
                features.weight_grad(out, gram)

            return _Part(run, count)

        return self._tried(f"{name} {rows} {width}", 2 * expected, rows, make) / 2

    def _tried(self, key: str, expected: float, count: int, make: Callable[[float], _Part]) -> float:
        """Seconds of ``count`` rows or edges, from the share of them that takes :data:`RUN_SECONDS`."""
        if key in self.found or not self._may_try or expected <= 0:
            return self.found.get(key, expected)
        with torch.no_grad():
            part = make(min(1.0, RUN_SECONDS / expected))
            if part.count == 0:
                return expected
            self.found[key] = self._seconds(part.run) * count / part.count
        self._keep(self.found)
        return self.found[key]


def kept_trials(
    graph: Graph, density: float, rates: Rates, device: Device, *, believed: bool
) -> Trials | None:
    """The trials of a graph on this machine, with those that were made before.

    Args:
        graph: told from others by its sizes.
        density: of its features.
        rates: of the machine.
        device: trials are made on the host only.
        believed: whether rates, and so trials made now, are free of doubt; if not, they are kept for this
            process only, which then decides alike.

    Returns:
        None where nothing can be tried or kept: then rates decide.
    """
    if not device.is_host or native.kernels() is None or graph.x is None:
        return None
    sizes = [graph.num_nodes, graph.csc.num_edges, *graph.x.shape, density]
    key = f"{VERSION} {device.name} {torch.__version__} {isinstance(graph.x, Tensor)} {sizes}"
    file = _KEPT.file(key)
    if not believed:
        return Trials(
            graph, density, rates, _doubtful.get(file, {}), keep=partial(_doubtful.__setitem__, file)
        )
    found = _KEPT.read(file) or {}
    try:
        _KEPT.write(file, found)
    except NOT_KEPT as error:
        _log.warning("trials could not be kept, so that rates alone decide: %s", error)
        return None
    return Trials(graph, density, rates, found, keep=lambda found: _KEPT.write(file, found))


_KEPT: Kept[Mapping[str, float]] = Kept("trials", dict, sound_trials)


def _sparse(x: FeatureMatrix) -> Input:
    sparse = x if isinstance(x, SparseFeatures) else SparseFeatures.from_dense(x)
    return SparseInput(sparse.to(torch.float32), None)


def _some(share: float, count: int, nbytes: int) -> int:
    """That share of ``count`` rows of so many bytes, but not too few and not too much memory."""
    most = MOST_BYTES // nbytes if nbytes else count
    return min(count, max(LEAST_ROWS, min(int(share * count), most)))


def _some_rows(x: FeatureMatrix, count: int) -> FeatureMatrix:
    """Rows from all over the features."""
    ids = torch.arange(count) * x.shape[0] // count
    return x.rows(ids) if isinstance(x, SparseFeatures) else x.index_select(0, ids)


def _some_edges(csc: Csc, count: int) -> Csc:
    """The in-edges of destinations from all over the graph."""
    nodes = torch.arange(count) * csc.num_dst // count
    indptr = torch.zeros(count + 1, dtype=torch.int64)
    torch.cumsum(csc.degrees()[nodes], 0, out=indptr[1:])
    parts = [csc.indices[positions] for _, positions in edges_of(csc, nodes)]
    return Csc(indptr, torch.cat(parts), csc.num_src, trusted=True)

"""Trials: products and aggregations of one graph, timed where rates leave two choices close.

Rates are measured on operands of one size, but a small graph fits in the cache, and its features may be
narrow. Where two choices are close by the rates, both run on some of the graph's own features and edges, for
a few milliseconds each. The times are stored, so that later runs make the same choices.
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
from graphbraid.fullgraph.device import HOST, Device, Run
from graphbraid.fullgraph.lowering.costs import Basis, TriedSeconds, sound_trials
from graphbraid.fullgraph.lowering.levels import edges_of
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.fullgraph.measured.rates import MeasuredRates, measured_rates
from graphbraid.fullgraph.step.inputs import BinaryInput, Input, SparseInput
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.scaled_features import Features
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.machine.measurements import NOT_KEPT, Kept
from graphbraid.machine.rates import Rates
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.linear import tall_gram, tall_product

VERSION = 1
"""Part of the storage key; raise it when the way of timing changes."""
RUN_SECONDS = 4e-3
"""Longest predicted seconds of one run of a trial, which has six runs."""
LEAST_ROWS = 256
MOST_BYTES = 1 << 26
"""Largest matrix of a trial. For larger ones, which exceed the cache, the measured rates hold."""

FeatureMatrix = Tensor | SparseFeatures

_log = logging.getLogger(__name__)
_doubtful: dict[Path, Mapping[str, float]] = {}
"""Trials of this process made with doubtful rates, by the file they would otherwise be stored in."""


@dataclass(frozen=True, slots=True)
class _PartialRun:
    """A run of part of an operation, and the number of rows or edges it handles."""

    run: Run
    count: int


class Trials:
    """Measured seconds of a graph's products and aggregations, each timed once.

    Args:
        graph: the graph whose features and edges are used.
        density: share of its features that are not zero.
        rates: determine how many rows are tried, and replace trials that would take too much memory.
        found: seconds found before, by the name of what was tried.
        may_try: whether to time what is not in ``found``; if False, the rates predict it.
        keep: called with all seconds found so far after each trial.
        seconds: returns the time of a run.
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
        """Seconds by the name of what was tried; part of the :class:`.Evidence` that a run stores."""

    def multiply_seconds(self, rows: int, depth: int, width: int) -> float:
        """Return the seconds of a dense product: the mean of the product and its weight's gradient."""

        def make(share: float) -> _PartialRun:
            count = _some(share, rows, 4 * depth)
            x, weight, grad = torch.ones(count, depth), torch.ones(width, depth), torch.ones(count, width)
            out, gram = torch.empty(count, width), torch.empty(width, depth)
            return _PartialRun(
                lambda: (tall_product(x, weight.t(), out=out), tall_gram(grad, x, out=gram)), count
            )

        expected = self._rates.multiply_seconds(rows, depth, width)
        return self._tried(f"dense {rows} {depth} {width}", 2 * expected, rows, make) / 2

    def sparse_seconds(self, rows: int, width: int) -> float:
        """Return the seconds of the features' sparse product with a weight, the mean of both directions."""
        expected = self._rates.sparse_seconds(rows * self._in_channels * self._density, width)
        return self._input_seconds("sparse", rows, width, expected, _sparse)

    def binary_seconds(self, rows: int, width: int) -> float:
        """Return the seconds of the features' product as bits with a weight, the mean of both directions."""
        expected = self._rates.binary_seconds(rows, self._in_channels, width)
        return self._input_seconds("binary", rows, width, expected, lambda x: BinaryInput.of(x, None))

    def aggregate_seconds(self, num_edges: int, width: int) -> float:
        """Return the seconds of an aggregation of float32 rows over ``num_edges`` edges."""
        csc, expected = self._csc, self._rates.aggregate_seconds(num_edges, width)
        if 4 * csc.num_src * width > MOST_BYTES:
            return expected

        def make(share: float) -> _PartialRun:
            part = _some_edges(csc, _some(share * num_edges / csc.num_edges, csc.num_dst, 0))
            x, out = torch.ones(csc.num_src, width), torch.empty(part.num_dst, width)
            how = Aggregation(csc=part)
            return _PartialRun(lambda: how.forward(x, out=out), part.num_edges)

        return self._tried(f"aggregate {num_edges} {width}", expected, num_edges, make)

    def _input_seconds(
        self, name: str, rows: int, width: int, expected: float, take: Callable[[FeatureMatrix], Input]
    ) -> float:
        def make(share: float) -> _PartialRun:
            count = _some(share, rows, 4 * self._in_channels)
            features, weight = take(_some_rows(self._x, count)), torch.ones(width, self._in_channels)
            out, gram = torch.empty(count, width), torch.empty_like(weight)

            def run() -> None:
                features.multiply(weight, out, add=False)
                features.weight_grad(out, gram)

            return _PartialRun(run, count)

        return self._tried(f"{name} {rows} {width}", 2 * expected, rows, make) / 2

    def _tried(self, key: str, expected: float, count: int, make: Callable[[float], _PartialRun]) -> float:
        """Return the seconds for ``count`` rows or edges, timed on a share that takes :data:`RUN_SECONDS`."""
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
    """Return the trials of a graph on this machine, with those stored by earlier runs.

    Args:
        graph: the graph, identified by its sizes.
        density: share of its features that are not zero.
        rates: the machine's rates.
        device: the device that the program will run on; trials run on the host only.
        believed: whether the rates, and so trials made now, are free of doubt. If False, trials are kept for
            this process only, so that it makes the same choices throughout.

    Returns:
        The trials, or None if nothing can be tried or stored and rates alone decide.
    """
    if not device.is_host or native.kernels() is None or graph.x is None:
        return None
    sizes = [graph.num_nodes, graph.csc.num_edges, *graph.x.shape, density]
    key = f"{VERSION} {device.name} {torch.__version__} {not isinstance(graph.x, SparseFeatures)} {sizes}"
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
    """Return a share of ``count`` rows of ``nbytes`` each, but not too few and not too much memory."""
    most = MOST_BYTES // nbytes if nbytes else count
    return min(count, max(LEAST_ROWS, min(int(share * count), most)))


def _some_rows(x: Features, count: int) -> FeatureMatrix:
    """Return evenly spaced rows of the features."""
    ids = torch.arange(count) * x.shape[0] // count
    return x.index_select(0, ids) if isinstance(x, Tensor) else x.rows(ids)


def _some_edges(csc: Csc, count: int) -> Csc:
    """Return the in-edges of evenly spaced destinations."""
    nodes = torch.arange(count) * csc.num_dst // count
    indptr = torch.zeros(count + 1, dtype=torch.int64)
    torch.cumsum(csc.degrees()[nodes], 0, out=indptr[1:])
    parts = [csc.indices[positions] for _, positions in edges_of(csc, nodes)]
    return Csc(indptr, torch.cat(parts), csc.num_src, trusted=True)


def basis_for(options: CompileOptions) -> Basis:
    """Return the rates and trials that the options give, or else this machine's."""
    given = options.rates if options.evidence is None else options.evidence.rates
    measured = measured_rates(options.device) if given is None else MeasuredRates(rates=given)
    return Basis(rates=measured.rates, doubt=measured.doubt, trials=partial(_trials, options, measured))


def _trials(
    options: CompileOptions, measured: MeasuredRates, graph: Graph, density: float
) -> TriedSeconds | None:
    """Return the trials that decide between close choices; None if rates alone decide."""
    if options.evidence is not None:
        return Trials(graph, density, measured.rates, options.evidence.trials, may_try=False)
    if options.rates is not None:
        return None
    return kept_trials(graph, density, measured.rates, options.device, believed=not measured.doubt)


__all__ = ["basis_for"]

"""Trials: products and aggregations of one graph, timed where rates leave two choices close.

Rates are measured on operands of one size, but a small graph fits in the cache, and its features may be
narrow. Where two choices are close by the rates, both run on some of the graph's own features and edges, for
a few milliseconds each. The times are stored, so that later runs make the same choices.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.fullgraph.device import HOST, Device, Run
from graphbraid.fullgraph.lowering.costs import CostModel, NodeTypeSizes, cost_model, density, sound_trials
from graphbraid.fullgraph.lowering.levels import edges_of
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.fullgraph.measured.rates import MeasuredRates, measured_rates
from graphbraid.fullgraph.program import Program
from graphbraid.fullgraph.step.inputs import compact_input
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.scaled_features import Features
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.machine.measurements import NOT_KEPT, Kept
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.linear import tall_gram, tall_product

VERSION = 1
"""Part of the storage key; raise it when the way of timing changes."""
RUN_SECONDS = 4e-3
"""Longest predicted seconds of one run of a trial, which has six runs."""
LEAST_ROWS = 256
MOST_BYTES = 1 << 26
"""Largest matrix of a trial. For larger ones, which exceed the cache, the measured rates hold."""

_log = logging.getLogger(__name__)
_doubtful: dict[Path, dict[str, float]] = {}
"""Trials of this process made with doubtful rates, by the file they would otherwise be stored in."""


_PartialRun = tuple[Run, int]
"""A run of part of an operation, and the number of rows or edges that it handles."""


class Trials:
    """Times a graph's products and aggregations where a cost model leaves two choices close.

    Args:
        graph: the graph whose features and edges are used.
        found: seconds by trial name, found before; each trial adds its own.
        keep: called with all seconds found so far after each trial.
        seconds: returns the time of a run.
    """

    def __init__(
        self,
        graph: Graph,
        found: dict[str, float],
        *,
        keep: Callable[[dict[str, float]], None] = lambda _: None,
        seconds: Callable[[Run], float] = lambda run: HOST.seconds(run, repeats=5),
    ) -> None:
        assert graph.x is not None
        self._csc, self._x, self._in_channels = graph.csc, graph.x, int(graph.x.shape[1])
        self._keep, self._seconds, self.found = keep, seconds, found

    def __call__(self, name: str, count: int, width: int, expected: float) -> float:
        """Return the seconds for ``count`` rows or edges, timed on a share that takes :data:`RUN_SECONDS`.

        Args:
            name: ``aggregate``, ``dense``, ``sparse`` or ``binary``, and the sizes; the depth of a dense
                product is the second.
            count: rows or edges.
            width: columns of the result.
            expected: seconds that the rates predict, returned where a trial would take too much memory.
        """
        kind, *sizes = name.split()
        share = min(1.0, RUN_SECONDS / expected)
        with torch.no_grad():
            if kind == "aggregate":
                part = self._aggregation(share, count, width)
            elif kind == "dense":
                part = _product(share, count, int(sizes[1]), width)
            else:
                part = self._input_product(kind, share, count, width)
            if part is None or part[1] == 0:
                return expected
            self.found[name] = self._seconds(part[0]) * count / part[1]
        self._keep(self.found)
        return self.found[name]

    def _aggregation(self, share: float, num_edges: int, width: int) -> _PartialRun | None:
        """Return an aggregation of float32 rows; None where these take too much memory."""
        csc = self._csc
        if 4 * csc.num_src * width > MOST_BYTES:
            return None
        part = _some_edges(csc, _some(share * num_edges / csc.num_edges, csc.num_dst, 0))
        x, out = torch.ones(csc.num_src, width), torch.empty(part.num_dst, width)
        how = Aggregation(csc=part)
        return lambda: how.forward(x, out=out), part.num_edges

    def _input_product(self, path: str, share: float, rows: int, width: int) -> _PartialRun:
        """Return the features' product with a weight in both directions."""
        count = _some(share, rows, 4 * self._in_channels)
        features = compact_input(_some_rows(self._x, count), None, path)
        weight = torch.ones(width, self._in_channels)
        out, gram = torch.empty(count, width), torch.empty_like(weight)

        def run() -> None:
            features.multiply(weight, out, add=False)
            features.weight_grad(out, gram)

        return run, count


def _product(share: float, rows: int, depth: int, width: int) -> _PartialRun:
    """Return a dense product, and its weight's gradient."""
    count = _some(share, rows, 4 * depth)
    x, weight, grad = torch.ones(count, depth), torch.ones(width, depth), torch.ones(count, width)
    out, gram = torch.empty(count, width), torch.empty(width, depth)
    return lambda: (tall_product(x, weight.t(), out=out), tall_gram(grad, x, out=gram)), count


def kept_trials(graph: Graph, density: float, device: Device, *, believed: bool) -> Trials | None:
    """Return the trials of a graph on this machine, with those stored by earlier runs.

    Args:
        graph: the graph, identified by its sizes.
        density: share of its features that are not zero.
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
        return Trials(graph, _doubtful.setdefault(file, {}))
    found = _KEPT.read(file) or {}
    try:
        _KEPT.write(file, found)
    except NOT_KEPT as error:
        _log.warning("trials could not be kept, so that rates alone decide: %s", error)
        return None
    return Trials(graph, found, keep=lambda found: _KEPT.write(file, found))


_KEPT: Kept[dict[str, float]] = Kept("trials", dict, sound_trials)


def _some(share: float, count: int, nbytes: int) -> int:
    """Return a share of ``count`` rows of ``nbytes`` each, but not too few and not too much memory."""
    most = MOST_BYTES // nbytes if nbytes else count
    return min(count, max(LEAST_ROWS, min(int(share * count), most)))


def _some_rows(x: Features, count: int) -> Features:
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


def costs_for(program: Program, graph: Graph, options: CompileOptions) -> CostModel:
    """Return the cost model of a graph by the rates that the options give, or else this machine's.

    Its levels have no sizes yet. Trials decide between close choices, if the options give no rates.

    Args:
        program: the program as it was read from the model.
        graph: with its features on the host, unless the options stream them.
        options: with the rates or the evidence to go by, and the memory that may be taken.
    """
    given = options.rates if options.evidence is None else options.evidence.rates
    measured = measured_rates(options.device) if given is None else MeasuredRates(rates=given)
    allowed = options.hoist_bytes()
    if program.by_relation:
        features = [graph.nodes_of(name).x for name in graph.node_types]
        shares = [0.0 if x is None else density(x) for x in features]
        are_sparse = [isinstance(x, SparseFeatures) for x in features]
        return CostModel(
            in_channels=sum(program.inputs.values()),
            density=max(shares, default=0.0),
            is_sparse=any(are_sparse),
            is_binary=False,
            hoist_bytes=allowed,
            rates=measured.rates,
            doubt=measured.doubt,
            storage=options.storage,
            node_types=tuple(
                NodeTypeSizes(rows=(), density=share, is_sparse=is_sparse)
                for share, is_sparse in zip(shares, are_sparse, strict=True)
            ),
        )
    sample = None if options.features is None else options.features.sample()
    costs = cost_model(graph, measured.rates, hoist_bytes=allowed, storage=options.storage, sample=sample)
    if options.evidence is not None:
        return replace(costs, found=options.evidence.trials)
    if options.rates is not None:
        return costs
    trials = kept_trials(graph, costs.density, options.device, believed=not measured.doubt)
    costs = replace(costs, doubt=measured.doubt)
    return costs if trials is None else replace(costs, found=trials.found, trial=trials)

"""Which score to take: looking ahead where that is cheap, else the one that serves a few batches best."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch
from torch import Tensor

from graphbraid.features.scores.coverage import coverage
from graphbraid.features.scores.reads import batch_reads, count_reads, spread_reads
from graphbraid.graph import Graph
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.schedule import SeedSchedule

MOST_OF_RUN = 0.02
"""Share of the run's time that looking ahead may take."""
PROBED_BATCHES = 8
"""Batches that are timed to estimate it."""
TRIED_BATCHES = 16
"""Batches of the first epoch on which scores are compared."""
CANDIDATES = ("inclusion", "weighted_reverse_pagerank", "degree", "presampled")
"""Tried in this order; of equals the first is taken. The reverse PageRank takes up to 100 passes over the
edges, too many for a trial, and was the best on none of the graphs of ``benchmarks.tiers.prediction``."""
READS = ("inclusion", "presampled")
"""The candidates that are reads an epoch, and not only an order."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Choice:
    """A kind of score, and why."""

    kind: str
    reason: str = ""
    trial: Mapping[str, float] = field(default_factory=dict)
    """Share of the tried batches' reads that each candidate's top rows served, the mean over some sizes."""


def choose(
    graph: Graph,
    sampler: SamplerConfig,
    schedule: SeedSchedule,
    *,
    epochs: Sequence[int],
    run_seconds: float | None,
    values_of: Callable[[str], Tensor],
    workers: int | None,
    candidates: Sequence[str] | None = None,
) -> tuple[Tensor, Choice]:
    """The values of the score to take, and the choice.

    Args:
        graph: what is sampled.
        sampler: how neighbours are drawn.
        schedule: which seeds a step has.
        epochs: of the run.
        run_seconds: how long they will take; None: not known.
        values_of: makes the values of a kind.
        workers: threads that sample.
        candidates: kinds to try; None: :data:`CANDIDATES`.
    """
    seconds = _lookahead_seconds(graph, sampler, schedule, epochs, workers)
    said = f"looking {len(epochs)} epoch{'s' * (len(epochs) > 1)} ahead would take about {seconds:.2g} s"
    if run_seconds is not None and seconds < MOST_OF_RUN * run_seconds:
        reason = f"{said}, {seconds / run_seconds:.1%} of the run's {run_seconds:.3g} s"
        return values_of("lookahead"), Choice(kind="lookahead", reason=reason)
    share = "and how long the run is was not said"
    if run_seconds is not None:
        share = f"more than {MOST_OF_RUN:.0%} of the run's {run_seconds:.3g} s"
    batches = spread_reads(graph, sampler, schedule, epoch=epochs[0], count=TRIED_BATCHES, workers=workers)
    reads = count_reads(batches, graph.num_nodes)
    trial: dict[str, float] = {}
    best = "", torch.empty(0)
    for kind in CANDIDATES if candidates is None else candidates:
        values = values_of(kind)
        trial[kind] = fmean(coverage(values, reads))
        if trial[kind] > trial.get(best[0], -1.0):
            best = kind, values
    tried = min(TRIED_BATCHES, schedule.num_steps)
    reason = (
        f"{said}, {share}; of the others, {best[0]} serves most of {tried} batches' reads: "
        f"{trial[best[0]]:.1%} in the mean over some sizes, the best choice "
        f"{fmean(coverage(reads, reads)):.1%}"
    )
    return best[1], Choice(kind=best[0], reason=reason, trial=trial)


def _lookahead_seconds(
    graph: Graph,
    sampler: SamplerConfig,
    schedule: SeedSchedule,
    epochs: Sequence[int],
    workers: int | None,
) -> float:
    """Estimated by the first few batches, threads already at work."""
    threads = torch.get_num_threads() if workers is None else workers
    warm, steps = 2 * threads, schedule.num_steps
    warm = min(warm, steps // 2)
    timed = min(PROBED_BATCHES, steps - warm)
    first = range(epochs[0], epochs[0] + 1)
    batches = batch_reads(graph, sampler, schedule, first, steps=range(warm + timed), workers=workers)
    started = time.perf_counter()
    for _ in itertools.islice(batches, warm):
        started = time.perf_counter()
    for _ in batches:
        pass
    return (time.perf_counter() - started) / timed * steps * len(epochs)

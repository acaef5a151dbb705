"""Choice of a score: look-ahead as far as it is cheap, else the score that serves a few batches best."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from graphbraid.arguments import as_number, check_tensor
from graphbraid.errors import DataError
from graphbraid.features.scores.walks import batch_reads, count_reads, spread_reads
from graphbraid.graph import Graph
from graphbraid.sampling.config import SamplerConfig, SeedSchedule
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from graphbraid.features.scores.score import Score, ScoreMaking

SHARES = (0.05, 0.10, 0.25)
"""Shares of the rows at which scores are compared."""


@typed
def coverage(values: Tensor, reads: Tensor, shares: Sequence[float] = SHARES) -> tuple[float, ...]:
    """Return the share of reads that go to the rows of the highest scores.

    Equal scores are in the order of the nodes. If ``values`` are the reads themselves, no fixed choice of as
    many rows is better.

    Args:
        values: ``(num_nodes,)`` scores, higher for rows to keep first.
        reads: ``(num_nodes,)`` how often each row was read.
        shares: shares of the rows that are kept, each in [0, 1]; the number of rows is rounded down.

    Returns:
        Share of the reads for each of ``shares``; 1 if nothing was read.

    Raises:
        ConfigError: a share is outside [0, 1].
        DataError: scores and reads are not 1-d of one length, or reads are no finite counts.
    """
    check_tensor(values, "values", ndim=1)
    if check_tensor(reads, "reads", ndim=1).shape != values.shape:
        raise DataError(f"reads must be of {values.numel()} nodes, as the scores are; got {reads.numel()}")
    if reads.is_complex() or not bool(torch.isfinite(reads).all()):
        raise DataError("reads must be finite counts; some are NaN, infinite or complex")
    reads = reads.double() if reads.is_floating_point() else reads.long()  # also of unsigned counts
    kept = [int(as_number(share, "a share of rows", least=0.0, most=1.0) * reads.numel()) for share in shares]
    order = torch.argsort(values, descending=True, stable=True)
    served = torch.cat([reads.new_zeros(1), reads[order].cumsum(0)])
    total = served[-1].item()
    return tuple(served[rows].item() / total if total else 1.0 for rows in kept)


MOST_OF_RUN = 0.02
"""Share of the run's time that looking ahead may take."""
PROBED_BATCHES = 8
"""Batches that are timed to estimate it."""
TRIED_BATCHES = 16
"""Batches of the first epoch on which scores are compared."""
CANDIDATES = ("inclusion", "weighted_reverse_pagerank", "degree", "presampled")
"""Kinds in the order of trials; of equal ones the first is taken. The reverse PageRank is left out: it takes
up to 100 passes over the edges and was best on none of the graphs of ``benchmarks.tiers.prediction``."""
READS = ("inclusion", "presampled")
"""The candidates whose values are reads an epoch, not only an order."""


class Looked(NamedTuple):
    """The result of look-ahead."""

    values: Tensor
    """``(num_nodes,)`` float64 reads an epoch, the mean over the epochs that were counted."""
    epochs: int
    """Number of these epochs, from the first on."""
    seconds: float
    """Seconds spent on them."""


@dataclass(slots=True)
class RunTime:
    """The expected time of a run; look-ahead may take a share of it."""

    least: float
    """Seconds without any wait for rows."""
    waits: bool = False
    """Whether waits for rows may make it longer."""

    @property
    def counted(self) -> str:
        """Origin of the seconds, in words; may be empty."""
        return ""

    def with_reads(self, reads: Tensor) -> float:
        """Return the seconds with tiers filled by ``(num_nodes,)`` reads of an epoch."""
        return self.least


def choose(making: ScoreMaking, run: RunTime | None, candidates: Sequence[str] | None) -> Score:
    """Return the score that ``auto`` chooses.

    If the run waits for rows, candidates (None: :data:`CANDIDATES`) must be scores in reads an epoch; the
    best of them predicts the wait.
    """
    graph, epochs, workers = making.graph, making.epochs, making.workers
    sampler, schedule = making.needed("auto")
    seconds = sampling_seconds(graph, sampler, schedule, epochs[0], workers)
    tried: _Tried | None = None
    taken = 0.0 if run is None else run.least
    if run is not None and run.waits and seconds * len(epochs) >= MOST_OF_RUN * taken:
        tried = _try_kinds(making, candidates)
        taken = run.with_reads(tried.values)
    if run is not None and seconds < MOST_OF_RUN * taken:
        looked = look_ahead(graph, sampler, schedule, epochs, seconds=MOST_OF_RUN * taken, workers=workers)
        reason = _counted(looked, epochs, taken) + _of_what(run)
        return making.made(looked.values, "lookahead", reason, {} if tried is None else tried.trial)
    if tried is None:
        tried = _try_kinds(making, candidates)
    share = "and how long the run is was not said"
    if run is not None:
        allowed = MOST_OF_RUN * taken
        share = f"more than the {allowed:.2g} s that are {MOST_OF_RUN:.0%} of the run's {taken:.3g} s"
        share += _of_what(run)
    reason = f"looking 1 epoch ahead would take about {seconds:.2g} s, {share}; of the others, {tried.said}"
    return making.made(tried.values, tried.kind, reason, tried.trial)


def _of_what(run: RunTime) -> str:
    """Return the origin of a run's seconds in brackets."""
    return f" ({run.counted})" if run.counted else ""


class _Tried(NamedTuple):
    """The best kind of score for some batches."""

    kind: str
    values: Tensor
    trial: Mapping[str, float]
    said: str


def _try_kinds(making: ScoreMaking, candidates: Sequence[str] | None) -> _Tried:
    """Return the candidate whose top rows serve most reads of some batches, spread over an epoch."""
    graph, (sampler, schedule) = making.graph, making.needed("auto")
    batches = spread_reads(
        graph, sampler, schedule, epoch=making.epochs[0], count=TRIED_BATCHES, workers=making.workers
    )
    reads = count_reads(batches, graph.num_nodes)
    trial: dict[str, float] = {}
    best = "", torch.empty(0)
    for kind in CANDIDATES if candidates is None else candidates:
        values = making.of_short(kind)
        trial[kind] = fmean(coverage(values, reads))
        if trial[kind] > trial.get(best[0], -1.0):
            best = kind, values
    said = (
        f"{best[0]} serves most of {min(TRIED_BATCHES, schedule.num_steps)} batches' reads: "
        f"{trial[best[0]]:.1%} in the mean over some sizes, the best choice "
        f"{fmean(coverage(reads, reads)):.1%}"
    )
    return _Tried(*best, trial, said)


def look_ahead(
    graph: Graph,
    sampler: SamplerConfig,
    schedule: SeedSchedule,
    epochs: Sequence[int],
    *,
    seconds: float,
    workers: int | None = None,
) -> Looked:
    """Count the reads of the coming epochs, one after the other, as long as there is time.

    The first epoch is always counted. A further one is counted if it is expected to end within ``seconds``
    for all, by the mean time of the earlier ones.
    """
    counts, counted, taken = torch.zeros(graph.num_nodes, dtype=torch.int64), 0, 0.0
    started = time.perf_counter()
    for epoch in epochs:
        if counted and taken * (counted + 1) / counted > seconds:
            break
        batches = batch_reads(graph, sampler, schedule, range(epoch, epoch + 1), workers=workers)
        counts += count_reads(batches, graph.num_nodes)
        counted, taken = counted + 1, time.perf_counter() - started
    return Looked(counts.double().div_(counted), counted, taken)


def _counted(looked: Looked, epochs: Sequence[int], run_seconds: float) -> str:
    """Return a sentence with the number of epochs looked ahead, the time taken, and the time allowed."""
    count = f"{looked.epochs} of {len(epochs)}" if looked.epochs < len(epochs) else f"{len(epochs)}"
    said = f"{count} epoch{'s' * (len(epochs) > 1)} looked ahead in {looked.seconds:.2g} s"
    allowed = MOST_OF_RUN * run_seconds
    return f"{said}; {MOST_OF_RUN:.0%} of the run's {run_seconds:.3g} s allow {allowed:.2g} s"


def sampling_seconds(
    graph: Graph, sampler: SamplerConfig, schedule: SeedSchedule, epoch: int, workers: int | None
) -> float:
    """Return the seconds to sample an epoch's batches, estimated by a few of them.

    Threads are already running when the first one is timed.
    """
    threads = torch.get_num_threads() if workers is None else workers
    warm, steps = 2 * threads, schedule.num_steps
    warm = min(warm, steps // 2)
    timed = min(PROBED_BATCHES, steps - warm)
    first = range(epoch, epoch + 1)
    batches = batch_reads(graph, sampler, schedule, first, steps=range(warm + timed), workers=workers)
    started = time.perf_counter()
    for _ in itertools.islice(batches, warm):
        started = time.perf_counter()
    for _ in batches:
        pass
    return (time.perf_counter() - started) / timed * steps

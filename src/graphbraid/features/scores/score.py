"""Scores: estimates of how often feature rows will be read, from the graph or counted in advance."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from graphbraid.arguments import as_number, check_choice
from graphbraid.errors import ConfigError
from graphbraid.features.scores import walks
from graphbraid.features.scores.choice import READS, RunTime, choose
from graphbraid.features.scores.walks import (
    as_epochs,
    batch_reads,
    count_reads,
    spread_reads,
    with_other_seed,
)
from graphbraid.graph import Graph
from graphbraid.graph.identity import topology_mark
from graphbraid.graph.scans import check_ids
from graphbraid.sampling.config import SamplerConfig, SeedSchedule
from graphbraid.sampling.reference import check_odds
from graphbraid.signatures import typed

KINDS = (
    "degree",
    "reverse_pagerank",
    "weighted_reverse_pagerank",
    "inclusion",
    "presampled",
    "lookahead",
    "auto",
)
"""Scores by name."""
PRESAMPLED_BATCHES = 256
"""Most batches that ``auto`` samples to try that kind."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Score:
    """Expected reads of rows, and their origin."""

    values: Tensor
    """``(num_nodes,)`` float64, higher for rows that are read more often. Counts and expected counts are
    reads per epoch; values of the other kinds give only an order."""
    kind: str
    """One of :data:`KINDS` except ``auto``: the chosen kind."""
    seconds: float
    """Seconds spent on it, trials included."""
    mark: str = ""
    """Mark of its graph's edges; tiers of another graph refuse the score. If empty, any graph takes it."""
    reason: str = ""
    """Reason for the choice of ``auto``; empty if the kind was given."""
    trial: Mapping[str, float] = field(default_factory=dict)
    """For each kind that ``auto`` tried: share of some batches' reads that its top rows served."""


@typed
def score(
    graph: Graph,
    kind: str = "auto",
    *,
    sampler: SamplerConfig | None = None,
    schedule: SeedSchedule | None = None,
    epochs: int | range = 1,
    run_seconds: float | None = None,
    damping: float = walks.DAMPING,
    workers: int | None = None,
    as_reads: bool = False,
) -> Score:
    """Score each node by how often its row is expected to be read.

    - ``degree``: edges that leave the node
    - ``reverse_pagerank``: a walk against the edges, in the long run
    - ``weighted_reverse_pagerank``: the same for few rounds, with a higher start at training nodes
    - ``inclusion``: expected reads an epoch under the sampler's fanouts and seeds
    - ``presampled``: reads of some epochs of the sampler with another seed
    - ``lookahead``: reads of the coming epochs, exactly
    - ``auto``: ``lookahead`` over as many of the coming epochs as 2 % of the run's time allows; if that is
      none, the kind that serves some of its batches best

    Args:
        graph: the graph.
        kind: one of these.
        sampler: options of the sampler, such as a loader's ``node_sampler``; the last four kinds need them.
        schedule: seeds of the steps, such as a loader's ``schedule``; the last four kinds need it.
            Without it the weighted PageRank begins at the graph's split ``train``.
        epochs: number of first epochs, or a range. ``lookahead`` counts them all, ``auto`` at most these, and
            ``presampled`` samples as many.
        run_seconds: expected time of the run, if known; ``auto`` needs it to look ahead.
        damping: damping of the PageRanks, in [0, 1).
        workers: number of sampling threads; None takes PyTorch's.
        as_reads: whether ``auto`` must give reads an epoch, so that it tries no kind that is only an order.

    Raises:
        ConfigError: the kind is unknown, lacks an argument, or epochs are out of bounds.
        DataError: the kind needs a split ``train`` or weights that the graph lacks, or a seed is no node.
    """
    check_choice(kind, "kind", KINDS)
    damping = as_number(damping, "damping", least=0, below=1)
    making = ScoreMaking(
        graph, sampler=sampler, schedule=schedule, epochs=as_epochs(epochs), damping=damping, workers=workers
    )
    if kind == "auto":
        run = None if run_seconds is None else RunTime(as_number(run_seconds, "run_seconds", least=0))
        return choose(making, run, READS if as_reads else None)
    return making.made(making.of(kind), kind)


def reads_of_run(
    graph: Graph, run: RunTime | None, *, sampler: SamplerConfig, schedule: SeedSchedule, epochs: int
) -> Score:
    """Return the reads of an epoch of a run whose time is known, as the kind ``auto`` of :func:`score` does.

    Without ``run``, nothing is looked ahead, and else at most ``epochs``. ConfigError: there are no batches.
    """
    making = ScoreMaking(graph, sampler=sampler, schedule=schedule, epochs=as_epochs(epochs))
    return choose(making, run, READS)


class ScoreMaking:
    """Makes scores by name."""

    def __init__(
        self,
        graph: Graph,
        *,
        sampler: SamplerConfig | None,
        schedule: SeedSchedule | None,
        epochs: Sequence[int],
        damping: float = walks.DAMPING,
        workers: int | None = None,
    ) -> None:
        self._started = time.perf_counter()
        self.graph, self._sampler, self._schedule = graph, sampler, schedule
        self.epochs, self._damping, self.workers = epochs, damping, workers
        self._most_presampled: int | None = None
        self._make: dict[str, Callable[[], Tensor]] = {
            "degree": lambda: walks.out_degree(graph.csc),
            "reverse_pagerank": lambda: walks.reverse_pagerank(graph.csc, damping=damping),
            "weighted_reverse_pagerank": self._weighted_reverse_pagerank,
            "inclusion": self._inclusion,
            "presampled": self._presampled,
            "lookahead": self._lookahead,
        }

    def made(
        self, values: Tensor, kind: str, reason: str = "", trial: Mapping[str, float] | None = None
    ) -> Score:
        """Return the record of values of a kind."""
        return Score(
            values=values,
            kind=kind,
            seconds=time.perf_counter() - self._started,
            reason=reason,
            trial=trial or {},
            mark=topology_mark(self.graph.csc),
        )

    def of(self, kind: str) -> Tensor:
        """Return the values of a kind."""
        return self._make[kind]()

    def of_short(self, kind: str) -> Tensor:
        """Return the values for a trial, which presamples only a few batches."""
        self._most_presampled = PRESAMPLED_BATCHES
        return self.of(kind)

    def needed(self, kind: str) -> tuple[SamplerConfig, SeedSchedule]:
        """Return sampler and schedule; ConfigError without one or batches, DataError if they do not fit."""
        sampler, schedule = self._sampler, self._schedule
        if sampler is None or schedule is None:
            missing = (
                "sampler=SamplerConfig(fanouts=...)" if sampler is None else "schedule=SeedSchedule(...)"
            )
            raise ConfigError(
                f"the score {kind!r} follows the sampler from its seeds: pass {missing}, or take a score of "
                "the graph alone, such as 'weighted_reverse_pagerank'"
            )
        _check_seeds(schedule, self.graph)
        if sampler.weighted:
            check_odds(self.graph.csc)
        return sampler, schedule

    def _weighted_reverse_pagerank(self) -> Tensor:
        return walks.weighted_reverse_pagerank(self.graph.csc, self._train_ids(), damping=self._damping)

    def _train_ids(self) -> Tensor:
        if self._schedule is None:
            return self.graph.split("train")
        _check_seeds(self._schedule, self.graph)
        return self._schedule.seeds

    def _inclusion(self) -> Tensor:
        return walks.inclusion(self.graph.csc, *self.needed("inclusion"))

    def _presampled(self) -> Tensor:
        sampler, schedule = self.needed("presampled")
        schedule = with_other_seed(schedule)
        if self._most_presampled is None:
            return self._counted(sampler, schedule)
        most = min(self._most_presampled, schedule.num_steps)
        batches = spread_reads(
            self.graph, sampler, schedule, epoch=self.epochs[0], count=most, workers=self.workers
        )
        return count_reads(batches, self.graph.num_nodes).double().mul_(schedule.num_steps / most)

    def _lookahead(self) -> Tensor:
        return self._counted(*self.needed("lookahead"))

    def _counted(self, sampler: SamplerConfig, schedule: SeedSchedule) -> Tensor:
        epochs = range(self.epochs[0], self.epochs[-1] + 1)
        batches = batch_reads(self.graph, sampler, schedule, epochs, workers=self.workers)
        return count_reads(batches, self.graph.num_nodes).double().div_(len(epochs))


def _check_seeds(schedule: SeedSchedule, graph: Graph) -> None:
    if not schedule.num_steps:
        raise ConfigError("the schedule has no seeds, and so no batches; give it some")
    check_ids(schedule.seeds, graph.num_nodes, "seeds")

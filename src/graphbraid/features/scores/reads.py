"""The rows that coming batches will read, found by sampling batches without features."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from graphbraid.arguments import MOST_THREADS, as_count, check_type
from graphbraid.errors import ConfigError
from graphbraid.features.scores.walks import backend
from graphbraid.graph import Graph
from graphbraid.graph.scans import check_ids
from graphbraid.sampling import rng
from graphbraid.sampling.config import MOST_EPOCHS, SamplerConfig, SeedSchedule
from graphbraid.sampling.cpu import make_pipeline
from graphbraid.sampling.sample import PreparedBatch
from graphbraid.signatures import typed

_OTHER_SEED = 0x6F74686572


@typed
def batch_reads(
    graph: Graph,
    sampler: SamplerConfig,
    schedule: SeedSchedule,
    epochs: int | range = 1,
    *,
    steps: range | None = None,
    workers: int | None = None,
) -> Iterator[Tensor]:
    """The ``n_id`` of each coming batch in the order of steps, as a loader of these settings will gather it.

    Threads sample batches ahead. A batch is dropped once the next is taken, so memory does not grow with
    their number. Each tensor keeps its batch alive: clone the tensors that you keep.

    Args:
        graph: the graph; its features are not touched.
        sampler: options of the sampler.
        schedule: seeds of the steps.
        epochs: number of first epochs, or a range of epochs.
        steps: steps of every epoch; None: all.
        workers: number of threads; None takes PyTorch's.

    Returns:
        An iterator of ``(num_nodes_of_batch,)`` int64; a seed that is twice in a step is there twice.

    Raises:
        ConfigError: epochs or steps do not exist, or there are no seeds.
        DataError: seeds are outside the graph, or the sampler needs weights and they are missing or negative.
    """
    last = _as_steps(steps, schedule).stop
    first = 0 if steps is None else steps.start
    parts = ((epoch, first, last) for epoch in as_epochs(epochs))
    return _reads(graph, sampler, schedule, parts, workers)


def spread_reads(
    graph: Graph,
    sampler: SamplerConfig,
    schedule: SeedSchedule,
    *,
    epoch: int = 0,
    count: int,
    workers: int | None = None,
) -> Iterator[Tensor]:
    """:func:`batch_reads` of ``count`` steps spread evenly over an epoch, or of all where there are fewer."""
    last = _as_steps(None, schedule).stop
    if count >= last:
        return _reads(graph, sampler, schedule, [(epoch, 0, last)], workers)
    first = [last * part // count for part in range(count)]
    return _reads(graph, sampler, schedule, [(epoch, step, step + 1) for step in first], workers)


def count_reads(batches: Iterable[Tensor], num_nodes: int) -> Tensor:
    """Count each row's reads by batches, given by their ``n_id``: ``(num_nodes,)`` int64."""
    counts = torch.zeros(num_nodes, dtype=torch.int64)
    add = backend().count_ids
    for n_id in batches:
        add(n_id, counts)
    return counts


def with_other_seed(schedule: SeedSchedule) -> SeedSchedule:
    """Return a schedule of the same seeds with another random seed."""
    return dataclasses.replace(schedule, seed=rng.mix(schedule.seed ^ _OTHER_SEED) >> 1)


def as_epochs(epochs: int | range) -> Sequence[int]:
    """Return a range of epochs, from a number of first epochs or a range.

    Raises:
        ConfigError: it is empty, or an epoch is out of bounds.
    """
    if isinstance(epochs, range):
        if epochs.step != 1 or not epochs or epochs.start < 0 or epochs.stop > MOST_EPOCHS:
            raise ConfigError(
                f"epochs must be a rising range of at least one epoch from 0 on, such as range(3, 5); "
                f"got {epochs}"
            )
        return epochs
    return range(as_count(epochs, "epochs", least=1, most=MOST_EPOCHS))


def _as_steps(steps: range | None, schedule: SeedSchedule) -> range:
    check_type(schedule, "schedule", SeedSchedule, "a SeedSchedule", error=ConfigError)
    if not schedule.num_steps:
        raise ConfigError("the schedule has no seeds, and so no batches; give it some")
    if steps is None:
        return range(schedule.num_steps)
    if steps.step != 1 or not steps or steps.start < 0 or steps.stop > schedule.num_steps:
        raise ConfigError(
            f"steps must be a rising range of at least one in [0, {schedule.num_steps}); got {steps}"
        )
    return steps


def _reads(
    graph: Graph,
    sampler: SamplerConfig,
    schedule: SeedSchedule,
    parts: Iterable[tuple[int, int, int]],
    workers: int | None,
) -> Iterator[Tensor]:
    """Yield the reads of parts of epochs, given as epoch, first step, and the step after the last."""
    check_ids(schedule.seeds, graph.num_nodes, "seeds")
    threads = torch.get_num_threads() if workers is None else workers
    threads = as_count(threads, "workers", least=1, most=MOST_THREADS)
    config = dataclasses.replace(sampler, return_edge_id=False)  # no node depends on it
    pipeline = make_pipeline(graph, config, num_threads=threads, depth=2 * threads)
    runs = (pipeline.run(schedule, *part) for part in parts)
    # no generator of batches: it would hold one while the next is waited for
    return map(_n_id, itertools.chain.from_iterable(runs))


def _n_id(prepared: PreparedBatch) -> Tensor:
    return prepared.sampled.n_id

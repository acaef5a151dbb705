"""Sampling on the CPU: a compiled pipeline of persistent threads, and a reference with the same interface."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc
from graphbraid.graph.scans import check_ids
from graphbraid.native import plain_errors
from graphbraid.sampling import reference, rng
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.constraints import Constraints, EdgeTimes
from graphbraid.sampling.lists import NeighborLists
from graphbraid.sampling.sample import PreparedBatch, Sampled, SampledEdges
from graphbraid.sampling.schedule import SeedSchedule
from graphbraid.sampling.threads import COUNTED, NativeThreads, checked_threads


class BatchPipeline(Protocol):
    """A pipeline that prepares mini-batches ahead of their use."""

    def run(
        self, schedule: SeedSchedule, epoch: int, first_step: int, last_step: int
    ) -> Iterator[PreparedBatch]:
        """Yield the batches of the steps ``[first_step, last_step)`` in order."""
        ...

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds spent in each stage since the start, summed over threads."""
        ...

    def busy_threads(self) -> int:
        """Return the number of threads that are preparing batches or are about to."""
        ...


class HostPipeline(BatchPipeline, Protocol):
    """A pipeline on the CPU, which also samples for seeds that come from no schedule."""

    def begin(
        self, seeds: Tensor, seed: int, epoch: int, step: int, constraints: Constraints | None = None
    ) -> Iterator[PreparedBatch]:
        """Start preparing the batch of ``seeds`` at a step, and return an iterator that waits for it.

        The iterator yields this one batch.

        Args:
            seeds: ``(batch,)`` int64 node ids; the batch's ``input_id`` holds positions in this tensor.
            seed: random seed of the draws.
            epoch: epoch whose random numbers are drawn.
            step: step whose random numbers are drawn.
            constraints: what the draws keep to. If None, they are free.
        """
        ...


def make_pipeline(
    csc: Csc,
    config: SamplerConfig,
    x: Tensor | None,
    *,
    num_threads: int,
    depth: int,
    refill: int | None = None,
    lists: NeighborLists | None = None,
    edge_times: EdgeTimes | None = None,
) -> HostPipeline:
    """Make a compiled pipeline, or a reference pipeline if kernels are missing or switched off.

    Args:
        csc: the graph, on the CPU.
        config: options of the sampler.
        x: ``(num_nodes, F)`` contiguous feature rows to gather. If None, only nodes and edges are sampled.
        num_threads: number of threads that prepare batches.
        depth: largest number of batches in preparation or waiting to be used.
        refill: once ``depth`` batches are ready, the threads rest until only this many are left. If None,
            they start the next batch as soon as there is room for one.
        lists: where the adjacency lists of ``csc`` are. If None, in memory, or mapped there.
        edge_times: when each edge arose, for batches that are constrained by times; the rows of ``csc`` are
            sorted by it.

    Raises:
        ConfigError: the number of threads or of batches is out of range.
        DataError: edge weights are needed and are missing or negative, or ``x`` does not fit the graph.
        ResourceError: the system cannot start that many threads.
    """
    threads = checked_threads(num_threads, depth, refill)
    if config.weighted:
        reference.check_odds(csc)
    if x is not None and (x.ndim != 2 or x.shape[0] != csc.num_dst):
        raise DataError(f"x must have a row for each of the {csc.num_dst} nodes; got {tuple(x.shape)}")
    kernels = native.kernels()
    if kernels is None:
        return _ReferencePipeline(csc, config, x, lists, edge_times)
    return _NativePipeline(kernels, csc, config, x, lists=lists, edge_times=edge_times, **threads)


class _NativePipeline(NativeThreads):
    def __init__(
        self,
        kernels: Any,
        csc: Csc,
        config: SamplerConfig,
        x: Tensor | None,
        *,
        lists: NeighborLists | None,
        edge_times: EdgeTimes | None,
        **threads: int,
    ) -> None:
        csc = csc if lists is None else lists.csc
        self._csc, self._x, self._config = csc, x, config  # kept alive: the threads read them
        self._lists, self._edge_times = lists, edge_times
        self._of_arrays = functools.partial(
            kernels.Pipeline,
            indptr=csc.indptr,
            indices=csc.indices,
            weight=csc.weight if config.weighted else None,
            x=None if x is None else x.detach(),
            fanouts=list(config.fanouts),
            replace=config.replace,
            blocks=config.layout == "blocks",
            keep_edges=config.return_edge_id,
            time=None if edge_times is None else edge_times.time,
            last=edge_times is not None and edge_times.last,
            **threads,
        )
        super().__init__(kernels)

    def run(
        self, schedule: SeedSchedule, epoch: int, first_step: int, last_step: int
    ) -> Iterator[PreparedBatch]:
        run = self._run_of(schedule, epoch, first_step, last_step)
        # Not a generator: it would hold on to a batch, and so keep its buffer from being reused, while it
        # waits for the next one.
        return map(_as_prepared, iter(plain_errors()(run.next), None))

    def begin(
        self, seeds: Tensor, seed: int, epoch: int, step: int, constraints: Constraints | None = None
    ) -> Iterator[PreparedBatch]:
        if not seeds.numel():  # a schedule without seeds has no steps
            twin = _ReferencePipeline(self._csc, self._config, self._x, self._lists, self._edge_times)
            return twin.begin(seeds, seed, epoch, step, constraints)
        run = self._run_of_seeds(seeds, seed, epoch, step, **as_limits(constraints))
        return (_as_prepared(batch)._replace(step=step) for batch in iter(plain_errors()(run.next), None))

    def _make(self) -> Any:
        return self._of_arrays(lists=None if self._lists is None else self._lists.native)

    def _arrays(self) -> Iterable[Tensor | None]:
        return self._csc.indptr, self._csc.indices, self._csc.weight, self._x


def as_limits(constraints: Constraints | None) -> dict[str, Any]:
    """Return constraints as the arguments of a run of compiled threads."""
    if constraints is None:
        return {}
    return {
        "disjoint": constraints.disjoint,
        "times": constraints.times,
        "excluded": constraints.excluded,
    }


def _as_prepared(batch: tuple[Any, ...]) -> PreparedBatch:
    step, n_id, input_id, arrays, nodes_per_hop, edges_per_hop, x, trees = batch
    edges = [SampledEdges(indptr=p, indices=i, positions=e) for p, i, e in arrays]
    sampled = Sampled(
        n_id=n_id, edges=edges, nodes_per_hop=nodes_per_hop, edges_per_hop=edges_per_hop, trees=trees
    )
    return PreparedBatch(step, input_id, sampled, x)


class _ReferencePipeline:
    def __init__(
        self,
        csc: Csc,
        config: SamplerConfig,
        x: Tensor | None,
        lists: NeighborLists | None,
        edge_times: EdgeTimes | None,
    ) -> None:
        self._csc, self._config, self._x, self._lists = csc, config, x, lists
        self._edge_times = edge_times
        self._seconds = dict.fromkeys(COUNTED, 0.0)

    def run(
        self, schedule: SeedSchedule, epoch: int, first_step: int, last_step: int
    ) -> Iterator[PreparedBatch]:
        for step in range(first_step, last_step):
            started = perf_counter()
            input_id = schedule.positions_of(epoch, step)
            key = rng.batch_key(schedule.seed, epoch, step)
            sampled = self._sample(schedule.seeds[input_id], key)
            between = perf_counter()
            x = None if self._x is None else torch.index_select(self._x, 0, sampled.n_id)
            self._seconds["sample"] += between - started
            self._seconds["gather"] += perf_counter() - between
            self._seconds["batches"] += 1
            yield PreparedBatch(step, input_id, sampled, x)

    def begin(
        self, seeds: Tensor, seed: int, epoch: int, step: int, constraints: Constraints | None = None
    ) -> Iterator[PreparedBatch]:
        check_ids(seeds, self._csc.num_dst, "seeds")
        sampled = self._sample(seeds, rng.batch_key(seed, epoch, step), constraints)
        x = None if self._x is None else torch.index_select(self._x, 0, sampled.n_id)
        yield PreparedBatch(step, torch.arange(seeds.numel()), sampled, x)

    def _sample(self, seeds: Tensor, key: int, constraints: Constraints | None = None) -> Sampled:
        return reference.sample_checked(
            self._csc,
            self._config,
            seeds,
            key,
            self._lists,
            constraints=constraints,
            edge_times=self._edge_times,
        )

    def stage_seconds(self) -> dict[str, float]:
        return dict(self._seconds)

    def busy_threads(self) -> int:
        return 0  # batches are prepared on the caller's thread

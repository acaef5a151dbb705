"""TypedBatchLoader: mini-batches of a graph with types, prepared ahead by threads."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from graphbraid.graph import EdgeType
from graphbraid.loader.batches.batch_loader import BatchLoader
from graphbraid.loader.batches.by_position import batches_at
from graphbraid.loader.batches.settings import LoaderSettings
from graphbraid.sampling.batch_seeds import BatchSeeds, SeedSource
from graphbraid.sampling.schedule import SeedSchedule
from graphbraid.sampling.typed import TypedConfig, TypedPreparedBatch
from graphbraid.sampling.typed.minibatch import TypedMiniBatch
from graphbraid.sampling.typed.pipeline import TypedPipeline, make_typed_pipeline
from graphbraid.sampling.typed.source import TypedBatchSource


class TypedBatchLoader(BatchLoader):
    """A :class:`BatchLoader` of a graph with types, whose seeds are nodes of one of them, or ends of links.

    Args:
        source: graph and attributes that batches are read from.
        settings: options of the batches and their preparation; ``input_nodes`` are ids of the seeds' type.
        config: options of the sampler, by relation.
        input_type: node type of the seeds, or the relation of links.
        seeds: inputs that are more than nodes, whose seeds are ids in the whole graph. If None, the nodes of
            ``settings.input_nodes``.

    Raises:
        ConfigError: settings exclude each other.
    """

    def __init__(
        self,
        source: TypedBatchSource,
        settings: LoaderSettings,
        config: TypedConfig,
        input_type: str | EdgeType,
        seeds: SeedSource | None = None,
    ) -> None:
        inputs = settings.input_nodes if seeds is None else torch.arange(seeds.num_inputs)
        assert isinstance(inputs, Tensor), "ids of the seeds' type"
        self.graph, self.settings = source.graph, settings
        self.typed_config, self.config, self.input_type = config, config.options, input_type
        self.schedule = SeedSchedule(
            seeds=inputs,
            batch_size=settings.batch_size,
            shuffle=settings.shuffle,
            drop_last=settings.drop_last,
            seed=settings.seed,
        )
        self._seeds = seeds
        self.device = settings.batch_device
        self.num_workers, self._depth, self._refill = settings.num_workers, settings.depth, settings.refill
        self._typed_source, self._planned, self._pipeline = source, None, None
        self._before, self._gather_seconds = {}, 0.0
        self._open = weakref.WeakSet()

    def replace_source(self, source: TypedBatchSource, seeds: SeedSource | None) -> None:
        """Read batches from another source with the same nodes and inputs, from the next iteration on."""
        self.graph, self._typed_source, self._seeds = source.graph, source, seeds
        self._forget_threads()  # open iterators keep their own

    def _check_tiers(self) -> None:
        """Do nothing: a graph with types is read from memory."""

    def _iterate(self, epoch: int, start_step: int, last: int) -> Generator[Any]:
        if self._seeds is not None:
            steps = (self.schedule.positions_of(epoch, step) for step in range(start_step, last))
            yield from self._iterate_positions(steps, epoch, start_step)
            return
        source = self._typed_source
        for prepared in self._typed().run(self.schedule, epoch, start_step, last):
            batch = self._made(source, prepared, epoch)
            del prepared  # so that its buffer can be reused before the next batch
            yield batch
            del batch

    def _iterate_positions(self, positions: Iterable[Tensor], epoch: int, first_step: int) -> Generator[Any]:
        yield from batches_at(
            positions,
            self._typed(),
            self.schedule,
            self._seeds,
            epoch=epoch,
            first_step=first_step,
            depth=self._depth,
            finish=partial(self._finished_typed, self._typed_source, epoch),
        )

    def _finished_typed(
        self,
        source: TypedBatchSource,
        epoch: int,
        positions: Tensor,
        seeds: BatchSeeds,
        batch: Iterator[TypedPreparedBatch],
    ) -> TypedMiniBatch:
        return self._made(source, next(batch)._replace(input_id=positions), epoch, seeds)

    def _made(
        self,
        source: TypedBatchSource,
        prepared: TypedPreparedBatch,
        epoch: int,
        seeds: BatchSeeds | None = None,
    ) -> TypedMiniBatch:
        return TypedMiniBatch(
            source, prepared, input_type=self.input_type, layout=self.config.layout, epoch=epoch, seeds=seeds
        )

    def _typed(self) -> TypedPipeline:
        if self._pipeline is None:
            source = self._typed_source
            rows = [
                source.gathered(node_type) if self.settings.gather else None
                for node_type in source.graph.node_types
            ]
            made = make_typed_pipeline(
                source.graph,
                self.typed_config,
                self.input_type if self._seeds is None and isinstance(self.input_type, str) else None,
                rows,
                num_threads=self.num_workers,
                depth=self._depth,
                refill=self._refill,
                edge_times=None if self._seeds is None else self._seeds.edge_times,
            )
            self._pipeline = cast("Any", made)  # of batches with types
        return cast("TypedPipeline", self._pipeline)

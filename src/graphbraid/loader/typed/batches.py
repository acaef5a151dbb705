"""TypedBatchLoader: mini-batches of a graph with types, prepared ahead by threads."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Any, cast

from torch import Tensor

from graphbraid.loader.batches import BatchLoader
from graphbraid.loader.settings import LoaderSettings
from graphbraid.sampling.schedule import SeedSchedule
from graphbraid.sampling.typed import TypedConfig, TypedPrepared
from graphbraid.sampling.typed.minibatch import TypedMiniBatch
from graphbraid.sampling.typed.pipeline import TypedPipeline, make_typed_pipeline
from graphbraid.sampling.typed.source import TypedSource


class TypedBatchLoader(BatchLoader):
    """A :class:`BatchLoader` of a graph with types, whose seeds are of one of them.

    Args:
        source: graph and attributes that batches are read from.
        settings: options of the batches and their preparation; ``input_nodes`` are ids of the seeds' type.
        config: options of the sampler, by relation.
        input_type: node type of the seeds.

    Raises:
        ConfigError: settings exclude each other.
    """

    def __init__(
        self, source: TypedSource, settings: LoaderSettings, config: TypedConfig, input_type: str
    ) -> None:
        assert isinstance(settings.input_nodes, Tensor), "ids of the seeds' type"
        self.graph, self.settings = source.graph, settings
        self.typed_config, self.config, self.input_type = config, config.options, input_type
        self.schedule = SeedSchedule(
            seeds=settings.input_nodes,
            batch_size=settings.batch_size,
            shuffle=settings.shuffle,
            drop_last=settings.drop_last,
            seed=settings.seed,
        )
        self._seeds = None
        self.device = settings.batch_device
        self.num_workers, self._depth, self._refill = settings.num_workers, settings.depth, settings.refill
        self._typed_source, self._planned, self._pipeline = source, None, None
        self._before, self._gather_seconds = {}, 0.0
        self._open = weakref.WeakSet()

    def replace_source(self, source: TypedSource) -> None:
        """Read batches from another source with the same nodes, from the next iteration on."""
        self.graph, self._typed_source = source.graph, source
        self._forget_threads()  # open iterators keep their own

    def _iterate(self, epoch: int, start_step: int, last: int) -> Generator[Any]:
        source = self._typed_source
        for prepared in self._typed().run(self.schedule, epoch, start_step, last):
            batch = self._made(source, prepared, epoch)
            del prepared  # so that its buffer can be reused before the next batch
            yield batch
            del batch

    def _iterate_positions(self, positions: Iterable[Tensor], epoch: int, first_step: int) -> Generator[Any]:
        source, schedule, pipeline = self._typed_source, self.schedule, self._typed()
        begun: deque[tuple[Tensor, Iterator[TypedPrepared]]] = deque()
        for step, part in enumerate(positions, start=first_step):
            begun.append((part, pipeline.begin(schedule.seeds[part], schedule.seed, epoch, step)))
            if len(begun) > self._depth:
                yield self._finished_typed(source, *begun.popleft(), epoch)
        while begun:
            yield self._finished_typed(source, *begun.popleft(), epoch)

    def _finished_typed(
        self, source: TypedSource, positions: Tensor, batch: Iterator[TypedPrepared], epoch: int
    ) -> TypedMiniBatch:
        return self._made(source, next(batch)._replace(input_id=positions), epoch)

    def _made(self, source: TypedSource, prepared: TypedPrepared, epoch: int) -> TypedMiniBatch:
        return TypedMiniBatch(
            source, prepared, input_type=self.input_type, layout=self.config.layout, epoch=epoch
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
                self.input_type,
                rows,
                num_threads=self.num_workers,
                depth=self._depth,
                refill=self._refill,
            )
            self._pipeline = cast("Any", made)  # of batches with types
        return cast("TypedPipeline", self._pipeline)

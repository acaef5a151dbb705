"""NeighborLoader: a loader with the arguments and batches of PyG's, as a torch DataLoader."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import os
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler, get_worker_info

from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.run.protocols import BatchDevice
from graphbraid.errors import ConfigError
from graphbraid.graph import Graph
from graphbraid.loader.auto_tiers import tiers_of
from graphbraid.loader.batches import BatchLoader
from graphbraid.loader.inputs import as_ids, as_seeds, check_ids, drawn_seed
from graphbraid.loader.over_batches import OverBatches
from graphbraid.loader.presenting import present, pyg_classes, told_ids
from graphbraid.loader.pyg_options import REPLACED, check_options
from graphbraid.loader.settings import LoaderSettings
from graphbraid.loader.sources import FollowedData
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.lists import NeighborLists
from graphbraid.sampling.minibatch import MiniBatch
from graphbraid.sampling.rows import FeatureRows
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from torch_geometric.data import Data

CALLS = 2**31 - 1
"""Epoch of the batches that are requested by calling a loader with ids."""


class NeighborLoader(OverBatches, DataLoader[Any]):
    """A loader of mini-batches of sampled neighbours, prepared ahead by persistent threads.

    ``from graphbraid.loader import NeighborLoader`` replaces PyG's import: it takes the same arguments and
    yields the same kind of batches. It is a ``torch.utils.data.DataLoader``. If PyG is installed, it is also
    an instance of PyG's ``NeighborLoader``, and batches are PyG ``Data``; otherwise they are
    :class:`graphbraid.MiniBatch`. A batch is a pure function of (graph, arguments, ``seed``, epoch, step): it
    has the same bits for any number of threads, in any order and in any process, and :meth:`batches` can
    start an epoch at any step.

    Args:
        data: a :class:`graphbraid.Graph` or a homogeneous PyG ``Data``, whose dtypes and shapes batches keep.
        num_neighbors: fanout per hop, the hop nearest the seeds first; -1 takes all neighbours.
        input_nodes: the seeds: node ids, a bool mask or the name of one of the graph's splits. If None, all
            nodes.
        replace: whether to draw with replacement.
        weight_attr: name of the edge weights to draw by: one of PyG's edge attributes, or ``"edge_weight"``
            for the weights of a Graph. If None, all neighbours are equally likely.
        transform: function called with each batch; its result is yielded instead.
        input_id: ``(num_seeds,)`` values that batches have as ``input_id``. If None, positions in
            ``input_nodes``.
        batch_size: number of seeds per batch.
        shuffle: whether to permute the seeds anew in each epoch.
        drop_last: whether to leave out a last batch that is not full.
        sampler: iterable of an epoch's positions in ``input_nodes``, in place of ``shuffle``, such as PyG's
            ``ImbalancedSampler``.
        batch_sampler: iterable of lists of such positions, in place of ``batch_size``, ``shuffle`` and
            ``drop_last``.
        generator: generator that the seed is drawn from in place of torch's default one.
        pin_memory: whether to yield batches in page-locked memory, if there is an accelerator.
        layout: ``subgraph`` (PyG's) or ``blocks``; see :class:`graphbraid.SamplerConfig`.
        seed: random seed of the shuffle and of every draw. If None, one is drawn from torch's generator when
            the loader is made, so that ``torch.manual_seed`` governs it and two loaders differ; see
            ``loader.seed``.
        num_workers: number of threads that prepare batches, at least one (0, PyG's default, means one here).
        prefetch_factor: number of batches prepared ahead per thread. If None, three. On the host, threads
            that are so far ahead rest until a third of these batches is left, freeing cores for the model.
        return_edge_id: whether to keep ``e_id``, without which batches have no edge attributes.
        src_degree: whether blocks carry the graph's in-degrees, for layers that normalise by them.
        gather: whether to gather dense features while sampling. If False, they are gathered at the first use
            of ``batch.x``.
        device: device of the batches: a torch device, or an accelerator whose operators are registered
            (:mod:`graphbraid.collective`).
        plan: which side prepares each batch. ``"auto"`` measures the stages at the first iteration, finds a
            plan and changes it when durations drift; ``"cpu"`` and ``"gpu"`` let one side prepare all
            batches; a :class:`graphbraid.collective.Plan` or the path of a saved one is followed. If None,
            the CPU prepares all batches without a plan. Batches do not depend on it.
        hot_bytes: bytes of device memory for graph, labels and features if the device prepares batches; what
            does not fit stays on the host and is read over the link. If None, half of the free memory.
        tiers: source of the feature rows, such as :class:`graphbraid.features.TieredFeatures` of this graph;
            they are gathered from there ahead of their use, to the same bits; those that are hot stay on
            ``device``, and copies leave them out, by plan ``"cpu"`` if none is given. ``"auto"`` makes them
            of a store's features from the free memory, unless all of them fit. If None, from ``data``.
        topology: source of the adjacency lists, such as :class:`graphbraid.features.TieredTopology` of this
            graph. If None, ``data``.
        **others: further options of PyG's and torch's loaders. Those about worker processes have no effect;
            those that would change the batches are refused (``docs/sampling.md`` lists them).

    Raises:
        ConfigError: an option is invalid, or is one of PyG's that graphbraid does not support.
        DataError: a split is empty, weights are missing, or an attribute cannot be split into batches.
    """

    def __new__(cls, *_args: Any, **_options: Any) -> Self:
        """Make the loader an instance of PyG's class too, if PyG is installed."""
        kind = pyg_classes()
        made: Self = object.__new__(kind[1] if kind is not None and cls is NeighborLoader else cls)
        return made

    def __init__(
        self,
        data: Graph | Data,
        num_neighbors: Sequence[int],
        input_nodes: Tensor | Sequence[int] | str | None = None,
        *,
        replace: bool = False,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        input_id: Tensor | None = None,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        drop_last: bool = False,
        sampler: Sampler[int] | Iterable[int] | None = None,
        batch_sampler: Sampler[list[int]] | Iterable[list[int]] | None = None,
        generator: torch.Generator | None = None,
        pin_memory: bool = False,
        layout: str = "subgraph",
        seed: int | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        return_edge_id: bool = True,
        src_degree: bool = False,
        gather: bool = True,
        device: BatchDevice | str = "cpu",
        plan: Plan | str | os.PathLike[str] | None = None,
        hot_bytes: int | None = None,
        tiers: FeatureRows | str | None = None,
        topology: NeighborLists | None = None,
        **others: Any,
    ) -> None:
        given = {
            name: value for name, value in locals().items() if name not in ("self", "others", "__class__")
        }
        kept = check_options(others, inspect.signature(NeighborLoader.__init__).parameters)
        self._followed = FollowedData()
        source = dataclasses.replace(self._followed.read(data, weight_attr), lists=topology)
        seeds = as_seeds(input_nodes, source.graph)
        self._ordered = sampler is None and batch_sampler is None
        if plan is not None and not self._ordered:
            raise ConfigError("a plan is made for the loader's own order: leave out plan= or the sampler")
        named = {field.name for field in dataclasses.fields(LoaderSettings)}
        read = {
            "input_nodes": seeds,
            "batch_size": 1 if batch_sampler is not None else batch_size,
            "shuffle": bool(shuffle),
            "drop_last": drop_last and self._ordered,
            "weighted": weight_attr is not None,
            "seed": drawn_seed(generator) if seed is None else seed,
        }
        settings = LoaderSettings(**{name: given[name] for name in named & given.keys()} | read)
        given["tiers"] = tiers_of(source.graph, settings, tiers)
        self._batches = BatchLoader(dataclasses.replace(source, rows=given["tiers"]), settings)
        self._input_id = told_ids(input_nodes, input_id, seeds)
        self._calls = itertools.count()
        self._init_torch(
            len(seeds),
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            sampler=sampler,
            batch_sampler=batch_sampler,
            generator=generator,
            pin_memory=bool(pin_memory),
        )
        self.seed = self._batches.schedule.seed
        """Random seed of the shuffle and of every draw, as given or drawn; it reproduces the batches."""
        self._arguments = given | others | {"seed": self.seed}
        # Libraries that replace the sampler, such as Lightning, make the loader anew from these attributes.
        torchs = ("batch_size", "drop_last", "sampler", "batch_sampler", "generator", "pin_memory", "plan")
        self.data, self.weight_attr, self.transform = data, weight_attr, transform
        vars(self).update(kept | {n: v for n, v in self._arguments.items() if n not in (*torchs, *REPLACED)})
        self.device = self._batches.device
        self.node_sampler: SamplerConfig = self._batches.config
        """Options of the sampler: ``num_neighbors``, ``replace`` and more."""
        self.epoch = 0
        """Epoch that the next ``iter()`` runs."""

    def _init_torch(self, num_seeds: int, **options: Any) -> None:
        if options["shuffle"] and not num_seeds:
            options["shuffle"] = None  # torch's random sampler refuses an empty data set
        try:
            DataLoader.__init__(self, range(num_seeds), **options)  # type: ignore[arg-type]
        except ValueError as error:  # raised for options that exclude each other
            raise ConfigError(str(error)) from error
        del vars(self)["collate_fn"]  # the method serves; the attribute would be a reference cycle

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        if self._ordered:
            return len(self._batches)
        return len(self.batch_sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Return an iterator over the batches of the next epoch; each ``iter()`` is a new epoch."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        if self._ordered:
            return self.batches(epoch)
        self._read_again()
        return self._presented(self._batches.batches_of(self._sampled_positions(), epoch))

    def _get_iterator(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self)

    @typed
    def batches(self, epoch: int, start_step: int = 0, stop_step: int | None = None) -> Iterator[Any]:
        """Return an iterator over the batches of steps ``[start_step, stop_step)`` of an epoch in order.

        Every call with the same epoch and steps yields the same batches.

        Raises:
            ConfigError: the steps are outside the epoch, or the loader has a sampler, which decides the
                order.
        """
        if not self._ordered:
            raise ConfigError(
                "the order is that of a sampler, which has a state: iterate the loader, or leave it out"
            )
        self._read_again()
        return self._presented(self._batches.batches(epoch, start_step, stop_step))

    def __call__(self, index: Tensor | Sequence[int]) -> Any:
        """Return the batch of some of the seeds; see :meth:`collate_fn`."""
        return self.collate_fn(index)

    def collate_fn(self, index: Tensor | Sequence[int]) -> Any:
        """Return the batch of the seeds at the positions ``index`` in ``input_nodes``.

        Each call draws anew, as a step of an epoch that no iteration reaches.

        Raises:
            ConfigError: a position is out of range, or the loader follows a plan.
        """
        step, worker = next(self._calls), get_worker_info()
        if worker is not None:  # a torch loader wraps this one
            step = step * worker.num_workers + worker.id
        self._read_again()
        [batch] = self._batches.batches_of([self._checked(index)], CALLS, step)
        return self._present(batch)

    def _read_again(self) -> None:
        """Adopt what was set or deleted in ``loader.data`` since it was last read."""
        source = self._followed.changed(self.data, self.weight_attr, self.graph)
        if source is not None:
            given = self._arguments
            self._batches.read(dataclasses.replace(source, rows=given["tiers"], lists=given["topology"]))

    def _sampled_positions(self) -> Iterator[Tensor]:
        assert self.batch_sampler is not None
        return map(self._checked, self.batch_sampler)

    def _checked(self, index: Any) -> Tensor:
        index = as_ids(index, "positions in input_nodes")
        return check_ids(index, len(self.schedule.seeds), "positions in input_nodes")

    def _presented(self, batches: Generator[MiniBatch]) -> Generator[Any]:
        if self.pin_memory and not torch.accelerator.is_available():
            warnings.warn("pin_memory=True does nothing where there is no accelerator", stacklevel=3)
        for batch in batches:
            out = self._present(batch)
            del batch  # so that its buffer can be reused before the next batch
            yield out
            del out

    def _present(self, batch: MiniBatch) -> Any:
        return present(batch, input_id=self._input_id, pin=self.pin_memory, transform=self.transform)

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:  # its tensors are about to move to shared memory
            if self._batches.is_iterated:
                raise ConfigError(
                    "a loader cannot be sent to another process while it is iterated: its threads read what "
                    "sending moves; end the iteration, or close() the loader, first"
                )
            self._batches.close()
        return _remade, (type(self), self._arguments, self.epoch)

    def __str__(self) -> str:
        return f"{type(self).__name__}()"

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.node_sampler}, batches={len(self)}, batch_size={self.batch_size})"
        )


def _remade(kind: type[NeighborLoader], arguments: dict[str, Any], epoch: int) -> NeighborLoader:
    loader = kind(**arguments)
    loader.epoch = epoch
    return loader

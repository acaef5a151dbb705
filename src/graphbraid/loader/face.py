"""LoaderFace: what loaders have of torch's DataLoader and of PyG's, whatever batches start from."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info

from graphbraid.arguments import as_count, as_flag
from graphbraid.errors import ConfigError
from graphbraid.loader.auto_tiers import tiers_of
from graphbraid.loader.batches.batch_loader import BatchLoader
from graphbraid.loader.batches.settings import LoaderSettings
from graphbraid.loader.batches.sources import FollowedData
from graphbraid.loader.inputs import as_ids, check_ids, check_lists, check_order, drawn_seed
from graphbraid.loader.over_batches import OverBatches
from graphbraid.loader.presenting import check_transform, present
from graphbraid.loader.pyg_options import REPLACED, check_options
from graphbraid.sampling.batch_seeds import SeedSource
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.source import BatchSource
from graphbraid.sampling.subgraph import SUBGRAPH_TYPES, as_subgraph_type
from graphbraid.signatures import typed

CALLS = 2**31 - 1
"""Epoch of the batches that are requested by calling a loader with ids."""
NOT_OPTIONS = ("self", "others", "__class__")
"""Local names of a loader's constructor that are no options of its own."""
_TORCHS = ("batch_size", "drop_last", "sampler", "batch_sampler", "generator", "pin_memory")
"""Arguments that torch's constructor keeps as attributes."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Inputs:
    """What the batches of a loader start from."""

    source: BatchSource
    """Graph and attributes that batches are read from."""
    number: int
    """Number of inputs: nodes or links."""
    nodes: Tensor | None = None
    """``(number,)`` node ids, where these alone are the seeds."""
    seeds: SeedSource | None = None
    """What makes seeds of inputs where they are more than nodes."""
    input_id: Tensor | None = None
    """``(number,)`` values that batches have as ``input_id``. If None, positions."""


class LoaderFace(OverBatches, DataLoader[Any]):
    """Base class of loaders that are torch's DataLoader and have the arguments of one of PyG's loaders."""

    pyg_name: str
    """Name of PyG's loader that has the same arguments."""
    refused: Mapping[str, tuple[tuple[Any, ...], str]]
    """Arguments of that loader that this one refuses; see :func:`check_options`."""
    subgraph_types: tuple[str, ...] = SUBGRAPH_TYPES
    """What its ``subgraph_type`` may be."""
    inputs_name: str
    """Name of the argument that an epoch's positions are positions in."""
    data: Any
    """Graph or PyG ``Data``, as given."""
    weight_attr: str | None
    """Name of the weights that neighbours are drawn by, as given."""
    transform: Callable[[Any], Any] | None
    """Function of each batch, as given."""
    tiers_reason: str = ""
    """What ``tiers="auto"`` chose, and why; empty if it was not asked for."""
    kind_of: ClassVar[Callable[[type[LoaderFace], Any], type[LoaderFace]]]
    """Chooses the class to make where one is called with data; set by the room, which knows all classes."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Make the loader one of graphs with types if the data have some, and PyG's too if there is PyG."""
        kind = LoaderFace.kind_of(cls, args[0] if args else options.get("data"))
        return cast("Self", object.__new__(kind))

    @abstractmethod
    def _inputs(self, source: BatchSource, given: dict[str, Any]) -> Inputs:
        """Return what batches start from, made of the loader's arguments."""

    def _set_up(self, given: dict[str, Any], others: dict[str, Any]) -> None:
        """Make the loader from its own arguments by name, and the others that it was given."""
        kept = check_options(others, given, self.refused, self.pyg_name)
        self._ordered = given["sampler"] is None and given["batch_sampler"] is None
        if given["plan"] is not None and not self._ordered:
            raise ConfigError("a plan is made for the loader's own order: leave out plan= or the sampler")
        check_transform(given["transform"])
        for name in ("sampler", "batch_sampler"):
            check_order(given[name], name)
        check_lists(given["topology"])
        if given["shuffle"] is not None:
            given["shuffle"] = as_flag(given["shuffle"], "shuffle")
        given["drop_last"] = as_flag(given["drop_last"], "drop_last")
        if given["batch_size"] is not None:
            given["batch_size"] = as_count(given["batch_size"], "batch_size", least=1)
        seed = drawn_seed(given["generator"]) if given["seed"] is None else given["seed"]
        given["seed"] = as_count(seed, "seed", most=(1 << 63) - 1)
        self._batches, num_inputs, self._input_id = self._make_batches(given)
        self._calls = itertools.count()
        options = {name: given[name] for name in (*_TORCHS, "shuffle")}
        self._init_torch(num_inputs, **options | {"pin_memory": bool(given["pin_memory"])})
        self.seed = self._batches.schedule.seed
        """Random seed of the shuffle and of every draw, as given or drawn; it reproduces the batches."""
        self._arguments = given | others | {"seed": self.seed}
        # Libraries that replace the sampler, such as Lightning, make the loader anew from these attributes.
        hidden = (*_TORCHS, "plan", *REPLACED)
        vars(self).update(kept | {n: v for n, v in self._arguments.items() if n not in hidden})
        self.device = self._batches.device
        self.epoch = 0
        """Epoch that the next ``iter()`` runs."""

    def _make_batches(self, given: dict[str, Any]) -> tuple[BatchLoader, int, Tensor | None]:
        """Return the loader of the batches, the number of inputs, and the values of ``input_id`` if told."""
        self._tracker = FollowedData()
        read = self._tracker.read(given["data"], given["weight_attr"])
        source = dataclasses.replace(read, lists=given["topology"])
        inputs = self._inputs(source, given)
        settings = self._settings(given, inputs.nodes)
        is_plain = inputs.nodes is not None and self._ordered
        given["tiers"], self.tiers_reason = tiers_of(
            source.graph, settings, given["tiers"], epochs=given.get("epochs"), is_plain=is_plain
        )
        if "epochs" in given:
            given["epochs"] = None  # which a loader that is made anew has no use for: its tiers are made
        self._has_seed_source = inputs.seeds is not None
        source = dataclasses.replace(inputs.source, rows=given["tiers"])
        return BatchLoader(source, settings, inputs.seeds), inputs.number, inputs.input_id

    def _settings(self, given: dict[str, Any], nodes: Tensor | None) -> LoaderSettings:
        named = {field.name for field in dataclasses.fields(LoaderSettings)}
        read = {
            "input_nodes": nodes,
            "batch_size": 1 if given["batch_sampler"] is not None else given["batch_size"],
            "shuffle": bool(given["shuffle"]),
            "drop_last": given["drop_last"] and self._ordered,
            "weighted": given["weight_attr"] is not None,
            "subgraph_type": as_subgraph_type(given["subgraph_type"], self.subgraph_types),
        }
        return LoaderSettings(**{name: given[name] for name in named & given.keys()} | read)

    def _init_torch(self, num_inputs: int, **options: Any) -> None:
        if options["shuffle"] and not num_inputs:
            options["shuffle"] = None  # torch's random sampler refuses an empty data set
        try:
            DataLoader.__init__(self, range(num_inputs), **options)  # type: ignore[arg-type]
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
        """Return the batch of some of the inputs; see :meth:`collate_fn`."""
        return self.collate_fn(index)

    def collate_fn(self, index: Tensor | Sequence[int]) -> Any:
        """Return the batch of the inputs, nodes or links, at the positions ``index``.

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
        source = self._tracker.changed(self.data, self.weight_attr, self.graph)
        if source is None:
            return
        given, seeds = self._arguments, None
        source = dataclasses.replace(source, lists=given["topology"])
        if self._has_seed_source:
            inputs = self._inputs(source, given)
            if inputs.number != len(self.schedule.seeds):
                raise ConfigError(
                    f"{self.inputs_name} has {inputs.number} entries now, and had {len(self.schedule.seeds)} "
                    "when the loader was made; make another one"
                )
            source, seeds = inputs.source, inputs.seeds
        self._batches.read(dataclasses.replace(source, rows=given["tiers"]), seeds)

    def _sampled_positions(self) -> Iterator[Tensor]:
        assert self.batch_sampler is not None
        return map(self._checked, self.batch_sampler)

    def _checked(self, index: Any) -> Tensor:
        what = f"positions in {self.inputs_name}"
        return check_ids(as_ids(index, what), len(self.schedule.seeds), what)

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
        return remade, (type(self), self._arguments, self.epoch)

    def __str__(self) -> str:
        return f"{type(self).__name__}()"

    def __repr__(self) -> str:
        batches = f"batches={len(self)}, batch_size={self.batch_size}"
        return f"{type(self).__name__}({self._batches.config}, {batches})"


def remade(kind: type[LoaderFace], arguments: dict[str, Any], epoch: int) -> LoaderFace:
    """Return a loader of a kind, made of its arguments by name, whose next epoch is ``epoch``."""
    loader = kind(**arguments)
    loader.epoch = epoch
    return loader

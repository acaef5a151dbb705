"""NeighborLoader, and PyGLoaderBase: the interfaces of torch's DataLoader and of PyG's loaders."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import warnings
from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeVar, Unpack, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info

from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.run.executor import Executor
from graphbraid.collective.run.stages import Context
from graphbraid.errors import ConfigError
from graphbraid.graph import EdgeType, Graph
from graphbraid.graph.types import ONLY_NODE_TYPE
from graphbraid.loader.auto_tiers import tiers_of
from graphbraid.loader.batch_loader import BatchLoader
from graphbraid.loader.keywords import NEIGHBOR_ORDER, NeighborKeywords, names_in
from graphbraid.loader.options import REFUSED, LoaderOptions, check_others, refuse_one_type_only
from graphbraid.loader.sources import DataTracker, SeedNodes, as_ids, as_input_id, as_seeds, check_ids
from graphbraid.loader.times import read_times, seed_times
from graphbraid.sampling.batch_seeds import SeedSource, TreeSeeds
from graphbraid.sampling.config import SUBGRAPH_TYPES, SeedSchedule, as_subgraph_type
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.source import BatchSource
from graphbraid.signatures import typed

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

    from graphbraid.loader.pyg_data import SampledData

T = TypeVar("T", bound="PyGLoaderBase")
CALLS = 2**31 - 1
"""Epoch of the batches that are requested by calling a loader with ids."""
_TORCHS = ("batch_size", "shuffle", "drop_last", "sampler", "batch_sampler", "generator", "pin_memory")
"""Options that torch's constructor takes."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Inputs:
    """The inputs of a loader, whose batches start from them."""

    source: BatchSource
    """Graph and attributes that batches are read from."""
    number: int
    """Number of inputs: nodes, links or clusters."""
    input_type: str | EdgeType = ONLY_NODE_TYPE
    """Node type of the inputs, or the relation of links."""
    nodes: Tensor | None = None
    """``(number,)`` node ids within the type, if the seeds are plain nodes."""
    seeds: SeedSource | None = None
    """Makes the seeds of inputs such as links, as ids in the whole graph."""
    input_id: Tensor | None = None
    """``(number,)`` values that batches have as ``input_id``. If None, positions."""


class PyGLoaderBase(DataLoader[Any]):
    """Base class of loaders that are torch's DataLoader and have the arguments of one of PyG's loaders."""

    pyg_name: str
    """Name of PyG's loader that has the same arguments."""
    takes: tuple[str, ...]
    """Names of the options that it takes."""
    order: ClassVar[tuple[str, ...]] = ()
    """PyG's order of the arguments that may be given by position, after those that its constructor names."""
    refused: Mapping[str, tuple[tuple[Any, ...], str]]
    """Arguments of PyG's loader that this one refuses; see :func:`check_others`."""
    subgraph_types: tuple[str, ...] = SUBGRAPH_TYPES
    """Allowed values of ``subgraph_type``."""
    inputs_name: str
    """Name of the argument whose positions an epoch iterates."""
    is_also_pygs: ClassVar[bool] = False
    """Whether loaders are also instances of PyG's class if PyG is installed."""
    data: Any
    """Graph or PyG data, as given."""
    tiers_reason: str = ""
    """Choice of ``tiers="auto"`` with its reason; empty for other tiers."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "takes" in vars(cls):  # help() and libraries that make a loader anew read the options there
            vars(cls)["__init__"].__signature__ = _with_options(cls)

    def __new__(cls, *_args: Any, **_options: Any) -> Self:
        """Make the loader; if PyG is installed, it is also an instance of PyG's class."""
        return cast("Self", object.__new__(loader_class_for(cast("Any", cls))))

    @abstractmethod
    def _inputs(self, source: BatchSource, options: LoaderOptions) -> Inputs:
        """Return the inputs that batches start from."""

    def _by_name(self, values: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options by name, also those by position in PyG's order; TypeError as in any call."""
        if len(values) > len(self.order):
            what = f"takes {len(self.order)} more arguments by position; got {len(values)}"
            raise TypeError(f"{self.pyg_name} {what}")
        placed = dict(zip(self.order, values, strict=False))
        if twice := placed.keys() & options.keys():
            raise TypeError(f"{self.pyg_name} got multiple values for argument {min(twice)!r}")
        return {**placed, **options}

    def _set_up(self, data: Any, given: dict[str, Any], **fixed: Any) -> None:
        """Make the loader of options ``given`` by users, and of those ``fixed`` by the loader's class."""
        others = {name: value for name, value in given.items() if name not in self.takes}
        kept = check_others(others, self.takes, self.refused, self.pyg_name)
        as_subgraph_type(given.get("subgraph_type"), self.subgraph_types)
        own = {name: value for name, value in given.items() if name in self.takes}
        options = LoaderOptions(**own | fixed)
        self._tracker = DataTracker(options.weight_attr)
        source = self._tracker.read(data)
        if source.graph.is_typed:
            refuse_one_type_only(options)
        source = dataclasses.replace(source, lists=options.topology)
        self.data = data
        inputs = self._inputs(source, options)
        nodes, kind = inputs.nodes, inputs.input_type
        seeds = None if nodes is None else SeedNodes(node_type=cast("str", kind), ids=nodes)
        settings = options.of_seeds(seeds)
        rows = None
        if options.tiers is not None or options.epochs is not None:
            is_plain = seeds is not None and options.is_ordered
            rows, self.tiers_reason = tiers_of(
                source.graph, settings, options.tiers, epochs=options.epochs, is_plain=is_plain
            )
        # Tiers are made: a loader that is made anew has them, and no use for the epochs.
        self._options = options = dataclasses.replace(options, tiers=rows, epochs=None)
        self._input_id = inputs.input_id
        self._batches = BatchLoader(self._with_rows(inputs.source), settings, inputs.seeds, inputs.input_type)
        self._calls = itertools.count()
        self._init_torch(inputs.number, options)
        self.seed: int = self._batches.schedule.seed
        """Random seed of the shuffle and of every draw, as given or drawn; it reproduces the batches."""
        made = {"seed": self.seed} | ({"tiers": rows} if "tiers" in given else {})
        self._arguments = {"data": data} | {n: v for n, v in given.items() if n != "epochs"} | made
        # Libraries that replace the sampler, such as Lightning, make the loader anew from these attributes.
        names = [name for name in self.takes if name not in (*_TORCHS, "plan")]
        vars(self).update(kept | {name: getattr(options, name) for name in names})
        self.device = self._batches.device
        self.epoch = 0
        """Epoch that the next ``iter()`` runs."""

    def _with_rows(self, source: BatchSource) -> BatchSource:
        rows = self._options.tiers
        assert not isinstance(rows, str), "tiers are made"
        return dataclasses.replace(source, rows=rows)

    def _init_torch(self, num_inputs: int, options: LoaderOptions) -> None:
        named: dict[str, Any] = {name: getattr(options, name) for name in _TORCHS}
        named["pin_memory"] = bool(named["pin_memory"])
        if named["shuffle"] and not num_inputs:
            named["shuffle"] = None  # torch's random sampler refuses an empty data set
        try:
            DataLoader.__init__(self, range(num_inputs), **named)  # type: ignore[arg-type]
        except ValueError as error:  # raised for options that exclude each other
            raise ConfigError(str(error)) from error
        del vars(self)["collate_fn"]  # the method serves; the attribute would be a reference cycle

    @property
    def graph(self) -> Graph:
        """Graph that batches are sampled from."""
        return self._batches.graph

    @property
    def schedule(self) -> SeedSchedule:
        """Schedule of the seeds of each step."""
        return self._batches.schedule

    @property
    def plan(self) -> Plan | None:
        """Plan in force; None before there is one."""
        return self._batches.plan

    @property
    def executor(self) -> Executor | None:
        """Executor of the latest planned iteration; ``ops`` is its timeline, ``events`` its messages."""
        return self._batches.executor

    def context(self, workers: int) -> Context:
        """Return the context that :mod:`graphbraid.collective` makes this loader's operators from."""
        return self._batches.context(workers)

    @property
    def stage_seconds(self) -> dict[str, float]:
        """Seconds in ``sample`` and ``gather``, summed over threads, and the number of ``batches``.

        Counted since the last :meth:`reset_stage_seconds`.
        """
        return self._batches.stage_seconds

    def reset_stage_seconds(self) -> None:
        """Reset :attr:`stage_seconds` to zero."""
        self._batches.reset_stage_seconds()

    def close(self) -> None:
        """Stop the threads and end open iterators; batches remain valid.

        A later iteration starts the threads again.
        """
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        if self._options.is_ordered:
            return len(self._batches)
        return len(self.batch_sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Return an iterator over the batches of the next epoch; each ``iter()`` is a new epoch."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        if self._options.is_ordered:
            return self.batches(epoch)
        self._read_again()
        assert self.batch_sampler is not None
        positions = map(self._checked, self.batch_sampler)
        return self._to_user(self._batches.batches_of(positions, epoch))

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
        if not self._options.is_ordered:
            raise ConfigError(
                "a sampler decides the order and has a state: iterate the loader, or leave the sampler out"
            )
        self._read_again()
        return self._to_user(self._batches.batches(epoch, start_step, stop_step))

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
        return self._to_user_batch(batch)

    def _read_again(self) -> None:
        """Read ``loader.data`` again if an attribute was set or deleted since."""
        source = self._tracker.changed(self.data, self.graph)
        if source is None:
            return
        seeds = None
        source = dataclasses.replace(source, lists=self._options.topology)
        if self._batches.starts_from_inputs:
            inputs = self._inputs(source, self._options)
            if inputs.number != len(self.schedule.seeds):
                raise ConfigError(
                    f"{self.inputs_name} has {inputs.number} entries now, and had {len(self.schedule.seeds)} "
                    "when the loader was made; make another one"
                )
            source, seeds = inputs.source, inputs.seeds
        self._batches.read(self._with_rows(source), seeds)

    def _checked(self, index: Any) -> Tensor:
        what = f"positions in {self.inputs_name}"
        return check_ids(as_ids(index, what), len(self.schedule.seeds), what)

    def _to_user(self, batches: Generator[MiniBatch]) -> Generator[Any]:
        if self.pin_memory and not torch.accelerator.is_available():
            warnings.warn("pin_memory=True has no effect without an accelerator", stacklevel=3)
        for batch in batches:
            out = self._to_user_batch(batch)
            del batch  # so that its buffer can be reused before the next batch
            yield out
            del out

    def _to_user_batch(self, batch: MiniBatch) -> Any:
        """Return the object that users get for a batch and may change in place."""
        if self._input_id is not None:
            batch.input_id = self._input_id[batch.input_id.cpu()].to(batch.input_id.device)
        pin = self.pin_memory and torch.accelerator.is_available()
        kind, out = pyg_batch_class(), cast("Any", batch)
        if batch.is_typed:
            if batch.layout == "subgraph" and kind is not None:
                data: Any = batch.to_data()
                on_host = self.device == torch.device("cpu")
                out = data.to(self.device) if not on_host else data.pin_memory() if pin else data
        else:
            if kind is not None:
                out = kind.of(batch)
            if pin and batch.n_id.device.type == "cpu":
                for name in batch.lazy_keys():
                    batch.value(name)
                out = out.pin_memory()
        return out if self._options.transform is None else self._options.transform(out)

    def filter_fn(self, out: object) -> NoReturn:
        """Raise a ConfigError: :meth:`collate_fn` returns complete batches."""
        raise ConfigError("a loader makes complete batches: there is no SamplerOutput to filter")

    def enable_cpu_affinity(self, loader_cores: object = None) -> NoReturn:
        """Raise a ConfigError: there are no worker processes."""
        raise _about_processes("enable_cpu_affinity", "give the process its cores with taskset")

    def enable_multithreading(self, worker_threads: object = None) -> NoReturn:
        """Raise a ConfigError: there are no worker processes."""
        raise _about_processes("enable_multithreading", "num_workers is the number of threads")

    def enable_memory_log(self) -> NoReturn:
        """Raise a ConfigError: there are no worker processes."""
        raise _about_processes("enable_memory_log", "threads share the process's memory")

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:  # its tensors are about to move to shared memory
            if self._batches.is_iterated:
                raise ConfigError(
                    "a loader cannot be sent to another process while it is iterated: sending moves the "
                    "memory that its threads read. First end the iteration, or close() the loader"
                )
            self._batches.close()
        kind = vars(type(self)).get("_called", type(self))
        return _remade, (kind, self._arguments, self.epoch)

    def __str__(self) -> str:
        return f"{type(self).__name__}()"

    def __repr__(self) -> str:
        batches = f"batches={len(self)}, batch_size={self.batch_size}"
        return f"{type(self).__name__}({self._batches.config}, {batches})"


@functools.cache
def pyg_batch_class() -> type[SampledData] | None:
    """Return the class of batches that are PyG's ``Data`` if PyG is installed, else None."""
    try:
        from graphbraid.loader.pyg_data import SampledData
    except ModuleNotFoundError as error:
        if not _is_without_pyg(error):
            raise
        return None
    return SampledData


def _is_without_pyg(error: ModuleNotFoundError) -> bool:
    """Return whether a module could not be imported because PyG is not installed."""
    return (error.name or "").split(".")[0] == "torch_geometric"


@functools.cache
def loader_class_for(called: type[T]) -> type[T]:
    """Return the class to make where ``called`` is called.

    If PyG is installed, it is a subclass of ``called`` and of PyG's class of the same name, whose code does
    not run. A user's own subclass is returned as it is.
    """
    if not vars(called).get("is_also_pygs"):
        return called
    try:
        from torch_geometric import loader as pyg
    except ModuleNotFoundError as error:
        if not _is_without_pyg(error):
            raise
        return called
    named = {"__doc__": called.__doc__, "__module__": called.__module__, "_called": called}
    return cast("type[T]", type(called.__name__, (called, getattr(pyg, called.pyg_name)), named))


def _with_options(kind: type[PyGLoaderBase]) -> inspect.Signature:
    """Return the signature of a loader's constructor with all options that it takes."""
    own = list(inspect.signature(vars(kind)["__init__"]).parameters.values())
    explicit = [p for p in own if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    named = {parameter.name for parameter in explicit}
    fields = {one.name: one for one in dataclasses.fields(LoaderOptions) if one.name in kind.takes}
    placed = [name for name in kind.order if name in fields]
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD if name in placed else inspect.Parameter.KEYWORD_ONLY,
            default=fields[name].default,
            annotation=fields[name].type,
        )
        for name in dict.fromkeys((*placed, *fields))
        if name not in named
    ]
    return inspect.Signature(
        [*explicit, *options, inspect.Parameter("others", inspect.Parameter.VAR_KEYWORD)]
    )


def _remade(kind: type[PyGLoaderBase], arguments: dict[str, Any], epoch: int) -> PyGLoaderBase:
    """Return a loader of a kind, made of its arguments by name, whose next epoch is ``epoch``."""
    loader = kind(**arguments)
    loader.epoch = epoch
    return loader


def _about_processes(name: str, instead: str) -> ConfigError:
    return ConfigError(f"{name} is about worker processes, and this loader has none: {instead}")


class NeighborLoader(PyGLoaderBase):
    """A loader of mini-batches of sampled neighbours, prepared ahead by persistent threads.

    ``from graphbraid.loader import NeighborLoader`` replaces PyG's import: it takes the same arguments and
    yields the same kind of batches. It is a ``torch.utils.data.DataLoader``. If PyG is installed, it is also
    an instance of PyG's ``NeighborLoader``, and batches are PyG ``Data``; otherwise they are
    :class:`graphbraid.MiniBatch`. A batch is a pure function of (graph, arguments, ``seed``, epoch, step): it
    has the same bits for any number of threads, in any order and in any process, and :meth:`batches` can
    start an epoch at any step.

    In a graph with types, ``num_neighbors`` is a list for all relations or a dict of lists by relation.
    ``input_nodes`` is the node type of the seeds, or a pair of it and ids, a mask or the name of a split.
    Batches are ``HeteroData``; in layout ``blocks``, or without PyG, :class:`graphbraid.MiniBatch`.

    Args:
        data: a :class:`graphbraid.Graph`, a PyG ``Data`` or a ``HeteroData``, whose dtypes and shapes batches
            keep. Of a graph with types and of ``HeteroData``, batches are ``HeteroData``.
        num_neighbors: fanout per hop, the hop nearest the seeds first; -1 takes all neighbours. If empty,
            batches have the seeds alone.
        input_nodes: the seeds: node ids, a bool mask or the name of one of the graph's splits. If None, all
            nodes.
        *more: other arguments in PyG's order, from ``input_time`` on.
        **options: the other options of :class:`graphbraid.loader.LoaderOptions` by name, except those of
            links; and those of PyG's and torch's loaders. Their options about worker processes have no
            effect. Those that would change the batches are refused (``docs/sampling.md`` lists them).

    Raises:
        ConfigError: an option is invalid, or is one of PyG's that graphbraid does not support.
        DataError: a split is empty, weights are missing, or an attribute cannot be split into batches.
    """

    pyg_name = "NeighborLoader"
    takes = names_in(NeighborKeywords, "num_neighbors", "input_nodes")
    order = NEIGHBOR_ORDER
    refused = REFUSED
    inputs_name = "input_nodes"
    is_also_pygs = True

    def __init__(
        self,
        data: Graph | Data | HeteroData,
        num_neighbors: Any,
        input_nodes: Any = None,
        *more: Any,
        **options: Unpack[NeighborKeywords],
    ) -> None:
        named = self._by_name(more, options)
        self._set_up(data, {"num_neighbors": num_neighbors, "input_nodes": input_nodes, **named})
        self.node_sampler = self._batches.config
        """Options of the sampler: ``num_neighbors``, ``replace`` and more."""

    def _inputs(self, source: BatchSource, options: LoaderOptions) -> Inputs:
        graph, seeds = source.graph, as_seeds(options.input_nodes, source.graph)
        nodes, node_type = seeds.ids, seeds.node_type
        input_id = nodes if seeds.is_mask else None
        if options.input_id is not None:
            input_id = as_input_id(options.input_id, len(nodes), "seed")
        times = None if options.time_attr is None else read_times(source, options, self.data)
        if times is None and not options.disjoint:
            return Inputs(
                source=source, number=len(nodes), input_type=node_type, nodes=nodes, input_id=input_id
            )
        whole = nodes + graph.first_id_of(node_type)
        trees = TreeSeeds(whole)
        if times is not None:
            source, shown = times.source, seed_times(options.input_time, "input_time", len(nodes))
            trees = TreeSeeds(
                whole,
                times=times.of_nodes(node_type, nodes)
                if shown is None
                else times.ordered(shown, "input_time"),
                edge_times=times.edge_times,
                shown_times=shown,
            )
        return Inputs(source=source, number=len(nodes), input_type=node_type, seeds=trees, input_id=input_id)

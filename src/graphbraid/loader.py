"""NeighborLoader: what users iterate; PyG's arguments and batch attributes over graphbraid's sampler."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphbraid.collective.drift import Replanning
from graphbraid.collective.executor import Executor
from graphbraid.collective.plan import Plan
from graphbraid.collective.profiler import measure
from graphbraid.collective.scheduler import Limits, fixed_plan, make_plan
from graphbraid.collective.stages import Context, Device, Operators
from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.graph import Graph
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.cpu import Pipeline, make_pipeline
from graphbraid.sampling.minibatch import BatchSource, MiniBatch
from graphbraid.sampling.schedule import SeedSchedule
from graphbraid.signatures import typed
from graphbraid.topology import degrees_and_loops

if TYPE_CHECKING:
    from torch_geometric.data import Data

_UNSUPPORTED = {
    "disjoint": "each seed in a subgraph of its own",
    "time_attr": "temporal sampling",
    "input_time": "temporal sampling",
    "neighbor_sampler": "a sampler of the caller's",
    "transform_sampler_output": "a hook on PyG's SamplerOutput",
    "custom_cls": "a batch class of the caller's",
}
PLANS = ("auto", "cpu", "gpu")
"""Plans by name."""

_MEANINGLESS = frozenset(
    [
        "directed",
        "filter_per_worker",
        "is_sorted",
        "multiprocessing_context",
        "persistent_workers",
        "pin_memory",
        "pin_memory_device",
        "subgraph_type",
        "temporal_strategy",
        "timeout",
        "worker_init_fn",
    ]
)


class NeighborLoader:
    """Mini-batches of sampled neighbours, prepared ahead by persistent threads.

    ``from graphbraid.loader import NeighborLoader`` takes the place of PyG's import: the same arguments, the
    same batch attributes. A batch is a pure function of (graph, arguments, ``seed``, epoch, step): the number
    of threads, the order and the process change no bit of it, and :meth:`batches` starts an epoch at any
    step.

    Args:
        data: a :class:`graphbraid.Graph` or a homogeneous PyG ``Data``.
        num_neighbors: fanout per hop, first hop from the seeds first; -1 takes all neighbours.
        input_nodes: seeds: node ids, a bool mask, the name of one of the graph's splits, or None for all
            nodes.
        batch_size: seeds per batch.
        shuffle: permute the seeds anew in each epoch.
        drop_last: leave out a last batch that is not full.
        replace: draw with replacement.
        weight_attr: draw by edge weights: the name of PyG's edge attribute, or ``"edge_weight"`` for a
            Graph's own.
        layout: ``subgraph`` (PyG's) or ``blocks``; see :class:`graphbraid.SamplerConfig`.
        seed: of the shuffle and of every draw. None draws one from torch's generator when the loader is made,
            so that ``torch.manual_seed`` governs it and two loaders differ; :attr:`seed` tells it.
        num_workers: threads that prepare batches, at least one (PyG's 0 is one here).
        prefetch_factor: batches prepared ahead per thread.
        return_edge_id: keep ``e_id``, without which batches have no edge attributes.
        src_degree: give blocks the graph's in-degrees, for layers that normalise by them.
        gather: gather dense features while sampling; False leaves it to the first use of ``batch.x``.
        transform: called with each batch as PyG ``Data``; what it returns is yielded instead.
        device: where batches are yielded: a torch device, or an accelerator whose operators are registered
            (:mod:`graphbraid.collective`).
        plan: who prepares which batch: ``"auto"`` measures the stages at the first iteration, finds a plan
            and changes it when durations drift; ``"cpu"`` and ``"gpu"`` let one side prepare all; also a
            :class:`graphbraid.collective.Plan` or the path of a saved one. None: the CPU prepares, without
            planning. Batches do not depend on it.
        hot_bytes: device memory that may hold graph, labels and features where the device prepares batches;
            what does not fit stays on the host and is read over the link. None: half of what is free.
        **pyg_options: PyG's further options. Those about its worker processes have no meaning here and are
            taken silently; those that would change the batches are refused.

    Raises:
        ConfigError: an option that cannot be meant, or PyG's that graphbraid does not have.
        DataError: seeds outside the graph, an empty split, weights that are missing.
    """

    def __init__(
        self,
        data: Graph | Data,
        num_neighbors: Sequence[int],
        input_nodes: Tensor | str | None = None,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        replace: bool = False,
        weight_attr: str | None = None,
        layout: str = "subgraph",
        seed: int | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        return_edge_id: bool = True,
        src_degree: bool = False,
        gather: bool = True,
        transform: Callable[[Data], Any] | None = None,
        device: Device | str = "cpu",
        plan: Plan | str | os.PathLike[str] | None = None,
        hot_bytes: int | None = None,
        **pyg_options: Any,
    ) -> None:
        _check_pyg_options(pyg_options)
        graph, node_attrs, edge_attrs = _as_graph(data, weight_attr)
        if not hasattr(num_workers, "__index__"):
            raise ConfigError(f"num_workers must be a whole number; got {num_workers!r}")
        if num_workers < 0:
            raise ConfigError(f"num_workers must not be negative; got {num_workers}")
        if prefetch_factor is not None and prefetch_factor < 1:
            raise ConfigError(f"prefetch_factor must be at least 1; got {prefetch_factor}")
        if hot_bytes is not None and hot_bytes < 0:
            raise ConfigError(f"hot_bytes must not be negative; got {hot_bytes}")
        self.sampler = SamplerConfig(
            fanouts=_as_fanouts(num_neighbors),
            replace=replace,
            layout=layout,
            weighted=weight_attr is not None,
            return_edge_id=return_edge_id or graph.csc.weight is not None,
        )
        self.schedule = SeedSchedule(
            seeds=_as_seeds(input_nodes, graph),
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=_drawn_seed() if seed is None else seed,
        )
        self.graph, self.transform = graph, transform
        self.epoch = 0
        """The epoch the next ``iter()`` runs."""
        self.num_workers = max(num_workers, 1)
        self._depth = self.num_workers * (prefetch_factor or 2)
        self._refill: int | None = None
        self._gather, self._hot_bytes = gather, hot_bytes
        degree, loop = degrees_and_loops(graph.csc) if src_degree else (None, None)
        self._source = BatchSource(
            graph=graph, node_attrs=node_attrs, edge_attrs=edge_attrs, src_degree=degree, src_loop=loop
        )
        self.device: Device = _as_device(device) if isinstance(device, str) else device
        if plan is None and not isinstance(self.device, torch.device):
            plan = "auto"
        self.plan: Plan | None = read_plan(plan)
        """The plan in force, once there is one."""
        self.executor: Executor | None = None
        """What ran the latest planned iteration: its timeline in ``ops``, its messages in ``events``."""
        self._plan_kind = plan if isinstance(plan, str) and plan in PLANS else None
        self._operators: Operators | None = None
        self._pipeline: Pipeline | None = None
        self._before: dict[str, float] = {}
        self._open: weakref.WeakSet[Iterator[Any]] = weakref.WeakSet()

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self.schedule.num_steps

    @property
    def seed(self) -> int:
        """Of the shuffle and every draw, as given or drawn: given back, it makes the same batches."""
        return self.schedule.seed

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next epoch; each ``iter()`` is a new one."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        return self.batches(epoch)

    @typed
    def batches(self, epoch: int, start_step: int = 0, stop_step: int | None = None) -> Iterator[Any]:
        """The batches of steps ``[start_step, stop_step)`` of an epoch, in order.

        They are the same whenever they are asked for.

        Raises:
            ConfigError: steps outside the epoch.
        """
        last = len(self) if stop_step is None else stop_step
        if epoch < 0 or not 0 <= start_step <= last <= len(self):
            raise ConfigError(
                f"epoch must be >= 0 and steps in [0, {len(self)}]; "
                f"got epoch {epoch}, steps {start_step} to {last}"
            )
        iterator = self._iterate(epoch, start_step, last)
        self._open.add(iterator)
        return iterator

    def _iterate(self, epoch: int, start_step: int, last: int) -> Iterator[Any]:
        if self.plan is not None or self._plan_kind is not None:
            yield from self._iterate_planned(epoch, start_step, last)
            return
        for prepared in self._running().run(self.schedule, epoch, start_step, last):
            batch = MiniBatch(self._source, prepared, layout=self.sampler.layout, epoch=epoch)
            del prepared  # a reused buffer must not wait for the next batch to be freed
            if isinstance(self.device, torch.device):
                batch = batch.to(self.device)
            yield batch if self.transform is None else self.transform(batch.to_data())
            del batch

    def _iterate_planned(self, epoch: int, start_step: int, last: int) -> Iterator[Any]:
        plan = self.plan = self.plan or self._make_plan()
        if self._operators is None:
            context = dataclasses.replace(self.context(plan.workers), lookahead=plan.times.lookahead)
            self._operators = Operators.of(context)
        keeps = self._plan_kind in ("cpu", "gpu")  # asked for by name: kept whatever it takes
        executor = self.executor = Executor(
            self._operators,
            plan,
            num_steps=len(self),
            epoch=epoch,
            start=start_step,
            stop=last,
            replanning=None if keeps else Replanning(),
        )
        try:
            with contextlib.closing(iter(executor)) as batches:
                for batch in batches:
                    yield batch if self.transform is None else self.transform(batch.to_data())
        finally:
            self.plan = executor.plan

    def _make_plan(self) -> Plan:
        """Measure what can be measured without the model, whose time the first steps then show."""
        profile = measure(self.context(self.num_workers), [self.num_workers])
        limits = Limits(most_cbs=max(64, 2 * self.num_workers))
        if self._plan_kind == "auto":
            return make_plan(profile, len(self), limits)
        if self._plan_kind == "gpu" and profile.times[0].uva is None:
            raise ConfigError(
                f"plan='gpu' needs a device that prepares batches; {self.device} does not. "
                "A CUDA device does where triton is installed"
            )
        return fixed_plan(profile, len(self), 1.0 if self._plan_kind == "cpu" else 0.0, limits)

    def context(self, workers: int) -> Context:
        """What :mod:`graphbraid.collective` makes this loader's operators from."""
        return Context(
            source=self._source,
            sampler=self.sampler,
            schedule=self.schedule,
            device=self.device,
            workers=workers,
            gather=self._gather,
            hot_bytes=self._hot_bytes,
        )

    def work_in_turns(self, workers: int, depth: int, refill: int | None) -> None:
        """Let ``workers`` threads prepare up to ``depth`` batches ahead from the next iteration on.

        With ``refill`` they then rest until so many of them are left; see :attr:`busy_threads`.
        """
        self.close()
        self.num_workers, self._depth, self._refill = workers, depth, refill

    @property
    def ahead(self) -> int:
        """Batches that the threads prepare ahead, at most."""
        return self._depth

    @property
    def busy_threads(self) -> int:
        """Threads that prepare batches now, or are about to; the others' cores are free."""
        return 0 if self._pipeline is None else self._pipeline.busy_threads()

    @property
    def stage_seconds(self) -> dict[str, float]:
        """Seconds in ``sample`` and ``gather``, summed over threads, and the number of ``batches``.

        Counted from the last :meth:`reset_stage_seconds`.
        """
        now = self._counted_seconds()
        return {stage: seconds - self._before.get(stage, 0.0) for stage, seconds in now.items()}

    def reset_stage_seconds(self) -> None:
        """Start :attr:`stage_seconds` anew."""
        self._before = self._counted_seconds()

    def _counted_seconds(self) -> dict[str, float]:
        counts = [self._pipeline, self._operators]
        found = [count.stage_seconds() for count in counts if count is not None]
        return {name: sum(part[name] for part in found) for name in ("sample", "gather", "batches")}

    def close(self) -> None:
        """Stop the threads and end open iterators; batches stay valid.

        A later iteration starts threads again.
        """
        for iterator in list(self._open):
            iterator.close()  # type: ignore[attr-defined]
        self._pipeline, self._operators, self._before = None, None, {}

    def __enter__(self) -> NeighborLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"NeighborLoader({self.sampler}, batches={len(self)}, batch_size={self.schedule.batch_size})"

    def _running(self) -> Pipeline:
        if self._pipeline is None:
            x = self.graph.x
            can_gather = self._gather and isinstance(x, Tensor) and x.ndim == 2 and x.is_contiguous()
            self._pipeline = make_pipeline(
                self.graph.csc,
                self.sampler,
                x if can_gather and isinstance(x, Tensor) else None,
                num_threads=self.num_workers,
                depth=self._depth,
                refill=self._refill,
            )
        return self._pipeline


def _drawn_seed() -> int:
    """A number in ``[0, 2**63)`` from torch's generator, as ``torch.utils.data`` seeds its workers."""
    return int(torch.empty((), dtype=torch.int64).random_())


def read_plan(plan: Plan | str | os.PathLike[str] | None) -> Plan | None:
    """A plan given as it is or by its file; None for a plan by name, which is made later, or for none.

    Raises:
        ConfigError: it is neither a name nor a file.
        DataError: the file holds no sound plan.
    """
    if plan is None or isinstance(plan, Plan) or (isinstance(plan, str) and plan in PLANS):
        return plan if isinstance(plan, Plan) else None
    if isinstance(plan, str | os.PathLike) and Path(plan).is_file():
        return Plan.load(plan)
    raise ConfigError(
        f"plan must be one of {', '.join(map(repr, PLANS))}, a Plan, or the path of a plan's file; got "
        f"{plan!r}, and there is no such file.{did_you_mean(plan, PLANS)}"
    )


def _check_pyg_options(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if name in _UNSUPPORTED and value not in (None, False):
            raise ConfigError(
                f"NeighborLoader does not support {name} ({_UNSUPPORTED[name]}); use PyG's loader for that"
            )
        if name == "subgraph_type" and str(getattr(value, "value", value)) != "directional":
            raise ConfigError(
                f"subgraph_type must be 'directional'; got {value!r}. Other types need PyG's loader"
            )
        if name not in _UNSUPPORTED and name not in _MEANINGLESS:
            known = (*inspect.signature(NeighborLoader).parameters, *_MEANINGLESS)
            raise ConfigError(f"NeighborLoader takes no argument {name!r}.{did_you_mean(name, known)}")


def _as_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(
            f"device must be a torch device such as 'cpu' or 'cuda:0', or an accelerator; got {name!r}"
        ) from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device={name!r} needs a CUDA device that is not here ({torch.cuda.device_count()} found)"
        )
    return device


def _as_fanouts(num_neighbors: Sequence[int]) -> tuple[int, ...]:
    if isinstance(num_neighbors, dict):
        raise ConfigError(
            "num_neighbors must be a list with a fanout per hop; a dict is for heterogeneous graphs"
        )
    try:
        return tuple(num_neighbors)
    except TypeError:
        raise ConfigError(
            f"num_neighbors must be a list with a fanout per hop, such as [15, 10, 5]; got {num_neighbors!r}"
        ) from None


def _as_graph(
    data: Graph | Data, weight_attr: str | None
) -> tuple[Graph, dict[str, Tensor], dict[str, Tensor]]:
    """The graph, and the attributes that batches of a PyG ``Data`` also carry."""
    if isinstance(data, Graph):
        if weight_attr is not None and (weight_attr != "edge_weight" or data.csc.weight is None):
            raise ConfigError(
                f"weight_attr={weight_attr!r}: a Graph's weights are called 'edge_weight', and "
                + ("this one has none" if data.csc.weight is None else "no other name is known")
            )
        return data, {}, {}
    if not hasattr(data, "edge_index") or hasattr(data, "node_types"):
        raise ConfigError(
            f"data must be a graphbraid.Graph or a homogeneous PyG Data; got {type(data).__name__}"
        )
    # Blocks carry the weights whether or not they steer the draws.
    weights = weight_attr or ("edge_weight" if "edge_weight" in data else None)
    graph = Graph.from_pyg(data, edge_weight=weights)
    tensors = {key: value for key, value in data.to_dict().items() if isinstance(value, Tensor)}
    node_attrs = {k: v for k, v in tensors.items() if k not in ("x", "y") and data.is_node_attr(k)}
    edge_attrs = {k: v for k, v in tensors.items() if k != "edge_index" and data.is_edge_attr(k)}
    return graph, node_attrs, edge_attrs


def _as_seeds(input_nodes: Tensor | str | None, graph: Graph) -> Tensor:
    if input_nodes is None:
        return torch.arange(graph.num_nodes)
    if isinstance(input_nodes, str):
        return graph.split(input_nodes)
    try:
        seeds = torch.as_tensor(input_nodes)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"input_nodes must be node ids, a mask or a split's name; got {type(input_nodes).__name__} "
            f"({error}). Pairs of a node type and ids are for heterogeneous graphs"
        ) from error
    if seeds.dtype == torch.bool:
        if seeds.shape != (graph.num_nodes,):
            raise ConfigError(
                f"a mask of input_nodes must have shape ({graph.num_nodes},); got {tuple(seeds.shape)}"
            )
        seeds = seeds.nonzero().flatten()
    if seeds.ndim != 1 or seeds.is_floating_point() or seeds.numel() == 0:
        raise ConfigError(
            "input_nodes must be a non-empty 1-d tensor of node ids or a mask with a node set; "
            f"got {seeds.dtype} of shape {tuple(seeds.shape)}"
        )
    outside = ((seeds < 0) | (seeds >= graph.num_nodes)).nonzero()
    if len(outside):
        i = int(outside[0])
        raise ConfigError(
            f"input_nodes must be ids in [0, {graph.num_nodes}); input_nodes[{i}] is {int(seeds[i])}"
        )
    return seeds.to(torch.int64).contiguous()

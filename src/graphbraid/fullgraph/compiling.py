""":func:`graphbraid.compile` makes a model's engine; :func:`graphbraid.fullgraph.lower` shows its program."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any, overload
from weakref import WeakSet

import torch
from torch import Tensor, nn

from graphbraid.arguments import check_type
from graphbraid.errors import ConfigError, RunsAsWrittenWarning
from graphbraid.fullgraph.batches.call_forms import call_of_batch, call_with
from graphbraid.fullgraph.batches.calls import BatchCall, BatchForm
from graphbraid.fullgraph.batches.fusing import BatchProgram
from graphbraid.fullgraph.batches.runner import BatchRunner
from graphbraid.fullgraph.device import Device, device_for
from graphbraid.fullgraph.engine import Engine, TrainingNodes, lowered_on_host, strict_text
from graphbraid.fullgraph.lowering.costs import Evidence
from graphbraid.fullgraph.lowering.levels import copied_bytes, whole_graph
from graphbraid.fullgraph.lowering.lower_program import Lowered, check_kernels, whole_typed
from graphbraid.fullgraph.lowering.options import (
    ALL,
    STORAGE,
    CompileOptions,
    StreamedFeatures,
    checked_nodes,
    names_of,
    needs_lowering,
)
from graphbraid.fullgraph.program import Break, NotLoweredError, Program, reasons_of
from graphbraid.fullgraph.ranks.ranks import Ranks
from graphbraid.fullgraph.rates import machine_rates
from graphbraid.fullgraph.reading.as_written import AsWritten
from graphbraid.fullgraph.reading.modes import CompiledModule, lock_of
from graphbraid.fullgraph.reading.read import Source, graph_of_data, source_of
from graphbraid.fullgraph.step.device_copies import WORKSPACE_BYTES, CopySizes
from graphbraid.fullgraph.step.plan import StepRequest
from graphbraid.fullgraph.step.planned_step import PlannedStep
from graphbraid.graph import Graph
from graphbraid.nn.module_traits import in_mode
from graphbraid.sampling.rows.by_id import FeatureSource
from graphbraid.signatures import typed

_TO_CALLER = 4
"""Frames from a call of the engine, which is a module, to its user."""


class BatchEngine(CompiledModule):
    """Runs a model on mini-batches, or on any nodes and edges, with graphbraid's operators.

    ``engine(batch)`` returns the rows of the batch's seeds, and ``engine(x, edge_index, ...)`` those of all
    nodes, as the model would. Both run under autograd. Create engines with :func:`graphbraid.compile`.

    Parameters, buffers and submodules are the model's own, under the model's names, and so are the keys of
    ``state_dict``. A copy of an engine is an engine of a copy of its model. A pickle holds no programs.

    Args:
        model: any module.
        strict: whether to raise an error instead of running a model as it is written.
    """

    _runner: BatchRunner
    _callings: dict[Any, BatchForm]

    @typed
    def __init__(self, model: nn.Module, *, strict: bool = False) -> None:
        super().__init__(model)
        vars(self).update(_runner=BatchRunner(model, strict=strict, chooses=not strict), _callings={})

    @property
    def why(self) -> NotLoweredError | None:
        """The reason why the last call ran as it is written; None if it ran by a program."""
        return self._runner.why

    @property
    def breaks(self) -> tuple[Break, ...]:
        """The graph breaks of the program that ran last: the parts that PyTorch runs as they are written."""
        last = self._runner.last
        return last.breaks if isinstance(last, BatchProgram) else ()

    def explain(self, *args: Any, **named: Any) -> str:
        """Describe the program that ran last, or say why the model ran as it is written.

        Args:
            *args: a batch, or the model's own arguments, as for a call. If given, the program of that call is
                described, and steps on it are timed, with the share of the parts that run as written.
            **named: the model's own arguments by name.
        """
        try:
            return self._runner.explain(self._call(args, named) if args or named else None)
        except NotLoweredError as why:
            return why.explained()

    def _repr_html_(self) -> str:
        from graphbraid.figures import notebook, preformatted

        return notebook(f"Engine of {type(self.model).__name__} for batches", preformatted(self.explain()))

    def forward(self, *args: Any, **named: Any) -> Any:
        """Call the model on a batch, or with the arguments of its own ``forward``.

        Args:
            *args: one mini-batch of any loader, whose attributes the model receives by the names of its
                parameters; or the model's own arguments.
            **named: the model's own arguments by name.

        Returns:
            The model's output. For a batch with seeds, only the seeds' rows. Of a dict by node type, the
            output of the seeds' type.

        Raises:
            ConfigError: ``strict`` is set and the model has no lowered form; or the batch lacks an
                argument of the model.
            DataError: the model returns outputs by node type, and none of the seeds' type.
        """
        runner = self._runner
        try:
            call = self._call(args, named)
        except NotLoweredError as why:
            runner.runs_as_written(why, stacklevel=_TO_CALLER)
            return runner.model(*args, **named)
        return runner.run(call, stacklevel=_TO_CALLER)

    def _call(self, args: tuple[Any, ...], named: dict[str, Any]) -> BatchCall:
        if len(args) == 1 and not named and _is_batch(args[0]):
            return call_of_batch(self.model, args[0], self._callings)
        return call_with(self.model, args, named)

    def __deepcopy__(self, memo: dict[int, Any]) -> BatchEngine:
        return BatchEngine(copy.deepcopy(self.model, memo), strict=self._runner.strict)

    def __reduce__(self) -> Any:
        return partial(BatchEngine, strict=self._runner.strict), (self.model,)


def _is_batch(value: Any) -> bool:
    if isinstance(value, Tensor | dict) or not callable(getattr(value, "keys", None)):
        return False
    return hasattr(type(value), "num_nodes") or hasattr(value, "num_nodes")  # it may be costly to count


class Uncompiled(CompiledModule):
    """Stand-in for an :class:`Engine` that runs a model as it is written; :attr:`why` says why.

    Args:
        model: any module.
        source: the graph of each call, and the user's data if there are any.
        nodes: the training nodes.
        why: the part that could not be lowered, and the reason.
        place: device to run on.
    """

    why: NotLoweredError
    _source: Source
    _nodes: TrainingNodes
    _run: AsWritten
    _place: torch.device

    def __init__(
        self,
        model: nn.Module,
        source: Source,
        nodes: TrainingNodes,
        why: NotLoweredError,
        place: torch.device,
    ) -> None:
        super().__init__(model)
        run = source.as_written(model, place)
        vars(self).update(_nodes=nodes, _run=run, why=why, _source=source, _place=place)

    def forward(self) -> Tensor:
        """Return the ``(len(nodes), width)`` outputs of the training nodes; differentiable.

        If the model returns several tensors, return the same structure; tensors with one row per node are
        reduced to the training nodes' rows.
        """
        with lock_of(self.model):
            if self._nodes.have_changed(self._source):
                source = self._source.anew()
                vars(self).update(_source=source, _nodes=TrainingNodes(self._nodes.given, source))
            out: Tensor = self._run.rows(self._nodes.ids.to(self._place))
            return out

    @torch.no_grad()
    def predict(self) -> Tensor:
        """Return the model's output for every node in evaluation mode, usually ``(num_nodes, width)``."""
        with lock_of(self.model), in_mode(self.model, training=False):
            out: Tensor = self._run()
            return out

    def explain(self, *, measure: bool = False) -> str:
        """Return why the model was not lowered.

        ``measure`` is ignored, since there are no tasks to time.
        """
        return self.why.explained()

    def _repr_html_(self) -> str:
        from graphbraid.figures import notebook, preformatted

        return notebook(f"{type(self.model).__name__} runs as written", preformatted(self.explain()))


@overload
def compile(model: nn.Module, graph: None = None, *, strict: bool = False) -> BatchEngine: ...  # noqa: A001
@overload
def compile(  # noqa: A001
    model: nn.Module,
    graph: Any,
    *,
    strict: bool = False,
    nodes: Any = "train",
    passes: Iterable[str] = ALL,
    device: Device | torch.device | str | None = None,
    storage: str = "float32",
    spare_bytes: int | None = None,
    evidence: Evidence | None = None,
    ranks: Ranks | None = None,
    node_type: str | None = None,
    tiers: FeatureSource | None = None,
    host: int | str | None = None,
) -> Engine | Uncompiled: ...
def compile(  # noqa: A001 - as torch.compile; always called as graphbraid.compile
    model: nn.Module,
    graph: Any = None,
    *,
    strict: bool = False,
    nodes: Any = "train",
    passes: Iterable[str] = ALL,
    device: Device | torch.device | str | None = None,
    storage: str = "float32",
    spare_bytes: int | None = None,
    evidence: Evidence | None = None,
    ranks: Ranks | None = None,
    node_type: str | None = None,
    tiers: FeatureSource | None = None,
    host: int | str | None = None,
) -> Engine | Uncompiled | BatchEngine:
    """Lower a model to the cheapest equivalent program, over a whole graph or for mini-batches.

    Example::

        engine = graphbraid.compile(model, graph)
        print(engine.explain())
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        labels = graph.y[graph.split("train")]
        for epoch in range(200):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(engine(), labels)
            loss.backward()
            optimizer.step()
        outputs = engine.predict()

    Without a graph, the result is a module that takes mini-batches of any loader, or nodes and edges::

        engine = graphbraid.compile(model)
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(engine(batch), batch.y[: batch.batch_size])
        outputs = engine(data.x, data.edge_index)

    The model's ``forward`` receives its arguments by the names of its parameters, as in :class:`.Trainer`, or
    any attribute of the user's data. The model may change later: every call checks its modes, modules and
    attributes, and the graph's features. Reading a model calls its ``forward``, so its prints and
    writes to files happen then, too.

    Args:
        model: one of :mod:`graphbraid.nn`, or a PyG model made of the parts in ``docs/lowered_models.md``.
            Its parameters stay its own. Other parts run as they are written, between lowered ones, or the
            whole model does; a warning says once per model which, and ``explain()`` why.
            An engine stands for its model.
        graph: a graph with features, used in place; or PyG's ``Data``, whose attributes the model may take,
            or ``HeteroData``. A graph with types runs :class:`graphbraid.nn.RGCN`, and PyG's models of
            ``HeteroConv`` or made by ``to_hetero``, called as ``model(x_dict, edge_index_dict)``; layers over
            relations of one type get the ``edge_type`` of ``Data``. None for mini-batches; the options below
            that are about a graph then keep their defaults.
        strict: whether to raise an error where the model, or a part of it, would run as it is written.
            Without it, a warning says so once, and ``explain()`` says why.
        nodes: the training nodes, whose outputs ``engine()`` returns: the name of a split, distinct ids (a
            tensor, array, list or range), or a mask.
        passes: names of the lowering passes that may run (:data:`graphbraid.fullgraph.ALL`).
        device: the CPU or a CUDA device; the parameters must be there. If None, the parameters' device. The
            arrays of the graph that a step reads are copied there once, and outputs are returned there.
        storage: ``float32``, or ``bfloat16`` to round rows before they are aggregated: sums stay float32,
            edges read half the bytes, and results differ by that rounding.
        spare_bytes: memory that the program may take in addition to save time: features aggregated once,
            edges and features in an order that the cache serves better. If None, a quarter of the free
            memory, or 256 MiB if that is more. Never more than half of the free memory.
        evidence: the ``engine.evidence`` of an earlier engine, to make the same choices and get the same bits
            although rates measured now may differ. If None, this machine's measured rates decide.
        ranks: the ranks that run the program together, each the rows of the nodes that it owns, on the CPU.
            All must make the same calls. ``engine()`` returns the outputs of this rank's nodes among
            ``nodes``, and the gradients are its part of their sum. A model without a lowered form is refused.
        node_type: the type whose outputs are wanted, in a graph with types; ``nodes`` are ids of it. If None,
            the model's own ``node_type``, else the only type with labels.
        tiers: the features by id, such as :class:`graphbraid.features.TieredFeatures` of this graph, where
            they do not lie in memory: each step reads them in blocks, ahead of their use. On the host,
            for a model that has a lowered form whose first operation with the features is a product or can
            be computed once. The learned parameters have the same bits.
        host: memory for that, in bytes or as ``"1GiB"``: for blocks that are read, and for rows that stay
            from step to step; 0 and ``"all"`` as in :class:`graphbraid.features.TieredFeatures`. If None,
            64 MiB; without ``tiers``, features are in memory. Given alone, rows are read from a store's file.

    Raises:
        ConfigError: ``strict`` is set and a part of the model has no lowered form; an option about a graph
            is given without one; a node is out of range or named twice, a pass or storage name is unknown,
            or the parameters are not on ``device``; ``ranks`` cannot run the model together; ``node_type``
            is needed or unknown; features in tiers are read in another way than in blocks.
        DataError: the graph has no features or no such split.
        ResourceError: there is too little memory; the message gives the needed memory and the remedy.
    """
    if isinstance(model, CompiledModule):
        model = model.model
    if graph is None:
        given: dict[str, Any] = {"nodes": nodes, "passes": passes, "device": device, "storage": storage}
        given |= {"spare_bytes": spare_bytes, "evidence": evidence}
        given |= {"ranks": ranks, "node_type": node_type, "tiers": tiers, "host": host}
        defaults = signature(compile).parameters
        if wrong := [name for name, value in given.items() if value is not defaults[name].default]:
            raise ConfigError(f"{wrong[0]} is about a whole graph; give one, or leave {wrong[0]} out")
        return BatchEngine(model, strict=strict)
    data = None if isinstance(graph, Graph) else graph
    whole = graph if isinstance(graph, Graph) else graph_of_data(graph)
    if ranks is not None:
        whole.check_one_type("compile with several ranks")
    if storage not in STORAGE:
        raise ConfigError(f"storage must be one of {', '.join(STORAGE)}; got {storage!r}")
    options = CompileOptions(
        passes=names_of(passes),
        device=device_for(model, device),
        storage=STORAGE[storage],
        spare_bytes=spare_bytes,
        evidence=evidence,
        features=StreamedFeatures.of(whole, tiers, host),
    )
    own: dict[str, Any] = {"node_type": node_type, "data": data, "strict": strict}
    if ranks is not None:
        check_type(ranks, "ranks", Ranks, "the ranks of fullgraph.Ranks", error=ConfigError)
        options = replace(options, evidence=_of_first_rank(ranks, options))
    try:
        engine = Engine(model, whole, nodes, options, ranks=ranks, **own)
    except NotLoweredError as why:
        if ranks is not None:
            raise ConfigError(
                f"several ranks train the whole graph together only by a lowered program, and {why.part} "
                f"{why.reason}. Use one rank, or mini-batches (mode='sampled')."
            ) from why
        if tiers is not None or host is not None:
            raise ConfigError(needs_lowering(why)) from why
        if strict:
            raise ConfigError(strict_text(why)) from why
        source, place = source_of(model, whole, data, node_type), options.device.place
        _warn_once(model, [str(why)], "the whole model runs as it is written")
        return Uncompiled(model, source, TrainingNodes(nodes, source), why.kept(), place)
    if engine.breaks and (reasons := reasons_of(engine.breaks)):
        _warn_once(model, reasons, "parts of the model run as they are written, between lowered ones")
    return engine


_WARNED: WeakSet[nn.Module] = WeakSet()


def _warn_once(model: nn.Module, reasons: Sequence[str], what: str) -> None:
    """Warn, once per model, of the parts that run as written."""
    if model in _WARNED:
        return
    _WARNED.add(model)
    lines = "".join(f"\n  {reason}" for reason in reasons)
    warnings.warn(f"{type(model).__name__}: {what}:{lines}", RunsAsWrittenWarning, stacklevel=3)


def _of_first_rank(ranks: Ranks, options: CompileOptions) -> Evidence:
    """Return on every rank the evidence that the first one is given, or its machine's rates."""
    found: dict[str, Any] | None = None
    if ranks.comm.rank == 0:
        found = (options.evidence or Evidence(rates=machine_rates(options.device))).to_json()
    return Evidence.from_json(ranks.comm.share(found), "rank 0's evidence")


@typed
def lower(
    model: nn.Module | Program,
    graph: Graph,
    nodes: Any = "train",
    options: CompileOptions | None = None,
    *,
    node_type: str | None = None,
) -> Lowered:
    """Lower a model over a whole graph as :func:`graphbraid.compile` does; nothing runs and nothing moves.

    Example::

        print(graphbraid.fullgraph.lower(model, graph))

    Args:
        model: a model, read in its current state (see :func:`graphbraid.compile`), or its program.
        graph: a graph with features, used in place.
        nodes: the training nodes: the name of a split, distinct ids, or a mask.
        options: the decisions that may be taken and the device. If None, all decisions, on the parameters'
            device.
        node_type: see :func:`graphbraid.compile`.

    Returns:
        A frozen record; printing it shows the rates, the decisions, the program, and each level's nodes and
        edges.

    Raises:
        NotLoweredError: part of the model has no lowered form; the message names it.
        ConfigError: a node is out of range or named twice.
        DataError: the graph has no features or no such split.
    """
    if isinstance(model, Program):
        program, options = model, options or CompileOptions()
        own = graph.nodes_of(program.node_types[program.node_type(program.output)].name)
        ids = checked_nodes(nodes, own)
    else:
        options = options or CompileOptions(device=device_for(model))
        source = source_of(model, graph, node_type=node_type)
        ids, program = checked_nodes(nodes, source.nodes), source.read(model)
        if program.returned is not None:
            raise NotLoweredError("forward", "it returns several matrices", "one result")
        graph = source.graph_for(program)
    return lowered_on_host(program, graph, ids, options)


@typed
def estimated_bytes(
    model: nn.Module, graph: Graph, device: Device | None = None, *, node_type: str | None = None
) -> int:
    """Return an upper bound on the bytes that full-graph training of a model takes, without allocating them.

    The graph and its features on the host are not included; on a device, their copies there are.
    ``node_type`` means the same as for :func:`compile`.

    Raises:
        NotLoweredError: the model has no lowered form, or one of its operations has no kernel on the device.
    """
    with in_mode(model, training=True):
        program = source_of(model, graph, node_type=node_type).read(model)
    typed_blocks = whole_typed(graph, program) if program.by_relation else None
    blocks = typed_blocks or whole_graph(graph.csc, program.num_levels - 1)
    request = StepRequest(program=program, graph=graph, blocks=blocks, training=True)
    if device is not None and not device.is_host:
        check_kernels(program, device)
        planned = PlannedStep(replace(request, copies=CopySizes(device)))
        return planned.nbytes + WORKSPACE_BYTES
    planned = PlannedStep(request)
    if typed_blocks is not None:
        return planned.nbytes + 2 * copied_bytes(typed_blocks)
    transpose = graph.csc.nbytes + 8 * graph.csc.num_edges
    copies = graph.csc.nbytes + 8 * graph.num_nodes + 4 * graph.num_nodes * sum(program.inputs.values())
    return planned.nbytes + transpose + min(CompileOptions().allowed_bytes(), copies)

"""Setup of a run: its state, which the Trainer shows, and the parts that it makes before the first step."""

from __future__ import annotations

import logging
import math
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from graphbraid.errors import ConfigError, ResourceError
from graphbraid.estimates.limits import require_as_written, require_sampled
from graphbraid.estimates.machine import memory_of_rank
from graphbraid.estimates.memory import STEP_BYTES, width_and_bytes
from graphbraid.estimates.plan import plan_run, set_training_threads
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph
from graphbraid.graph.identity import mark
from graphbraid.machine.hardware import own_anonymous_bytes, own_peak_bytes
from graphbraid.sampling.rows.by_id import TierCounts
from graphbraid.train import runtime
from graphbraid.train.callbacks import Progress, Resources, Status
from graphbraid.train.config import TrainConfig
from graphbraid.train.inference.infer import prepared_bytes
from graphbraid.train.inference.metrics import (
    AP,
    COMMON,
    Kinds,
    check_monitor,
    check_own_metrics,
    check_threshold,
    largest_class,
    metric_kinds,
    monitored,
)
from graphbraid.train.run_folder.contract import graph_identity
from graphbraid.train.run_folder.folder import kept_evidence, kept_plan
from graphbraid.train.step.feed import Feed, Share, make_feed, make_loader
from graphbraid.train.step.links.runner import EndsRunner, LinkRunner
from graphbraid.train.step.preflight import (
    check_fanouts,
    check_needs_no_val,
    check_width,
    dry_run,
    has_split,
    shares_agree,
    split_nodes,
)
from graphbraid.train.step.runner import ModelRunner, divided_graph
from graphbraid.train.step.step import LearningRateSchedule, make_optimizer
from graphbraid.train.task import Task, check_own_loss, with_class_weights, with_own_loss

if TYPE_CHECKING:
    from graphbraid.collective import Plan
    from graphbraid.collective.run.stages import Accelerator
    from graphbraid.distributed import Communicator
    from graphbraid.fullgraph import Evidence
    from graphbraid.fullgraph.batches.rank_norms import RankNorms
    from graphbraid.train.step.graphs import GraphsRunner


_log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequested(Exception):  # noqa: N818 (it ends an evaluation and is not an error)
    """An evaluation was cut short by a signal; the trainer catches this."""


class SignalGuard:
    """A context manager that records the first SIGINT or SIGTERM in :attr:`signal` instead of raising.

    The second one raises ``KeyboardInterrupt``. Outside the main thread, where Python does not allow signal
    handlers to be set, the guard does nothing.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._former: dict[int, Any] = {}

    def __enter__(self) -> SignalGuard:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            # A handler that was not set from Python (None) cannot be restored from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._former = {}

    def check(self) -> None:
        """Raise :class:`StopRequested` if a signal was received."""
        if self.signal is not None:
            raise StopRequested

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


@dataclass(kw_only=True, eq=False)
class RunState:
    """The inputs of one run and its current state.

    ``Trainer.fit`` begins with a new one, which callbacks see through the Trainer's attributes of the same
    names.
    """

    config: TrainConfig
    """Options of the run; the mode is ``sampled`` or ``full``."""
    graph: Graph
    """Topology, features, labels and splits."""
    runner: ModelRunner
    """Runner of the model; in mode ``full`` the run sets its engine."""
    accelerator: Accelerator | None
    """Device that prepares and transfers mini-batches. If None, the runner's device."""
    comm: Communicator | None = None
    """Ranks that share the run. If None, there is one."""
    info: Mapping[str, Any]
    """Plain values to keep with the run."""
    mode_reason: str
    """Reason for the mode that ``auto`` chose; empty if the mode was given."""
    reasons: Sequence[str] = ()
    """Reasons for the mode, the tiers and the division of the host's memory; empty ones do not count."""

    uncompiled_reason: str = ""
    """Reason why the model runs as it is written, on the whole graph or on mini-batches; empty if it is
    compiled, or of ``graphbraid.nn``."""
    plan: Plan | None = None
    """Plan for preparing mini-batches; None before it is made."""
    baseline: str = ""
    """Largest class of the split that decides which epoch is best, and its share; empty without classes."""
    placement: str = ""
    """Memories that a sampling device reads, after the last epoch; empty without such a device."""
    traffic: str = ""
    """Table of the rows that ranks have read and sent by the last epoch's end; empty if each has all rows."""
    steps_per_epoch: int | None = None
    """Number of optimizer steps per epoch; None before it is known."""
    progress: Progress = field(default_factory=Progress)
    """Position of the run."""
    stop_status: Status | None = None
    """Status with which the run will end after the current step; None if it continues."""

    @cached_property
    def task(self) -> Task:
        """Task that the graph's labels describe."""
        return with_own_loss(self.runner.task(), self.config.loss)

    @property
    def exchange(self) -> str:
        """How devices of mode ``full`` read each other's rows, once found in the first epochs; else empty.

        Where ranks hold parts of the graph alone, a table of what each has read and sent of rows by the last
        epoch's end. On one rank, which options of that are given and not used.
        """
        if self.comm is None:  # no mistake: the same command trains on one rank and on several
            plain = TrainConfig()
            given = [(name, getattr(self.config, name)) for name in ("wire", "exchange")]
            idle = [f"{name}={value!r}" for name, value in given if value != getattr(plain, name)]
            return f"nothing travels, as there is one rank: {' and '.join(idle)} not used" if idle else ""
        if self.traffic:
            return self.traffic
        engine = self.runner.engine
        tuned = None if engine is None else engine.runner.tuned
        return "" if tuned is None else tuned.described()

    def explain(self) -> str:
        """Where rows and lists lie, why, and which part of the reads each place serves, in words."""
        sources = (getattr(source, "explain", None) for source in (self.runner.lists, self.runner.rows))
        explained = [str(explain()) for explain in sources if callable(explain)]
        said = [part for part in (*self.reasons, *explained, self.placement) if part]
        return "\n\n".join(said) or "rows and lists are read where the graph has them"

    def resources(self) -> Resources:
        """Resources that the run has used so far."""
        device = self.runner.device
        counts = getattr(self.runner.rows, "counts", None)
        return Resources(
            host_peak_bytes=own_peak_bytes(),
            device_peak_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
            placement=self.explain(),
            reads=counts._asdict() if isinstance(counts, TierCounts) else {},
            plan=self.plan,
        )

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Sizes of the data and the mark of each of their arrays."""
        further = {f"array {name}": mark(values) for name, values in self.runner.further_arrays()}
        return graph_identity(self.graph) | further

    @cached_property
    def metrics(self) -> Kinds:
        """Metrics that an evaluation computes, by name."""
        return metric_kinds(self.task, self.config.metrics)

    @cached_property
    def monitored(self) -> tuple[str, bool]:
        """Metric that decides which epoch is best, and whether larger is better."""
        return monitored(self.metrics, self.config.monitor)

    def request_stop(self, status: Status) -> None:
        """End the run after the current step or epoch; the first request counts."""
        if self.stop_status is None:
            self.stop_status = status


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class RunParts:
    """The parts of a run that training uses."""

    val_nodes: Tensor | None
    """Labelled nodes of the split ``val``, ``(num_val,)`` int64; None if the run does not evaluate."""
    task: Task
    """Loss with its class weights, on the model's device."""
    feed: Feed
    """Source of the batches, or of this rank's shares of them."""
    steps_per_epoch: int
    """Number of optimizer steps per epoch."""
    optimizer: Optimizer
    """Optimizer of the model's parameters."""
    schedule: LearningRateSchedule
    """Schedule of the optimizer's learning rate."""


def set_up(state: RunState, former: Path | None) -> RunParts:
    """Check a run and make its parts; the engine, the plan and the steps per epoch are set on ``state``.

    Args:
        state: state of the run.
        former: folder of the run that this one continues. If None, the run starts anew.

    Raises:
        ConfigError: the model or an option does not fit.
        DataError: a split or labels are missing, or a kept plan is damaged.
        ResourceError: training cannot fit in memory.
    """
    config, runner = state.config, state.runner
    labels = runner.labels
    train_nodes, val_nodes = split_nodes(labels, "train"), _val_nodes(state)
    assert labels.y is not None
    weighted = with_class_weights(state.task, config.class_weights, labels.y[train_nodes])
    task = weighted.to(runner.device)
    if task.own_loss is not None or any(kind.is_own for kind in state.metrics.values()):
        _try_own(state, task, labels.y[train_nodes[:_TRIED_LABELS]])
    if isinstance(runner, LinkRunner) and len(labels.splits) > 1:
        runner.negatives_of_evaluation()  # which a complete graph does not have
    check_fanouts(runner.model, config)
    if config.threshold is not None:
        split = "val" if config.threshold == "f1" else "train"
        check_threshold(state.task, labels.y[split_nodes(labels, split)].reshape(-1).long(), split)
    check_monitor(state.monitored[0], labels, val_nodes)
    baseline_nodes = train_nodes if val_nodes is None else val_nodes
    state.baseline = _baseline(state, labels.y[baseline_nodes], is_validated=val_nodes is not None)
    _try_model(state, task, train_nodes, None if former is None else kept_evidence(former))
    state.plan = _plan(state, task, train_nodes, former)
    feed = make_feed(
        runner,
        config,
        task,
        train_nodes,
        plan=state.plan,
        accelerator=state.accelerator,
        share=Share.of(state.comm),
    )
    steps = state.steps_per_epoch = math.ceil(feed.num_batches / config.accumulate)
    optimizer, maximize = make_optimizer(config, runner.model), state.monitored[1]
    if runner.learned is not None:
        runner.learned.begin()
    return RunParts(
        val_nodes=val_nodes,
        task=task,
        feed=feed,
        steps_per_epoch=steps,
        optimizer=optimizer,
        schedule=LearningRateSchedule(
            config, optimizer, total_steps=steps * config.epochs, maximize=maximize
        ),
    )


def _baseline(state: RunState, y: Tensor, *, is_validated: bool) -> str:
    """Return the score of always predicting the largest class; warn if accuracy then tells little."""
    found = largest_class(state.task, y)
    if found is None:
        return ""
    label, share = found
    names = state.graph.schema.class_names.get(state.runner.node_type, ())
    named = f"class {label}" + (f" ({names[label]})" if label < len(names) else "")
    monitor = state.monitored[0]
    if is_validated and share > COMMON and monitor in ("accuracy", "f1_micro"):
        _log.warning(
            "%s has %.1f %% of the split 'val': a model that predicts nothing else may be best by %s; choose "
            "monitor='f1_macro', or metrics=('%s', 'f1_macro')",
            named,
            100 * share,
            monitor,
            AP,
        )
    return f"always predicting {named}, the largest, has an accuracy of {share:.4f}"


_TRIED_LABELS = 8


def _try_own(state: RunState, task: Task, labels: Tensor) -> None:
    """Try the caller's own loss and metrics on some labels of training nodes."""
    with runtime.random_state_kept():
        if task.own_loss is not None:
            num_ranks = 1 if state.comm is None else state.comm.size
            check_own_loss(task, labels.to(state.runner.device), num_ranks=num_ranks)
        check_own_metrics(state.task, state.metrics, labels)


def _val_nodes(state: RunState) -> Tensor | None:
    if state.config.eval_every == 0:
        return None
    labels = state.runner.labels
    if has_split(labels, "val"):
        return split_nodes(labels, "val")
    check_needs_no_val(state.config)
    return None


def _try_model(state: RunState, task: Task, train_nodes: Tensor, evidence: Evidence | None) -> None:
    """Run the model once, compiled if possible, which also initialises lazy modules."""
    runtime.seed_everything(state.config.seed)  # lazy modules draw their weights here
    if state.config.mode == "full":
        from graphbraid.train.step.whole import require_whole  # here: mini-batches need no engine

        comm = None if state.config.partition is None else state.comm
        num_parts = 1 if comm is None else comm.size
        require_whole(state.runner, state.config, num_parts)
        _compile(state, train_nodes, evidence)
        if state.comm is not None and state.runner.engine is not None:  # which lowering has tried already
            program = state.runner.engine.program
            check_width(program.width(program.output), task)
            return
        engine = state.runner.engine
        if (engine is None or engine.breaks) and not state.graph.is_typed:
            require_as_written(state.runner.model, state.graph, state.config, state.uncompiled_reason, engine)
        dry_run(state.runner, task, state.config, train_nodes)
        if state.runner.engine is None:
            _compile(state, train_nodes, evidence)
        return
    _require_sampled(state)
    is_made = not any(map(is_lazy, state.runner.model.parameters()))
    dry_run(state.runner, task, state.config, train_nodes)
    if not is_made:  # that run filled in widths; the model is read when it runs next
        dry_run(state.runner, task, state.config, train_nodes)
    if (divided := divided_graph(state.graph)) is not None:
        _require_groups(state, train_nodes, divided.shards.ranks)
    state.uncompiled_reason = state.runner.uncompiled_reason
    _check_shares(state, train_nodes)


def _check_shares(state: RunState, train_nodes: Tensor) -> None:
    """Check that ranks learn the same from a batch as one rank, as far as the model's outputs show it.

    Raises:
        ConfigError: on some rank the outputs for its seeds are not those that they have in the whole batch.
    """
    comm, runner = state.comm, state.runner
    if comm is None or comm.size == 1:
        return
    runner.norms = None
    if isinstance(runner, EndsRunner):
        train_nodes, runner = runner.data.ends.nodes, runner.encoder_runner()
    if not _all_ranks(comm, shares_agree(runner, state.config, train_nodes, Share.of(comm))):
        hops = "layout='subgraph'"
        if state.config.layout == "subgraph":
            hops = "hops, if it reads from further away"
        raise ConfigError(
            "several ranks cannot train this model on shares of a batch: outputs for some seeds depend on "
            "more of it than what these read. A layer may normalise by other nodes of the batch, or read "
            f"out-edges. Use one rank, or set {hops}."
        )
    if any(isinstance(one, _BatchNorm) for one in state.runner.model.modules()):
        _normalise_together(state, comm, runner, train_nodes)
    elif not _train_alike(state, comm, runner, train_nodes) and comm.rank == 0:
        _log.warning(
            "while it trains, the model's outputs for some seeds depend on more of a batch than what these "
            "read, as where it computes batch normalisation itself: losses depend on the number of ranks; "
            "torch.nn.BatchNorm1d is by the rows of all ranks"
        )


def _train_alike(
    state: RunState, comm: Communicator, runner: ModelRunner, nodes: Tensor, norms: RankNorms | None = None
) -> bool:
    """Return whether shares of a batch give the whole batch's outputs in training mode, on all ranks."""
    with runtime.random_state_kept():
        agrees = shares_agree(runner, state.config, nodes, Share.of(comm), norms, trains=True)
    return _all_ranks(comm, agrees)


def _normalise_together(state: RunState, comm: Communicator, runner: ModelRunner, nodes: Tensor) -> None:
    """Let batch normalisation use the rows of all ranks; warn if the result differs from one rank's.

    Args:
        state: state of the run.
        comm: the ranks.
        runner: the run's, or that of its encoder.
        nodes: the nodes that are seeds.
    """
    from graphbraid.fullgraph.batches.rank_norms import RankNorms  # here: few models need it

    why = ""
    try:
        if state.config.task == "graph":
            raise ConfigError("each rank joins its own graphs")
        if isinstance(state.runner, EndsRunner) and state.runner.data.times is not None:
            raise ConfigError("links with times have a tree of nodes each, which ranks number by themselves")
        norms = RankNorms(comm, runner.model, len(state.config.fanouts), whole=state.runner.model)
        if nodes.numel() < comm.size:
            raise ConfigError("there are too few nodes to try whether ranks can normalise together")
        if not _all_ranks(comm, shares_agree(runner, state.config, nodes, Share.of(comm), norms)):
            raise ConfigError("what it normalises is not known to be the rows of a batch's nodes")
        if not _train_alike(state, comm, runner, nodes, norms):
            raise ConfigError("in training mode the model normalises in other ways than by its modules")
        state.runner.norms = norms
    except ConfigError as error:
        why = str(error)
    if why and comm.rank == 0:
        _log.warning(
            "batch normalisation is by each rank's own rows, so that losses depend on the number of ranks; "
            "norm='layer' does not: %s",
            why,
        )


def _all_ranks(comm: Communicator, holds: bool) -> bool:
    """Return whether something holds on all ranks."""
    return bool(comm.all_reduce(torch.tensor([int(holds)]), "min").wait())


def _require_sampled(state: RunState) -> None:
    """Check that a run on mini-batches fits the memory; ranks of a machine divide the free memory."""
    config, free = state.config, None
    # _require_groups checks divided graphs. A copy of a model for trials would lack rows that ranks divide.
    if not state.graph.is_whole or state.runner.learned is not None:
        return
    if state.comm is not None:
        config = config.updated(batch_size=-(-config.batch_size // state.comm.size))
        here = memory_of_rank(state.comm, None, "").host_bytes
        if state.runner.device.type == "cpu" and here is not None:
            free = max(0, here - own_anonymous_bytes())
    learned = cast("GraphsRunner", state.runner).graphs if config.task == "graph" else state.graph
    require_sampled(state.runner.model, learned, config, state.mode_reason, free_bytes=free)


def _require_groups(state: RunState, train_nodes: Tensor, ranks: Communicator) -> None:
    """Check that groups of batches that are drawn from parts fit each rank's memory, by the first batch.

    All ranks call it together.

    Raises:
        ResourceError: on some rank they do not fit; the same error on all.
    """
    from graphbraid.distributed.shards.pipeline import UNDER_WAY  # here: few runs have parts

    config, runner = state.config, state.runner
    # Batches of the next epochs are prepared, too, unless an evaluation comes between.
    epochs = config.epochs if _val_nodes(state) is None else min(config.epochs, config.eval_every)
    with make_loader(runner, config, train_nodes, share=Share.of(ranks)) as loader:
        count = min(UNDER_WAY, epochs * len(loader))
        drawn = loader.batches(0, 0, min(1, count))  # a rank may have no seeds
        of_batch = sum(prepared_bytes(runner, batch) for batch in drawn)
    _, learned = width_and_bytes(runner.model, state.graph)
    needed = (count + STEP_BYTES) * of_batch + learned
    memory = memory_of_rank(ranks, None, "").host_bytes
    free = None if memory is None else max(0, memory - own_anonymous_bytes())
    known = [(rank, *of_rank) for rank, of_rank in enumerate(ranks.gather([needed, free, of_batch]))]
    lacking = [one for one in known if one[2] is not None and one[1] > one[2]]
    if not lacking:
        return
    rank, needed, free, of_batch = max(lacking, key=lambda one: one[1] / max(one[2], 1))
    size = max(1, config.batch_size * free // needed)
    raise ResourceError(
        f"rank {rank} needs {format_bytes(needed)} for {count} batches under way of {format_bytes(of_batch)} "
        f"each, a step and what is learned; {format_bytes(free)} are free. Give batch_size={size} or smaller "
        "fanouts, or start more ranks on machines of their own"
    )


def _compile(state: RunState, train_nodes: Tensor, evidence: Evidence | None) -> None:
    """Set the runner's engine, or on ``state`` the reason why there is none."""
    from graphbraid.train.step.whole import compile_for

    state.runner.engine, state.uncompiled_reason = compile_for(
        state.runner, state.config, train_nodes, evidence, state.comm
    )


def _plan(state: RunState, task: Task, train_nodes: Tensor, former: Path | None) -> Plan | None:
    """Return the plan that ``former`` kept, or a new one; on the CPU also set the training threads."""
    config, runner, share = state.config, state.runner, Share.of(state.comm)
    if config.plan is not None and train_nodes.numel() < share.num_ranks:
        raise ConfigError(
            f"plan={config.plan!r} needs batches to prepare on each rank, and {train_nodes.numel()} training "
            f"nodes are fewer than the {share.num_ranks} ranks; start fewer, or leave plan and hot out."
        )
    plan = None if former is None else kept_plan(former, config)
    if plan is None and config.plan is not None:
        plan = plan_run(runner, task, config, train_nodes, state.accelerator, share=share)
    if plan is not None and state.accelerator is None and runner.device.type == "cpu":
        set_training_threads(config, plan.workers)
    return plan

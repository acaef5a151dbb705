"""Setup of a run: checks before the first step, and the parts that training uses."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter, is_lazy
from torch.optim import Optimizer

from graphbraid.errors import ConfigError, GraphbraidError
from graphbraid.graph import Graph
from graphbraid.machine.hardware import free_memory_bytes, own_anonymous_bytes
from graphbraid.nn import module_traits
from graphbraid.nn.module_traits import in_mode
from graphbraid.train import runtime
from graphbraid.train.config import TrainConfig
from graphbraid.train.inference.metrics import AP, check_monitor, check_own_metrics, check_threshold
from graphbraid.train.run_folder.folder import kept_evidence, kept_plan
from graphbraid.train.runtime import LearningRateSchedule, make_optimizer
from graphbraid.train.step.links.runner import LinkRunner
from graphbraid.train.step.runner import ModelRunner, divided_graph
from graphbraid.train.step.step import ALONE, SampledFeed, Share, make_loader
from graphbraid.train.task import Task, check_own_loss, has_split, split_nodes, with_class_weights

if TYPE_CHECKING:
    from graphbraid.collective import Plan
    from graphbraid.collective.run.stages import Accelerator
    from graphbraid.fullgraph import Evidence
    from graphbraid.train.run.ranks import RunRanks
    from graphbraid.train.step.graphs import GraphsRunner
    from graphbraid.train.step.whole import WholeGraphFeed
    from graphbraid.train.trainer import Trainer


_log = logging.getLogger(__name__)
_DRY_SEEDS = 2
"""Number of seeds in the mini-batch on which a model is first tried."""
_TRIED_LABELS = 8
"""Number of labels on which a caller's own loss and metrics are tried."""
_COMMON = 0.9
"""Share of the largest class from which accuracy says little."""
_FAR = 10.0
"""Mean or standard deviation from which targets are far from the outputs of a new model, near 0."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class RunParts:
    """The parts of a run that training uses."""

    val_nodes: Tensor | None
    """Labelled nodes of the split ``val``, ``(num_val,)`` int64; None if the run does not evaluate."""
    task: Task
    """Loss with its class weights, on the model's device."""
    feed: SampledFeed | WholeGraphFeed
    """Source of the batches, or of this rank's shares of them."""
    steps_per_epoch: int
    optimizer: Optimizer
    schedule: LearningRateSchedule


def set_up(trainer: Trainer, former: Path | None, ranks: RunRanks | None) -> RunParts:
    """Check a run and make its parts; the engine, the plan and the steps per epoch are set on ``trainer``.

    The trainer's last run is forgotten. ``former`` is the folder of the run that this one continues.
    """
    config, runner = trainer.config, trainer.runner
    labels = runner.labels
    train_nodes, val_nodes = split_nodes(labels, "train"), _val_nodes(trainer)
    assert labels.y is not None
    weighted = with_class_weights(trainer.task, config.class_weights, labels.y[train_nodes])
    task = weighted.to(runner.device)
    if task.own_loss is not None or any(kind.is_own for kind in trainer.metric_kinds.values()):
        tried = labels.y[train_nodes[:_TRIED_LABELS]]
        with runtime.random_state_kept():
            if task.own_loss is not None:
                check_own_loss(task, tried.to(runner.device), num_ranks=1 if ranks is None else ranks.size)
            check_own_metrics(trainer.task, trainer.metric_kinds, tried)
    if isinstance(runner, LinkRunner) and len(labels.splits) > 1:
        runner.negatives_of_evaluation()  # which a complete graph does not have
    check_fanouts(runner.model, config)
    if config.threshold is not None:
        split = "val" if config.threshold == "f1" else "train"
        check_threshold(trainer.task, labels.y[split_nodes(labels, split)].reshape(-1).long(), split)
    if val_nodes is not None:
        check_monitor(trainer.monitored[0], labels, val_nodes)
    if trainer.task.name == "regression":
        _note_mean(trainer, labels.y, train_nodes, train_nodes if val_nodes is None else val_nodes)
    _note_baseline(trainer, train_nodes if val_nodes is None else val_nodes, warns=val_nodes is not None)
    runtime.seed_everything(config.seed)  # lazy modules draw their weights here
    if config.mode == "full":
        _try_whole(trainer, task, train_nodes, None if former is None else kept_evidence(former))
    else:
        _try_batches(trainer, task, train_nodes)
        if ranks is not None:
            ranks.check_shares(train_nodes)
    if config.plan is not None:
        trainer.plan = _plan(trainer, task, train_nodes, former)
    feed = make_feed(
        runner,
        config,
        task,
        train_nodes,
        plan=trainer.plan,
        accelerator=trainer.accelerator,
        share=Share.of(trainer.comm),
    )
    steps = trainer.steps_per_epoch = math.ceil(feed.num_batches / config.accumulate)
    optimizer, maximize = make_optimizer(config, runner.model), trainer.monitored[1]
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


def _note_mean(trainer: Trainer, y: Tensor, train_nodes: Tensor, nodes: Tensor) -> None:
    """Set the errors, at ``nodes``, of always predicting the mean of the training targets ``y``.

    Warn if the targets are far from 0, where the outputs of a new model are.
    """
    known, seen = (y[ids].reshape(len(ids), -1).double() for ids in (train_nodes, nodes))
    mean = known.nanmean(0)
    spread = (known - mean).square().nanmean().sqrt()
    error = seen - mean
    trainer.baseline = (
        f"always predicting the mean of the training targets has an mae of {error.abs().nanmean():.4f} and "
        f"an rmse of {error.square().nanmean().sqrt():.4f}"
    )
    if max(mean.nan_to_num().abs().max(), spread) > _FAR:
        _log.warning(
            "the training targets have a mean of %.4g and a standard deviation of %.4g, and a new model's "
            "outputs are near 0, so it learns them slowly; scale the targets to mean 0 and deviation 1",
            *(float(known.nanmean()), float(spread)),
        )


def _note_baseline(trainer: Trainer, nodes: Tensor, *, warns: bool) -> None:
    """Set the accuracy of always predicting the largest class of ``nodes``, where labels are classes.

    Where ``warns``, nodes are those of the split ``val``: warn if nearly all of them are of that class, so
    that accuracy tells little.
    """
    runner = trainer.runner
    assert runner.labels.y is not None
    if trainer.task.name != "single-label":
        return
    counts = torch.bincount(runner.labels.y[nodes])
    label, share = int(counts.argmax()), float(counts.max()) / nodes.numel()
    names = trainer.graph.schema.class_names.get(runner.node_type, ())
    largest = f"class {label}" + (f" ({names[label]})" if label < len(names) else "")
    trainer.baseline = f"always predicting {largest}, the largest, has an accuracy of {share:.4f}"
    if warns and share > _COMMON and (monitor := trainer.monitored[0]) in ("accuracy", "f1_micro"):
        _log.warning(
            "%s has %.1f %% of the split 'val': a model that predicts nothing else may be best by %s; choose "
            "monitor='f1_macro', or metrics=('%s', 'f1_macro')",
            largest,
            100 * share,
            monitor,
            AP,
        )


def _val_nodes(trainer: Trainer) -> Tensor | None:
    config, labels = trainer.config, trainer.runner.labels
    if config.eval_every == 0:
        return None
    if has_split(labels, "val"):
        return split_nodes(labels, "val")
    follows = f"patience={config.patience}" if config.patience is not None else None
    if config.scheduler == "plateau":
        follows = "scheduler='plateau'"
    if follows is not None:
        raise ConfigError(
            f"{follows} follows a validation metric, but the graph has no split 'val'; give it one, or leave "
            "the option out."
        )
    return None


def check_fanouts(model: nn.Module, config: TrainConfig) -> None:
    """Refuse another number of fanouts than the model has layers, if it says how many."""
    if config.task == "graph":  # nothing is drawn
        return
    layers = module_traits.num_layers(model)
    if config.mode == "sampled" and layers is not None and layers != len(config.fanouts):
        raise ConfigError(
            f"fanouts must have one entry per layer of the model ({layers}); got {len(config.fanouts)}: "
            f"{list(config.fanouts)}."
        )
    if config.mode == "sampled" and layers and not any(config.fanouts):
        _log.warning(
            "fanouts %s draw no neighbours: the model learns from each node's own row alone. -1 takes all.",
            list(config.fanouts),
        )


# ---- the model is tried


def _try_whole(trainer: Trainer, task: Task, train_nodes: Tensor, evidence: Evidence | None) -> None:
    """Run the model once on the whole graph, compiled if possible, which also initialises lazy modules.

    The runner's engine is set, or on ``trainer`` the reason why there is none.
    """
    from graphbraid.estimates.limits import require_as_written  # here: mini-batches need neither
    from graphbraid.train.step.whole import compile_for, require_whole

    config, runner = trainer.config, trainer.runner

    def compile_model() -> None:
        runner.engine, trainer.uncompiled_reason = compile_for(
            runner, config, train_nodes, evidence, trainer.comm
        )

    divides = trainer.comm is not None and config.partition is not None
    require_whole(runner, config, Share.of(trainer.comm).num_ranks if divides else 1)
    compile_model()
    engine = runner.engine
    if trainer.comm is not None and engine is not None:  # which lowering has tried already
        check_width(engine.program.width(engine.program.output), task)
        return
    if (engine is None or engine.breaks) and not trainer.graph.is_typed:
        require_as_written(runner.model, trainer.graph, config, trainer.uncompiled_reason, engine)
    dry_run(runner, task, config, train_nodes)
    if runner.engine is None:
        compile_model()


def _try_batches(trainer: Trainer, task: Task, train_nodes: Tensor) -> None:
    """Run the model once on a mini-batch of few seeds, which also initialises lazy modules."""
    _require_sampled(trainer)
    is_made = not any(map(is_lazy, trainer.runner.model.parameters()))
    for _ in range(1 if is_made else 2):  # the first fills in widths; the model is read when it runs next
        dry_run(trainer.runner, task, trainer.config, train_nodes)
    if (divided := divided_graph(trainer.graph)) is not None:
        from graphbraid.estimates.limits import require_groups  # here: few runs have parts

        # Batches of the next epochs are prepared, too, unless an evaluation comes between.
        config = trainer.config
        epochs = config.epochs if _val_nodes(trainer) is None else min(config.epochs, config.eval_every)
        require_groups(trainer.runner, config, train_nodes, epochs, divided.shards.ranks)
    trainer.uncompiled_reason = trainer.runner.uncompiled_reason


def make_feed(
    runner: ModelRunner,
    config: TrainConfig,
    task: Task,
    nodes: Tensor,
    *,
    plan: Plan | None = None,
    accelerator: Accelerator | None = None,
    share: Share = ALONE,
) -> SampledFeed | WholeGraphFeed:
    """Make the feed for ``config.mode`` over the training nodes, or of a rank's shares of the batches.

    ``nodes`` are those of all ranks, ``(num_train,)`` int64, and ``task`` may be on any device. Without
    ``accelerator``, the runner's device prepares mini-batches by the plan.
    """
    if config.mode == "full":
        from graphbraid.train.step.whole import WholeGraphFeed  # here: mini-batches need none of its engine

        return WholeGraphFeed(runner, task, nodes)
    loader, sharing = make_loader(runner, config, nodes, plan, accelerator, share=share), None
    divides = plan is not None and plan.cores is not None and loader.plan is None and config.threads is None
    if divides and share.num_ranks == 1:
        assert plan is not None
        assert plan.cores is not None
        from graphbraid.loader.planned import CoreSharing  # here: few runs have a plan

        sharing = CoreSharing(loader, plan.cores, plan.cbs)
    return SampledFeed(runner, config, task, loader, sharing, inputs=nodes if config.task == "edge" else None)


def dry_run(runner: ModelRunner, task: Task, config: TrainConfig, nodes: Tensor) -> None:
    """Run the model once without training it, on the whole graph or a small mini-batch, and check its output.

    This also initialises lazy modules before an optimizer is made. In mode ``sampled`` the first of ``nodes``
    are the batch's seeds.

    Raises:
        ConfigError: the model fails on the graph's data, or its output does not have ``task.width`` columns.
    """
    seeds, what = nodes, "the whole graph"
    if config.mode != "full":
        seeds = nodes[:_DRY_SEEDS]
        what = f"a mini-batch of {seeds.numel()} seed nodes"
    with (
        contextlib.closing(make_feed(runner, config, task, seeds)) as feed,
        contextlib.closing(feed.batches(0, 0)) as batches,
    ):
        batch = next(batches).batch
        assert batch is not None
        try:
            with in_mode(runner.model, training=False), torch.no_grad():
                outputs = runner.outputs_of(batch)
        except GraphbraidError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            raise ConfigError(
                f"the model failed on {what}, with {runner.feature_text}: {error}. "
                "Check its number of input channels and what its forward takes."
            ) from error
    if outputs.ndim:  # else it is the loss of links, whose scores are not kept
        check_width(outputs.shape[1], task)


def check_width(num_outputs: int, task: Task) -> None:
    """Check that a model has as many outputs as a task needs; ConfigError if it has another number."""
    if task.name == "link":  # as many scores as there are negatives
        return
    if num_outputs != task.width:
        needed = {"single-label": "class", "multi-label": "label", "regression": "target dimension"}[
            task.name
        ]
        raise ConfigError(
            f"the model must have one output per {needed} ({task.width}); it has {num_outputs}. Build "
            f"it with out_channels={task.width}."
        )


def _plan(trainer: Trainer, task: Task, train_nodes: Tensor, former: Path | None) -> Plan | None:
    """Return the plan that ``former`` kept, or a new one; on the CPU also set the training threads."""
    from graphbraid.estimates.plan import plan_run, set_training_threads  # here: few runs have a plan

    config, runner, share = trainer.config, trainer.runner, Share.of(trainer.comm)
    if train_nodes.numel() < share.num_ranks:
        raise ConfigError(
            f"plan={config.plan!r} needs batches to prepare on each rank, and {train_nodes.numel()} training "
            f"nodes are fewer than the {share.num_ranks} ranks; start fewer, or leave plan and hot out."
        )
    plan = None if former is None else kept_plan(former, config)
    if plan is None:
        plan = plan_run(runner, task, config, train_nodes, trainer.accelerator, share=share)
    if plan is not None and trainer.accelerator is None and runner.device.type == "cpu":
        set_training_threads(config, plan.workers)
    return plan


# ---- the memory of mini-batches


def _require_sampled(trainer: Trainer) -> None:
    """Check that a run on mini-batches fits the memory; ranks of a machine divide the free memory.

    The memory is counted only where a bound does not show at once that the run fits.

    Raises:
        ResourceError: it does not fit.
    """
    config, model, free = trainer.config, trainer.runner.model, None
    # Groups of batches of divided graphs are checked. A copy of a model for trials would lack rows that ranks
    # divide.
    if not trainer.graph.is_whole or trainer.runner.learned is not None:
        return
    on_host = trainer.runner.device.type == "cpu"
    if trainer.comm is not None:
        from graphbraid.estimates.machine import memory_of_rank  # here: only ranks share a machine's memory

        config = config.updated(batch_size=-(-config.batch_size // trainer.comm.size))
        here = memory_of_rank(trainer.comm, None, "").host_bytes
        if on_host and here is not None:
            free = max(0, here - own_anonymous_bytes())
    if free is None:
        free = free_memory_bytes() if on_host else runtime.device_named(config.device).free_bytes()
    if free is None or 2 * most_bytes(model, trainer.graph, config) < free:
        return
    from graphbraid.estimates.limits import require_sampled  # here: most runs clearly fit

    learned = cast("GraphsRunner", trainer.runner).graphs if config.task == "graph" else trainer.graph
    require_sampled(model, learned, config, trainer.mode_reason, free_bytes=free)


def most_bytes(model: nn.Module, graph: Graph, config: TrainConfig) -> int:
    """Return a loose bound on the memory of a run on mini-batches beside graph and features."""
    width, of_parameters = width_and_bytes(model, graph)
    nodes, edges = graph.num_nodes, graph.num_edges * max(1, len(config.fanouts))
    if config.task == "node":
        reached = [
            _reached(graph, config.batch_size, config.fanouts),
            _reached(graph, config.eval_batch_size, config.eval_fanouts or config.fanouts),
        ]
        nodes, edges = max(count for count, _ in reached), max(count for _, count in reached)
    of_all = 16 * width * (graph.num_nodes + graph.num_edges)
    exact = min(config.memory_budget_bytes, of_all)
    return of_parameters + 4 * width * ((2 * config.workers + 16) * nodes + 4 * edges) + exact


def width_and_bytes(model: nn.Module, graph: Graph) -> tuple[int, int]:
    """Return bounds on the numbers that a pass makes for a node, and on the bytes of learning parameters."""
    parameters = [p for p in model.parameters() if not isinstance(p, UninitializedParameter)]
    parts = [graph.nodes_of(one) for one in graph.node_types] if graph.is_typed else [graph]
    features = max((part.x.shape[1] for part in parts if part.x is not None), default=0)
    # A parameter with a row for each node, as an embedding's, is as wide as a row.
    counts = {graph.num_nodes, *(part.num_nodes for part in parts)}
    width = features + sum(
        max((size for size in p.shape if size not in counts), default=1) for p in parameters
    )
    return width, 4 * sum(p.numel() * p.element_size() for p in parameters)


def _reached(graph: Graph, seeds: int, fanouts: Sequence[int]) -> tuple[int, int]:
    nodes = last = min(seeds, graph.num_nodes)
    edges, relations = 0, len(graph.edge_types) if graph.is_typed else 1
    for fanout in fanouts:
        drawn = graph.num_edges if fanout < 0 else last * fanout * relations
        last = min(drawn, graph.num_nodes)
        nodes, edges = min(nodes + last, graph.num_nodes), edges + drawn
    return nodes, edges

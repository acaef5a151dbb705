"""Refusal of runs that do not fit the free memory, before the system kills the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn

from graphbraid.arguments import as_budget
from graphbraid.errors import ResourceError
from graphbraid.estimates.machine import memory_of_rank
from graphbraid.estimates.memory import STEP_BYTES, sampled_needs
from graphbraid.estimates.seconds import rows_made_up
from graphbraid.estimates.sizes import break_bytes, training_bytes
from graphbraid.estimates.trial import Trial
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph
from graphbraid.machine.hardware import Hardware, own_anonymous_bytes, return_freed_blocks
from graphbraid.train.config import TrainConfig
from graphbraid.train.inference.infer import prepared_bytes
from graphbraid.train.run.setup import most_bytes, width_and_bytes
from graphbraid.train.runtime import device_named
from graphbraid.train.step.step import Share, make_loader

if TYPE_CHECKING:
    from graphbraid.distributed import Communicator
    from graphbraid.fullgraph import Engine
    from graphbraid.graph.graph_set import GraphSet
    from graphbraid.train.step.runner import ModelRunner

_SMALLER = "Choose smaller fanouts, batch_size or model, or a machine with more memory"
_HELD = ("software", "graph", "features", "model")
"""Parts of a run that are in memory before its first step."""
_KEPT_SHARE = 4
"""A quarter of a run's memory is assumed lost between blocks, where nothing else fits."""
_RESERVE_BYTES = 64 << 20
"""Memory kept free while stages are measured: heaps of threads, pools of earlier arrangements, copies. A run
without a plan keeps half of it free."""
_BESIDE = "threads and copies, which are kept free"
_PARTS = {
    "optimizer": "the optimizer's state",
    "batches": "mini-batches under way",
    "step": "the activations and gradients of a step",
    "validation": "a validation",
    "test": "the test",
}


def require_sampled(
    model: nn.Module,
    graph: Graph | GraphSet,
    config: TrainConfig,
    why: str = "",
    *,
    free_bytes: int,
) -> None:
    """Check that mini-batches can be trained on in the free memory; ResourceError if it does not fit.

    The memory that a run adds is counted as by :func:`graphbraid.estimate`. The tiers of ``config`` exist
    already. ``why`` is the reason of mode ``auto`` to sample; it is empty if the mode was given.
    """
    config = config.updated(mode="sampled", tiers=None, plan=None, trace=None)
    what = "training on mini-batches needs"
    if why:
        what = f"neither way to train fits the memory. The whole graph: {why}. Mini-batches need"
    parts = _parts_to_come(model, graph, config)
    needed, left = sum(parts.values()), free_bytes - _RESERVE_BYTES // 2
    parts |= {_BESIDE: _RESERVE_BYTES // 2}
    _refuse_more(parts, free_bytes, what, lambda: _what_fits(model, graph, config, needed, left))


def require_profile(model: nn.Module, graph: Graph, config: TrainConfig) -> None:
    """Check that a run's stages can be measured in the free memory; ResourceError if they cannot."""
    free = device_named(config.device).free_bytes()
    if free is None:
        return
    cores = Hardware.detect().planned_cores
    config = config.updated(
        mode="sampled", tiers=None, plan=None, trace=None, workers=max(config.workers, cores)
    )
    left = free - _RESERVE_BYTES
    if 2 * most_bytes(model, graph, config) < left:
        return
    # Of the arrangements that are tried, that with most workers prepares three batches ahead for each.
    parts = _parts_to_come(model, graph, config, ahead=3 * cores, evaluates=False)
    needed = sum(parts.values())

    def advice() -> str:
        return f"{_what_fits(model, graph, config, needed, left)}, or train without a plan"

    _refuse_more(parts | {_BESIDE: _RESERVE_BYTES}, free, "measuring a run's stages for a plan needs", advice)


def require_as_written(
    model: nn.Module, graph: Graph, config: TrainConfig, why: str, engine: Engine | None = None
) -> None:
    """Check that a model that is not fully lowered can train on the whole graph in free memory.

    ``why`` says why it runs as it is written; ``engine`` runs the lowered parts, if there are any.

    Raises:
        ResourceError: by steps tried on small graphs, a step needs more than the free memory.
    """
    free = device_named(config.device).free_bytes()
    width, of_parameters = width_and_bytes(model, graph)
    if free is None or 2 * (64 * width * (graph.num_nodes + graph.num_edges) + of_parameters) < free:
        return
    trial = Trial(model, graph, config.updated(trace=None))
    if engine is None:
        trial.try_model()  # which makes lazy parameters
    parts = {_PARTS["optimizer"]: trial.state_bytes()}
    if engine is None:
        parts[_PARTS["step"]] = training_bytes(trial)
        what = f"the model runs as it is written ({why}), and training on the whole graph needs"
    else:
        parts["the lowered parts of a step"] = engine.nbytes + engine.evaluation_nbytes
        parts["its parts that run as written"] = break_bytes(trial)
        what = "parts of the model run as they are written, and training on the whole graph needs"
    _refuse_more(parts, free, what, lambda: "Use mode='sampled' (--mode sampled), or a smaller model")


def require_groups(
    runner: ModelRunner, config: TrainConfig, nodes: Tensor, epochs: int, ranks: Communicator
) -> None:
    """Check that groups of batches that are drawn from parts fit each rank's memory, by the first batch.

    All ranks call it together. The batches of ``epochs`` follow each other without an evaluation between.

    Raises:
        ResourceError: on some rank they do not fit; the same error on all.
    """
    from graphbraid.distributed.shards.pipeline import UNDER_WAY  # here: few runs have parts

    with make_loader(runner, config, nodes, share=Share.of(ranks)) as loader:
        count = min(UNDER_WAY, epochs * len(loader))
        drawn = loader.batches(0, 0, min(1, count))  # a rank may have no seeds
        of_batch = sum(prepared_bytes(runner, batch) for batch in drawn)
    _, learned = width_and_bytes(runner.model, runner.graph)
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


def _parts_to_come(
    model: nn.Module,
    graph: Graph | GraphSet,
    config: TrainConfig,
    *,
    ahead: int | None = None,
    evaluates: bool = True,
) -> dict[str, int]:
    """Return the memory by name that a run adds on its device from the first step on."""
    trial = Trial(model, graph, config)
    with rows_made_up(trial):  # a run whose rows are in tiers maps no page of their file
        trial.try_model()
        found = sampled_needs(trial, ahead=ahead, software=False)
    needs = found.host if trial.device.type == "cpu" else found.device
    del trial
    return_freed_blocks()  # the run itself needs the room
    phases = [need for need in needs.phases if evaluates or need.name not in ("validation", "test")]
    most = max(phases, key=lambda need: need.nbytes, default=None)
    counted = [need for need in needs.held if need.name not in _HELD] + ([] if most is None else [most])
    parts = {_PARTS.get(need.name, need.name): need.nbytes for need in counted if need.nbytes}
    return parts | {"freed blocks that the process keeps": sum(parts.values()) // _KEPT_SHARE}


def _what_fits(model: nn.Module, graph: Graph | GraphSet, config: TrainConfig, needed: int, free: int) -> str:
    """Return advice to make the run fit: lower the memory for rows, or else the size of batches."""
    host = 0
    if isinstance(graph, Graph) and config.host is not None:
        host = min(as_budget(config.host, "host"), 2 * graph.nbytes)
    if (left := (host - (needed - free)) >> 20) > 0:
        return f"Give host='{left}MiB' (--host {left}MiB): the other rows are read from the file"
    # Trying smaller batches takes some megabytes, too: far from fitting, they are not tried.
    size = config.batch_size if 4 * free > needed else 1
    while size > 1:
        size = max(size // 4, 1)
        for budget in {config.memory_budget_bytes, min(config.memory_budget_bytes, max(free // 4, 1 << 16))}:
            given = {"batch_size": size, "eval_batch_size": min(config.eval_batch_size, size)}
            given |= {"memory_budget_bytes": budget}
            if sum(_parts_to_come(model, graph, config.updated(**given)).values()) <= free:
                changed = (
                    f"{name}={value}" for name, value in given.items() if value != getattr(config, name)
                )
                return f"Give {', '.join(changed)}, which fits"
    return _SMALLER


def _refuse_more(parts: dict[str, int], free: int, what: str, advice: Callable[[], str]) -> None:
    needed = sum(parts.values())
    if needed <= free:
        return
    listed = ", ".join(f"{format_bytes(nbytes)} for {name}" for name, nbytes in parts.items())
    raise ResourceError(
        f"{what} {format_bytes(needed)} beside what is in memory, "
        f"where {format_bytes(free)} are free: {listed}. {advice()}"
    )

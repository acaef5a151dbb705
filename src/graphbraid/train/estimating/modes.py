"""What ``mode="auto"`` and ``tiers="auto"`` choose, by the same counts that an estimate shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from graphbraid.arguments import as_budget
from graphbraid.errors import ResourceError
from graphbraid.estimates.allocation import capacity_bytes
from graphbraid.estimates.records import Mode
from graphbraid.estimates.trial import Trial
from graphbraid.features import Score
from graphbraid.features.budgets.sizing import HostBudget, host_budget
from graphbraid.features.tiers.device_sizing import DeviceBudget, DeviceMemory, device_budget
from graphbraid.files.writing import format_bytes
from graphbraid.fullgraph import NotLoweredError, estimated_bytes
from graphbraid.graph import Graph
from graphbraid.graph.scaled_features import stored_rows
from graphbraid.train.config import TrainConfig
from graphbraid.train.estimating.device import sampler_bytes
from graphbraid.train.estimating.memory.sampled import (
    SampledNeeds,
    bytes_beside_graph,
    may_try_steps,
    most_bytes,
    sampled_needs,
    width_and_bytes,
)
from graphbraid.train.estimating.run_seconds import RunSeconds
from graphbraid.train.estimating.trials.whole_passes import training_bytes
from graphbraid.train.step.feed import ALONE, Share
from graphbraid.train.step.tiers import expected_reads, share_of
from graphbraid.train.step.whole import device_named

SHARE_OF_FREE_MEMORY = 0.5
"""Largest share of the free memory for which mode ``auto`` trains on the whole graph."""


def choose_mode(
    model: nn.Module, graph: Graph, config: TrainConfig, *, free_bytes: int | None = None
) -> tuple[Mode, str]:
    """Return ``full`` or ``sampled`` for mode ``auto``, and the reason as a sentence.

    Args:
        model: model to train.
        graph: graph to train on.
        config: options of the run.
        free_bytes: free memory beside the data. If None, as measured now.
    """
    if config.precision != "float32":
        return "sampled", "the full-graph engine runs in float32"
    device = device_named(config.device)
    free = device.free_bytes() if free_bytes is None else free_bytes
    try:
        needed = estimated_bytes(model, graph, device)
    except NotLoweredError as why:
        return "sampled", f"the model has no lowered form ({why})"
    if free is None:
        return "sampled", "the free memory is not known"
    allowed = SHARE_OF_FREE_MEMORY * free
    fits = needed <= allowed
    return (
        "full" if fits else "sampled",
        f"the whole graph needs up to {format_bytes(needed)} "
        f"{'beside the data' if device.is_host else f'on {device.place}'}, "
        f"{'within' if fits else 'more than'} half of the {format_bytes(free)} that are free",
    )


def require_sampled(
    model: nn.Module, graph: Graph, config: TrainConfig, why: str = "", *, free_bytes: int | None = None
) -> None:
    """Check that mini-batches can be trained on in the free memory, before the system kills the process.

    What a run will hold beside what is in memory already is counted as :func:`graphbraid.estimate` does,
    unless a bound says at once that it fits.

    Args:
        model: model to train.
        graph: graph to train on, with one type of nodes.
        config: options of the run, whose tiers are made already.
        why: reason for which mode ``auto`` chose to sample; empty if the mode was given.
        free_bytes: memory that the run may take. If None, what is free on its device.

    Raises:
        ResourceError: it does not fit; the message says what takes how much, and what to lower.
    """
    free = device_named(config.device).free_bytes() if free_bytes is None else free_bytes
    if free is None or 2 * most_bytes(model, graph, config) < free:
        return
    config = config.updated(mode="sampled", tiers=None, plan=None, trace=None)
    what = "training on mini-batches needs"
    if why:
        what = f"neither way to train fits the memory. The whole graph: {why}. Mini-batches need"
    parts = _parts_to_come(model, graph, config)
    _refuse_more(parts, free, what, lambda: _what_fits(model, graph, config, sum(parts.values()), free))


def require_as_written(model: nn.Module, graph: Graph, config: TrainConfig, why: str) -> None:
    """Check that a model that is not lowered can train on the whole graph in the free memory.

    Args:
        model: model to train.
        graph: graph to train on, with one type of nodes.
        config: options of the run.
        why: reason for which the model runs as it is written.

    Raises:
        ResourceError: a step takes more than is free, by steps tried on small graphs.
    """
    free = device_named(config.device).free_bytes()
    width, of_parameters = width_and_bytes(model, graph)
    if free is None or 2 * (64 * width * (graph.num_nodes + graph.num_edges) + of_parameters) < free:
        return
    trial = Trial(model, graph, config.updated(trace=None))
    trial.try_model()
    parts = {_PARTS["step"]: training_bytes(trial), _PARTS["optimizer"]: trial.state_bytes()}
    what = f"the model runs as it is written ({why}), and training on the whole graph needs"
    _refuse_more(parts, free, what, lambda: "Use mode='sampled' (--mode sampled), or a smaller model")


_SMALLER = "Choose smaller fanouts, batch_size or model, or a machine with more memory"
_HELD = ("software", "graph", "features", "model")
"""Parts of a run that are in memory before its first step."""
_KEPT_SHARE = 8
"""One part in so many of what a run holds is taken to lie between blocks, where nothing else fits."""
_PARTS = {
    "optimizer": "the optimizer's state",
    "batches": "mini-batches under way",
    "step": "the activations and gradients of a step",
    "validation": "a validation",
    "test": "the test",
}


def _parts_to_come(model: nn.Module, graph: Graph, config: TrainConfig) -> dict[str, int]:
    """Return what a run will hold on its device beside what it holds before the first step, by name."""
    trial = Trial(model, graph, config)
    trial.try_model()
    found = sampled_needs(trial, software=False)
    needs = found.host if trial.device.type == "cpu" else found.device
    most = max(needs.phases, key=lambda need: need.nbytes, default=None)
    counted = [need for need in needs.held if need.name not in _HELD] + ([] if most is None else [most])
    parts = {_PARTS.get(need.name, need.name): need.nbytes for need in counted if need.nbytes}
    return parts | {"freed blocks that the process keeps": sum(parts.values()) // _KEPT_SHARE}


def _what_fits(model: nn.Module, graph: Graph, config: TrainConfig, needed: int, free: int) -> str:
    """Return what to lower so that the run fits: the memory for rows, or else the size of batches."""
    host = 0 if config.host is None else min(as_budget(config.host, "host"), 2 * graph.nbytes)
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


class AutoTiers(NamedTuple):
    """What ``tiers="auto"`` takes."""

    host: HostBudget
    device: DeviceBudget | None
    """None where there is no device, or ``hot`` says it."""
    reads: Score | None
    """Reads of each row, where the device was sized by them."""

    @property
    def reason(self) -> str:
        """Why both are as large as they are."""
        return self.host.reason + ("" if self.device is None else f"; {self.device.reason}")


def auto_tiers(
    model: nn.Module,
    graph: Graph,
    config: TrainConfig,
    memory: DeviceMemory | None = None,
    *,
    host_bytes: int | None = None,
    share: Share = ALONE,
) -> AutoTiers:
    """Return the memory for rows and lists that ``tiers="auto"`` takes: what the rest of the run leaves.

    Args:
        model: to train.
        graph: to train on.
        config: options of the run; ``hot`` is kept where it is given.
        memory: of the device. If None, there is none.
        host_bytes: memory that the run may take in place of this process. If None, all that is free.
        share: of each batch that the run trains on.

    Raises:
        ConfigError: the model does not fit the graph.
        DataError: the graph has no features, labels or training nodes.
    """
    config = config.updated(mode="sampled", tiers=None)
    trial = Trial(model, graph, config)
    trial.try_model()
    share = share_of(share, config, trial.nodes)
    # A rank's batches are as large as those of a run on batches of its share of the seeds.
    own = trial
    if share.num_ranks > 1:
        own = Trial(model, graph, config.updated(batch_size=-(-config.batch_size // share.num_ranks)))
        own.try_model()
    needs = sampled_needs(own)
    free = capacity_bytes() if host_bytes is None else host_bytes
    host = host_budget(graph, free_bytes=free, needed_bytes=bytes_beside_graph(needs.host, graph))
    if memory is None or config.hot is not None or stored_rows(graph.x) is None:
        return AutoTiers(host, None, None)
    run_time = None
    if may_try_steps(trial):
        run_time = RunSeconds(trial, host=host.host, share=share)
    reads = expected_reads(graph, trial.config, run_time, share=share)
    seconds = None if run_time is None else run_time.train
    return AutoTiers(host, auto_device(trial, needs, reads, memory, seconds), reads)


def auto_device(
    trial: Trial, needs: SampledNeeds, reads: Score, memory: DeviceMemory, run_seconds: float | None
) -> DeviceBudget:
    """Return the memory of a device for rows that ``tiers="auto"`` takes.

    Args:
        trial: the run.
        needs: of the run without tiers.
        reads: of each row in an epoch.
        memory: of the device.
        run_seconds: of all training steps. If None, not known.
    """
    needed = needs.device.nbytes + sampler_bytes(trial, memory.free_bytes)
    seconds = None if run_seconds is None else run_seconds / trial.config.epochs
    return device_budget(trial.graph, reads.values, memory, needed_bytes=needed, epoch_seconds=seconds)


def _refuse_more(parts: dict[str, int], free: int, what: str, advice: Callable[[], str]) -> None:
    needed = sum(parts.values())
    if needed <= free:
        return
    listed = ", ".join(f"{format_bytes(nbytes)} for {name}" for name, nbytes in parts.items())
    raise ResourceError(
        f"{what} {format_bytes(needed)} beside what is in memory, "
        f"where {format_bytes(free)} are free: {listed}. {advice()}"
    )

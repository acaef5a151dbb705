"""Choices of a Trainer before a run: mode, tiers, and options that depend on graph, ranks and memory.

``mode="auto"`` and ``tiers="auto"`` use the counts that an estimate shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from graphbraid.collective.hardware.device_resident import sampled_part_bytes
from graphbraid.errors import ConfigError
from graphbraid.estimates.machine import (
    RankMemory,
    capacity_bytes,
    device_memory,
    memory_name,
    memory_of_rank,
)
from graphbraid.estimates.memory import SampledNeeds, bytes_beside_graph, may_try_steps, sampled_needs
from graphbraid.estimates.records import Mode
from graphbraid.estimates.seconds import rows_made_up
from graphbraid.estimates.tiers import RunSeconds, batch_context
from graphbraid.estimates.trial import Trial
from graphbraid.features import Score
from graphbraid.features.budgets import HostBudget, host_budget
from graphbraid.features.tiers.device_sizing import DeviceBudget, DeviceMemory, device_budget
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph
from graphbraid.graph.scaled_features import stored_rows
from graphbraid.sampling.rows.by_id import FeatureSource
from graphbraid.sampling.sample import NeighborLists
from graphbraid.train import runtime
from graphbraid.train.config import TrainConfig
from graphbraid.train.option_checks import config_of_rank, fitted
from graphbraid.train.runtime import device_named
from graphbraid.train.step.step import ALONE, Share
from graphbraid.train.step.tiers import expected_reads, share_of

if TYPE_CHECKING:
    from graphbraid.collective.run.stages import Accelerator
    from graphbraid.distributed import Communicator

SHARE_OF_FREE_MEMORY = 0.5
"""Largest share of the free memory for which mode ``auto`` trains on the whole graph."""


# ---- a Trainer's options


class TrainerInputs(NamedTuple):
    """Objects given to a Trainer beside its options; None if not given."""

    tiers: FeatureSource | None
    topology: NeighborLists | None
    accelerator: Accelerator | None
    """Device that prepares and transfers mini-batches."""


class ResolvedConfig(NamedTuple):
    """The options of a run after all choices."""

    config: TrainConfig
    mode_reason: str
    """Reason for the mode that ``auto`` chose; empty if the mode was given."""
    tiers_reason: str
    """Choice of ``tiers="auto"`` with its reason; empty for other tiers."""
    reads: Score | None
    """Reads of each row, if ``tiers="auto"`` sized a device's tier by them."""


def choose(
    model: nn.Module, graph: Graph, config: TrainConfig, passed: TrainerInputs, comm: Communicator | None
) -> ResolvedConfig:
    """Check that options, objects, graph, model and ranks fit together, and choose open options."""
    mode_reason, tiers_reason, reads = "", "", None
    if comm is not None:
        config, mode_reason = config_of_rank(config, comm.rank)
    elif config.partition is not None:
        raise ConfigError(
            f"partition={str(config.partition)!r} divides the graph among several ranks, and there "
            "is one; start more, as with --ranks, or leave it out."
        )
    num_ranks = 1 if comm is None else comm.size
    config, reason = fitted(config, model, graph, passed._asdict(), num_ranks)
    mode_reason = reason or mode_reason
    _check_passed(config, passed)
    if config.tiers is not None:
        memory = RankMemory(None, device_memory(config.device, passed.accelerator), "")
        if comm is not None:
            name = memory_name(config.device, passed.accelerator)
            memory = memory_of_rank(comm, memory.device, name)
        config, tiers_reason, reads = _with_sizes(model, graph, config, memory, Share.of(comm))
    in_tiers = (passed.tiers, passed.topology, config.host, config.hot or None)
    if config.mode == "auto" and any(one is not None for one in in_tiers):
        mode_reason = "the graph is in tiers, and mini-batches read only what they need"
        config = config.updated(mode="sampled")
    if config.mode == "auto" and graph.x is not None:
        mode, mode_reason = choose_mode(model, graph, config)
        config = config.updated(mode=mode)
    return ResolvedConfig(config, mode_reason, tiers_reason, reads)


def with_plan_of_device(
    config: TrainConfig, passed: TrainerInputs, device: torch.device, num_ranks: int = 1
) -> TrainConfig:
    """Return the options, with a plan if rows stay on a device, since its copies leave them out."""
    has_device = passed.accelerator is not None or device.type != "cpu"
    if config.hot and not has_device:
        raise ConfigError(
            f"hot={config.hot!r} keeps feature rows on a device, and device={config.device!r} is the "
            "host; give another device, or host= for rows of a store."
        )
    if config.plan is not None and num_ranks > 1 and not has_device:
        raise ConfigError(
            f"plan={config.plan!r} without a device divides the cores of one rank, and the {num_ranks} ranks "
            "have their own; set each rank's workers= and threads=, or leave the plan out."
        )
    has_hot_rows = config.hot or (passed.tiers is not None and passed.tiers.hot is not None)
    if has_hot_rows and has_device and config.plan is None:
        config = config.updated(plan="auto")
    if passed.accelerator is not None and config.plan is None:
        raise ConfigError("an accelerator prepares mini-batches by a plan; also give plan='auto'.")
    return config


def _check_passed(config: TrainConfig, passed: TrainerInputs) -> None:
    """Check that tiers and topology were not given both as objects and by an option."""
    for name, given in (("tiers", passed.tiers), ("topology", passed.topology)):
        if given is None:
            continue
        verb = "makes tiers, and tiers are" if name == "tiers" else "makes its tiers, and topology is"
        asked = (("tiers", config.tiers), ("host", config.host), ("hot", config.hot or None))
        for option, size in asked:
            if size is not None and (option, name) != ("hot", "topology"):
                raise ConfigError(f"{option}={size!r} {verb} given; leave one out.")
        if config.mode == "full" and name == "topology":
            raise ConfigError("topology serves mini-batches, and mode='full' has none; leave one out.")


def _with_sizes(
    model: nn.Module, graph: Graph, config: TrainConfig, memory: RankMemory, share: Share
) -> tuple[TrainConfig, str, Score | None]:
    """Return the options with the memory chosen by ``tiers="auto"``, the reason, and reads of rows."""
    with runtime.torch_settings(config), runtime.random_state_kept():
        host, device, reads = auto_tiers(
            model, graph, config, memory.device, host_bytes=memory.host_bytes, share=share
        )
    hot, reasons = config.hot, [memory.reason, host.reason]
    if device is not None:
        hot, reasons = device.hot, [*reasons, device.reason]
    return config.updated(tiers=None, host=host.host, hot=hot), "; ".join(filter(None, reasons)), reads


# ---- mode and tiers


def choose_mode(
    model: nn.Module, graph: Graph, config: TrainConfig, *, free_bytes: int | None = None
) -> tuple[Mode, str]:
    """Return ``full`` or ``sampled`` for mode ``auto``, and the reason as a sentence.

    ``free_bytes`` is the free memory beside the data. If None, it is measured.
    """
    if config.precision != "float32":
        return "sampled", "the full-graph engine runs in float32"
    from graphbraid.fullgraph import NotLoweredError, estimated_bytes  # here: mini-batches need no engine

    device = device_named(config.device)
    free = device.free_bytes() if free_bytes is None else free_bytes
    try:
        needed = estimated_bytes(model, graph, device)
    except NotLoweredError as why:
        return (
            "sampled",
            f"parts of the model have no lowered form, and mode='full' runs these as written ({why})",
        )
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


def auto_tiers(
    model: nn.Module,
    graph: Graph,
    config: TrainConfig,
    memory: DeviceMemory | None = None,
    *,
    host_bytes: int | None = None,
    share: Share = ALONE,
) -> tuple[HostBudget, DeviceBudget | None, Score | None]:
    """Return the memory that ``tiers="auto"`` gives to rows and lists: the rest that the run leaves.

    The result also has the device's memory and the reads of each row by which it was sized. Both are None
    without a device, with a given ``hot``, or if features are not dense. A given ``config.hot`` is kept.
    ``memory`` is the device's. ``host_bytes`` are for the run in place of this process; if None, all that is
    free.
    """
    config = config.updated(mode="sampled", tiers=None)
    trial = Trial(model, graph, config)
    with rows_made_up(trial):
        trial.try_model()
    share = share_of(share, config, trial.nodes)
    # A rank's batches are as large as those of a run on batches of its share of the seeds.
    own = trial
    if share.num_ranks > 1:
        own = Trial(model, graph, config.updated(batch_size=-(-config.batch_size // share.num_ranks)))
    with rows_made_up(own):  # the run may read them by tiers, and then maps no page of their file
        own.try_model()
        needs = sampled_needs(own)
    free = capacity_bytes() if host_bytes is None else host_bytes
    host = host_budget(graph, free_bytes=free, needed_bytes=bytes_beside_graph(needs.host, graph))
    if memory is None or config.hot is not None or stored_rows(graph.x) is None:
        return host, None, None
    run_time = RunSeconds(trial, host=host.host, share=share) if may_try_steps(trial) else None
    reads = expected_reads(graph, trial.config, run_time, share=share)
    seconds = None if run_time is None else run_time.least
    return host, auto_device(trial, needs, reads, memory, seconds), reads


def auto_device(
    trial: Trial, needs: SampledNeeds, reads: Score, memory: DeviceMemory, run_seconds: float | None
) -> DeviceBudget:
    """Return the device memory that ``tiers="auto"`` gives to rows.

    ``needs`` are those of the run without tiers. ``run_seconds`` are those of all training steps.
    """
    needed = needs.device.nbytes
    if trial.config.plan != "cpu" and memory.free_bytes is not None:  # half of it is for what it samples from
        needed += sampled_part_bytes(memory.free_bytes // 2, batch_context(trial))
    seconds = None if run_seconds is None else run_seconds / trial.config.epochs
    return device_budget(trial.graph, reads.values, memory, needed_bytes=needed, epoch_seconds=seconds)

"""What a Trainer chooses before a run: options that graph, model, ranks and memory decide."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from graphbraid.errors import ConfigError
from graphbraid.features import Score
from graphbraid.graph import Graph
from graphbraid.nn import LinkModel
from graphbraid.sampling.lists import NeighborLists
from graphbraid.sampling.rows.by_id import FeatureSource
from graphbraid.train import runtime
from graphbraid.train.config import TrainConfig
from graphbraid.train.estimating.modes import auto_tiers, choose_mode
from graphbraid.train.run.ranks import config_of_rank
from graphbraid.train.run.typed import config_by_types
from graphbraid.train.step.feed import ALONE, Share
from graphbraid.train.step.links.options import config_of_links
from graphbraid.train.tuning.device_memory import device_memory
from graphbraid.train.tuning.rank_memory import RankMemory, memory_name, memory_of_rank

if TYPE_CHECKING:
    from graphbraid.collective.run.protocols import Accelerator
    from graphbraid.distributed import Communicator


class Passed(NamedTuple):
    """Objects that a Trainer was given beside its options; None for those that it was not."""

    tiers: FeatureSource | None
    """Where feature rows are."""
    topology: NeighborLists | None
    """Where adjacency lists are."""
    accelerator: Accelerator | None
    """What prepares and transfers mini-batches."""


class Chosen(NamedTuple):
    """The options of a run, with what was left open chosen."""

    config: TrainConfig
    mode_reason: str
    """Reason for the mode that ``auto`` chose; empty if the mode was given."""
    tiers_reason: str
    """What ``tiers="auto"`` chose, and why; empty if it was not asked for."""
    reads: Score | None
    """Reads of each row, if ``tiers="auto"`` sized a device by them."""


def choose(
    model: nn.Module, graph: Graph, config: TrainConfig, passed: Passed, comm: Communicator | None
) -> Chosen:
    """Check that options, objects, graph, model and ranks go together, and choose what is left open.

    Args:
        model: the model to train.
        graph: the graph to train on.
        config: options of the run as given.
        passed: what the Trainer was given beside them.
        comm: ranks that train together. If None, there is one.

    Raises:
        ConfigError: an option does not go with another, or with the graph, the model or the ranks.
        RankError: a rank was lost while several sized their tiers, which ``tiers="auto"`` does together.
    """
    mode_reason, tiers_reason, reads = "", "", None
    if comm is not None:
        config, mode_reason = config_of_rank(config, comm.rank)
    elif config.partition is not None:
        raise ConfigError(
            f"partition={str(config.partition)!r} divides the graph among several ranks, and there "
            "is one; start more, as with --ranks, or leave it out."
        )
    config, reason = _by_kind(model, graph, config, passed, 1 if comm is None else comm.size)
    mode_reason = reason or mode_reason
    _check_passed(config, passed)
    if config.tiers is not None:
        memory = RankMemory(None, device_memory(config.device, passed.accelerator), "")
        if comm is not None:
            name = memory_name(config.device, passed.accelerator)
            memory = memory_of_rank(comm, memory.device, name)
        share = ALONE if comm is None else Share(comm.rank, comm.size)
        config, tiers_reason, reads = _with_sizes(model, graph, config, memory, share)
    if config.mode == "auto" and _is_in_tiers(config, passed):
        mode_reason = "the graph is in tiers, of which mini-batches read what they need"
        config = config.updated(mode="sampled")
    if config.mode == "auto" and graph.x is not None:
        mode, mode_reason = choose_mode(model, graph, config)
        config = config.updated(mode=mode)
    return Chosen(config, mode_reason, tiers_reason, reads)


def with_plan_of_device(
    config: TrainConfig, passed: Passed, device: torch.device, num_ranks: int = 1
) -> TrainConfig:
    """Return the options with a plan where rows stay on a device, whose copies leave them out.

    Raises:
        ConfigError: rows are to stay on a device and there is none, an accelerator has no plan, or several
            ranks have a plan and no device.
    """
    has_device = passed.accelerator is not None or device.type != "cpu"
    if config.hot and not has_device:
        raise ConfigError(
            f"hot={config.hot!r} keeps feature rows on a device, and device={config.device!r} is the "
            "host; give another device, or host= for rows of a store."
        )
    if config.plan is not None and num_ranks > 1 and not has_device:
        raise ConfigError(
            f"plan={config.plan!r} without a device divides the cores of one rank, and the {num_ranks} ranks "
            "have their own; say by workers= and threads= how each uses them, or leave it out."
        )
    if (config.hot or _has_hot_rows(passed)) and has_device and config.plan is None:
        config = config.updated(plan="auto")
    if passed.accelerator is not None and config.plan is None:
        raise ConfigError("an accelerator prepares mini-batches as a plan says; give plan='auto' as well.")
    return config


def _by_kind(
    model: nn.Module, graph: Graph, config: TrainConfig, passed: Passed, num_ranks: int
) -> tuple[TrainConfig, str]:
    """Return the options as task and types allow, with the reason if these decide the mode."""
    if config.task == "link":
        return config_of_links(model, config, passed._asdict(), num_ranks), ""
    if isinstance(model, LinkModel):
        raise ConfigError("a LinkModel learns links, and task='node' learns labels; give task='link'.")
    return config_by_types(graph, config, passed._asdict(), num_ranks)


def _check_passed(config: TrainConfig, passed: Passed) -> None:
    """Check that tiers and topology were not both given and asked for by an option."""
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
    """Return the options with the memory that ``tiers="auto"`` chooses, the reason, and reads of rows."""
    with runtime.torch_settings(config), runtime.random_state_kept():
        found = auto_tiers(model, graph, config, memory.device, host_bytes=memory.host_bytes, share=share)
    hot = config.hot if found.device is None else found.device.hot
    reason = "; ".join(part for part in (memory.reason, found.reason) if part)
    return config.updated(tiers=None, host=found.host.host, hot=hot), reason, found.reads


def _has_hot_rows(passed: Passed) -> bool:
    return passed.tiers is not None and passed.tiers.hot is not None


def _is_in_tiers(config: TrainConfig, passed: Passed) -> bool:
    given = (passed.tiers, passed.topology, config.host, config.hot or None)
    return any(one is not None for one in given)

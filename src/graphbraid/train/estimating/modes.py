"""What ``mode="auto"`` and ``tiers="auto"`` choose, by the same counts that an estimate shows."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from graphbraid.errors import ResourceError
from graphbraid.features import Score
from graphbraid.features.budgets.sizing import HostBudget, host_budget
from graphbraid.features.tiers.device_sizing import DeviceBudget, DeviceMemory, device_budget
from graphbraid.files.writing import format_bytes
from graphbraid.fullgraph import NotLoweredError, estimated_bytes
from graphbraid.graph import Graph
from graphbraid.graph.scaled_features import stored_rows
from graphbraid.train.config import TrainConfig
from graphbraid.train.estimating.device import sampler_bytes
from graphbraid.train.estimating.memory.needs import Mode
from graphbraid.train.estimating.memory.sampled import (
    SampledNeeds,
    bytes_beside_graph,
    may_be_tried,
    sampled_needs,
    scaled_step_bytes,
)
from graphbraid.train.estimating.run_seconds import RunSeconds
from graphbraid.train.estimating.trials.baseline import capacity_bytes
from graphbraid.train.estimating.trials.batches import batch_sizes
from graphbraid.train.estimating.trials.trial import Trial
from graphbraid.train.option_checks import given_for_batches
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
    if given := given_for_batches(config):
        return "sampled", f"{given} is for mini-batches"
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


def require_sampled(model: nn.Module, graph: Graph, config: TrainConfig, nodes: Tensor, why: str) -> None:
    """Check that mini-batches can be trained on in the free memory, after the whole graph was found not to.

    Counted are the rows of a batch, gradients and the optimizer's state, and the activations of a step, by a
    trial on few seeds.

    Args:
        model: model to train.
        graph: graph to train on.
        config: options of the sampling.
        nodes: training nodes.
        why: reason for which mode ``auto`` chose to sample.

    Raises:
        ResourceError: it does not fit; the message says how much is needed.
    """
    free = device_named(config.device).free_bytes()
    if free is None:
        return
    sizes = batch_sizes(graph, config, nodes)
    learned = [p for p in model.parameters() if p.requires_grad and not isinstance(p, UninitializedParameter)]
    gradients = sum(p.numel() * p.element_size() for p in learned)
    parts = {
        f"the {sizes.nodes:,} feature rows of a mini-batch": 4 * sizes.nodes * graph.num_features,
        "the gradients": gradients,
    }
    _refuse_more(parts, free, why)  # before anything is tried
    trial = Trial(model, graph, config)
    trial.try_model()
    del parts["the gradients"]
    parts["the optimizer's state"] = trial.state_bytes()
    parts["the activations and gradients of a step"] = scaled_step_bytes(trial, sizes.nodes)
    _refuse_more(parts, free, why)


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
    if may_be_tried(needs.device.bytes_of("step")):
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


def _refuse_more(parts: dict[str, int], free: int, why: str) -> None:
    needed = sum(parts.values())
    if needed <= free:
        return
    listed = ", ".join(f"{format_bytes(nbytes)} for {name}" for name, nbytes in parts.items())
    raise ResourceError(
        f"neither way to train fits the memory. The whole graph: {why}. Mini-batches need "
        f"{format_bytes(needed)}: {listed}. Choose smaller fanouts, batch_size or model, or a machine with "
        "more memory"
    )

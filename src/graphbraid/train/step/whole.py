"""Training on the whole graph: the choice of the mode, checks of memory, and compilation of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from graphbraid.errors import ResourceError
from graphbraid.files.writing import format_bytes
from graphbraid.fullgraph import Engine, NotLoweredError, Uncompiled, compile, estimated_bytes  # noqa: A004
from graphbraid.fullgraph.device.choosing import device_at
from graphbraid.fullgraph.device.device import Device
from graphbraid.fullgraph.lowering.evidence import Evidence
from graphbraid.fullgraph.model.modes import in_mode
from graphbraid.graph import Graph
from graphbraid.loader import BatchLoader, LoaderSettings
from graphbraid.train.config import TrainConfig

if TYPE_CHECKING:
    from graphbraid.train.step.runner import ModelRunner

_TIGHT = 1.5  # the estimate is an upper bound, so a model above it by less may still fit
SHARE_OF_FREE_MEMORY = 0.5
"""Largest share of the free memory for which mode ``auto`` trains on the whole graph."""


def choose_mode(model: nn.Module, graph: Graph, config: TrainConfig) -> tuple[str, str]:
    """Return ``full`` or ``sampled`` for mode ``auto``, and the reason as a sentence."""
    if config.precision != "float32":
        return "sampled", "the full-graph engine runs in float32"
    device = device_named(config.device)
    free = device.free_bytes()
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


def require_whole(model: nn.Module, graph: Graph, config: TrainConfig) -> None:
    """Check that training on the whole graph can fit in the free memory, before the system kills the process.

    Raises:
        ResourceError: it needs more memory than is free; the message says how much.
    """
    device = device_named(config.device)
    free = device.free_bytes()
    try:
        needed = estimated_bytes(model, graph, device)
    except (NotLoweredError, ValueError, RuntimeError):  # unknown, or an error that is raised later
        return
    if free is not None and needed > _TIGHT * free:
        raise ResourceError(
            f"training on the whole graph needs up to {format_bytes(needed)}; {format_bytes(free)} are free. "
            "Use mode='sampled' (--mode sampled), or a smaller model"
        )


def require_sampled(model: nn.Module, graph: Graph, config: TrainConfig, nodes: Tensor, why: str) -> None:
    """Check that a single mini-batch can fit in the free memory, after the whole graph was found not to.

    The count includes only what a step cannot do without: the feature rows of the first batch, which is
    sampled to count them, and the gradients of the parameters. A step that passes this check may still not
    fit.

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
    settings = LoaderSettings(
        num_neighbors=config.fanouts,
        input_nodes=nodes,
        batch_size=config.batch_size,
        shuffle=True,
        replace=config.replace,
        layout=config.layout,
        seed=config.seed,
        return_edge_id=False,
        gather=False,
    )
    loader = BatchLoader(graph, settings)
    try:
        [batch] = loader.batches(0, 0, 1)
        num_rows = batch.n_id.numel()
    finally:
        loader.close()
    learned = [p for p in model.parameters() if p.requires_grad and not isinstance(p, UninitializedParameter)]
    gradients = sum(p.numel() * p.element_size() for p in learned)
    needed = 4 * num_rows * graph.num_features + gradients
    if needed > free:
        raise ResourceError(
            f"neither way to train fits the memory. The whole graph: {why}. Mini-batches: the first one's "
            f"{num_rows:,} feature rows and the gradients alone take {format_bytes(needed)}. Choose smaller "
            "fanouts, batch_size or model, or a machine with more memory"
        )


def device_named(name: str) -> Device:
    """Return the device for ``cpu``, ``cuda``, ``cuda:N`` or ``auto``, chosen as by Fabric."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return device_at(torch.device(name))


def compile_for(
    runner: ModelRunner, config: TrainConfig, nodes: Tensor, evidence: Evidence | None = None
) -> tuple[Engine | None, str]:
    """Return the engine that trains the model on ``nodes``, or None and the reason as a sentence.

    ``evidence`` is that by which a run to be continued was lowered.
    """
    if config.precision != "float32":
        return None, f"precision {config.precision} runs under autocast, which the engine does not"
    if any(isinstance(p, UninitializedParameter) for p in runner.model.parameters()):
        return None, "the model has parameters that its first run will make"
    with in_mode(runner.model, training=True):  # the mode of training and of its evidence
        engine = compile(runner.model, runner.graph, nodes=nodes, evidence=evidence)
    if isinstance(engine, Uncompiled):
        return None, f"{engine.why.part}: {engine.why.reason}"
    return engine, ""

"""The whole graph as one step: a compiled engine if the model has a lowered form, else the model itself."""

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

_TIGHT = 1.5  # the estimate is from above: what is over by less may still fit
SHARE_OF_FREE_MEMORY = 0.5
"""Mode ``auto`` trains on the whole graph where that takes at most this share of the free memory."""


def choose_mode(model: nn.Module, graph: Graph, config: TrainConfig) -> tuple[str, str]:
    """``full`` or ``sampled`` for mode ``auto``, and why, as a sentence."""
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
    """Refuse to train on the whole graph where that cannot fit the free memory, before the system ends it.

    Raises:
        ResourceError: it needs more than is free; says how much.
    """
    device = device_named(config.device)
    free = device.free_bytes()
    try:
        needed = estimated_bytes(model, graph, device)
    except (NotLoweredError, ValueError, RuntimeError):  # not known, or what is wrong is said later
        return
    if free is not None and needed > _TIGHT * free:
        raise ResourceError(
            f"training on the whole graph needs up to {format_bytes(needed)}; {format_bytes(free)} are free. "
            "Use mode='sampled' (--mode sampled), or a smaller model"
        )


def require_sampled(model: nn.Module, graph: Graph, config: TrainConfig, nodes: Tensor, why: str) -> None:
    """Refuse to train on mini-batches where not even one can fit the free memory, nor does the whole graph.

    Counted is what a step cannot do without: the feature rows of the first batch, which is sampled to know
    how many they are, and the parameters' gradients. What fits by this count may still not fit.

    Args:
        model: what is trained.
        graph: what it is trained on.
        config: how batches are drawn.
        nodes: the training nodes.
        why: the reason that mode ``auto`` samples for.

    Raises:
        ResourceError: it does not fit; says how much is needed and how much is there.
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
    """The device of a configuration: ``cpu``, ``cuda``, ``cuda:N``, or ``auto``, as Fabric takes it."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return device_at(torch.device(name))


def compile_for(
    runner: ModelRunner, config: TrainConfig, nodes: Tensor, evidence: Evidence | None = None
) -> tuple[Engine | None, str]:
    """The engine that trains ``runner``'s model on ``nodes``, or None with the reason, as a sentence.

    ``evidence``: what a run that goes on was lowered by.
    """
    if config.precision != "float32":
        return None, f"precision {config.precision} runs under autocast, which the engine does not"
    if any(isinstance(p, UninitializedParameter) for p in runner.model.parameters()):
        return None, "the model has parameters that its first run will make"
    with in_mode(runner.model, training=True):  # in which it is trained, and its evidence taken
        engine = compile(runner.model, runner.graph, nodes=nodes, evidence=evidence)
    if isinstance(engine, Uncompiled):
        return None, f"{engine.why.part}: {engine.why.reason}"
    return engine, ""

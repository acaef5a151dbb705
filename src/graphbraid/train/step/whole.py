"""Training on the whole graph: checks of memory, and compilation of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from graphbraid.arguments import as_budget
from graphbraid.distributed import Communicator, SavedPartition
from graphbraid.distributed.ranks.joining import check_alike
from graphbraid.errors import ConfigError, ResourceError
from graphbraid.files.writing import format_bytes
from graphbraid.fullgraph import (
    Engine,
    NotLoweredError,
    Ranks,
    Uncompiled,
    compile,  # noqa: A004
    estimated_bytes,
)
from graphbraid.fullgraph.lowering.costs import Evidence
from graphbraid.fullgraph.reading.modes import in_mode
from graphbraid.graph import Graph
from graphbraid.graph.scaled_features import is_widened
from graphbraid.train.config import TrainConfig
from graphbraid.train.runtime import device_named

if TYPE_CHECKING:
    from graphbraid.train.step.runner import ModelRunner

_TIGHT = 1.5  # the estimate is an upper bound, so a model above it by less may still fit


def require_whole(
    model: nn.Module,
    graph: Graph,
    config: TrainConfig,
    num_parts: int = 1,
    node_type: str | None = None,
) -> None:
    """Check that training on the whole graph can fit in the free memory, before the system kills the process.

    Args:
        model: the model.
        graph: the graph.
        config: options of the run.
        num_parts: number of ranks that hold a part of the graph each, about equal ones.
        node_type: the type to learn, in a graph with types.

    Raises:
        ResourceError: it needs more memory than is free; the message says how much.
    """
    device = device_named(config.device)
    free = device.free_bytes()
    try:
        needed = estimated_bytes(model, graph, device, node_type=node_type) // num_parts
        if config.host is not None:  # rows are widened block by block
            needed -= _widened_bytes(graph)
    except (NotLoweredError, ValueError, RuntimeError):  # unknown, or an error that is raised later
        return
    if free is not None and needed > _TIGHT * free:
        raise ResourceError(
            f"training on the whole graph needs up to {format_bytes(needed)}{_of_it_widened(graph)}; "
            f"{format_bytes(free)} are free. Use mode='sampled' (--mode sampled), or a smaller model"
        )


def _of_it_widened(graph: Graph) -> str:
    """Say what features in fewer bits take as a whole, which mini-batches would widen a few at a time."""
    if not _widened_bytes(graph):
        return ""
    return f", {format_bytes(_widened_bytes(graph))} of it for all features as float32"


def _widened_bytes(graph: Graph) -> int:
    """Return the bytes of a float32 copy of features that are kept in fewer bits."""
    return 4 * graph.num_nodes * graph.num_features if is_widened(graph.x) else 0


def compile_for(
    runner: ModelRunner,
    config: TrainConfig,
    nodes: Tensor,
    evidence: Evidence | None = None,
    comm: Communicator | None = None,
) -> tuple[Engine | None, str]:
    """Return the engine that trains the model on ``nodes``, or None and the reason as a sentence.

    Args:
        runner: the model and its graph.
        config: options of the run.
        nodes: the training nodes of all ranks together.
        evidence: that by which a run to be continued was lowered; of several ranks, rank 0's counts.
        comm: the ranks that train together, which all call this. If None, there is one.

    Raises:
        ConfigError: several ranks cannot train the model together.
    """
    why = _why_not(runner, config)
    if why and runner.rows is not None:
        raise ConfigError(f"features that do not lie in memory need a lowered program, and {why}.")
    if why and comm is not None:
        raise ConfigError(f"several ranks cannot train the whole graph together: {why}.")
    if why:
        return None, why
    ranks = None if comm is None else _ranks(comm, runner.graph, config)
    with in_mode(runner.model, training=True):  # the mode of training and of its evidence
        engine = compile(
            runner.model,
            runner.graph,
            nodes=nodes,
            evidence=evidence,
            ranks=ranks,
            node_type=runner.learned_type,
            tiers=runner.rows,
            host=config.host,
            spare_bytes=None if config.spare is None else as_budget(config.spare, "spare"),
        )
    if isinstance(engine, Uncompiled):
        return None, f"{engine.why.part}: {engine.why.reason}"
    return engine, ""


def _ranks(comm: Communicator, graph: Graph, config: TrainConfig) -> Ranks:
    """Divide the graph among the ranks, by a saved partition if one is given."""
    kinds = {"partition": "given" if config.partition is not None else "not given"}
    check_alike(comm, kinds, "give all ranks the same partition")
    options: dict[str, Any] = {"wire": config.wire}
    options["pipeline"] = "tuned" if config.exchange == "tuned" else None
    if config.partition is None:
        return Ranks.dividing(comm, graph, **options)
    return Ranks.of_saved(comm, SavedPartition(config.partition), graph, **options)


def _why_not(runner: ModelRunner, config: TrainConfig) -> str:
    if config.precision != "float32":
        return f"precision {config.precision} runs under autocast, which the engine does not"
    if any(isinstance(p, UninitializedParameter) for p in runner.model.parameters()):
        return "the model has parameters that its first run will make"
    return ""

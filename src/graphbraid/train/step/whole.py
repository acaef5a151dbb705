"""Training on the whole graph: its feed, checks of memory, and compilation of the model."""

from collections.abc import Generator
from typing import Any

from torch import Tensor
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
from graphbraid.graph import Graph
from graphbraid.nn.module_traits import in_mode
from graphbraid.train.config import TrainConfig
from graphbraid.train.runtime import device_named
from graphbraid.train.step.runner import ModelRunner, WholeGraph
from graphbraid.train.step.step import BatchShare, share_weight
from graphbraid.train.task import Task

_TIGHT = 1.5  # the estimate is an upper bound, so a model above it by less may still fit


def require_whole(runner: ModelRunner, config: TrainConfig, num_parts: int = 1) -> None:
    """Check that training on the whole graph can fit in the free memory, before the system kills the process.

    Of ``num_parts`` ranks each holds a part of the graph, about equal ones.

    Raises:
        ResourceError: it needs more memory than is free; the message says how much.
    """
    device = device_named(config.device)
    free, widened = device.free_bytes(), runner.widened_bytes
    try:
        needed = estimated_bytes(runner.model, runner.graph, device, node_type=runner.learned_type)
    except (NotLoweredError, ValueError, RuntimeError):  # unknown, or an error that is raised later
        return
    needed = needed // num_parts - (widened if config.host is not None else 0)  # widened block by block
    if free is not None and needed > _TIGHT * free:
        of_it = f", {format_bytes(widened)} of it for all features as float32" if widened else ""
        raise ResourceError(
            f"training on the whole graph needs up to {format_bytes(needed)}{of_it}; "
            f"{format_bytes(free)} are free. Use mode='sampled' (--mode sampled), or a smaller model"
        )


def compile_for(
    runner: ModelRunner,
    config: TrainConfig,
    nodes: Tensor,
    evidence: Evidence | None = None,
    comm: Communicator | None = None,
) -> tuple[Engine | None, str]:
    """Return the engine that trains the model on ``nodes``, or None and the reason as a sentence.

    All ranks of ``comm`` call it, with the same ``nodes``. ``evidence`` is that by which a run to be
    continued was lowered; of several ranks, rank 0's counts.

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


class WholeGraphFeed:
    """A feed whose only batch per epoch is the whole graph, or the part of it that one rank owns.

    ``nodes`` are those of all ranks, ``(num_train,)`` int64. A rank may own none of them: others need its
    rows all the same.
    """

    num_batches = 1

    def __init__(self, runner: ModelRunner, task: Task, nodes: Tensor) -> None:
        ranks = None if runner.engine is None else runner.engine.ranks
        own = nodes if ranks is None else ranks.owned(nodes)
        labels = runner.labels
        assert labels.y is not None
        seed_y = labels.y.index_select(0, own).to(runner.device)
        self._share = BatchShare(
            batch=WholeGraph(nodes=own.to(runner.device), seed_y=seed_y),
            weight=1.0 if ranks is None else share_weight(labels, task, own, nodes),
            num_seeds=nodes.numel(),
        )

    def batches(self, epoch: int, start: int, then: int = 0) -> Generator[BatchShare]:
        """Yield the batch, unless ``start`` is past it. ``then`` has no effect."""
        if start == 0:
            yield self._share

    def num_seeds(self, start: int, count: int) -> int:
        """Return the number of training nodes."""
        return self._share.num_seeds

    def stage_seconds(self) -> dict[str, float]:
        """Return no stages, as nothing is prepared."""
        return {}

    def explain(self) -> str:
        """Return nothing, as no device samples."""
        return ""

    def close(self) -> None:
        """Do nothing, as there are no threads."""

"""Evaluation: loss and metrics of nodes, on sampled neighbourhoods or exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from graphbraid.distributed import Communicator
from graphbraid.errors import ConfigError
from graphbraid.fullgraph.reading.modes import in_mode
from graphbraid.graph import Graph, NodeSet
from graphbraid.graph.interop.convert import as_node_ids, as_tensor
from graphbraid.sampling.schedule import part_of
from graphbraid.train.config import TrainConfig
from graphbraid.train.inference.infer import exact_chunks
from graphbraid.train.inference.layer_wise import Chunk
from graphbraid.train.inference.link_scores import check_rows_fit, score_links
from graphbraid.train.inference.metrics import Scores
from graphbraid.train.step.links.runner import LinkRunner
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.task import Task

EvalMode = Literal["sampled", "exact"]


def outputs_in_chunks(
    runner: ModelRunner,
    config: TrainConfig,
    nodes: Tensor,
    mode: EvalMode,
    check: Callable[[], None] = lambda: None,
    *,
    steps: tuple[int, int] | None = None,
) -> Iterator[Chunk]:
    """Return the model's outputs for ``nodes`` in chunks, in order; mode ``full`` is always exact.

    With ``steps``, a sampled evaluation makes only the mini-batches from the first up to before the second.
    """
    if mode == "exact" or config.mode == "full":
        return exact_chunks(runner, config, nodes, check=check)
    return _sampled_chunks(runner, config, nodes, check, steps)


def score(
    runner: ModelRunner,
    config: TrainConfig,
    nodes: Tensor,
    mode: EvalMode,
    *,
    task: Task,
    metrics: Sequence[str],
    check: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Return the loss and metrics of labelled ``nodes``, accumulated chunk by chunk.

    Of a model of links, ``nodes`` are positions of links.

    Raises:
        ConfigError: links have times, and messages are not all earlier.
    """
    if isinstance(runner, LinkRunner):
        if runner.data.times is not None:
            runner.data.times.check_after(nodes)
        with in_mode(runner.model, training=False):
            rows = encoder_rows(runner, config, runner.data.ends.nodes, mode, check)
            return score_links(runner, config, nodes, rows, task=task, metrics=metrics, check=check)
    labels = runner.labels.y
    assert labels is not None
    scores = Scores(task.to(torch.device("cpu")), metrics, torch.device("cpu"))
    for start, outputs in outputs_in_chunks(runner, config, nodes, mode, check):
        scores.update(outputs, labels.index_select(0, nodes[start : start + outputs.shape[0]]))
    return scores.compute()


def encoder_rows(
    runner: LinkRunner,
    config: TrainConfig,
    nodes: Tensor,
    mode: EvalMode,
    check: Callable[[], None] = lambda: None,
) -> Tensor:
    """Return the encoder's rows of ``nodes``, ``(len(nodes), channels)`` float32 on the CPU.

    Raises:
        ResourceError: they do not fit the memory budget.
    """
    rows: Tensor | None = None
    for start, part in outputs_in_chunks(runner.encoder_runner(), config, nodes, mode, check):
        if rows is None:
            check_rows_fit(nodes.numel(), part.shape[1], config.memory_budget_bytes)
            rows = torch.empty(nodes.numel(), part.shape[1])
        rows[start : start + part.shape[0]] = part
    assert rows is not None, "callers give at least one node"
    return rows


def _sampled_chunks(
    runner: ModelRunner,
    config: TrainConfig,
    nodes: Tensor,
    check: Callable[[], None],
    steps: tuple[int, int] | None,
) -> Iterator[Chunk]:
    """Yield outputs on the batches of a fixed schedule's epoch 0, so that evaluations draw alike."""
    from graphbraid.loader import LoaderSettings

    settings = LoaderSettings(
        num_neighbors=config.eval_fanouts or config.fanouts,
        batch_size=config.eval_batch_size,
        input_nodes=nodes,
        replace=config.replace,
        layout=config.layout,
        seed=config.seed,
        return_edge_id=False,
        src_degree=runner.uses_degrees,
        num_workers=config.workers,
    )
    with in_mode(runner.model, training=False), runner.loader(settings) as loader:
        first, last = steps or (0, len(loader))
        start = first * config.eval_batch_size
        for batch in loader.batches(0, first, last):
            check()
            with torch.no_grad():
                outputs = runner.on_batch(batch).float().cpu()
            yield start, outputs
            start += outputs.shape[0]


def node_ids(of: Graph | NodeSet, nodes: Tensor | Sequence[int] | None) -> Tensor:
    """Return node ids, or those that a bool mask marks, as ``(n,)`` int64 on the CPU; None is all nodes.

    Raises:
        ConfigError: there are none, or an entry is not an id in ``[0, num_nodes)``.
        DataError: the argument is not a list of numbers, or a mask of another length or of integers.
    """
    if nodes is None:
        return torch.arange(of.num_nodes)
    given = as_tensor(nodes, "nodes")
    is_list = given.ndim == 1 and not given.is_floating_point()
    ids = as_node_ids(given, of.num_nodes, "nodes").cpu() if is_list else given
    if not is_list or not ids.numel():
        raise ConfigError(
            f"nodes must be a list of node ids or a mask, and name at least one; got {given.dtype} of shape "
            f"{tuple(given.shape)}."
        )
    outside = (ids < 0) | (ids >= of.num_nodes)
    if bool(outside.any()):
        at = int(outside.nonzero()[0])
        raise ConfigError(f"nodes must be ids in [0, {of.num_nodes}); nodes[{at}] is {int(ids[at])}.")
    return ids


def score_by_ranks(
    comm: Communicator,
    runner: ModelRunner,
    config: TrainConfig,
    nodes: Tensor,
    mode: EvalMode,
    *,
    task: Task,
    metrics: Sequence[str],
) -> dict[str, float]:
    """Return, on every rank, the loss and metrics of labelled ``nodes``; all ranks must call it together.

    Sampled evaluation divides whole mini-batches, so that each is the one that a single rank would draw.
    """
    if config.mode == "full":
        return _score_whole(comm, runner, nodes, task=task, metrics=metrics)
    sampled = mode == "sampled"
    chunk = config.eval_batch_size if sampled else 1
    first, last = part_of(-(-nodes.numel() // chunk), comm.rank, comm.size)
    steps = (first, last) if sampled else None
    own = nodes if sampled else nodes[first:last]
    outputs = [torch.empty(0, task.width)]
    if first < last:
        outputs += [rows.cpu() for _, rows in outputs_in_chunks(runner, config, own, mode, steps=steps)]
    size = chunk if sampled else nodes.numel()
    return _scored_at_first(comm, runner, nodes, torch.cat(outputs), chunk=size, task=task, metrics=metrics)


def _score_whole(
    comm: Communicator, runner: ModelRunner, nodes: Tensor, *, task: Task, metrics: Sequence[str]
) -> dict[str, float]:
    """Score by the engine that the ranks share: each computes the outputs of the nodes that it owns."""
    engine = runner.engine
    assert engine is not None
    assert engine.ranks is not None
    by_owner = nodes[engine.ranks.partition.part_of[nodes].argsort(stable=True)]
    outputs = engine.predict_owned(nodes).float()
    size = nodes.numel()
    return _scored_at_first(comm, runner, by_owner, outputs, chunk=size, task=task, metrics=metrics)


def _scored_at_first(
    comm: Communicator,
    runner: ModelRunner,
    nodes: Tensor,
    outputs: Tensor,
    *,
    chunk: int,
    task: Task,
    metrics: Sequence[str],
) -> dict[str, float]:
    """Return on every rank what the first one finds; ``nodes`` are those of all ranks' outputs, in order."""
    gathered = _rows_at_first(comm, outputs)
    values: dict[str, float] = {}
    if comm.rank == 0:
        values = _scored(runner, nodes, gathered, chunk=chunk, task=task, metrics=metrics)
    shared: dict[str, float] = comm.share(values)
    return shared


def _rows_at_first(comm: Communicator, rows: Tensor) -> Tensor:
    """Return all ranks' rows, in the order of the ranks, on rank 0, and none on the others."""
    send_rows = [rows.shape[0], *[0] * (comm.size - 1)]
    return comm.all_to_all(rows.contiguous(), send_rows, comm.counts(send_rows)).wait()


def _scored(
    runner: ModelRunner, nodes: Tensor, outputs: Tensor, *, chunk: int, task: Task, metrics: Sequence[str]
) -> dict[str, float]:
    labels = runner.labels.y
    assert labels is not None
    scores = Scores(task.to(torch.device("cpu")), metrics, torch.device("cpu"))
    for rows, ids in zip(torch.split(outputs, chunk), torch.split(nodes, chunk), strict=True):
        scores.update(rows, labels.index_select(0, ids))
    return scores.compute()

"""Evaluation by several ranks: each computes the outputs for a part of the nodes, the first one scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphbraid.distributed import Communicator
from graphbraid.sampling.schedule import part_of
from graphbraid.train.config import TrainConfig
from graphbraid.train.inference.evaluate import EvalMode, outputs_in_chunks
from graphbraid.train.inference.metrics import Scores
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.task import Task


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

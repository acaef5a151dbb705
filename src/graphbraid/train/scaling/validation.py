"""How long ranks validate together: a rank's part of the nodes, and what the first one does with all."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.estimates.trial import Trial, repeated, timed
from graphbraid.sampling.schedule import part_of
from graphbraid.train.inference.evaluate import outputs_in_chunks
from graphbraid.train.inference.metrics import Scores, metric_names
from graphbraid.train.scaling.times import ValidationTimes

_SECONDS = 1.0
"""Seconds that tries of a part take, about; one that is longer is made twice at most."""


def measured_validation(trial: Trial, num_ranks: int) -> ValidationTimes:
    """Compute the outputs of a rank's part of the validation's nodes, and score as many rows as there are.

    A sampled validation divides whole mini-batches, an exact one nodes, as the ranks do. Of the parts, which
    differ by one batch or node, a larger one counts.
    """
    config, mode, nodes = trial.config, trial.config.eval_mode, trial.val_nodes
    assert nodes is not None, "asked for only where the run validates"
    chunk = config.eval_batch_size if mode == "sampled" else 1
    first, last = largest_part(-(-nodes.numel() // chunk), num_ranks)
    own, steps = (nodes, (first, last)) if mode == "sampled" else (nodes[first:last], None)

    def outputs() -> None:
        for _ in outputs_in_chunks(trial.runner, config, own, mode, steps=steps):
            pass

    width = trial.task.width
    return ValidationTimes(
        outputs_seconds=repeated(lambda: timed(outputs), most=_SECONDS).known,
        score_seconds=repeated(lambda: timed(lambda: _score(trial, nodes)), most=_SECONDS).known,
        row_bytes=4 * width * nodes.numel(),
        every=config.eval_every,
    )


def largest_part(count: int, num_ranks: int) -> tuple[int, int]:
    """Return begin and end of a rank's part of ``count`` things that is as large as any: near the middle."""
    parts = [part_of(count, rank, num_ranks) for rank in range(num_ranks)]
    most = max(end - begin for begin, end in parts)
    return min((part for part in parts if part[1] - part[0] == most), key=lambda part: abs(sum(part) - count))


def _score(trial: Trial, nodes: Tensor) -> None:
    host = torch.device("cpu")
    scores = Scores(trial.task.to(host), metric_names(trial.task, trial.config.metrics), host)
    labels = trial.runner.labels.y
    assert labels is not None
    for ids in torch.split(nodes, trial.config.eval_batch_size):
        scores.update(torch.zeros(ids.numel(), trial.task.width), labels.index_select(0, ids))
    scores.compute()


__all__ = ["largest_part", "measured_validation"]

"""How long a run on the whole graph reads its features from a disk."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch

from graphbraid.estimates.trial import Trial
from graphbraid.features.rows.row_stream import LONGEST_ROUND
from graphbraid.files.writing import format_bytes
from graphbraid.fullgraph import Engine

SECONDS = 0.5
"""Time for which rows are read to find the disk's rate."""


class DiskSeconds(NamedTuple):
    """Seconds of reading, if nothing else took time."""

    epoch: float
    """Seconds of a forward and a backward pass, once rows that stay in memory are there."""
    first: float
    """Seconds that the first epoch reads longer: it makes temporary files, and reads rows that stay once."""
    evaluation: float
    """Seconds of a pass in evaluation mode, which keeps no rows."""
    how: str

    @property
    def of_trial(self) -> float:
        """Seconds of the steps that a trial would make at least: the first, and one more."""
        return self.first + 2 * self.epoch


def disk_seconds(trial: Trial, engine: Engine, bytes_per_second: float | None) -> DiskSeconds | None:
    """Return how long a run reads; None where the features lie in memory.

    Args:
        trial: the run.
        engine: its compiled step.
        bytes_per_second: the disk's rate. If None, rows are read in blocks for a moment.
    """
    streams = engine.runner.streams
    if streams is None:
        return None
    rate = bytes_per_second or _rate(trial)
    once = streams.set_up_bytes + streams.whole_bytes - streams.pass_bytes
    return DiskSeconds(
        epoch=2 * streams.pass_bytes / rate,
        first=once / rate,
        evaluation=engine.evaluation_pass_bytes / rate,
        how=f"{format_bytes(2 * streams.pass_bytes)} from a disk that gives {format_bytes(rate)}/s",
    )


def _rate(trial: Trial) -> float:
    """Return the bytes of float32 rows that the disk gives in a second, in blocks as a step reads them."""
    rows = trial.runner.rows
    assert rows is not None, "features that are streamed have a source of rows"
    num_rows, width = rows.shape
    count, read = max(1, LONGEST_ROUND // (4 * width)), 0
    started = time.perf_counter()
    for ids in torch.split(torch.arange(num_rows), count):
        rows.gather(ids)
        read += 4 * width * ids.numel()
        if time.perf_counter() - started >= SECONDS:
            break
    return read / max(time.perf_counter() - started, 1e-9)

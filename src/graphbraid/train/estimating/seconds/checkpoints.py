"""How long a run writes its checkpoints: one with the run's model and optimizer is written and removed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from graphbraid.errors import GraphbraidError
from graphbraid.estimates.trial import PartSeconds, Trial, timed
from graphbraid.files.writing import format_bytes
from graphbraid.train.estimating.seconds.epoch_seconds import NOTHING
from graphbraid.train.run_folder import checkpoint

_BESIDE = (
    *("scheduler", "callbacks", "random", "progress", "log_position", "config"),
    *("model_identity", "graph_identity", "info"),
)
"""What else a checkpoint holds, which is small beside model and optimizer."""


def checkpoint_seconds(trial: Trial, num_steps: int) -> PartSeconds:
    """Return the time of the checkpoints that an epoch writes; nothing without a folder.

    Args:
        trial: the run.
        num_steps: of an epoch.
    """
    folder, every = trial.config.out_dir, trial.config.checkpoint_every_steps
    if folder is None:
        return NOTHING
    count = 1 + ((num_steps - 1) // every if every else 0)
    try:
        seconds, nbytes = _written(trial, _existing(folder))
    except (OSError, GraphbraidError) as error:
        return PartSeconds(None, f"none could be written: {error}")
    how = f"{count} of {format_bytes(nbytes)}, written to that disk; as much again where it is the best epoch"
    return PartSeconds(count * seconds, how)


def _written(trial: Trial, folder: Path) -> tuple[float, int]:
    """Return the seconds that writing a checkpoint takes, and its bytes."""
    contents = dict.fromkeys(_BESIDE, 0) | trial.learned()
    with tempfile.TemporaryDirectory(prefix=".graphbraid-estimate-", dir=folder) as place:
        path = Path(place) / "checkpoint.pt"
        seconds = timed(lambda: checkpoint.write(path, contents))
        return seconds, path.stat().st_size


def _existing(folder: Path) -> Path:
    """Return the folder, or the first one above it that is there."""
    place = folder.absolute()
    while not place.is_dir() and place != place.parent:
        place = place.parent
    return place

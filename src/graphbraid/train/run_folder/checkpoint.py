"""Checkpoints: all that a run needs to continue as if never stopped, in one file written atomically.

A checksum shows that a file is as it was written, so its contents are not checked one by one. But an
optimizer that a caller makes may be another one than its name says, and fused kernels look at no shapes.
"""

import os
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from graphbraid.errors import ConfigError, DataError
from graphbraid.files import checksums
from graphbraid.files.writing import atomic_write
from graphbraid.train.step.runner import ModelRunner


def check_optimizer(found: Mapping[str, Any], optimizer: Optimizer, path: Path) -> None:
    """Check that an optimizer can continue from the state of one that a checkpoint holds."""
    own, groups = optimizer.state_dict()["param_groups"], found["param_groups"]
    named = [set(group) for group in groups], [set(group) for group in own]
    params = [group["params"] for group in groups], [group["params"] for group in own]
    if params[0] != params[1] or any(held - here for held, here in zip(*named, strict=True)):
        raise ConfigError(
            f"{path} holds the state of another optimizer than this {type(optimizer).__name__}: its groups "
            f"of parameters have {sorted(set().union(*named[0]))}. Give the optimizer as it was."
        )
    if not any(group.get("fused") for group in groups):
        return
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, state in found["state"].items():
        for name, value in state.items():
            like = held[number]
            if isinstance(value, Tensor) and name != "step" and _kind(value) != _kind(like):
                raise DataError(
                    f"{path} is no sound checkpoint: optimizer.state.{number}.{name}: must be {_kind(like)}; "
                    f"got {_kind(value)}"
                )


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"


FORMAT = "graphbraid-checkpoint-2"
KEYS = (
    *("model", "optimizer", "scheduler", "callbacks", "random", "progress", "log_position", "config"),
    *("model_identity", "graph_identity", "info", "learned_rows"),
)
"""Parts of a checkpoint. ``learned_rows`` is the record of rows that ranks divide, in a folder beside it."""


def write(path: Path, contents: dict[str, Any]) -> None:
    """Write a checkpoint to a temporary file, flush it and rename it: a kill leaves the old or the new one.

    Raises:
        ResourceError: the disk is full or the folder cannot be written; the former checkpoint is intact.
    """
    assert set(contents) == set(KEYS), sorted(set(contents) ^ set(KEYS))
    with atomic_write(path) as temporary:
        torch.save({"format": FORMAT, **contents}, temporary)
        checksums.seal_zip(temporary)


def read(path: str | os.PathLike[str], *, trust: bool = False) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; ConfigError if there is none, DataError if it is damaged.

    With ``trust`` Python objects are loaded as well, which can run any code: only for files you wrote.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(
            f"there is no checkpoint {path}; give the folder of a run that wrote one, or do not resume."
        )
    contents = _load(path, trust)
    if not isinstance(contents, dict) or contents.get("format") != FORMAT:
        raise DataError(
            f"{path} is not a checkpoint of this version of graphbraid (it needs format {FORMAT!r}). Take "
            "another checkpoint, or train again."
        )
    if missing := [key for key in KEYS if key not in contents]:
        raise DataError(f"{path} is damaged or of another version: it lacks {', '.join(missing)}.")
    return contents


def load_rows(runner: ModelRunner, contents: Mapping[str, Any], beside: Path, *, states: bool) -> None:
    """Load this rank's share of the learned rows of a checkpoint, if the model has some.

    All ranks call it together. ``beside`` is the checkpoint's folder. With ``states`` the optimizer's state
    is loaded, too.
    """
    record = contents.get("learned_rows")
    if (record is None) != (runner.learned is None):
        has, lacks = ("model", "checkpoint") if record is None else ("checkpoint", "model")
        raise ConfigError(
            f"the {has} has learned rows that ranks divide (ShardedEmbedding), and the {lacks} has none; "
            "make the model as it was"
        )
    if runner.learned is not None:
        from graphbraid.distributed.shards import learned_files  # here: few runs have such rows

        learned_files.read(runner.learned, record, beside, states=states)


def _load(path: Path, trust: bool) -> Any:
    has_checksum = checksums.check_zip(path)
    try:
        if not zipfile.is_zipfile(path):  # a complete file of torch.save is one, half of it is not
            raise DataError(
                f"{path} is damaged or not a checkpoint: it is no whole zip file. Take another checkpoint."
            )
        if not has_checksum:
            raise DataError(
                f"{path} is not a checkpoint of this version of graphbraid: it has no checksum. Take another "
                "checkpoint, or train again."
            )
        return torch.load(path, map_location="cpu", weights_only=not trust)
    except pickle.UnpicklingError as error:
        # Without torch's advice to switch the check off.
        found = re.search(r"(?:GLOBAL |Unsupported class |Unsupported operand )([\w.]+)", str(error))
        raise DataError(
            f"{path} holds Python objects beside tensors and plain values (from the optimizer, scheduler or "
            f"a callback){f': {found[1]}' if found else ''}. They can run any code, so they are not loaded. "
            "If you wrote the file, load it with trust_checkpoint=True (--trust-checkpoint)."
        ) from error
    except (OSError, DataError, MemoryError):
        raise
    except Exception as error:  # unpickling a damaged file can raise anything
        raise DataError(f"{path} is damaged: {error}. Take another checkpoint.") from error

"""Checkpoints: all that a run needs to continue as if never stopped, in one file written atomically."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import torch

from graphbraid.errors import ConfigError, DataError
from graphbraid.files import checksums
from graphbraid.files.writing import atomic_write
from graphbraid.train.run_folder.restore import check_contents

FORMAT = "graphbraid-checkpoint-2"
_WITHOUT_CHECKSUM = "graphbraid-checkpoint-1"
"""Format of earlier versions, which is still read and checked by the CRC-32 sums of the zip file."""
_KEYS = (
    "model",
    "optimizer",
    "scheduler",
    "callbacks",
    "random",
    "progress",
    "log_position",
    "config",
    "model_identity",
    "graph_identity",
    "info",
)


def write(path: Path, contents: dict[str, Any]) -> None:
    """Write a checkpoint to a temporary file, flush it and rename it: a kill leaves the old or the new one.

    Raises:
        ResourceError: the disk is full or the folder cannot be written; the former checkpoint is intact.
    """
    assert set(contents) == set(_KEYS), sorted(set(contents) ^ set(_KEYS))
    with atomic_write(path) as temporary:
        torch.save({"format": FORMAT, **contents}, temporary)
        checksums.seal_zip(temporary)


def read(path: str | os.PathLike[str], *, trust: bool = False) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, as tensors and plain values only.

    Args:
        path: path of the file.
        trust: whether to load Python objects as well, which can run any code; only for files you wrote.

    Raises:
        ConfigError: the file does not exist.
        DataError: the file is damaged (even a single changed bit is found), is not a checkpoint of
            graphbraid, or holds objects and is not trusted.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(
            f"there is no checkpoint {path}; give the folder of a run that wrote one, or do not resume."
        )
    contents, has_checksum = _load(path, trust)
    if not isinstance(contents, dict):
        contents = {}
    found = contents.get("format")
    if found not in (FORMAT, _WITHOUT_CHECKSUM):
        raise DataError(
            f"{path} is not a checkpoint of this version of graphbraid (it needs format {FORMAT!r})."
        )
    if found == FORMAT and not has_checksum:
        raise DataError(f"{path} is damaged: its checksum is not there. Take another checkpoint.")
    if missing := [key for key in _KEYS if key not in contents]:
        raise DataError(f"{path} is damaged: it lacks {', '.join(missing)}.")
    check_contents(contents, path)
    return contents


def _load(path: Path, trust: bool) -> tuple[Any, bool]:
    """Return the contents of the file, and whether it has a checksum."""
    has_checksum = checksums.check_zip(path)
    try:
        if not zipfile.is_zipfile(path):  # a complete file of torch.save is one, half of it is not
            raise DataError(
                f"{path} is damaged or not a checkpoint: it is no whole zip file. Take another checkpoint."
            )
        if not has_checksum:
            _check_parts(path)
        return torch.load(path, map_location="cpu", weights_only=not trust), has_checksum
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{path} holds Python objects beside tensors and plain values (from the optimizer, scheduler or "
            f"a callback){_object_in(error)}. They can run any code, so they are not loaded. If you wrote "
            "the file, load it with trust_checkpoint=True (--trust-checkpoint)."
        ) from error
    except (OSError, DataError, MemoryError):
        raise
    except Exception as error:  # unpickling a damaged file can raise anything
        raise DataError(f"{path} is damaged: {error}. Take another checkpoint.") from error


def _object_in(error: pickle.UnpicklingError) -> str:
    """Return which object torch has met, without its advice to switch the check off."""
    found = re.search(r"(?:GLOBAL |Unsupported class |Unsupported operand )([\w.]+)", str(error))
    return f": {found[1]}" if found else ""


def _check_parts(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        if not any(name.endswith("/data.pkl") for name in archive.namelist()):
            held = ", ".join(archive.namelist()[:3]) or "nothing"
            raise DataError(f"{path} is not a checkpoint: it is a zip file that holds {held}.")
        if damaged := archive.testzip():
            raise DataError(f"{path} is damaged: {damaged} has changed since it was written.")

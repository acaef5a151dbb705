"""RunFolder: the files of one run, used by one process at a time."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from graphbraid.errors import ConfigError, ResourceError
from graphbraid.files import atomic_write
from graphbraid.train import loggers

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
RESULT = "result.json"


class RunFolder:
    """``out_dir`` while a run uses it: locked, writable, and free of the remains of a killed one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.last = self.checkpoints / "last.pt"
        self.best = self.checkpoints / "best.pt"
        self._lock: int | None = None

    def __enter__(self) -> RunFolder:
        """Make the folder, lock it and remove half-written files of a killed process.

        Raises:
            ResourceError: it cannot be made or written, or another process is using it.
        """
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise ResourceError(
                f"cannot write to out_dir {self.path}: {error.strerror}; choose a folder you can write."
            ) from error
        try:
            self._take_lock()
            self._check_writable()
            for remains in (*self.path.glob(".*.tmp"), *self.checkpoints.glob(".*.tmp")):
                remains.unlink()  # ours: nobody else holds the lock
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def holds_run(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.last.exists()

    def decide(self, resume: bool | str, overwrite: bool) -> bool:
        """Whether to resume.

        Raises:
            ConfigError: there is nothing to resume, or a run that must not be overwritten.
        """
        if resume is True and not self.holds_run():
            raise ConfigError(
                f"resume=True, but {self.last} does not exist; give the out_dir of a started run, or "
                "resume='auto' to start one if there is none."
            )
        if resume and self.holds_run():
            return True
        if self.holds_run() and not overwrite:
            raise ConfigError(
                f"out_dir {self.path} already holds a run; continue it with resume=True (--resume), "
                "replace it with overwrite=True (--overwrite), or choose another folder."
            )
        return False

    def clear(self) -> None:
        """Remove a former run's files, the checkpoint to resume from first."""
        names = (CONFIG, ENVIRONMENT, RESULT, loggers.STEPS, loggers.METRICS)
        for file in (self.last, self.best, *(self.path / name for name in names)):
            file.unlink(missing_ok=True)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write one of the small files."""
        with atomic_write(self.path / name) as temporary:
            temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def _take_lock(self) -> None:
        if sys.platform == "win32" or self._lock is None:
            return
        import fcntl

        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ResourceError(
                f"out_dir {self.path} is in use by another run; wait for it or choose another folder."
            ) from error

    def _check_writable(self) -> None:
        for folder in (self.path, self.checkpoints):
            with atomic_write(folder / ".writable") as temporary:
                temporary.write_bytes(b"ok")
            (folder / ".writable").unlink()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

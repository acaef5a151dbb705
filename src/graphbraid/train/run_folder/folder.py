"""RunFolder: the folder of one run's files, used by one process at a time.

The file ``.lock`` marks a folder as that of a run. A folder that holds other files and no run belongs to the
user and is never touched. Names with a leading dot, such as the remains of a killed program, do not count.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
import sys
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import graphbraid
from graphbraid import native
from graphbraid.collective import Plan
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.files.checksums import FIELD, sealed, unsealed
from graphbraid.files.opening import kind_of, open_descriptor, read_text
from graphbraid.files.writing import atomic_write, remove_stale, resource_error
from graphbraid.loader.batch_loader import PLANS
from graphbraid.machine.hardware import Hardware, version_of
from graphbraid.machine.launcher import restartable_job
from graphbraid.train.run_folder import loggers

if TYPE_CHECKING:
    from graphbraid.fullgraph import Engine, Evidence
    from graphbraid.train.config import TrainConfig

_PACKAGES = ("torch", "numpy", "scipy", "torchmetrics", "torch-geometric")


def environment() -> dict[str, Any]:
    """Return versions, kernel variant and machine, for ``environment.json``."""
    selection = native.active()
    return {
        "graphbraid": graphbraid.__version__,
        "python": sys.version.split()[0],
        "packages": {name: found for name in _PACKAGES if (found := version_of(name))},
        "kernels": {"variant": selection.variant, "reason": selection.reason, "rejected": selection.rejected},
        "machine": Hardware.detect().as_dict(),
        "torch_threads": torch.get_num_threads(),
    }


LOWERING = "lowering.json"
"""File of the measurements by which the model was lowered, in mode full."""
PLAN = "plan.json"
"""File of the plan that divides the cores, if the run's bits may depend on it."""


def kept_evidence(folder: Path) -> Evidence | None:
    """Return the evidence by which a run was lowered; None if it was not; DataError if it is damaged."""
    from graphbraid.fullgraph import Evidence

    file = folder / LOWERING
    if not file.is_file():
        return None
    try:
        content = json.loads(read_text(file))
    except ValueError as error:
        raise DataError(
            f"{file} is damaged: {error}. Delete it, and the run goes on by what is measured now."
        ) from error
    return Evidence.from_json(content, str(file))


def kept_plan(folder: Path, config: TrainConfig) -> Plan | None:
    """Return the plan that a run with a plan by name kept for dividing the cores, or None to make a new one.

    Raises:
        DataError: the file is damaged.
    """
    file = folder / PLAN
    is_asked_for = isinstance(config.plan, str) and config.plan in PLANS and config.mode != "full"
    if not is_asked_for or config.threads is not None or not file.is_file():
        return None
    return Plan.load(file)


def keep(folder: Path, engine: Engine | None, plan: Plan | None) -> None:
    """Write the evidence and the plan of a run that begins."""
    if engine is not None:
        with atomic_write(folder / LOWERING) as aside:
            aside.write_text(json.dumps(engine.evidence.to_json(), indent=1) + "\n", encoding="utf-8")
    if plan is not None and plan.cores is not None and not plan.cores.turns:
        plan.save(folder / PLAN)


CONFIG = "config.json"
ENVIRONMENT = "environment.json"
RESULT = "result.json"
LOCK = ".lock"
JOB = ".job"
"""File of the job that began the run and of its process, if the job's launcher starts lost ranks again."""
_PROCESS = uuid.uuid4().hex
TENSORBOARD = "tensorboard"
_OURS = b"graphbraid run\n"
_PROBE = ".writable"
_ROWS = re.compile(r"\.?rows-\d+-[0-9a-f]+")
"""Names of folders of learned rows that ranks divide, in ``checkpoints``."""
_SUM = re.compile("[0-9a-f]{32}")


def folders_of_job(parent: Path) -> list[Path]:
    """Return the folders in ``parent`` whose runs this job began before its launcher started it again."""
    if not (job := restartable_job()):
        return []
    notes = (
        (file.parent, file.read_text(encoding="utf-8").partition("\n")) for file in parent.glob(f"*/{JOB}")
    )
    return [folder for folder, (name, _, process) in notes if name == job and process != _PROCESS]


class RunFolder:
    """The folder ``out_dir`` in use by a run: locked, writable, and free of a killed process's remains."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.last = self.checkpoints / "last.pt"
        self.best = self.checkpoints / "best.pt"
        self._lock: int | None = None
        self._is_new = self._was_empty = self._is_locked = False

    def __enter__(self) -> RunFolder:
        """Create the folder, lock it and remove half-written files of a killed process."""
        self._refuse_the_users()
        self._is_new = not self.path.exists()
        self._was_empty = self._is_new or not any(self.path.iterdir())
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._refuse_links()
            self._lock = open_descriptor(self.path / LOCK, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise self._cannot_write(error) from error
        try:
            self._take_lock()
            self._is_locked = True
            self._refuse_the_users()  # another process may have written to it meanwhile
            self._claim()
            self._check_writable()
            for file in self._files():
                remove_stale(file, after_seconds=0)  # no other process holds the lock
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self._was_empty and self._is_locked:
            self._remove_empty()
        if self._lock is not None:
            os.close(self._lock)
            self._lock, self._is_locked = None, False

    def _remove_empty(self) -> None:
        """Remove the files of a run that failed before it wrote any of its own, while it is locked."""
        with contextlib.suppress(OSError):
            if not self._names() <= {self.checkpoints.name}:
                return
            if self.checkpoints.exists():
                self.checkpoints.rmdir()
            (self.path / JOB).unlink(missing_ok=True)
            (self.path / LOCK).unlink()
            if self._is_new:
                self.path.rmdir()

    def holds_run(self) -> bool:
        """Return whether there is a checkpoint to resume from."""
        return self.last.exists()

    def decide(self, resume: bool | str, overwrite: bool) -> bool:
        """Return whether to resume; a launcher that starts the job's ranks again needs no ``resume`` for it.

        Raises:
            ConfigError: there is nothing to resume, or there is a run that must not be overwritten.
        """
        if self.holds_run() and self.path in folders_of_job(self.path.parent):
            return True
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
        """Remove a former run's files, ``last.pt`` first, and note the job that begins one."""
        for file in self._files():
            file.unlink(missing_ok=True)
        self.remove_rows(keep=())
        (self.path / JOB).unlink(missing_ok=True)
        if job := restartable_job():
            (self.path / JOB).write_text(f"{job}\n{_PROCESS}", encoding="utf-8")

    def remove_rows(self, keep: Collection[str]) -> None:
        """Remove the folders of learned rows that no checkpoint names, including unfinished ones."""
        for folder in self.checkpoints.iterdir():
            if re.fullmatch(_ROWS, folder.name) and folder.name not in keep:
                shutil.rmtree(folder, ignore_errors=True)

    def _files(self) -> tuple[Path, ...]:
        names = (CONFIG, ENVIRONMENT, RESULT, LOWERING, PLAN, loggers.STEPS, loggers.METRICS)
        return (self.last, self.best, *(self.path / name for name in names))

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write one of the JSON files, with its checksum."""
        with atomic_write(self.path / name) as temporary:
            temporary.write_text(json.dumps(sealed(content), indent=2) + "\n", encoding="utf-8")

    def _refuse_the_users(self) -> None:
        """Refuse a folder that is not empty and holds no run, or that cannot be read."""
        try:
            held = sorted(self._names())
        except FileNotFoundError:
            held = []
        except OSError as error:
            raise self._cannot_write(error) from error
        if not self._is_ours(empty=not held):
            found = f"it holds {held[0]!r}" if held else f"its {LOCK} is not one of graphbraid's"
            raise ConfigError(
                f"out_dir {self.path} is not empty and no run of graphbraid ({found}), so nothing is written "
                "there; choose a new or empty folder."
            )

    def _is_ours(self, *, empty: bool) -> bool:
        lock = self.path / LOCK
        if not lock.is_file():
            return empty and not os.path.lexists(lock)
        try:
            content = lock.read_bytes()
        except OSError as error:
            raise self._cannot_write(error) from error
        # A process that is killed right at the start leaves an empty lock file, and what it creates first.
        is_begun = self.last.is_file() or self._names() == {self.checkpoints.name}
        return content == _OURS or (content == b"" and (empty or is_begun))

    def _names(self) -> set[str]:
        return {entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")}

    def _refuse_links(self) -> None:
        """Check that none of the run's files is a link out of the folder, or a pipe; OSError if one does."""
        folders = (self.checkpoints, self.path / TENSORBOARD)
        for place in (*folders, *self._files(), self.path / LOCK, self.path / JOB):
            with contextlib.suppress(FileNotFoundError):
                mode = place.lstat().st_mode
                if not (stat.S_ISDIR(mode) if place in folders else stat.S_ISREG(mode)):
                    raise OSError(errno.ENOTSUP, f"it is {kind_of(mode)}", str(place))

    def _claim(self) -> None:
        try:
            self.checkpoints.mkdir(exist_ok=True)
            assert self._lock is not None
            os.pwrite(self._lock, _OURS, 0)
        except OSError as error:
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> ResourceError:
        name = "" if error.filename in (None, str(self.path)) else f"{Path(error.filename).name}: "
        return resource_error(error, self.path) or ResourceError(
            f"cannot write to out_dir {self.path}: {name}{error.strerror}; choose a folder you can write."
        )

    def _take_lock(self) -> None:
        if sys.platform == "win32" or self._lock is None:
            return
        import fcntl

        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ResourceError(
                f"out_dir {self.path} is in use by another run; wait for it or choose another folder."
            ) from error
        except OSError as error:
            raise ResourceError(
                f"cannot lock out_dir {self.path} ({error.strerror}), and two runs at once would mix; choose "
                "a folder on another disk."
            ) from error

    def _check_writable(self) -> None:
        for folder in (self.path, self.checkpoints):
            remove_stale(folder / _PROBE, after_seconds=0)
            with atomic_write(folder / _PROBE) as temporary:
                temporary.write_bytes(b"ok")
            (folder / _PROBE).unlink()


def read_json(file: Path) -> dict[str, Any]:
    """Read one of a run's JSON files; one without a checksum, such as a user's own, is not verified.

    ResourceError if it cannot be read, DataError if it is damaged.
    """
    try:
        content = json.loads(read_text(file))
    except OSError as error:
        raise ResourceError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} is damaged: it is not valid JSON ({error}).") from error
    if not isinstance(content, dict):
        raise DataError(f"{file} is damaged: it is no JSON object.")
    if FIELD not in content and any(_SUM.fullmatch(str(value)) for value in content.values()):
        raise DataError(f"{file} is damaged: its checksum has lost its name.")
    rest: dict[str, Any] = unsealed(content, file)
    return rest


def read_config(run: Path) -> dict[str, Any]:
    """Read the ``config.json`` of the run in a folder; ConfigError if it holds none."""
    if run.is_file():
        raise ConfigError(f"{run} is a file; name the folder a run left")
    if not (run / CONFIG).is_file():
        raise ConfigError(f"{run} holds no run: there is no {run / CONFIG}; name the folder a run left")
    return read_json(run / CONFIG)

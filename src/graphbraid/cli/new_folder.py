"""The folder of a run that names none: a new one in ``runs/``, which no other command takes."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

from graphbraid.cli.settings import ResolvedRun, RunSettings
from graphbraid.errors import ResourceError
from graphbraid.files.writing import resource_error


@contextlib.contextmanager
def in_own_folder(run: ResolvedRun, runs: Path) -> Iterator[tuple[ResolvedRun, Path]]:
    """The run with its ``out_dir``, made in ``runs`` where it names none; gone again if left empty.

    Raises:
        ResourceError: no folder can be made there.
    """
    if run.train.out_dir is not None:
        yield run, run.train.out_dir
        return
    folder = _made_folder(runs, run.settings)
    try:
        yield dataclasses.replace(run, train=run.train.updated(out_dir=folder)), folder
    finally:
        with contextlib.suppress(OSError):  # a run has begun in it
            folder.rmdir()


def _made_folder(runs: Path, settings: RunSettings) -> Path:
    """The first of ``DATA-MODEL-1``, ``-2``, ... that this command is the one to make."""
    stem = f"{Path(settings.data).stem or 'graph'}-{settings.model}"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            folder = runs / f"{stem}-{number}"
            with contextlib.suppress(FileExistsError):  # whoever made it first has it
                folder.mkdir()
                return folder
    except OSError as error:
        raise resource_error(error, runs) or ResourceError(
            f"cannot make a folder for the run in {runs}: {error.strerror}; name one with --out"
        ) from error
    raise AssertionError("numbers do not end")

"""The default folder of a run: a new one in ``runs/``, which no other command can take."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

from graphbraid.cli.run.settings import ResolvedRun, RunSettings
from graphbraid.errors import ResourceError
from graphbraid.files.writing import resource_error


@contextlib.contextmanager
def in_own_folder(run: ResolvedRun, runs: Path) -> Iterator[tuple[ResolvedRun, Path]]:
    """Yield the run and its ``out_dir``, a new folder in ``runs`` if it has none, removed if left empty.

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
        with contextlib.suppress(OSError):  # not empty: a run has started in it
            folder.rmdir()


def _made_folder(runs: Path, settings: RunSettings) -> Path:
    """Make and return the first of ``DATA-MODEL-1``, ``-2``, ... that does not exist yet."""
    stem = f"{Path(settings.data).stem or 'graph'}-{settings.model}"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            folder = runs / f"{stem}-{number}"
            with contextlib.suppress(FileExistsError):  # it belongs to whoever made it first
                folder.mkdir()
                return folder
    except OSError as error:
        raise resource_error(error, runs) or ResourceError(
            f"cannot make a folder for the run in {runs}: {error.strerror}; name one with --out"
        ) from error
    raise AssertionError("numbers do not end")

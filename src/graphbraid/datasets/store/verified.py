"""Notes that say which stores were verified in full, so that later opens need not read them again.

A store's files are recognised by size, times and inode, which change with every write; a changed store is
verified again. The notes are kept in the cache, not in the store, which may be somebody else's or be copied.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from graphbraid.errors import DataError, ResourceError
from graphbraid.files.caches import cache_folder
from graphbraid.files.checksums import sealed, unsealed
from graphbraid.files.opening import read_text
from graphbraid.files.writing import atomic_write

_log = logging.getLogger(__name__)


def is_noted(folder: Path, files: Sequence[Path]) -> bool:
    """Return whether these files of a store were verified and have not changed since."""
    try:
        noted = unsealed(json.loads(read_text(_note_of(folder))), _note_of(folder))
        return bool(noted["files"] == state(files))
    except (OSError, ValueError, TypeError, KeyError, DataError):
        return False


def note(folder: Path, files: Sequence[Path], before: dict[str, list[int]]) -> None:
    """Note that these files were verified, unless they changed since ``before``, their state at the start."""
    try:
        now = state(files)
        if now != before:
            return
        path = _note_of(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as aside:
            aside.write_text(json.dumps(sealed({"store": os.path.realpath(folder), "files": now}), indent=1))
    except (OSError, ResourceError) as error:
        _log.warning("that %s was verified cannot be noted, every open verifies it: %s", folder, error)


def state(files: Sequence[Path]) -> dict[str, list[int]]:
    """Return the sizes, times and inodes that show whether files have changed."""
    found = {}
    for file in files:
        stat = file.stat()
        found[file.name] = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]
    return found


def _note_of(folder: Path) -> Path:
    name = hashlib.blake2b(os.fsencode(os.path.realpath(folder)), digest_size=12).hexdigest()
    return cache_folder("verified") / f"{name}.json"

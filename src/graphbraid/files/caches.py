"""Cache folders of generated datasets, profiles, rates and verified files, kept between runs."""

from __future__ import annotations

import functools
import logging
import os
import stat
import tempfile
from pathlib import Path

from graphbraid.files.opening import expanded

CACHE_VARIABLE = "GRAPHBRAID_CACHE"
_log = logging.getLogger(__name__)


def cache_folder(room: str) -> Path:
    """Return the cache folder for things of one kind: ``$GRAPHBRAID_CACHE/room``, or under ``~/.cache``.

    Where neither is available, as for a user without a home folder, it lies in a private folder among the
    temporary files, and a warning is logged once.

    Raises:
        ConfigError: ``GRAPHBRAID_CACHE`` names the home folder of a user who does not exist.
    """
    configured = os.environ.get(CACHE_VARIABLE, "").strip()
    if not configured:
        return _default_cache() / room
    return expanded(configured, CACHE_VARIABLE) / room


def _default_cache() -> Path:
    try:
        base = Path.home() / ".cache" / "graphbraid"
    except RuntimeError:  # HOME is not set, and the user has no entry in the password database
        return _cache_without_home("there is no home folder")
    place = base
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if place == base or os.access(place, os.W_OK | os.X_OK):
        return base
    return _cache_without_home(f"{place} cannot be written")


@functools.cache
def _cache_without_home(why: str) -> Path:
    """Return a folder among the temporary files that no other user can write to."""
    user = os.getuid() if hasattr(os, "getuid") else "own"
    place = Path(tempfile.gettempdir()) / f"graphbraid-{user}"
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o022:
            place = Path(tempfile.mkdtemp(prefix="graphbraid-"))  # for this process alone
    except OSError:
        place = Path(os.devnull) / "graphbraid"  # writing there fails with a clear error
    _log.warning("%s: what is kept between runs lies in %s; set %s", why, place, CACHE_VARIABLE)
    return place

"""Where things are kept between runs: generated datasets, profiles, rates, what was verified."""

from __future__ import annotations

import functools
import logging
import os
import stat
import tempfile
from pathlib import Path

from graphbraid.errors import ConfigError

CACHE_VARIABLE = "GRAPHBRAID_CACHE"
_log = logging.getLogger(__name__)


def cache_folder(room: str) -> Path:
    """Where things of one kind are kept between runs: ``$GRAPHBRAID_CACHE/room``, or under ``~/.cache``.

    Where neither is to be had, as for a user without a home, a folder of the user's own among the temporary
    files, which is said once.

    Raises:
        ConfigError: ``GRAPHBRAID_CACHE`` names the home of a user who is not there.
    """
    configured = os.environ.get(CACHE_VARIABLE, "").strip()
    if not configured:
        return _default_cache() / room
    try:
        return Path(configured).expanduser() / room
    except RuntimeError as error:
        raise ConfigError(f"{CACHE_VARIABLE}={configured!r} cannot be: {error}") from error


def _default_cache() -> Path:
    try:
        base = Path.home() / ".cache" / "graphbraid"
    except RuntimeError:  # no HOME, and no entry among the users
        return _cache_without_home("there is no home folder")
    place = base
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if place == base or os.access(place, os.W_OK | os.X_OK):
        return base
    return _cache_without_home(f"{place} cannot be written")


@functools.cache
def _cache_without_home(why: str) -> Path:
    """A folder that nobody else can write to, so that nobody else can put anything there."""
    user = os.getuid() if hasattr(os, "getuid") else "own"
    place = Path(tempfile.gettempdir()) / f"graphbraid-{user}"
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o022:
            place = Path(tempfile.mkdtemp(prefix="graphbraid-"))  # of this process alone
    except OSError:
        place = Path(os.devnull) / "graphbraid"  # whoever keeps something there learns that it cannot be
    _log.warning("%s: what is kept between runs lies in %s; set %s", why, place, CACHE_VARIABLE)
    return place

"""Opening files, so that a stranger's folder can neither make a command wait nor change another file.

The cache folders, kept between runs, are found here, too: of generated datasets, rates and verified files.
"""

import errno
import functools
import io
import logging
import os
import stat
import tempfile
from pathlib import Path

from graphbraid.errors import ConfigError

_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link",
}


def kind_of(mode: int) -> str:
    """Return the name of the kind of a file of this mode."""
    return _KINDS.get(stat.S_IFMT(mode), "no file")


def open_file(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file for reading; OSError if it cannot be read or is no regular file."""
    return os.fdopen(open_descriptor(path, os.O_RDONLY), "rb")


def open_descriptor(path: str | os.PathLike[str], flags: int) -> int:
    """Open a regular file by ``flags`` of :func:`os.open`; to write, only where no other name leads to it.

    Raises:
        OSError: As :func:`open_file`; or it is to be written, and is a symbolic link or has several names
            (hard links), so that another file would change.
    """
    file, is_written = os.fspath(path), bool(flags & (os.O_WRONLY | os.O_RDWR))
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    if is_written:
        flags |= getattr(os, "O_NOFOLLOW", 0)
        if Path(path).is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link, and another file would change", file)
    descriptor = os.open(file, flags, 0o666)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.ENOTSUP, f"it is {kind_of(found.st_mode)}, not a regular file", file)
        if is_written and found.st_nlink > 1:
            raise OSError(errno.EMLINK, "it has another name (a hard link), whose file would change", file)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_text(path: str | os.PathLike[str]) -> str:
    """Read a file of UTF-8 text; OSError as :func:`open_file`, UnicodeDecodeError for other text."""
    with io.TextIOWrapper(open_file(Path(path)), encoding="utf-8") as text:
        return text.read()


def expanded(path: str, name: str = "path") -> Path:
    """Return a path with its leading ``~`` or ``~user`` replaced by that home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{name}={path!r} cannot be expanded: {error}") from error


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
    _log.warning("%s: files kept between runs go to %s; set %s", why, place, CACHE_VARIABLE)
    return place

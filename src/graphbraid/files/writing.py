"""Atomic writes, so that a reader never sees half a file: write a temporary, flush it to disk, rename it.

A process killed while writing leaves the old file as it was, and at worst a hidden temporary ``.NAME.*.tmp``
beside it, which the next write of the same file removes: a running writer holds a lock on its temporary, a
killed one does not. Nothing is written through a link: a symbolic one is refused, and of a file with several
names (hard links) only the one that is written is replaced.
"""

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from graphbraid.errors import ResourceError
from graphbraid.files.opening import kind_of


def lock(descriptor: int) -> bool:
    """Take a lock that ends with the process; return False if another process holds it."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sync(file: Path) -> None:
    """Flush a file to the disk."""
    descriptor = os.open(file, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reserve(descriptor: int, num_bytes: int) -> None:
    """Give a file its size and its blocks on the disk, so that a write through a mapping cannot find it full.

    Raises:
        OSError: the disk is full, or the size is not allowed.
    """
    if num_bytes:
        os.posix_fallocate(descriptor, 0, num_bytes)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable, on systems that can flush a folder."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


IfExists = Literal["error", "replace", "keep"]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_TOO_LARGE = (errno.EFBIG,)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_BROKEN_DEVICE = (errno.EIO, errno.ENXIO, errno.ESTALE)
_TORCH_WRITE_FAILED = ("inline_container.cc", "iostream error", "PytorchStreamWriter")
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux
_TOKEN_BYTES = 6  # random bytes in a temporary's name
_STALE_AFTER_SECONDS = 60.0  # the writer of a younger temporary may not have locked it yet


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write a file atomically: create a temporary, let the body fill it, rename it.

    The body gets the path of the temporary, which lies in the same folder (created if missing). When the body
    ends, the temporary is flushed to disk and renamed to ``path``; it replaces an earlier file and takes its
    mode. If the body raises, the temporary is removed and ``path`` stays as it was. ResourceError if the disk
    is full or the folder cannot be written.
    """
    target = Path(path)
    mode = _mode_of_file(target)
    temp = _temporary_beside(target)
    with _cannot_write(target):
        descriptor = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        lock(descriptor)
        with _resource_errors(target):
            yield temp
            _keep_mode(temp, mode)
            sync(temp)
            temp.replace(target)
    finally:
        os.close(descriptor)
        temp.unlink(missing_ok=True)
    sync_folder(target.parent)


@contextlib.contextmanager
def atomic_directory(path: str | os.PathLike[str], *, if_exists: IfExists = "error") -> Iterator[Path]:
    """Write a folder atomically: the body fills a temporary folder, which is then renamed to ``path``.

    Args:
        path: The folder to make; its parents are made if missing.
        if_exists: What to do if ``path`` exists. ``"error"`` raises before anything is written, and also if
            another process made it in the meantime. ``"keep"`` keeps the existing folder. ``"replace"``
            exchanges the two folders in one step and deletes the old one, whose mode the new one takes.
            Some file systems have no such step: :func:`restore` brings the old one back if its writer was
            killed before the new one had the name.

    Raises:
        ResourceError: The folder cannot be written, exists (with ``"error"``), is a symbolic link (with
            ``"replace"``), or the disk is full.
    """
    target = Path(path)
    restore(target)
    if if_exists == "error":
        require_absent(target)
    if if_exists == "replace" and target.is_symlink():
        raise ResourceError(f"cannot replace {target}: it is a symbolic link; name the folder it leads to")
    mode = stat.S_IMODE(target.stat().st_mode) if target.is_dir() else None
    temp = _temporary_beside(target)
    with _cannot_write(target):
        temp.mkdir()
    descriptor = os.open(temp, os.O_RDONLY)
    try:
        lock(descriptor)
        with _resource_errors(target):
            yield temp
            for file in sorted(temp.rglob("*")):
                if file.is_file():
                    sync(file)
            _keep_mode(temp, mode)
            sync_folder(temp)
            _rename_folder(temp, target, if_exists)
    finally:
        os.close(descriptor)
        _remove(temp)
    sync_folder(target.parent)


def restore(path: str | os.PathLike[str]) -> None:
    """Give a folder its name back if a killed writer had moved it aside and not yet put the new one there."""
    target = Path(path)
    if os.path.lexists(target):
        return
    for aside, _ in _left_beside(target, "old"):
        with contextlib.suppress(OSError):  # another process may have given the name back meanwhile
            aside.rename(target)


def require_absent(path: str | os.PathLike[str]) -> None:
    """Check that nothing exists at ``path``; for callers that first do much work for what goes there.

    Raises:
        ResourceError: A file or folder exists there.
    """
    if os.path.lexists(path):
        raise _exists(Path(path))


def require_place_for_file(path: str | os.PathLike[str]) -> None:
    """Check that a file may be written to ``path``; for callers that first do much work for what goes there.

    Raises:
        ResourceError: It is a folder, a symbolic link, a device or a pipe, or you may not write there.
    """
    target = Path(path)
    _mode_of_file(target)
    require_place_for_folder(target)


def require_place_for_folder(path: str | os.PathLike[str]) -> None:
    """Check that something may be made at ``path``, for callers that first do much work for what goes there.

    Raises:
        ResourceError: You may not write there.
    """
    target = Path(path)
    place = target.absolute().parent
    with _cannot_write(target):
        while not place.exists():
            place = place.parent
        if not os.access(place, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def require_free_space(path: str | os.PathLike[str], num_bytes: int, what: str) -> None:
    """Check, before writing ``what``, that the disk that will hold ``path`` has ``num_bytes`` free.

    Raises:
        ResourceError: It has not; the message says how much is needed and how much is free.
    """
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < num_bytes:
        raise ResourceError(
            f"{what} needs {format_bytes(num_bytes)} on the disk that holds {place}; {format_bytes(free)} "
            "are free. Free some space or choose a folder on another disk."
        )


def format_bytes(num_bytes: float) -> str:
    """Format a number of bytes for reading: ``1536`` as ``"1.5 KiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def printable(value: object) -> str:
    """Return a value as text that cannot control a terminal: escapes control characters except newlines."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in str(value))


def resource_error(error: BaseException, path: Path) -> ResourceError | None:
    """Return a clear form of an error met while writing ``path``, or None if the disk was not the cause."""
    if isinstance(error, OSError):
        if error.errno in _FULL:
            return ResourceError(
                f"cannot write {path}: the disk is full ({_free(path)} free); free some space"
            )
        if error.errno in _TOO_LARGE:
            return ResourceError(
                f"cannot write {path}: the file grew past the size this system allows (ulimit -f)"
            )
        if error.errno in _BROKEN_DEVICE:
            return ResourceError(f"cannot write {path}: the disk reports an error ({error})")
        if error.errno is None and "requested and" in str(error):  # NumPy's tofile: a short write, errno lost
            return ResourceError(f"cannot write {path}: the write ended early ({error}; {_free(path)} free)")
    # torch.save loses errno as well.
    if isinstance(error, RuntimeError) and any(part in str(error) for part in _TORCH_WRITE_FAILED):
        return ResourceError(
            f"cannot write {path}: torch could not write it; is the disk full? ({_free(path)} free)"
        )
    return None


@contextlib.contextmanager
def _resource_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:
        if clear := resource_error(error, target):
            raise clear from error
        raise


@contextlib.contextmanager
def _cannot_write(target: Path) -> Iterator[None]:
    """Turn a failure to create the temporary into a ResourceError that says why."""
    try:
        yield
    except OSError as error:
        if clear := resource_error(error, target):
            raise clear from error
        why = "you may not write there" if error.errno in _NOT_ALLOWED else (error.strerror or str(error))
        raise ResourceError(f"cannot write {target}: {why}; choose a place you can write to") from error


def _mode_of_file(target: Path) -> int | None:
    """Return the mode of the file that will be replaced, or None if there is none."""
    with _cannot_write(target):
        try:
            found = target.lstat().st_mode
        except FileNotFoundError:
            return None
    if stat.S_ISREG(found):
        return stat.S_IMODE(found)
    raise ResourceError(f"cannot write the file {target}: it is {kind_of(found)}; choose another name")


def _keep_mode(temp: Path, mode: int | None) -> None:
    if mode is not None:
        temp.chmod(mode)


def _temporary_beside(target: Path) -> Path:
    with _cannot_write(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(target)
    return target.parent / f".{target.name}.{secrets.token_hex(_TOKEN_BYTES)}.tmp"


def remove_stale(path: str | os.PathLike[str], *, after_seconds: float = _STALE_AFTER_SECONDS) -> None:
    """Remove the temporaries of ``path`` whose writer was killed, and no others.

    Args:
        path: file or folder that :func:`atomic_write` or :func:`atomic_directory` was writing.
        after_seconds: smallest age of a temporary to remove, since the writer of a younger one may not have
            locked it yet; pass 0 if there is no other writer.
    """
    for temp, written in _left_beside(Path(path), "tmp|old" if os.path.lexists(path) else "tmp"):
        if time.time() - written >= after_seconds:
            _remove(temp)


def _left_beside(target: Path, end: str) -> Iterator[tuple[Path, float]]:
    """Yield the files that killed writers of ``target`` left beside it, and the times of their last change.

    It is locked meanwhile, so what a running writer has is left out.
    """
    ours = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{{2 * _TOKEN_BYTES}}}\.(?:{end})")
    try:
        found = [entry for entry in target.parent.iterdir() if ours.fullmatch(entry.name)]
    except OSError:
        return
    for left in found:
        with contextlib.suppress(OSError):  # its writer may have renamed or removed it meanwhile
            descriptor = os.open(left, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                if lock(descriptor):
                    yield left, os.fstat(descriptor).st_mtime
            finally:
                os.close(descriptor)


def _rename_folder(temp: Path, target: Path, if_exists: IfExists) -> None:
    if if_exists == "replace" and target.exists():
        _exchange(temp, target)
        return
    try:
        if target.exists():  # renaming onto an empty folder would replace it silently
            raise FileExistsError(errno.EEXIST, "exists", str(target))
        temp.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        if if_exists == "error":
            raise _exists(target) from error


def _exchange(temp: Path, target: Path) -> None:
    """Exchange the names of two folders, in one step where the system has it."""
    if _renamed_at_once(temp, target):
        return
    descriptor = os.open(target, os.O_RDONLY)
    try:
        lock(descriptor)  # restore() of another process leaves it where it is
        aside = target.parent / f".{target.name}.{secrets.token_hex(_TOKEN_BYTES)}.old"
        target.rename(aside)
        temp.rename(target)
        aside.rename(temp)
    finally:
        os.close(descriptor)


def _renamed_at_once(a: Path, b: Path) -> bool:
    try:
        rename = ctypes.CDLL(None).renameat2
    except (OSError, TypeError, AttributeError):  # another C library than Linux's usual one
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _exists(target: Path) -> ResourceError:
    return ResourceError(
        f"cannot write {target}: it exists already; choose another name, or replace it (--overwrite)"
    )


def _free(path: Path) -> str:
    try:
        return format_bytes(shutil.disk_usage(path.parent).free)
    except OSError:
        return "unknown"

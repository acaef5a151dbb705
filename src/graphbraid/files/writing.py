"""Atomic writes, so that a reader never sees half a file: write a temporary, flush it to disk, rename it.

A process killed while writing leaves the old file as it was, and at worst a hidden temporary ``.NAME.*.tmp``
beside it, which the next write of the same file removes: a running writer holds a lock on its temporary, a
killed one does not. Symbolic links are kept: the file a link leads to is replaced, and its mode stays.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from graphbraid.errors import ResourceError
from graphbraid.files.durability import lock, sync, sync_folder

IfExists = Literal["error", "replace", "keep"]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_TOO_LARGE = (errno.EFBIG,)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_BROKEN_DEVICE = (errno.EIO, errno.ENXIO, errno.ESTALE)
_TORCH_WRITE_FAILED = ("inline_container.cc", "iostream error", "PytorchStreamWriter")
_TOKEN_BYTES = 6  # random bytes in a temporary's name
_STALE_AFTER_SECONDS = 60.0  # the writer of a younger temporary may not have locked it yet


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write a file atomically: create a temporary, let the body fill it, rename it.

    The body gets the path of the temporary, which lies in the same folder (created if missing). When the body
    ends, the temporary is flushed to disk and renamed to ``path``; it replaces an earlier file and takes its
    mode. If the body raises, the temporary is removed and ``path`` stays as it was. If ``path`` is a symbolic
    link, all this happens to the file it leads to.

    Raises:
        ResourceError: The folder cannot be written, ``path`` is a folder, a device or a pipe, or the disk is
            full.
    """
    target = _real(path)
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
            another process made it in the meantime. ``"keep"`` keeps the existing folder. ``"replace"`` moves
            the old folder aside, renames the new one and deletes the old (a kill between the two renames
            leaves the old one as ``.NAME.*.old``). The new folder takes the old one's mode. If ``path`` is a
            symbolic link, all this happens to the folder it leads to.

    Raises:
        ResourceError: The folder cannot be written, exists (with ``"error"``), or the disk is full.
    """
    target = _real(path)
    if if_exists == "error":
        require_absent(target)
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
        shutil.rmtree(temp, ignore_errors=True)
    sync_folder(target.parent)


def require_absent(path: str | os.PathLike[str]) -> None:
    """Check that nothing exists at ``path``; for callers that first do much work for what goes there.

    Raises:
        ResourceError: A file or folder exists there.
    """
    if Path(path).exists():
        raise _exists(Path(path))


def require_place_for_file(path: str | os.PathLike[str]) -> None:
    """Check that a file may be written to ``path``; for callers that first do much work for what goes there.

    Raises:
        ResourceError: A folder, a device or a pipe has that name, or you may not write there.
    """
    target = _real(path)
    _mode_of_file(target)
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


def _real(path: str | os.PathLike[str]) -> Path:
    """Resolve symbolic links, so that a rename replaces the file a link leads to and not the link.

    Raises:
        ResourceError: the links form a loop.
    """
    target = Path(path)
    if not os.path.lexists(target) or not target.is_symlink():
        return target
    with _cannot_write(target):
        return Path(os.path.realpath(target))


def _mode_of_file(target: Path) -> int | None:
    """Return the mode of the file that will be replaced, or None if there is none."""
    with _cannot_write(target):
        try:
            found = target.lstat().st_mode
        except FileNotFoundError:
            return None
    if stat.S_ISREG(found):
        return stat.S_IMODE(found)
    what = {stat.S_IFDIR: "a folder has that name", stat.S_IFLNK: "its links lead in a circle"}.get(
        stat.S_IFMT(found), "that is a device or a pipe"
    )
    raise ResourceError(f"cannot write the file {target}: {what}; choose another name")


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
    target = _real(path)
    ours = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{{2 * _TOKEN_BYTES}}}\.tmp")
    try:
        found = [entry for entry in target.parent.iterdir() if ours.fullmatch(entry.name)]
    except OSError:
        return
    for temp in found:
        with contextlib.suppress(OSError):
            if temp.is_symlink() or time.time() - temp.stat().st_mtime < after_seconds:
                continue
            descriptor = os.open(temp, os.O_RDONLY | os.O_NONBLOCK)
            try:
                if lock(descriptor):
                    shutil.rmtree(temp) if temp.is_dir() else temp.unlink()
            finally:
                os.close(descriptor)


def _rename_folder(temp: Path, target: Path, if_exists: IfExists) -> None:
    if if_exists == "replace" and target.exists():
        aside = target.parent / f".{target.name}.{secrets.token_hex(6)}.old"
        target.rename(aside)
        temp.rename(target)
        shutil.rmtree(aside, ignore_errors=True) if aside.is_dir() else aside.unlink()
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


def _exists(target: Path) -> ResourceError:
    return ResourceError(
        f"cannot write {target}: it exists already; choose another name, or replace it (--overwrite)"
    )


def _free(path: Path) -> str:
    try:
        return format_bytes(shutil.disk_usage(path.parent).free)
    except OSError:
        return "unknown"

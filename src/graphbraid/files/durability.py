"""Flushing files and folders to the disk, and the lock that tells a running writer from a killed one."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path


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


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable, on systems that can flush a folder."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

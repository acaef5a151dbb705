"""Room on the disk for what a benchmark makes, asked for before it begins."""

from __future__ import annotations

import shutil
from pathlib import Path

from graphbraid.files.writing import format_bytes


def require_room(folder: Path, num_bytes: int, what: str) -> None:
    """End the benchmark where a folder's disk has no room for it; what it made there before counts.

    Args:
        folder: is made if it is not there.
        num_bytes: that the benchmark has there at most.
        what: it is, for the message.

    Raises:
        SystemExit: less is free.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    free = shutil.disk_usage(folder).free
    if made + free < num_bytes:
        raise SystemExit(
            f"{what} needs {format_bytes(num_bytes)} in {folder}, which has {format_bytes(free)} free"
            + (f" beside {format_bytes(made)} made before" if made else "")
            + "; choose another --folder or smaller sizes"
        )

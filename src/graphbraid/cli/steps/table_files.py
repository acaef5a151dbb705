"""Tables that commands write: columns of one length, as CSV, Parquet or NumPy arrays."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphbraid.errors import ConfigError, MissingPackageError

if TYPE_CHECKING:
    import numpy as np

_ROWS_AT_ONCE = 65_536


def writer_of(out: Path) -> Callable[[Path, dict[str, np.ndarray[Any, Any]]], None]:
    """Return what writes a table, by the end of the file's name.

    Raises:
        ConfigError: no writer has that name.
        MissingPackageError: Parquet is to be written, and pyarrow is not installed.
    """
    writers = {".csv": _write_csv, ".npz": _write_npz, ".parquet": write_parquet}
    if out.suffix not in writers:
        raise ConfigError(f"--out must end in {', '.join(writers)}; got {out}")
    if out.suffix == ".parquet":
        _pyarrow()
    return writers[out.suffix]


def require_place(out: Path, read: Mapping[str, Path | None]) -> None:
    """Check, before what goes there is computed, that a table may be written.

    Args:
        out: the table's file, which may exist.
        read: the files that the command reads, by what names them.

    Raises:
        ConfigError: ``out`` is one of those.
        ResourceError: nothing can be written there.
    """
    from graphbraid.files.writing import require_place_for_file

    for name, path in read.items():
        if path is not None and _is_one_file(out, path):
            raise ConfigError(f"--out {out} would replace a file of {name}; choose another name")
    require_place_for_file(out)


def _is_one_file(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:  # one of them is not there, or may not be looked at
        return False


def _write_csv(out: Path, table: dict[str, np.ndarray[Any, Any]]) -> None:
    from graphbraid.files.writing import atomic_write

    with atomic_write(out) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table)
        for rows in _row_chunks(table):
            writer.writerows(rows)


def _row_chunks(table: dict[str, np.ndarray[Any, Any]]) -> Iterator[Iterator[tuple[Any, ...]]]:
    """Yield the rows in chunks, with floats as the shortest text that reads back to the same float32."""
    columns = list(table.values())
    for start in range(0, len(columns[0]), _ROWS_AT_ONCE):
        chunk = [column[start : start + _ROWS_AT_ONCE] for column in columns]
        yield zip(
            *(part.astype(str) if part.dtype.kind == "f" else part.tolist() for part in chunk), strict=True
        )


def _write_npz(out: Path, table: dict[str, np.ndarray[Any, Any]]) -> None:
    import numpy as np

    from graphbraid.files.writing import atomic_write

    with atomic_write(out) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **table)  # type: ignore[arg-type]


def write_parquet(out: Path, table: dict[str, np.ndarray[Any, Any]]) -> None:
    """Write a table as Parquet, with checksums."""
    from graphbraid.files.writing import atomic_write

    arrow = _pyarrow()
    with atomic_write(out) as temporary:
        arrow.parquet.write_table(arrow.table(dict(table)), str(temporary), write_page_checksum=True)


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingPackageError(
            "writing Parquet needs the package pyarrow: pip install 'graphbraid[tabular]'; "
            "or choose .csv or .npz"
        ) from error
    return pyarrow

"""Files of commands: ids and rows that a user gives, and tables that a command writes."""

from __future__ import annotations

import csv
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphbraid.errors import ConfigError, DataError, needing
from graphbraid.files.opening import read_text

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from graphbraid.datasets import NodeIds

    Table = dict[str, np.ndarray[Any, Any]]
    """Columns of one length, by their names."""

_ROWS_AT_ONCE = 65_536


# ---- given files


def read_ids(path: Path) -> list[Any]:
    """Return the ids in a ``.npy`` file, or the lines of a text file."""
    if path.suffix != ".npy":
        return [line.strip() for line in _lines(path, "node ids")]
    from graphbraid.datasets.npy import read_npy

    ids = read_npy(path)
    if ids.ndim != 1 or ids.dtype.kind not in "iufUS":
        raise DataError(f"{path} must hold 1-d node ids; got {ids.dtype} of shape {ids.shape}")
    return [value.decode() for value in ids] if ids.dtype.kind == "S" else list(ids.tolist())


def read_rows(path: Path, columns: Sequence[str]) -> list[list[Any]]:
    """Read a file with these columns: a ``.npy`` of two dimensions, or text.

    The values of a line of text are separated by commas, else by tabs, else by spaces.
    """
    is_array = path.suffix == ".npy"
    rows = _array_rows(path) if is_array else [_values(line) for line in _lines(path, "pairs")]
    needed = ", ".join(columns)
    if not rows:
        raise DataError(f"{path} holds nothing; each line needs {needed}")
    for at, row in enumerate(rows):
        if len(row) != len(columns):
            raise DataError(f"{path}: entry {at + 1} must have {needed}; got {len(row)} values: {row}")
    return rows


def _lines(path: Path, what: str) -> list[str]:
    try:
        # str.splitlines would also divide an id at a form feed, or at another of the rarer line separators.
        return [line for line in read_text(path).removeprefix("\ufeff").split("\n") if line.strip()]
    except Exception as error:  # such as an encoding error
        raise DataError(f"the {what} in {path} cannot be read: {error}") from error


def _array_rows(path: Path) -> list[list[Any]]:
    from graphbraid.datasets.npy import read_npy

    array = read_npy(path)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.dtype.kind not in "iuU":
        raise DataError(f"{path} must hold ids, a row for each; got {array.dtype} of shape {array.shape}")
    rows: list[list[Any]] = array.tolist()
    return rows


def _values(line: str) -> list[Any]:
    if "," in line:
        return [value.strip() for value in next(csv.reader([line], skipinitialspace=True))]
    return [value.strip() for value in line.split("\t")] if "\t" in line else line.split()


def nodes_named(wanted: Sequence[Any], path: Path, ids: NodeIds | None) -> Tensor:
    """Return the int64 nodes of ids from a file: ids of the data if it has some, else numbers of nodes.

    Raises:
        DataError: an entry is no id, or an unknown one; the message gives its place.
    """
    import torch

    if ids is not None and isinstance(ids[0], str):
        return ids.nodes_of([str(value) for value in wanted])
    numbers = _as_numbers(wanted, path)
    return torch.tensor(numbers) if ids is None else ids.nodes_of(numbers)


def _as_numbers(wanted: Sequence[Any], path: Path) -> list[int]:
    numbers = []
    for position, value in enumerate(wanted):
        try:
            numbers.append(int(value) if isinstance(value, str) else operator.index(value))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{path}: entry {position + 1} is {str(value)!r}, not a node id (a whole number)"
            ) from error
        if not -(1 << 63) <= numbers[-1] < 1 << 63:
            raise DataError(f"{path}: entry {position + 1} is {value}, beyond any node id")
    return numbers


# ---- written tables


def writer_of(out: Path) -> Callable[[Path, Table], None]:
    """Return the function that writes a table, by the end of the file's name."""
    writers = {".csv": _write_csv, ".npz": _write_npz, ".parquet": write_parquet}
    if out.suffix not in writers:
        raise ConfigError(f"--out must end in {', '.join(writers)}; got {out}")
    if out.suffix == ".parquet":
        _pyarrow()
    return writers[out.suffix]


def require_place(out: Path, read: Mapping[str, Path | None], option: str = "--out") -> None:
    """Refuse a table that would replace a file that is read, or cannot be written, before it is computed.

    ``read`` has the files that the command reads, by their options; ``option`` is that of ``out``, which may
    exist.
    """
    from graphbraid.files.writing import require_place_for_file

    for name, path in read.items():
        if path is not None and _is_one_file(out, path):
            raise ConfigError(f"{option} {out} would replace a file of {name}; choose another name")
    require_place_for_file(out)


def _is_one_file(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:  # one of them is not there, or may not be looked at
        return False


def _write_csv(out: Path, table: Table) -> None:
    from graphbraid.files.writing import atomic_write

    with atomic_write(out) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table)
        for rows in _row_chunks(table):
            writer.writerows(rows)


def _row_chunks(table: Table) -> Iterator[Iterator[tuple[Any, ...]]]:
    """Yield the rows in chunks, with floats as the shortest text that reads back to the same float32."""
    columns = list(table.values())
    for start in range(0, len(columns[0]), _ROWS_AT_ONCE):
        chunk = [column[start : start + _ROWS_AT_ONCE] for column in columns]
        yield zip(
            *(part.astype(str) if part.dtype.kind == "f" else part.tolist() for part in chunk), strict=True
        )


def _write_npz(out: Path, table: Table) -> None:
    import numpy as np

    from graphbraid.files.writing import atomic_write

    with atomic_write(out) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **table)  # type: ignore[arg-type]


def write_parquet(out: Path, table: Table) -> None:
    """Write a table as Parquet, with checksums."""
    from graphbraid.files.writing import atomic_write

    arrow = _pyarrow()
    with atomic_write(out) as temporary:
        arrow.parquet.write_table(arrow.table(dict(table)), str(temporary), write_page_checksum=True)


def _pyarrow() -> Any:
    with needing(
        "writing Parquet needs the package pyarrow: pip install 'graphbraid[tabular]'; or choose .csv or .npz"
    ):
        import pyarrow
        import pyarrow.parquet
    return pyarrow

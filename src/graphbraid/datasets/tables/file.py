"""TableFile: CSV, Parquet or in-memory tables as a stream of pyarrow record batches, with clear errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphbraid.arguments import as_count
from graphbraid.errors import ConfigError, DataError, MissingPackageError, ResourceError, did_you_mean
from graphbraid.signatures import typed

CSV_SUFFIXES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
PARQUET_SUFFIXES = (".parquet", ".pq")


@typed
@dataclass(frozen=True, kw_only=True, slots=True)
class CsvOptions:
    """The format of CSV files."""

    delimiter: str | None = None
    """Character between fields. If None, a tab for ``.tsv`` files and a comma for others."""
    header: bool = True
    """Whether the first row names the columns; if not, they are called ``"0"``, ``"1"``, ..."""
    skip_rows: int = 0
    """Number of lines to skip before the header or the first row."""

    def __post_init__(self) -> None:
        if self.delimiter is not None and (len(self.delimiter) != 1 or not self.delimiter.isascii()):
            raise ConfigError(f"delimiter must be one ASCII character, such as ';'; got {self.delimiter!r}")
        as_count(self.skip_rows, "skip_rows")


class TableFile:
    """One table: its name for messages, its columns, and its rows in batches."""

    def __init__(self, source: Any, csv_options: CsvOptions | None = None) -> None:
        """Open a table.

        Args:
            source: A path, a pyarrow table, or a pandas data frame.
            csv_options: Format of CSV files. If None, the defaults.

        Raises:
            MissingPackageError: pyarrow is not installed.
            DataError: The file is missing, empty, broken or of another kind.
        """
        arrow = require_pyarrow()
        self._csv = csv_options or CsvOptions()
        self._table: Any = None
        self._path: Path | None = None
        if isinstance(source, (str, os.PathLike)):
            self._path = Path(source)
            self.name = str(source)
            if not self._path.is_file():
                raise DataError(f"there is no file {self._path}")
        elif isinstance(source, arrow.Table):
            self._table, self.name = source, "the table"
        elif hasattr(source, "columns") and hasattr(source, "dtypes"):
            self._table, self.name = arrow.Table.from_pandas(source, preserve_index=False), "the data frame"
        else:
            raise ConfigError(
                f"a table is a path, a pyarrow.Table or a pandas.DataFrame; got {type(source).__name__}"
            )
        try:
            self.types: dict[str, Any] = self._read_types()
        except Exception as error:
            raise self._clear(self._located(error, None, {})) from error

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.types)

    @property
    def is_text(self) -> bool:
        """Whether this is a CSV file, whose columns can be read as any type."""
        return self._path is not None and self._path.name.endswith(CSV_SUFFIXES)

    @property
    def is_aligned(self) -> bool:
        """Whether a space is the delimiter, so that there is an empty field between two spaces in a row."""
        return self.is_text and self._csv.delimiter == " "

    def require(self, column: str, role: str) -> str:
        """Check that a column exists and return its name.

        Raises:
            DataError: It does not exist; lists the columns.
        """
        if column not in self.types:
            raise DataError(
                f"{self.name} has no column {column!r} ({role}); its columns are "
                f"{', '.join(self.columns)}.{did_you_mean(column, self.columns)}"
            )
        return column

    def row(self, index: int) -> str:
        """Describe the position of row ``index`` (from 0, without the header) for messages."""
        if self.is_text:
            return f"{self.name}, line {index + 1 + self._csv.header + self._csv.skip_rows}"
        return f"{self.name}, row {index}"

    def batches(self, columns: Sequence[str], as_types: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """Yield the rows of some columns as pyarrow record batches.

        Args:
            columns: Names of the columns, in the order to return them.
            as_types: pyarrow types to read columns as.

        Raises:
            DataError: A value does not have its column's type, or the file is truncated.
        """
        types = {**{c: self.types[c] for c in columns}, **(as_types or {})}
        batches = self._batches(list(columns), types)
        while True:
            try:
                batch = next(batches, None)
            except Exception as error:
                raise self._clear(self._located(error, list(columns), types)) from error
            if batch is None:
                return
            yield batch

    def _batches(self, columns: list[str], types: dict[str, Any]) -> Iterator[Any]:
        if self._table is not None or self._is_parquet():
            if self._table is not None:
                parts = iter(self._table.select(columns).to_batches(max_chunksize=1 << 18))
            else:
                from pyarrow import parquet

                # Not every page carries a checksum: Spark writes them, pyarrow only on request.
                opened = parquet.ParquetFile(self._path, page_checksum_verification=True)
                parts = opened.iter_batches(1 << 18, columns=columns)
            for part in parts:
                arrays = [part.column(c).cast(types[c]) for c in columns]
                yield require_pyarrow().RecordBatch.from_arrays(arrays, names=columns)
            return
        yield from self._open_csv(columns, types)

    def _open_csv(self, columns: list[str] | None, types: dict[str, Any], *, threads: bool = True) -> Any:
        from pyarrow import csv

        delimiter = self._csv.delimiter or ("\t" if ".tsv" in Path(self.name).suffixes else ",")
        return csv.open_csv(
            self._path,
            read_options=csv.ReadOptions(
                column_names=None if self._csv.header else self._numbered(delimiter),
                skip_rows=self._csv.skip_rows,
                block_size=1 << 24,
                use_threads=threads,
            ),
            parse_options=csv.ParseOptions(delimiter=delimiter),
            convert_options=csv.ConvertOptions(column_types=types, include_columns=columns or []),
        )

    def _numbered(self, delimiter: str) -> list[str]:
        """Return the column names of a file without a header."""
        from pyarrow import input_stream

        assert self._path is not None
        with input_stream(str(self._path), compression="detect") as stream:
            lines = stream.read(1 << 16).decode(errors="replace").splitlines()
        line = lines[self._csv.skip_rows] if len(lines) > self._csv.skip_rows else ""
        return [str(at) for at in range(line.count(delimiter) + 1)]

    def _read_types(self) -> dict[str, Any]:
        if self._table is not None:
            schema = self._table.schema
        elif self._is_parquet():
            from pyarrow import parquet

            schema = parquet.read_schema(self._path)
        else:
            with self._open_csv(None, {}) as reader:
                schema = reader.schema
        if len(set(schema.names)) < len(schema.names):
            repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
            raise DataError(f"{self.name} has several columns called {repeated[0]!r}; names must differ")
        return dict(zip(schema.names, schema.types, strict=True))

    def _is_parquet(self) -> bool:
        assert self._path is not None
        if self._path.name.endswith(PARQUET_SUFFIXES):
            return True
        if self._path.name.endswith(CSV_SUFFIXES):
            return False
        known = ", ".join((*CSV_SUFFIXES, *PARQUET_SUFFIXES))
        raise DataError(f"{self._path} is neither CSV nor Parquet by its name; known endings: {known}")

    def _located(self, error: Exception, columns: list[str] | None, types: dict[str, Any]) -> Exception:
        """Return the error with its row in the message, which pyarrow's parser knows only on one thread."""
        if not self.is_text or "Row #" in str(error):
            return error
        try:
            with self._open_csv(columns, types, threads=False) as reader:
                for _ in reader:
                    pass
        except Exception as located:
            return located
        return error

    def _clear(self, error: Exception) -> Exception:
        """Turn an error of pyarrow into one that names file, line and column; return others unchanged."""
        arrow = require_pyarrow()
        text = str(error)
        if isinstance(error, arrow.ArrowInvalid) and "Empty CSV file" in text:
            return DataError(f"{self.name} is empty")
        if isinstance(error, arrow.ArrowException) and not isinstance(error, MemoryError | OSError):
            text = re.sub(r"In CSV column #(\d+): ", self._column_of, text)
            return DataError(f"{self.name} cannot be read: {re.sub('Row #', 'line ', text)}")
        if isinstance(error, UnicodeDecodeError):
            return DataError(f"{self.name} is not UTF-8 text: {text}")
        if isinstance(error, OSError) and error.errno is None:
            return DataError(f"{self.name} is truncated or damaged: {text}")
        if isinstance(error, OSError):
            return ResourceError(f"{self.name} cannot be read: {text}")
        return error

    def _column_of(self, match: re.Match[str]) -> str:
        at = int(match.group(1))
        return f"column {self.columns[at]!r}: " if at < len(self.columns) else f"column {at}: "


def first_null(values: Any) -> int:
    """Return the position of the first null of a pyarrow array that has one."""
    return int(values.is_null().index(True).as_py())


def require_pyarrow() -> Any:
    """Return the pyarrow module.

    Raises:
        MissingPackageError: It is not installed; the message says how to install it.
    """
    try:
        import pyarrow as arrow
    except ImportError as error:
        raise MissingPackageError(
            "reading CSV and Parquet tables needs pyarrow: pip install 'graphbraid[tabular]'"
        ) from error
    return arrow

"""TableFile: CSV, Parquet or in-memory tables as a stream of pyarrow record batches, with clear errors."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphbraid.arguments import as_count
from graphbraid.errors import ConfigError, DataError, ResourceError, did_you_mean, needing
from graphbraid.files.progress import counted, stage
from graphbraid.signatures import typed

CSV_SUFFIXES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
PARQUET_SUFFIXES = (".parquet", ".pq")
_BLOCK_BYTES = 1 << 24
"""Text of a CSV file that is read at a time."""


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
            source: A path, a pyarrow table, or a data frame of pandas, polars or another library that Arrow
                reads.
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
        elif hasattr(source, "columns") and hasattr(source, "iloc"):
            self._table, self.name = _of_pandas(source), "the data frame"
        elif hasattr(source, "__arrow_c_stream__"):  # polars, DuckDB and others
            self._table, self.name = arrow.table(source), "the data frame"
        else:
            raise ConfigError(
                "a table is a path, a pyarrow.Table or a data frame of pandas, polars or a library that "
                f"Arrow reads; got {type(source).__name__}"
            )
        self.parts: dict[str, list[str]] = {}
        """The names ``x[0]``, ``x[1]``, ... that replace a column ``x`` of lists of numbers."""
        try:
            self.types: dict[str, Any] = self._read_types()
        except Exception as error:  # of whatever library reads it; _clear returns unknown ones unchanged
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
        """Return the name of a column; DataError lists the columns if it is none."""
        if column not in self.types:
            hint = self._format_hint() or did_you_mean(column, self.columns)
            names = ", ".join(self.columns)
            raise DataError(f"{self.name} has no column {column!r} ({role}); its columns are {names}.{hint}")
        return column

    def _format_hint(self) -> str:
        """Say which option reads the file, if its first line does not look like names between delimiters."""
        if not self.is_text or not self._csv.header:
            return ""
        line = self._first_line()
        if line.startswith(("#", "%")):
            return " The first line looks like a comment: leave it out with skip_rows= (--skip-rows)."
        fields = line.split(self._delimiter)
        between = next((mark for mark in "\t;|, " if mark in line), None)
        if len(fields) == 1 and between is not None:
            in_file = f"csv: {{delimiter: {json.dumps(between)}}}"
            return (
                f" Is {between!r} between the fields? Say so with delimiter= (--delimiter; in a description: "
                f"{in_file})."
            )
        if all(field.strip().lstrip("-").replace(".", "", 1).isdigit() for field in fields):
            return " The first line looks like values: with header=False (--no-header) columns are 0, 1, ..."
        return ""

    def expanded(self, columns: Sequence[str]) -> list[str]:
        """Return the columns, with each column of lists replaced by the columns that stand for it."""
        return [part for column in columns for part in self.parts.get(column, [column])]

    def whole(self, as_types: Mapping[str, Any]) -> Any:
        """Return all as a ``pyarrow.Table``; lists stay one column; DataError as in :meth:`batches`."""
        arrow, owner = require_pyarrow(), {part: name for name, parts in self.parts.items() for part in parts}
        names = list(dict.fromkeys(owner.get(column, column) for column in self.columns))
        if self.is_text:
            types = [as_types.get(name, self.types[name]) for name in names]
            schema = arrow.schema(list(zip(names, types, strict=True)))
            return arrow.Table.from_batches(list(self.batches(names, as_types)), schema)
        if self._table is not None:
            return self._table.select(names).combine_chunks()
        from pyarrow.parquet import read_table

        batches = list(self._read(names))  # a table without rows has no batch
        found = arrow.Table.from_batches(batches) if batches else read_table(self._path, columns=names)
        return found.combine_chunks()

    def is_whole(self, column: str) -> bool:
        """Return whether a column can be read as integers: all its numbers are whole."""
        arrow = require_pyarrow()
        if not self._is_fractional(column):
            return bool(arrow.types.is_integer(self.types[column]))
        from pyarrow import compute

        batches = self.batches([column], {column: arrow.float64()})
        numbers = (batch.column(0).drop_null() for batch in batches)
        return all(compute.all(compute.equal(compute.floor(n), n), min_count=0).as_py() for n in numbers)

    def _is_fractional(self, column: str) -> bool:
        of, kind = require_pyarrow().types, self.types[column]
        return bool(of.is_floating(kind) or of.is_decimal(kind))

    def row(self, index: int) -> str:
        """Describe the position of row ``index`` (from 0, without the header) for messages."""
        if self.is_text:
            return f"{self.name}, line {index + 1 + self._csv.header + self._csv.skip_rows}"
        return f"{self.name}, row {index}"

    def batches(self, columns: Sequence[str], as_types: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """Yield the rows of columns, in their order, as pyarrow record batches; DataError for a bad value."""
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
        arrow, row = require_pyarrow(), 0
        # Ids that another program wrote as floats are read as floats, and checked.
        floats = {c for c in columns if types[c] == arrow.int64() and self._is_fractional(c)}
        is_text = self._table is None and not self._is_parquet()
        if is_text and not floats:
            yield from self._blocks(columns, types)
            return
        as_read = types | dict.fromkeys(floats, arrow.float64())
        for batch in self._blocks(columns, as_read) if is_text else self._stored(columns):
            arrays = [
                self._whole(batch.column(c), row, c) if c in floats else batch.column(c).cast(types[c])
                for c in columns
            ]
            yield arrow.RecordBatch.from_arrays(arrays, names=columns)
            row += batch.num_rows

    def _stored(self, columns: list[str]) -> Iterator[Any]:
        """Yield the rows of columns of a Parquet file or of a table in memory, as they are stored."""
        from pyarrow import RecordBatch, compute

        place = {part: (name, at) for name, parts in self.parts.items() for at, part in enumerate(parts)}
        owners = list(dict.fromkeys(place[c][0] if c in place else c for c in columns))
        row = 0
        for batch in self._read(owners):
            for name in set(owners) & set(self.parts):
                lengths = compute.list_value_length(batch.column(name))
                at = compute.index(compute.not_equal(lengths, len(self.parts[name])), True).as_py()
                if at >= 0:
                    raise DataError(
                        f"{self.row(row + at)}: column {name!r} holds {lengths[at]} numbers; all rows need "
                        f"{len(self.parts[name])}, as the first row"
                    )
            arrays = [
                compute.list_element(batch.column(place[c][0]), place[c][1])
                if c in place
                else batch.column(c)
                for c in columns
            ]
            yield RecordBatch.from_arrays(arrays, names=columns)
            row += batch.num_rows

    def _read(self, columns: list[str]) -> Iterator[Any]:
        if self._table is not None:
            yield from self._table.select(columns).to_batches(max_chunksize=1 << 18)
            return
        from pyarrow import parquet

        # Not every page carries a checksum: Spark writes them, pyarrow only on request.
        opened = parquet.ParquetFile(self._path, page_checksum_verification=True)
        count = 0
        with stage(self._reading, opened.metadata.num_rows) as advance:
            for batch in opened.iter_batches(1 << 18, columns=columns):
                count += batch.num_rows
                yield batch
                advance(batch.num_rows)
        if columns and count != opened.metadata.num_rows:  # no checksum is of a column's count of values
            raise DataError(
                f"{self.name} is truncated or damaged: it names {opened.metadata.num_rows:,} rows, and a "
                f"column ends after {count:,}; copy it or write it again"
            )

    def _whole(self, values: Any, row: int, column: str) -> Any:
        """Return numbers that are whole as int64; ``values`` begin at ``row`` of the table."""
        from pyarrow import compute, float64, int64

        numbers = values.cast(float64())
        exact = compute.and_(
            compute.equal(compute.floor(numbers), numbers), compute.less(compute.abs(numbers), 2**53)
        )
        at = compute.index(exact, False).as_py()
        if at >= 0:
            raise DataError(
                f"{self.row(row + at)}: column {column!r} is {numbers[at]}; ids that are stored as floats "
                "must be whole numbers below 2**53, or be read as text (id_type='string')"
            )
        return numbers.cast(int64())

    def _blocks(self, columns: list[str], types: dict[str, Any]) -> Iterator[Any]:
        """Yield the rows of a CSV file, a block of its text at a time."""
        assert self._path is not None
        # A compressed file does not say how long its text is.
        total = None if self._path.suffix == ".gz" else self._path.stat().st_size / _BLOCK_BYTES
        return counted(self._open_csv(columns, types), self._reading, total)

    @property
    def _reading(self) -> str:
        return f"reading {Path(self.name).name}"

    def _open_csv(self, columns: list[str] | None, types: dict[str, Any], *, threads: bool = True) -> Any:
        from pyarrow import csv

        return csv.open_csv(self._path, **self._csv_options(columns or [], types, threads=threads))

    def _csv_options(
        self, columns: list[str], types: dict[str, Any], *, threads: bool = True
    ) -> dict[str, Any]:
        from pyarrow import csv

        return {
            "read_options": csv.ReadOptions(
                column_names=None if self._csv.header else self._numbered(),
                skip_rows=self._csv.skip_rows,
                block_size=_BLOCK_BYTES,
                use_threads=threads,
            ),
            "parse_options": csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
            "convert_options": csv.ConvertOptions(column_types=types, include_columns=columns),
        }

    @property
    def _delimiter(self) -> str:
        return self._csv.delimiter or ("\t" if ".tsv" in Path(self.name).suffixes else ",")

    def _numbered(self) -> list[str]:
        """Return the column names of a file without a header."""
        return [str(at) for at in range(self._first_line().count(self._delimiter) + 1)]

    def _first_line(self) -> str:
        """Return the line of the header, or the first row of a file without one."""
        from pyarrow import input_stream

        assert self._path is not None
        with input_stream(str(self._path), compression="detect") as stream:
            lines = stream.read(1 << 16).decode(errors="replace").splitlines()
        return lines[self._csv.skip_rows] if len(lines) > self._csv.skip_rows else ""

    def _read_types(self) -> dict[str, Any]:
        if self._table is not None:
            schema = self._table.schema
        elif self._is_parquet():
            from pyarrow import parquet

            schema = parquet.read_schema(self._path)
        else:
            schema = self._csv_schema()
        if len(set(schema.names)) < len(schema.names):
            repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
            raise DataError(f"{self.name} has several columns called {repeated[0]!r}; names must differ")
        types: dict[str, Any] = {}
        for name, kind in zip(schema.names, schema.types, strict=True):
            width = self._width(name, kind)
            self.parts |= {name: [f"{name}[{at}]" for at in range(width)]} if width else {}
            types |= dict.fromkeys(self.parts[name], kind.value_type) if width else {name: kind}
        return types

    def _csv_schema(self) -> Any:
        """Return names and types of a CSV file's columns; pyarrow infers them from the first block alone.

        Of a longer file all rows are read. A column whose type does not hold in one is read by itself and
        whole, which infers its type from all rows.
        """
        from pyarrow import csv

        arrow, doubtful = require_pyarrow(), set[str]()
        with self._open_csv(None, {}) as reader:
            first = reader.schema
        assert self._path is not None
        names, types = first.names, dict(zip(first.names, first.types, strict=True))
        is_one_block = self._path.suffix != ".gz" and self._path.stat().st_size <= _BLOCK_BYTES
        if is_one_block or len(types) < len(names):
            return first
        while True:
            try:
                with self._open_csv(None, types) as reader:
                    for _ in reader:
                        pass
            except arrow.ArrowInvalid as error:
                found = re.search(r"In CSV column #(\d+): .*conversion error", str(error))
                if found and (name := names[int(found.group(1))]) not in doubtful:
                    doubtful.add(name)
                    with suppress(arrow.ArrowInvalid):  # such as of a row with too few fields: reading tells
                        types[name] = csv.read_csv(self._path, **self._csv_options([name], {})).schema[0].type
                    continue
            return arrow.schema(list(types.items()))

    def _width(self, name: str, kind: Any) -> int:
        """Return how many numbers the lists of a column hold; 0 if it holds other things."""
        of = require_pyarrow().types
        is_list = of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind)
        if not is_list or not holds_numbers(kind.value_type):
            return 0
        for batch in self._read([name]):
            for value in batch.column(0).drop_null()[:1]:
                return len(value)
        return 0

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
        if not self.is_text or "Row #" in str(error) or isinstance(error, DataError):
            return error
        try:
            with self._open_csv(columns, types, threads=False) as reader:
                for _ in reader:
                    pass
        except Exception as located:  # the same mistake, now with its row
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
            hint = self._format_hint() if "CSV parse error" in text else ""
            return DataError(
                f"{self.name} cannot be read: {re.sub('Row #', 'line ', text)}{hint and '.' + hint}"
            )
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


def is_index(column: str) -> bool:
    """Return whether a column is the index without a name that pandas writes with a data frame."""
    return re.fullmatch(r"|Unnamed: 0|__index_level_\d+__", column) is not None


def _of_pandas(frame: Any) -> Any:
    """Return a data frame of pandas as a pyarrow.Table; DataError names a column that Arrow cannot hold."""
    table = require_pyarrow().Table
    refused = (ValueError, TypeError, OverflowError, NotImplementedError)  # errors of pyarrow and pandas
    try:
        return table.from_pandas(frame, preserve_index=False)
    except refused as error:
        for name in frame.columns if frame.columns.is_unique else ():
            try:
                table.from_pandas(frame[[name]], preserve_index=False)
            except refused as one:
                raise DataError(f"the data frame: column {name!r} cannot be read: {one.args[0]}") from one
        raise DataError(f"the data frame cannot be read: {error}") from error


def holds_numbers(kind: Any) -> bool:
    """Return whether a pyarrow type is of numbers, or of true and false."""
    of = require_pyarrow().types
    return bool(of.is_integer(kind) or of.is_floating(kind) or of.is_boolean(kind) or of.is_decimal(kind))


def require_pyarrow() -> Any:
    """Return the pyarrow module, with its ``compute``; MissingPackageError says how to install it."""
    with needing("reading CSV and Parquet tables needs pyarrow: pip install 'graphbraid[tabular]'"):
        import pyarrow as arrow
        import pyarrow.compute
    return arrow

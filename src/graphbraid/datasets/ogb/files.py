"""Files in OGB folders: gzipped CSV without a header, and checks of their content."""

from __future__ import annotations

import csv
import gzip
import zlib
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationInfo,
)
from torch import Tensor

from graphbraid.arguments import MOST_COUNT
from graphbraid.errors import DataError
from graphbraid.files.schema import checked

_Array = npt.NDArray[Any]


def read_gzipped_csv(file: Path, dtype: type[np.generic]) -> _Array:
    """Read the ``(rows, columns)`` numbers of a gzipped CSV file without a header, or raise DataError."""
    if not file.is_file():
        raise DataError(f"{file} is missing; the OGB folder is not complete")
    try:
        return _by_arrow(file, dtype)
    except ModuleNotFoundError:
        return _by_numpy(file, dtype)


def read_gzipped_names(file: Path) -> list[list[str]]:
    """Read the rows of a small gzipped CSV file as text, without the empty ones, or raise DataError."""
    if not file.is_file():
        raise DataError(f"{file} is missing; the OGB folder is not complete")
    try:
        with gzip.open(file, "rt", encoding="utf-8", newline="") as text:
            return [[name.strip() for name in row] for row in csv.reader(text) if row]
    except (EOFError, OSError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{file} is truncated or not gzipped CSV text ({error}); download it again"
        ) from error


def _by_arrow(file: Path, dtype: type[np.generic]) -> _Array:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    arrow = pa.from_numpy_dtype(dtype)
    with gzip.open(file, "rt") as text:
        try:
            columns = text.readline().count(",") + 1
        except (EOFError, OSError, zlib.error, UnicodeDecodeError) as error:
            raise _damaged(file, error) from error
    names = [str(i) for i in range(columns)]
    try:
        table = arrow_csv.read_csv(
            file,
            read_options=arrow_csv.ReadOptions(column_names=names),
            convert_options=arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, arrow)),
        )
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(file, error) from error
    missing = np.nan if np.dtype(dtype).kind == "f" else None
    out = np.empty((table.num_rows, columns), dtype)
    for at, column in enumerate(table.columns):
        if column.null_count and missing is None:
            raise DataError(f"{file}: column {at} has {column.null_count} empty fields; integers are needed")
        out[:, at] = column.to_numpy()
    return out


def _by_numpy(file: Path, dtype: type[np.generic]) -> _Array:
    converter = _number if np.dtype(dtype).kind == "f" else None
    try:
        return np.loadtxt(file, dtype, delimiter=",", quotechar='"', ndmin=2, converters=converter)
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise _damaged(file, error) from error


def _number(field: str) -> float:
    return float(field) if field.strip() else float("nan")


def _damaged(file: Path, error: BaseException) -> DataError:
    return DataError(f"{file} is truncated or not a gzipped CSV file of numbers ({error}); download it again")


Values = npt.NDArray[Any] | Tensor
FoundValues = dict[str, tuple[str, Any]]
"""Values found for the fields of :class:`OgbContents`, each with the file, or the key in it, it came from."""
_MOST_NODES = 1 << 48  # a table with as many rows takes petabytes


def _of_one_graph(value: Any) -> int:
    """Return the only count in a list of counts per graph, since a node dataset has one graph."""
    counts = np.asarray(value)
    if counts.size != 1:
        raise ValueError(f"holds {counts.size} graphs; a node dataset is one graph")
    if counts.dtype.kind not in "iu":
        raise ValueError(f"must be a whole number; got {counts.reshape(-1)[0]!r} ({counts.dtype})")
    return int(counts.reshape(-1)[0])


def _values(value: Any) -> Values:
    if not isinstance(value, np.ndarray | Tensor):
        raise ValueError(f"must be an array; got {type(value).__name__}")
    return value


def _pairs(edges: Values, info: ValidationInfo) -> Values:
    if edges.ndim != 2 or edges.shape[0] != 2:
        ends = f"{edges.shape[0]} columns" if edges.ndim == 2 else f"shape {tuple(edges.shape)}"
        raise ValueError(f"has {ends}; an edge list has 2: source and destination")
    if _kind(edges) not in "iu":
        raise ValueError(f"must hold node ids, which are whole numbers; its dtype is {edges.dtype}")
    told = info.data.get("num_edges")
    if told is not None and told != edges.shape[1]:
        raise ValueError(f"has {edges.shape[1]} edges; the dataset says it has {told}")
    return edges


def _rows(values: Values, info: ValidationInfo) -> Values:
    """Check that a matrix of numbers has one row per node."""
    if values.ndim != 2 or _kind(values) not in "iufb":
        raise ValueError(
            f"must be a matrix of numbers; its dtype is {values.dtype}, its shape {tuple(values.shape)}"
        )
    num_nodes = info.data.get("num_nodes", values.shape[0])
    if values.shape[0] != num_nodes:
        raise ValueError(f"has {values.shape[0]} rows; the dataset has {num_nodes} nodes")
    return values


def _labels(values: Values, info: ValidationInfo) -> Values:
    """Check that labels fit int64 as classes, or else float32; NaN means no label."""
    values = _rows(values if values.ndim != 1 else values.reshape(-1, 1), info)
    array = np.asarray(values)
    known = array[~np.isnan(array)] if array.dtype.kind == "f" else array
    most = MOST_COUNT if (known == np.floor(known)).all() else np.finfo(np.float32).max
    outside = known[(known < -most) | (known > most)]
    if outside.size:
        raise ValueError(f"must hold labels within {most:g}; it holds {outside[0]}")
    return values


def _ids(values: Values) -> Values:
    if values.ndim == 2 and values.shape[1] == 1:
        values = values.reshape(-1)
    if values.ndim != 1 or _kind(values) not in "iub":
        raise ValueError(
            f"must be one column of node ids; its dtype is {values.dtype}, its shape {tuple(values.shape)}"
        )
    return values


def _kind(values: Values) -> str:
    """Return NumPy's letter for a kind of numbers: ``i``, ``u``, ``f`` or ``b``."""
    if isinstance(values, np.ndarray):
        return values.dtype.kind
    text = str(values.dtype).removeprefix("torch.")
    return {"bf": "f", "bo": "b"}.get(text[:2], text[0])


_Count = Annotated[int, BeforeValidator(_of_one_graph), Field(ge=0, le=_MOST_NODES)]
_Numbers = Annotated[Values, BeforeValidator(_values)]


class OgbContents(BaseModel):
    """The parts of a node dataset; fields are checked in this order."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    num_nodes: _Count
    num_edges: _Count | None = None
    edge_index: Annotated[_Numbers, AfterValidator(_pairs)]
    """``(2, num_edges)`` node ids: a row of sources and a row of destinations."""
    node_feat: Annotated[_Numbers, AfterValidator(_rows)] | None = None
    y: Annotated[_Numbers, AfterValidator(_labels)] | None = None
    """``(num_nodes, num_tasks)`` labels."""
    train: Annotated[_Numbers, AfterValidator(_ids)] | None = None
    val: Annotated[_Numbers, AfterValidator(_ids)] | None = None
    test: Annotated[_Numbers, AfterValidator(_ids)] | None = None

    @property
    def splits(self) -> dict[str, Values]:
        """Node ids of each split, by graphbraid's names."""
        named = {"train": self.train, "val": self.val, "test": self.test}
        return {name: ids for name, ids in named.items() if ids is not None}


_CONTENTS = TypeAdapter(OgbContents)


def checked_contents(found: FoundValues) -> OgbContents:
    """Validate the contents of a dataset; DataError says which part does not fit, and where it was found."""

    def refuse(text: str) -> DataError:
        field, _, what = text.partition(": ")
        place, _ = found.get(field, (field, None))
        return DataError(f"{place} {what}")

    return checked(
        _CONTENTS, {field: value for field, (_, value) in found.items() if value is not None}, refuse
    )

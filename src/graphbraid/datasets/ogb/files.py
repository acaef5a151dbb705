"""Parsers of files in OGB folders: gzipped CSV without a header, and PyG's processed file."""

from __future__ import annotations

import csv
import gzip
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphbraid.errors import DataError, MissingPackageError, ResourceError

_Array = npt.NDArray[Any]


def read_gzipped_csv(file: Path, dtype: type[np.generic]) -> _Array:
    """Read the ``(rows, columns)`` numbers of a gzipped CSV file without a header; fastest with pyarrow.

    Raises:
        DataError: The file is missing, truncated, or holds something else; names the row if the parser does.
    """
    if not file.is_file():
        raise DataError(f"{file} is missing; the OGB folder is not complete")
    try:
        return _by_arrow(file, dtype)
    except ModuleNotFoundError:
        return _by_numpy(file, dtype)


def read_gzipped_names(file: Path) -> list[list[str]]:
    """Read the rows of a small gzipped CSV file as text, without the empty ones.

    Raises:
        DataError: The file is missing, truncated, or not gzipped UTF-8 text.
    """
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


def read_processed(file: Path) -> dict[str, Any]:
    """Read edges, features and labels of ``geometric_data_processed.pt`` without running pickled code.

    Raises:
        MissingPackageError: torch_geometric is not installed.
        DataError: The file is broken, or holds classes other than PyG's data containers.
    """
    import torch

    try:
        import torch_geometric.data as pyg
        from torch_geometric.data import data as containers
        from torch_geometric.data import storage
    except ImportError as error:
        raise MissingPackageError(
            f"reading {file} needs torch_geometric: pip install 'graphbraid[pyg]' (or keep the raw folder)"
        ) from error
    _check_zip(file)
    allowed = [pyg.Data, storage.GlobalStorage, containers.DataEdgeAttr, containers.DataTensorAttr]
    try:
        with torch.serialization.safe_globals(allowed):
            saved = torch.load(file, weights_only=True)
        data = saved[0]
        fields = data if isinstance(data, dict) else data.to_dict()
        edge_index, x, y = fields["edge_index"], fields.get("x"), fields.get("y")
        rows = [t.shape[0] for t in (x, y) if t is not None]
        num_nodes = fields.get("num_nodes") or (rows[0] if rows else int(edge_index.max()) + 1)
        num_nodes = num_nodes[0] if isinstance(num_nodes, list) else num_nodes
    except MemoryError:
        raise
    except OSError as error:
        raise ResourceError(f"{file} cannot be read: {error}") from error
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise DataError(f"{file} does not hold one graph as PyG saves it ({error!r})") from error
    except Exception as error:  # unpickling a damaged file may raise anything
        raise DataError(f"{file} is damaged or not PyG's processed file ({error})") from error
    return {"num_nodes": num_nodes, "edge_index": edge_index, "node_feat": x, "y": y}


def _check_zip(file: Path) -> None:
    """Compare every part with its CRC-32, which torch does not check; files before torch 1.6 have none.

    Raises:
        DataError: a part has changed.
        ResourceError: the file cannot be read.
    """
    try:
        if not zipfile.is_zipfile(file):
            return
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
    except OSError as error:
        raise ResourceError(f"{file} cannot be read: {error}") from error
    except Exception as error:  # the directory itself is damaged
        raise DataError(f"{file} is damaged or not PyG's processed file ({error})") from error
    if damaged:
        raise DataError(f"{file} is damaged: {damaged} has changed since it was written; download it again")

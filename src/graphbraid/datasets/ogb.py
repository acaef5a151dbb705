"""OGB node datasets: folders as the ``ogb`` package writes them, read without it, and its dataset objects.

These files of a folder without types are read:

    raw/num-node-list.csv.gz, num-edge-list.csv.gz,
        edge.csv.gz, node-feat.csv.gz, node-label.csv.gz     text form, or
    raw/data.npz, node-label.npz                             binary form
    split/NAME/{train,valid,test}.csv.gz

and these of a folder with types, such as that of ogbn-mag:

    raw/num-node-dict.csv.gz            a header of node types, and their numbers of nodes
    raw/triplet-type-list.csv.gz        relations: source type, name, destination type
    raw/relations/SOURCE___NAME___DESTINATION/edge.csv.gz, num-edge-list.csv.gz
    raw/node-feat/TYPE/node-feat.csv.gz, node_year.csv.gz
    raw/node-label/TYPE/node-label.csv.gz
    split/NAME/TYPE/{train,valid,test}.csv.gz

A node type may lack features, years, labels and splits.
"""

from __future__ import annotations

import csv
import gzip
import os
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
from graphbraid.datasets.npy import read_npz
from graphbraid.errors import ConfigError, DataError
from graphbraid.files.schema import checked
from graphbraid.graph import EdgeType, Graph
from graphbraid.graph.scans import check_ids
from graphbraid.signatures import typed

_Array = npt.NDArray[Any]

# Whether a dataset stores an undirected edge once; ogb has this in its package, not in the folder.
_STORED_ONCE = {"ogbn_products": True, "ogbn_proteins": True, "ogbn_arxiv": False, "ogbn_papers100m": False}
_TEXT_FILES: dict[str, tuple[str, type[np.generic]]] = {
    "num_nodes": ("num-node-list", np.int64),
    "num_edges": ("num-edge-list", np.int64),
    "edge_index": ("edge", np.int64),
    "node_feat": ("node-feat", np.float32),
    "y": ("node-label", np.float64),  # float32 would confuse classes from 2**24 on
}
_BINARY_KEYS = {
    "num_nodes": "num_nodes_list",
    "num_edges": "num_edges_list",
    "edge_index": "edge_index",
    "node_feat": "node_feat",
}
TRIPLETS, COUNTS = "triplet-type-list.csv.gz", "num-node-dict.csv.gz"
_YEARS = "node_year.csv.gz"
_SPLITS = {"train": "train", "val": "valid", "test": "test"}


def is_ogb_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` looks like an OGB dataset, with ``raw`` files."""
    raw = Path(path) / "raw"
    return any((raw / name).is_file() for name in ("edge.csv.gz", "data.npz", "triplet-type-list.csv.gz"))


@typed
def load_ogb(
    path: str | os.PathLike[str], *, add_inverse_edge: bool | None = None, split_name: str | None = None
) -> Graph:
    """Read an OGB node dataset from its folder, such as ``dataset/ogbn_arxiv``.

    Args:
        path: The folder that holds ``raw`` and ``split``.
        add_inverse_edge: Whether to insert the reverse after every edge, as ``ogb`` does for datasets that
            store an undirected edge once. If None, decided by the folder's name for the published datasets,
            and False for others.
        split_name: Name of a folder in ``split``. If None, the only one.

    Returns:
        The graph, with ``edge_id`` in ogb's order; one with types if the dataset has some (``ogbn-mag``),
        whose years are the times of its nodes. Labels of one task become int64 classes (-1 for none),
        those of several a float32 multi-hot matrix.

    Raises:
        DataError: A file is missing, broken, or does not fit the others; names it.
        ConfigError: ``add_inverse_edge`` is given of a dataset with types, where
            :meth:`graphbraid.Graph.with_reverse_relations` is the way.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}")
    if os.path.lexists(folder / "raw" / TRIPLETS):
        if add_inverse_edge is not None:
            raise ConfigError(
                f"{folder} has relations: leave out add_inverse_edge, and add reverse relations by "
                "graph.with_reverse_relations()"
            )
        return _hetero_graph(folder, _split_folder(folder, split_name))
    raw = folder / "raw"
    if os.path.lexists(raw / "data.npz"):
        found = _binary_parts(raw)
    elif os.path.lexists(raw / "edge.csv.gz"):
        found = _text_parts(raw)
    else:
        raise DataError(f"{folder} is no OGB node dataset: it has neither raw/edge.csv.gz nor raw/data.npz")
    splits = _splits(_split_folder(folder, split_name))
    if splits and "y" not in found:
        raise DataError(f"{folder} is not complete: it has splits, and no labels to go with them")
    contents = checked_contents(found | splits)
    if add_inverse_edge is None:
        add_inverse_edge = _STORED_ONCE.get(folder.name.lower().replace("-", "_"), False)
    edges = contents.edge_index
    if add_inverse_edge:
        given = np.asarray(edges)
        edges = np.repeat(given, 2, axis=1)
        edges[0, 1::2], edges[1, 1::2] = given[1], given[0]
    return _graph(folder, edges, contents)


def from_ogb(dataset: Any) -> Graph:
    """Make a graph from an ``ogb.nodeproppred`` dataset object, library-agnostic or PyG's.

    Raises:
        DataError: ``dataset`` does not look like one, or is heterogeneous.
    """
    name = str(getattr(dataset, "name", "ogb"))
    if not hasattr(dataset, "get_idx_split"):
        raise DataError(f"{type(dataset).__name__} is no OGB node dataset: it has no get_idx_split()")
    first = dataset[0]
    if isinstance(first, tuple):
        graph, labels = first
        parts = {field: graph.get(field) for field in ("num_nodes", "edge_index", "node_feat")}
    else:
        labels = first.y
        parts = {"num_nodes": first.num_nodes, "edge_index": first.edge_index, "node_feat": first.x}
    if not hasattr(parts["edge_index"], "shape"):
        raise DataError(
            f"{name} is heterogeneous; read its folder with load_ogb, which gives a graph with types"
        )
    split = {str(key): np.asarray(ids) for key, ids in dataset.get_idx_split().items()}
    parts |= {"y": labels, **{ours: split.get(theirs) for ours, theirs in _SPLITS.items()}}
    contents = checked_contents({field: (f"{name}: its {field}", value) for field, value in parts.items()})
    return _graph(Path(name), contents.edge_index, contents)


def _graph(folder: Path, edges: Values, contents: OgbContents) -> Graph:
    try:
        graph = Graph.from_edge_index(
            edges,
            contents.num_nodes,
            x=contents.node_feat,
            y=_labels(contents.y),
            splits=contents.splits,
            name=folder.name,
        )
        for split, ids in graph.splits.items():
            check_ids(ids, graph.num_nodes, f"ids of split {split!r}")
        return graph
    except DataError as error:
        raise DataError(f"{folder}: {error}") from error


def _text_parts(raw: Path) -> FoundValues:
    found: FoundValues = {}
    for field, (name, dtype) in _TEXT_FILES.items():
        file = raw / f"{name}.csv.gz"
        if os.path.lexists(file) or field == "num_nodes":
            rows = read_gzipped_csv(file, dtype)
            found[field] = str(file), rows.T if field == "edge_index" else rows
    return found


def _binary_parts(raw: Path) -> FoundValues:
    file, labels_file = raw / "data.npz", raw / "node-label.npz"
    arrays = read_npz(file)
    for key in ("edge_index", "num_nodes_list"):
        if key not in arrays:
            raise DataError(f"{file} has no {key}; its keys are {', '.join(sorted(arrays))}")
    found = {
        field: (f"{file}: its {key}", arrays[key]) for field, key in _BINARY_KEYS.items() if key in arrays
    }
    if os.path.lexists(labels_file):
        labels = read_npz(labels_file)
        if "node_label" not in labels:
            raise DataError(f"{labels_file} has no node_label; its keys are {', '.join(sorted(labels))}")
        found["y"] = f"{labels_file}: its node_label", labels["node_label"]
    return found


def _labels(y: Any) -> _Array | None:
    """Return the labels of one task as classes, with -1 for NaN; those of several as a float32 matrix."""
    if y is None:
        return None
    labels: _Array = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] > 1:
        return labels.astype(np.float32)
    labels = labels.reshape(-1)
    if labels.dtype.kind == "f":
        if (fractions := np.flatnonzero(labels != np.floor(labels))).size:  # NaN differs from itself
            values = labels[fractions]
            if not np.isnan(values).all():
                return labels.astype(np.float32)
        labels = np.where(np.isnan(labels), -1, labels)
    return labels.astype(np.int64)


def _split_folder(folder: Path, name: str | None) -> Path | None:
    """Return the folder of the split of a name, or of the only one; None if there is none."""
    base = folder / "split"
    names = sorted(p.name for p in base.iterdir() if p.is_dir()) if base.is_dir() else []
    if name is None:
        if not names:
            return None
        if len(names) > 1:
            raise DataError(f"{base} holds several splits ({', '.join(names)}); choose one with split_name")
        name = names[0]
    elif name not in names:
        raise DataError(f"{base} holds no split {name!r}; there is: {', '.join(names) or 'none'}")
    return base / name


def _splits(split: Path | None) -> FoundValues:
    found: FoundValues = {}
    if split is None:
        return found
    for ours, theirs in _SPLITS.items():
        file = split / f"{theirs}.csv.gz"
        if not file.is_file():
            raise DataError(f"the split {split} is not complete: {file.name} is missing")
        found[ours] = str(file), read_gzipped_csv(file, np.int64)
    return found


# ---- with node types


def _hetero_graph(folder: Path, split: Path | None) -> Graph:
    """Read a dataset with types; ``split`` has a folder for each node type with labels."""
    raw = folder / "raw"
    counts = _counts(raw / COUNTS)
    edges = {edge_type: _edges(raw, edge_type, counts) for edge_type in _relations(raw / TRIPLETS, counts)}
    nodes = {name: _nodes(raw, split, name, count) for name, count in counts.items()}
    years = {name: _years(raw / "node-feat" / name / _YEARS, count) for name, count in counts.items()}
    try:
        return Graph.from_relations(
            edges,
            counts,
            x={name: one.node_feat for name, one in nodes.items()},
            y={name: _labels(one.y) for name, one in nodes.items()},
            splits={name: one.splits for name, one in nodes.items()},
            node_time={name: one for name, one in years.items() if one is not None},
            name=folder.name,
        )
    except DataError as error:
        raise DataError(f"{folder}: {error}") from error


def _counts(file: Path) -> dict[str, int]:
    rows = read_gzipped_names(file)
    if len(rows) != 2 or len(rows[0]) != len(rows[1]) or len(set(rows[0])) < len(rows[0]):
        raise DataError(
            f"{file} must have a row of different node types and a row of their numbers of nodes; it has "
            f"{len(rows)} rows"
        )
    counts = {}
    for name, text in zip(*rows, strict=True):
        if not text.isdecimal():
            raise DataError(f"{file}: the number of nodes of type {name!r} is {text!r}")
        counts[name] = int(text)
    return counts


def _relations(file: Path, counts: dict[str, int]) -> list[EdgeType]:
    found: list[EdgeType] = []
    for line, row in enumerate(read_gzipped_names(file), start=1):
        if len(row) != 3 or not all(row):
            raise DataError(f"{file}, line {line}: source type, name and destination type are needed")
        edge_type = row[0], row[1], row[2]
        for end in (row[0], row[2]):
            if end not in counts:
                raise DataError(
                    f"{file}, line {line}: {COUNTS} has no node type {end!r}; it has {', '.join(counts)}"
                )
        if edge_type in found:
            raise DataError(f"{file}, line {line}: the relation {edge_type} stands there twice")
        found.append(edge_type)
    return found


def _edges(raw: Path, edge_type: EdgeType, counts: dict[str, int]) -> _Array:
    folder = raw / "relations" / "___".join(edge_type)
    file, told = folder / "edge.csv.gz", folder / "num-edge-list.csv.gz"
    edges = read_gzipped_csv(file, np.int64).T
    if len(edges) != 2:
        raise DataError(f"{file} has {len(edges)} columns; an edge list has 2: source and destination")
    if told.is_file() and (number := read_gzipped_csv(told, np.int64)).tolist() != [[edges.shape[1]]]:
        raise DataError(f"{file} has {edges.shape[1]} edges; {told.name} says {number.reshape(-1).tolist()}")
    for ids, end in zip(edges, (edge_type[0], edge_type[2]), strict=True):
        if (outside := np.flatnonzero((ids < 0) | (ids >= counts[end]))).size:
            at = int(outside[0])
            raise DataError(
                f"{file}, line {at + 1}: there are {counts[end]} nodes of type {end!r}; got the id {ids[at]}"
            )
    return edges


def _nodes(raw: Path, split: Path | None, node_type: str, count: int) -> OgbContents:
    """Return features, labels and splits of a node type, checked as those of a dataset without types."""
    found: FoundValues = {
        "num_nodes": (str(raw / COUNTS), np.array([count])),
        "edge_index": (str(raw), np.empty((2, 0), np.int64)),
    }
    for field, dtype, file in (
        ("node_feat", np.float32, raw / "node-feat" / node_type / "node-feat.csv.gz"),
        ("y", np.float64, raw / "node-label" / node_type / "node-label.csv.gz"),
    ):
        if os.path.lexists(file):
            found[field] = str(file), read_gzipped_csv(file, dtype)
    own = None if split is None else split / node_type
    if own is not None and own.is_dir():
        found |= _splits(own)
        if "y" not in found:
            raise DataError(f"{own} splits nodes of type {node_type!r}, which have no labels")
    return checked_contents(found)


def _years(file: Path, count: int) -> _Array | None:
    if not os.path.lexists(file):
        return None
    years = read_gzipped_csv(file, np.int64).reshape(-1)
    if len(years) != count:
        raise DataError(f"{file} has {len(years)} rows; its type has {count} nodes")
    return years


# ---- gzipped CSV files without a header, and checks of a dataset's parts


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


def _label_rows(values: Values, info: ValidationInfo) -> Values:
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
    y: Annotated[_Numbers, AfterValidator(_label_rows)] | None = None
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

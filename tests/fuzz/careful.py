"""Another reader of tables and lists of ids: slow, and refusing what could be meant in two ways."""

import csv
import gzip
import math
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

_WHOLE = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def of_table(table: Any) -> Any:
    """What graphbraid read, by original ids: edges with weights in order, then nodes with all they have."""
    graph, ids = table.graph, [str(table.ids[v]) for v in range(table.graph.num_nodes)]
    sources, destinations = graph.to_edge_index().tolist()
    weights = graph.csc.weight.tolist()
    edges = sorted(
        (ids[u], ids[v], round(w, 4)) for u, v, w in zip(sources, destinations, weights, strict=True)
    )
    split = {int(v): name for name, members in graph.splits.items() for v in members}
    names = table.class_names
    labels = [
        names[c] if names is not None and c >= 0 else str(c) if c >= 0 else "" for c in graph.y.tolist()
    ]
    rows = sorted(
        (ids[v], labels[v], split.get(v, ""), *(round(value, 4) for value in graph.x[v].tolist()))
        for v in range(graph.num_nodes)
    )
    return _columns(edges, rows)


def _columns(edges: list[Any], rows: list[Any]) -> Any:
    return [
        np.array([f"{u}>{v}" for u, v, _ in edges], dtype=object), np.array([w for *_, w in edges]),
        np.array([f"{i}|{label}|{split}" for i, label, split, *_ in rows], dtype=object),
        np.array([values for *_, values in [(r[0], list(r[3:])) for r in rows]], dtype=float),
    ]  # fmt: skip


class _Unreadable(Exception):
    pass


def read_csv(folder: Path) -> Any:
    """The columns of :func:`of_table`, or why there are none."""
    try:
        names = {path.name: path for path in folder.iterdir()}
        edges = _cells(
            next(path for name, path in names.items() if name.startswith("edges")),
            ("source", "destination", "w"),
        )
        nodes = _cells(
            next(path for name, path in names.items() if name.startswith("nodes")),
            ("id", "label", "split", "a", "b"),
        )
        return _joined(edges, nodes)
    except (_Unreadable, OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def read_parquet(folder: Path) -> Any:
    import pyarrow.parquet as pq

    try:
        parts = []
        for name, columns in (
            ("edges", ("source", "destination", "w")),
            ("nodes", ("id", "label", "split", "a", "b")),
        ):
            table = pq.read_table(folder / f"{name}.parquet").to_pydict()
            parts.append(
                [
                    tuple("" if table[c][i] is None else str(table[c][i]) for c in columns)
                    for i in range(len(table[columns[0]]))
                ]
            )
        return _joined(*parts)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _cells(path: Path, wanted: tuple[str, ...]) -> list[tuple[str, ...]]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = data.decode("utf-8-sig")
    if "\0" in text:
        raise _Unreadable("a NUL character")
    rows = [row for row in csv.reader(text.splitlines(keepends=True), strict=True) if row]
    header = rows[0]
    if len(set(header)) != len(header) or any(name not in header for name in wanted):
        raise _Unreadable(f"columns {header}")
    if bad := next((row for row in rows[1:] if len(row) != len(header)), None):
        raise _Unreadable(f"row {bad}")
    return [tuple(row[header.index(name)] for name in wanted) for row in rows[1:]]


def _joined(edges: list[tuple[str, ...]], nodes: list[tuple[str, ...]]) -> Any:
    ids = [row[0] for row in nodes]
    whole = all(_WHOLE.fullmatch(i) for i in (*ids, *(e[0] for e in edges), *(e[1] for e in edges)))
    key = (lambda i: str(int(i))) if whole else str
    known = {key(i) for i in ids}
    if len(known) != len(ids):
        raise _Unreadable("an id twice")
    triples = sorted((key(u), key(v), round(_number(w), 4)) for u, v, w in edges)
    if bad := next((t for t in triples if t[0] not in known or t[1] not in known), None):
        raise _Unreadable(f"edge {bad} of an unknown node")
    rows = sorted(
        (key(i), label, split, *(round(_number(x), 4) for x in values)) for i, label, split, *values in nodes
    )
    return _columns(triples, rows)


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text.strip()) or not math.isfinite(value := float(np.float32(float(text)))):
        raise _Unreadable(f"{text!r} is no finite number")
    return value


def read_ids_text(folder: Path) -> Any:
    try:
        words = (folder / "ids.txt").read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        return str(error)
    words = [word.strip() for word in words if word.strip()]
    if bad := next((word for word in words if not _WHOLE.fullmatch(word)), None):
        return f"{bad!r} is no id"
    return np.array([float(word) for word in words])


def read_ids_npy(folder: Path) -> Any:
    try:
        ids = np.load(folder / "ids.npy", allow_pickle=False)
    except Exception as error:
        return str(error)
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype.kind not in "iu":
        return f"{ids!r} are no ids"
    return ids.astype(float)

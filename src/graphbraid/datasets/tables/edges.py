"""Edge lists from tables: converts a stream of pairs of ids to two arrays of node ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from graphbraid.datasets.ids import NodeIds, sorted_unique
from graphbraid.datasets.tables.file import TableFile, first_null, require_pyarrow
from graphbraid.errors import DataError

_Array = npt.NDArray[Any]

_PART = 1 << 20  # ids renumbered at a time


@dataclass(slots=True)
class EdgeList:
    """The content of an edge table."""

    src: _Array
    """``(num_edges,)`` int64 source nodes."""
    dst: _Array
    """``(num_edges,)`` int64 destination nodes."""
    weight: _Array | None
    """``(num_edges,)`` float32 weights, or None."""
    ids: NodeIds


def read_edges(
    file: TableFile, ends: tuple[str, str], weight: str | None, id_type: str, known: NodeIds | None
) -> EdgeList:
    """Read an edge table.

    Args:
        file: The table.
        ends: Names of the source and destination columns.
        weight: Name of the weight column, or None.
        id_type: ``"int"``, ``"string"``, or ``"auto"`` to decide by the columns' types.
        known: The nodes of a node table. If None, the nodes that the edges name are numbered.

    Raises:
        DataError: An id is empty or unknown, or a weight is missing; names file, row and column.
    """
    arrow = require_pyarrow()
    as_string = id_type == "string" or (
        id_type == "auto" and not all(file.is_whole(column) for column in ends)
    )
    id_arrow = arrow.string() if as_string else arrow.int64()
    types = dict.fromkeys(ends, id_arrow) | ({} if weight is None else {weight: arrow.float64()})
    wanted = list(dict.fromkeys([*ends, *([] if weight is None else [weight])]))
    numbering = numbering_of(known, as_string=as_string)
    columns: dict[str, list[_Array]] = {"src": [], "dst": [], "weight": []}
    row = 0
    for batch in file.batches(wanted, types):
        for key, column in zip(("src", "dst"), ends, strict=True):
            columns[key].append(numbering.encode(batch.column(column), file, row, column))
        if weight is not None:
            columns["weight"].append(weights_of(file, batch.column(weight), row, weight))
        row += batch.num_rows
    if row == 0 and known is None:
        raise DataError(f"{file.name} has no rows, and no node table names the nodes")
    src, dst = (join_parts(columns[key], np.int64) for key in ("src", "dst"))
    ids = numbering.finish(src, dst)
    return EdgeList(src, dst, None if weight is None else join_parts(columns["weight"], np.float32), ids)


def weights_of(file: TableFile, values: Any, row: int, column: str) -> _Array:
    """Return the weights of a batch, ``(num_rows,)`` float32; its first row is ``row`` of the table.

    Raises:
        DataError: a weight is missing; names file, row and column.
    """
    refuse_nulls(file, values, row, column)
    with np.errstate(over="ignore"):  # infinite beyond float32, which Graph.validate refuses
        weights: _Array = values.to_numpy(zero_copy_only=False).astype(np.float32)
    return weights


def refuse_nulls(file: TableFile, values: Any, row: int, column: str) -> None:
    """Refuse empty fields; names file, row and column.

    Raises:
        DataError: there is one.
    """
    if values.null_count:
        raise DataError(f"{file.row(row + first_null(values))}: column {column!r} is empty")


def refuse_blank_ids(names: list[str], codes: Any, file: TableFile, row: int, column: str) -> None:
    """Refuse ids that are empty or hold only spaces, as between two delimiters in a row.

    Raises:
        DataError: there is such an id; says where the first one is.
    """
    blank = {at for at, name in enumerate(names) if not name.strip()}
    if blank:
        at = next(at for at, code in enumerate(codes.to_pylist()) if code in blank)
        hint = "" if not file.is_aligned else "; are the columns aligned with several spaces?"
        raise DataError(f"{file.row(row + at)}: column {column!r} is empty; every id needs a text{hint}")


class Numbering(Protocol):
    """Numbers of the nodes that tables of edges name."""

    def encode(self, values: Any, file: TableFile, row: int, column: str) -> _Array:
        """Return what stands for the ids of a column of a batch until :meth:`finish`, int64.

        Raises:
            DataError: an id is empty, or unknown where nodes are known; names file, row and column.
        """
        ...

    def finish(self, *ends: _Array) -> NodeIds:
        """Change what :meth:`encode` returned, joined to arrays, to node ids; return the original ids."""
        ...


def numbering_of(known: NodeIds | None, *, as_string: bool) -> Numbering:
    """Return the numbering of nodes that are known, or else of those that edges name."""
    return _Strings(known) if as_string else _Ints(known)


class _Ints:
    """Integer ids: either looked up, or kept while reading and numbered in ascending order at the end."""

    def __init__(self, known: NodeIds | None) -> None:
        self._known = known
        self._seen: list[_Array] = []

    def encode(self, values: Any, file: TableFile, row: int, column: str) -> _Array:
        refuse_nulls(file, values, row, column)
        found: _Array = values.to_numpy(zero_copy_only=False)
        if self._known is None:
            self._seen.append(sorted_unique(found))
            return found
        nodes = self._known.search(found)
        if (missing := np.flatnonzero(nodes < 0)).size:
            raise _unknown(file, row + int(missing[0]), column, int(found[missing[0]]))
        return nodes

    def finish(self, *ends: _Array) -> NodeIds:
        """Return the ids; without a node table, first replace the ids in ``ends`` by their numbers."""
        if self._known is not None:
            return self._known
        values = sorted_unique(join_parts(self._seen, np.int64))
        for ids in ends:
            for first in range(0, len(ids), _PART):
                part = ids[first : first + _PART]
                part[:] = np.searchsorted(values, part)
        return NodeIds(values)


class _Strings:
    """String ids: looked up or numbered in alphabetical order; a batch's repeated ids are handled once."""

    def __init__(self, known: NodeIds | None) -> None:
        self._known = known
        self._number: dict[str, int] = {} if known is None else known.by_name

    def encode(self, values: Any, file: TableFile, row: int, column: str) -> _Array:
        refuse_nulls(file, values, row, column)
        encoded = values.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        refuse_blank_ids(names, encoded.indices, file, row, column)
        if self._known is None:
            numbers = [self._number.setdefault(name, len(self._number)) for name in names]
        else:
            numbers = [self._number.get(name, -1) for name in names]
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        nodes: _Array = np.asarray(numbers, np.int64)[codes] if names else np.empty(0, np.int64)
        if (missing := np.flatnonzero(nodes < 0)).size:
            raise _unknown(file, row + int(missing[0]), column, names[codes[missing[0]]])
        return nodes

    def finish(self, *ends: _Array) -> NodeIds:
        """Return the ids in alphabetical order, independent of the order of rows, and renumber ``ends``."""
        if self._known is not None:
            return self._known
        names = sorted(self._number)
        for name in names:
            if name != name.strip() and name.strip() in self._number:
                raise DataError(
                    f"the ids {name!r} and {name.strip()!r} differ by spaces only; are the table's columns "
                    "aligned with spaces? Take them out, or write one delimiter between fields"
                )
        rank = np.empty(len(names), np.int64)
        rank[[self._number[name] for name in names]] = np.arange(len(names))
        for nodes in ends:
            for first in range(0, len(nodes), _PART):
                nodes[first : first + _PART] = rank[nodes[first : first + _PART]]
        values = np.empty(len(names), object)
        values[:] = names
        return NodeIds(values)


def _unknown(file: TableFile, row: int, column: str, value: int | str) -> DataError:
    return DataError(
        f"{file.row(row)}: column {column!r} names node {value!r}, which the node table does not have; "
        "add it there or remove the edge"
    )


def join_parts(parts: list[_Array], dtype: type[np.generic]) -> _Array:
    """Concatenate the parts, releasing each one as it is copied."""
    out = np.empty(sum(map(len, parts)), dtype)
    at = 0
    parts.reverse()
    while parts:
        part = parts.pop()
        out[at : at + len(part)] = part
        at += len(part)
    return out

"""Arrays of a store that differ from the graph's: renumbered nodes, or features in fewer bytes.

Renumbered arrays are made in parts while they are written. Memory holds the maps of the nodes (the order, its
inverse, both ``indptr``) and a few parts; the graph may be mapped from another store. Each part reads its
source array in ascending order. If free memory cannot hold the features from part to part, their rows go
through buckets on disk instead. Features are narrowed to float16, bfloat16 or int8, and their rounding errors
are measured.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import check_choice
from graphbraid.datasets.ids import NodeIds
from graphbraid.datasets.store.arrays import ArrayParts
from graphbraid.datasets.store.types import splits_to_store
from graphbraid.errors import DataError
from graphbraid.features.reordering import Renumbering, check_length
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.graph.checks import named
from graphbraid.graph.scaled_features import rounded, rows_at_a_time, scale_of, stored_rows, widened
from graphbraid.graph.scans import check_finite
from graphbraid.graph.sparse_features import FEATURE_DTYPES
from graphbraid.machine.hardware import free_memory_bytes
from graphbraid.ops.gather import gather_rows
from graphbraid.signatures import typed

_LEAST_PART, _MOST_PART = 1 << 24, 1 << 30
_PARTS_IN_FREE_MEMORY = 16
_CACHED_SHARE = 0.5  # of free memory: arrays up to this size stay in the page cache from part to part
_LIST_BYTES = 32  # bytes of maps that a part keeps for each of its lists

_Made = Callable[[int, int], Tensor]


def part_bytes() -> int:
    """Return the largest size of a part in bytes; each part reads the whole source array once."""
    free = free_memory_bytes()
    share = _MOST_PART if free is None else free // _PARTS_IN_FREE_MEMORY
    return min(max(share, _LEAST_PART), _MOST_PART)


def bucket_bytes(values: Tensor | None) -> int:
    """Return the disk space that buckets take while features are renumbered; 0 where they need none."""
    free = free_memory_bytes()
    if values is None or free is None or values.nbytes <= free * _CACHED_SHARE:
        return 0
    is_plain = values.ndim == 2 and values.is_contiguous() and values.device.type == "cpu"
    return values.nbytes if is_plain and values.nbytes > 2 * part_bytes() else 0


def renumbered_arrays(graph: Graph, order: Tensor, folder: Path) -> Iterator[tuple[str, ArrayParts]]:
    """Yield name and content of each array of the store of a renumbered graph.

    ``order`` is the ``(num_nodes,)`` permutation: the node that comes i-th; ``folder`` is for temporary
    files.
    """
    check_length(order, graph.num_nodes)
    renumbering = Renumbering(order.to(graph.csc.indptr.device), ascending=True)
    csc, most = graph.csc, part_bytes()
    indptr = renumbering.indptr(csc.indptr)
    yield "indptr", ArrayParts.whole(indptr)
    sources = functools.partial(renumbering.sources, csc, indptr)
    yield "indices", _listed(csc.indices, indptr, most, sources)
    beside = {"weight": csc.weight, "edge_id": graph.edge_id, "edge_attr": graph.edge_attr}
    for name, values in beside.items():
        if values is not None:
            made = functools.partial(renumbering.lists, values, csc.indptr, indptr)
            yield name, _listed(values, indptr, most, made)
    rows = {"y": graph.y, "x": stored_rows(graph.x), "x_scale": scale_of(graph.x)}
    for name, values in rows.items():
        if values is not None:
            in_buckets = name == "x" and bucket_bytes(values) > 0
            yield name, _rows(values, renumbering, most, folder if in_buckets else None)
    if isinstance(graph.x, SparseFeatures):
        indptr = renumbering.indptr(graph.x.indptr)
        yield "x_indptr", ArrayParts.whole(indptr)
        for name, values in {"x_indices": graph.x.indices, "x_values": graph.x.values}.items():
            made = functools.partial(renumbering.lists, values, graph.x.indptr, indptr)
            yield name, _listed(values, indptr, most, made)
    for name, nodes in splits_to_store(graph.splits):
        yield name, ArrayParts.whole(renumbering.ids(nodes))


def renumbered_ids(ids: NodeIds | None, order: Tensor) -> NodeIds:
    """Return the original id of each renumbered node: from ``ids``, or else its id before renumbering."""
    nodes = order.cpu().numpy()
    return NodeIds(nodes.astype("int64") if ids is None else ids.values[nodes])


def _listed(values: Tensor, indptr: Tensor, most: int, made: _Made) -> ArrayParts:
    """Make an array with one row per list entry, in parts of at most ``most`` bytes or a single list."""

    def parts() -> Iterator[Tensor]:
        for begin, end in _ranges_of_lists(indptr, _rows_in(most, values), most // _LIST_BYTES):
            yield made(begin, end)

    return ArrayParts(values.dtype, tuple(values.shape), parts)


def _rows(values: Tensor, renumbering: Renumbering, most: int, buckets: Path | None) -> ArrayParts:
    """Make an array with one row per node, in parts of at most ``most`` bytes or a single row.

    ``buckets`` is the folder of the buckets; if None, each part reads the whole source.
    """
    step = _rows_in(most, values)

    def parts() -> Iterator[Tensor]:
        if buckets is not None:
            yield from bucketed_rows(values, renumbering, step, buckets)
            return
        for begin in range(0, renumbering.num_nodes, step):
            yield renumbering.rows(values, begin, min(begin + step, renumbering.num_nodes))

    return ArrayParts(values.dtype, tuple(values.shape), parts)


def _ranges_of_lists(indptr: Tensor, most_entries: int, most_lists: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of nodes with at most ``most_entries`` list entries in total, or a single node."""
    begin, last = 0, indptr.numel() - 1
    while begin < last:
        fitting = int(torch.searchsorted(indptr, int(indptr[begin]) + most_entries, right=True)) - 1
        end = min(max(fitting, begin + 1), begin + max(most_lists, 1), last)
        yield begin, end
        begin = end


def _rows_in(num_bytes: int, values: Tensor) -> int:
    row = values.element_size() * max(1, values[:1].numel())
    return max(1, num_bytes // row)


_CHUNK_BYTES = 1 << 26  # bytes of the source that are read at a time; a bucket gets its rows by one write


def bucketed_rows(
    values: Tensor, renumbering: Renumbering, rows_in_part: int, folder: Path
) -> Iterator[Tensor]:
    """Yield the rows of the new nodes, ``rows_in_part`` at a time, each read from a bucket on disk.

    The source is read once, in its order, and each row is written to the bucket of its part; a bucket is put
    in order in memory. Taking each part from the source directly would read nearly all of it once per part.
    Memory holds twice a part. The buckets take as many bytes as ``values``, ``(num_nodes, width)`` contiguous
    on the CPU, in an unnamed file that is gone when the iteration ends or the process does.
    """
    rows = values.detach().view(values.shape[0], -1).view(torch.uint8)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        _scatter(rows, renumbering, rows_in_part, file.fileno())
        for begin in range(0, len(rows), rows_in_part):
            end = min(begin + rows_in_part, len(rows))
            bucket = torch.empty(end - begin, rows.shape[1], dtype=torch.uint8)
            _read(file.fileno(), bucket, begin * rows.shape[1])
            # A bucket's rows come in the order of their old ids; argsort twice gives the rank of each id.
            place = torch.argsort(torch.argsort(renumbering.order[begin:end]))
            yield gather_rows(bucket, place, trusted=True).view(values.dtype).view(-1, *values.shape[1:])


def _scatter(rows: Tensor, renumbering: Renumbering, rows_in_part: int, file: int) -> None:
    """Write each row to the end of its bucket; bucket ``b`` begins at row ``b * rows_in_part``."""
    row_bytes, step = rows.shape[1], max(1, _CHUNK_BYTES // rows.shape[1])
    buckets = -(-len(rows) // rows_in_part)
    written = torch.arange(buckets) * rows_in_part  # the file's row at which each bucket goes on
    for begin in range(0, len(rows), step):
        bucket = renumbering.inverse[begin : begin + step].long() // rows_in_part
        order = torch.argsort(bucket, stable=True)
        chunk = gather_rows(rows[begin : begin + step], order, trusted=True)
        first = 0
        for number, count in enumerate(torch.bincount(bucket, minlength=buckets).tolist()):
            if count:
                _write(file, chunk[first : first + count], int(written[number]) * row_bytes)
                written[number] += count
                first += count


def _write(file: int, rows: Tensor, offset: int) -> None:
    rest = memoryview(rows.numpy().data).cast("B")
    while rest:  # writes may be short
        done = os.pwrite(file, rest, offset)
        rest, offset = rest[done:], offset + done


def _read(file: int, rows: Tensor, offset: int) -> None:
    rest = memoryview(rows.numpy().data).cast("B")
    while rest:
        done = os.preadv(file, [rest], offset)
        if not done:
            raise OSError(f"a temporary file ended {len(rest)} bytes early")
        rest, offset = rest[done:], offset + done


DTYPES = ("float16", "bfloat16", "int8")
"""Dtypes that features may be narrowed to."""
_ONE_TYPE: Mapping[str, str] = MappingProxyType({"x": ""})


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounding:
    """How far narrowed rows are from the original ones.

    The error of a row is the length of the difference divided by the length of the row, |row - stored| /
    |row|. Rows of zeros are left out: they are stored exactly.
    """

    dtype: str
    largest: float
    """Largest error of a row; 0 without rows."""
    largest_row: int
    """The row with the largest error, counted in the order of writing; -1 if all rows are exact."""
    mean: float
    """Mean error of the rows."""
    node_type: str = ""
    """Node type of that row, in a graph with types."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        of_type = f" of {self.node_type}" if self.node_type else ""
        at = f" (row {self.largest_row}{of_type})" if self.largest_row >= 0 else ""
        return (
            f"features as {self.dtype}: relative error of a row at most {self.largest:.2g}{at}, "
            f"{self.mean:.2g} on average"
        )


@typed
class Narrowing:
    """Narrows a store's features while they are written, and sums up the rounding errors.

    ``int8`` makes rows of int8 with a float32 scale each (:class:`graphbraid.ScaledFeatures`).

    Args:
        dtype: one of :data:`DTYPES`.

    Raises:
        ConfigError: there is no such dtype.
    """

    def __init__(self, dtype: str) -> None:
        check_choice(dtype, "features_dtype", DTYPES)
        self.dtype = dtype
        self._errors: dict[str, _Errors] = {}

    @property
    def rounding(self) -> Rounding:
        """The rounding of the rows written so far."""
        found = list(self._errors.values())
        count = sum(errors.count for errors in found)
        most = max(found, key=lambda errors: errors.largest, default=_Errors(""))
        return Rounding(
            dtype=self.dtype,
            largest=most.largest,
            largest_row=most.largest_row,
            mean=sum(errors.sum for errors in found) / count if count else 0.0,
            node_type=most.node_type if most.largest_row >= 0 else "",
        )

    def arrays(
        self, arrays: Mapping[str, ArrayParts], of_types: Mapping[str, str] = _ONE_TYPE
    ) -> dict[str, ArrayParts]:
        """Return a store's arrays after narrowing; parts of features are narrowed as they are written.

        Args:
            arrays: by name.
            of_types: names of the arrays of features, with their node types; "" in a graph without types.
                Sparse features of a type are not narrowed.

        Raises:
            DataError: there are no dense float features. While they are written: a number is not finite, or
                is beyond what the dtype holds.
        """
        self._errors.clear()
        dense = [name for name in of_types if name in arrays and arrays[name].dtype in FEATURE_DTYPES]
        if not dense or any(f"{name}_scale" in arrays for name in of_types):
            raise DataError(
                f"only dense float features are stored as {self.dtype}; {_why_not(arrays, of_types)}"
            )
        made: dict[str, ArrayParts] = {}
        for name in dense:
            made |= self._narrowed(name, arrays[name], of_types[name])
        if self.dtype != "int8":
            return {**arrays, **made}
        rest = {name: array for name, array in arrays.items() if name not in made}
        return {**rest, **made}

    def _narrowed(self, name: str, x: ArrayParts, node_type: str) -> dict[str, ArrayParts]:
        if self.dtype != "int8":
            dtype = getattr(torch, self.dtype)
            return {name: ArrayParts(dtype, x.shape, lambda: self._parts(name, x, node_type))}
        scale = torch.empty(x.shape[0])
        return {
            name: ArrayParts(torch.int8, x.shape, lambda: self._parts(name, x, node_type, scale)),
            f"{name}_scale": ArrayParts.whole(scale),  # written after the rows, whose writing fills it
        }

    def _parts(
        self, name: str, x: ArrayParts, node_type: str, scale: Tensor | None = None
    ) -> Iterator[Tensor]:
        errors = self._errors[name] = _Errors(node_type)
        first = 0
        for part in x.parts():
            for begin in range(0, len(part), rows_at_a_time(part)):
                rows = part[begin : begin + rows_at_a_time(part)].detach().cpu()
                with named(f"nodes of type {node_type!r}") if node_type else nullcontext():
                    check_finite(rows, first)
                    made, of_rows = (self._cast(rows, first), None) if scale is None else rounded(rows)
                if scale is not None and of_rows is not None:
                    scale[first : first + len(rows)] = of_rows
                errors.add(rows, made if of_rows is None else widened(made, of_rows), first)
                first += len(rows)
                yield made

    def _cast(self, rows: Tensor, first: int) -> Tensor:
        dtype = getattr(torch, self.dtype)
        made: Tensor = rows.to(dtype)
        beyond = made.isinf()
        if bool(beyond.any()):
            row, column = (int(i) for i in beyond.nonzero()[0])
            raise DataError(
                f"x[{first + row}, {column}] is {float(rows[row, column]):g}, beyond the largest "
                f"{self.dtype}, {torch.finfo(dtype).max:g}. Scale the features first, or take another dtype"
            )
        return made


class _Errors:
    """Sums up the errors of the rows of an array."""

    def __init__(self, node_type: str) -> None:
        self.node_type = node_type
        self.count, self.sum, self.largest, self.largest_row = 0, 0.0, 0.0, -1

    def add(self, rows: Tensor, wide: Tensor, first: int) -> None:
        """Count rows and their rounded form; ``first`` is the number of the first row."""
        exact = rows.double()
        length = exact.norm(dim=1)
        error = (exact - wide.double()).norm(dim=1)
        relative = torch.where(length > 0, error / length.where(length > 0, 1.0), 0.0)
        self.count += int((length > 0).sum())
        self.sum += float(relative.sum())
        if relative.numel() and float(relative.max()) > self.largest:
            row = int(relative.argmax())
            self.largest, self.largest_row = float(relative[row]), first + row


def _why_not(arrays: Mapping[str, ArrayParts], of_types: Mapping[str, str]) -> str:
    held = [name for name in of_types if name in arrays]
    if any(f"{name}_scale" in arrays for name in held):
        return "these are int8 already, so convert what they were made of"
    if any(f"{name}_values" in arrays for name in of_types):
        return "these are sparse: each number has its column beside it"
    return f"these are {arrays[held[0]].dtype}" if held else "the graph has none"

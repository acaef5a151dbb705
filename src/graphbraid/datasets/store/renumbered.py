"""The arrays of a store with renumbered nodes, made in parts while they are written.

Memory holds the maps of the nodes (the order, its inverse, both ``indptr``) and a few parts; the graph may be
mapped from another store. Each part reads its source array in ascending order; rows that free memory would
not hold from part to part go through buckets on disk instead.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from graphbraid.datasets.ids import NodeIds
from graphbraid.datasets.store.arrays import ArrayParts
from graphbraid.datasets.store.types import splits_to_store
from graphbraid.features.reordering import Renumbering, check_length
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.graph.csc import Csc
from graphbraid.graph.scaled_features import scale_of, stored_rows
from graphbraid.machine.hardware import free_memory_bytes
from graphbraid.ops.gather import gather_rows

_LEAST_PART, _MOST_PART = 1 << 24, 1 << 30
_PARTS_IN_FREE_MEMORY = 16
_CACHED_SHARE = 0.5  # of free memory: arrays up to it stay in the page cache from part to part
_LIST_BYTES = 32  # maps that a part keeps for each of its lists

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

    Args:
        graph: The graph before renumbering.
        order: ``(num_nodes,)`` int32 or int64 permutation: the node that comes i-th.
        folder: Folder of temporary files.

    Raises:
        DataError: The order is not a permutation of the nodes.
    """
    check_length(order, graph.num_nodes)
    renumbering = Renumbering(order.to(graph.csc.indptr.device), ascending=True)
    csc, most = graph.csc, part_bytes()
    indptr = renumbering.indptr(csc.indptr)
    yield "indptr", ArrayParts.whole(indptr)
    yield "indices", _listed(csc.indices, indptr, most, _sources(renumbering, csc, indptr))
    beside = {"weight": csc.weight, "edge_id": graph.edge_id, "edge_attr": graph.edge_attr}
    for name, values in beside.items():
        if values is not None:
            made = _lists(renumbering, values, csc.indptr, indptr)
            yield name, _listed(values, indptr, most, made)
    rows = {"y": graph.y, "x": stored_rows(graph.x), "x_scale": scale_of(graph.x)}
    for name, values in rows.items():
        if values is not None:
            in_buckets = name == "x" and bucket_bytes(values) > 0
            yield name, _rows(values, renumbering, most, folder if in_buckets else None)
    if isinstance(graph.x, SparseFeatures):
        yield from _sparse(graph.x, renumbering, most)
    for name, nodes in splits_to_store(graph.splits):
        yield name, ArrayParts.whole(renumbering.ids(nodes))


def renumbered_ids(ids: NodeIds | None, order: Tensor) -> NodeIds:
    """Return the original id of each renumbered node: from ``ids``, or else its id before renumbering."""
    nodes = order.cpu().numpy()
    return NodeIds(nodes.astype("int64") if ids is None else ids.values[nodes])


def _sparse(x: SparseFeatures, renumbering: Renumbering, most: int) -> Iterator[tuple[str, ArrayParts]]:
    indptr = renumbering.indptr(x.indptr)
    yield "x_indptr", ArrayParts.whole(indptr)
    for name, values in {"x_indices": x.indices, "x_values": x.values}.items():
        yield name, _listed(values, indptr, most, _lists(renumbering, values, x.indptr, indptr))


def _sources(renumbering: Renumbering, csc: Csc, indptr: Tensor) -> _Made:
    return lambda begin, end: renumbering.sources(csc, indptr, begin, end)


def _lists(renumbering: Renumbering, values: Tensor, before: Tensor, indptr: Tensor) -> _Made:
    return lambda begin, end: renumbering.lists(values, before, indptr, begin, end)


def _listed(values: Tensor, indptr: Tensor, most: int, made: _Made) -> ArrayParts:
    """Make an array with one row per list entry, in parts of at most ``most`` bytes or a single list."""

    def parts() -> Iterator[Tensor]:
        for begin, end in _ranges_of_lists(indptr, _rows_in(most, values), most // _LIST_BYTES):
            yield made(begin, end)

    return ArrayParts(values.dtype, tuple(values.shape), parts)


def _rows(values: Tensor, renumbering: Renumbering, most: int, buckets: Path | None) -> ArrayParts:
    """Make an array with one row per node, in parts of at most ``most`` bytes or a single row.

    ``buckets`` is the folder of buckets, where the source is not read once per part.
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


_CHUNK_BYTES = 1 << 26  # of the source at a time; each bucket gets a piece of it by one write


def bucketed_rows(
    values: Tensor, renumbering: Renumbering, rows_in_part: int, folder: Path
) -> Iterator[Tensor]:
    """Yield the rows of the new nodes, ``rows_in_part`` at a time, each read from a bucket on disk.

    The source is read once, in its order, and each row is written to the bucket of its part; a bucket is put
    in order in memory. Taking each part from the source directly would read nearly all of it once per part.
    Memory holds twice a part. The buckets take as many bytes as ``values``, in an unnamed file that is gone
    when the iteration ends or the process does.

    Args:
        values: ``(num_nodes, width)`` contiguous, on the CPU.
        renumbering: the order of the nodes.
        rows_in_part: rows of a part but the last.
        folder: where the file of the buckets is.

    Raises:
        OSError: the disk is full or fails.
    """
    rows = values.detach().view(values.shape[0], -1).view(torch.uint8)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        _scatter(rows, renumbering, rows_in_part, file.fileno())
        for begin in range(0, len(rows), rows_in_part):
            end = min(begin + rows_in_part, len(rows))
            bucket = torch.empty(end - begin, rows.shape[1], dtype=torch.uint8)
            _read(file.fileno(), bucket, begin * rows.shape[1])
            # A bucket's rows come in the order of the source.
            place = torch.argsort(torch.argsort(renumbering.order[begin:end]))
            yield gather_rows(bucket, place, trusted=True).view(values.dtype).view(-1, *values.shape[1:])


def _scatter(rows: Tensor, renumbering: Renumbering, rows_in_part: int, file: int) -> None:
    """Write each row behind those that its bucket has; buckets lie one behind the other."""
    row_bytes, step = rows.shape[1], max(1, _CHUNK_BYTES // rows.shape[1])
    buckets = -(-len(rows) // rows_in_part)
    written = torch.arange(buckets) * rows_in_part  # where each bucket goes on, in rows
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

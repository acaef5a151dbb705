"""Rows of an array larger than memory in a new order, by two passes: into buckets on disk and out again.

Taking each part of the result from the source would read nearly all of the source once per part, as the
part's rows lie all over it. Here the source is read once, in its order; each row is written to the bucket of
the part that it belongs to; and a bucket is put in order in memory. So every row is read twice and written
twice, however many parts there are.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from graphbraid.features.reordering.renumbering import Renumbering
from graphbraid.ops.gather import gather_rows

_CHUNK_BYTES = 1 << 26  # of the source at a time; each bucket gets a piece of it by one write


def bucketed_rows(
    values: Tensor, renumbering: Renumbering, rows_in_part: int, folder: Path
) -> Iterator[Tensor]:
    """Yield the rows of the new nodes, ``rows_in_part`` at a time, each read from a bucket on disk.

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

"""Streaming: nodes in their order, each placed where most of its neighbours are, with bounded memory."""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graphbraid import native
from graphbraid.distributed.partitioning import reference
from graphbraid.distributed.partitioning.records import PER_EDGE_AND_NODE, Balance
from graphbraid.distributed.partitioning.simple import spread
from graphbraid.errors import DataError, ResourceError
from graphbraid.files import mapped
from graphbraid.files.progress import stage
from graphbraid.files.writing import format_bytes
from graphbraid.graph.csc import Csc

ROW_BYTES = 96
"""Bytes of a row in a block: its place in ``indptr``, and what is computed of it meanwhile, rounded up."""


@dataclass(frozen=True, eq=False, slots=True)
class RowBlock:
    """Consecutive nodes with their in-edges."""

    first: int
    """The first of the nodes."""
    indptr: Tensor
    """``(num_rows + 1,)`` int64, from 0 on."""
    indices: Tensor
    """``(num_edges,)`` sources."""


def row_blocks(csc: Csc, block_bytes: int) -> Iterator[RowBlock]:
    """Yield the rows of a graph in their order, in blocks of about ``block_bytes`` or of a single node."""
    rows, columns = _Array(csc.indptr), _Array(csc.indices)
    most_rows = max(1, block_bytes // (2 * ROW_BYTES))
    most_edges = max(1, block_bytes // (2 * csc.indices.element_size()))
    first = 0
    with stage("a pass over the edges", csc.num_edges) as advance:
        while first < csc.num_dst:
            indptr = rows.read(first, min(first + most_rows, csc.num_dst) + 1)
            fitting = int(torch.searchsorted(indptr, int(indptr[0]) + most_edges, right=True)) - 1
            indptr = indptr[: max(fitting, 1) + 1]
            block = RowBlock(first, indptr - indptr[0], columns.read(int(indptr[0]), int(indptr[-1])))
            yield block
            advance(block.indices.numel())
            first += indptr.numel() - 1


class _Array:
    """A 1-d tensor, read in ranges: from its file if it is mapped from one."""

    def __init__(self, values: Tensor) -> None:
        self._values = values
        self._mapped = mapped.find(values.data_ptr(), values.nbytes) if values.nbytes else None

    def read(self, begin: int, end: int) -> Tensor:
        if self._mapped is None:
            return self._values[begin:end]
        path, size = self._mapped.path, self._values.element_size()
        dtype = torch.empty(0, dtype=self._values.dtype).numpy().dtype
        try:
            if mapped.file_id_of(path) != self._mapped.file_id:
                raise DataError(f"{path} is another file than the one that was opened; open the store again")
            found = np.fromfile(path, dtype, end - begin, offset=self._mapped.offset + begin * size)
        except OSError as error:
            raise ResourceError(f"{path} cannot be read: {error.strerror}") from error
        return _whole(torch.from_numpy(found), end - begin, path)


def _whole(found: Tensor, count: int, path: Path) -> Tensor:
    if found.numel() != count:
        raise DataError(f"{path} has become shorter since it was opened; store the graph again")
    return found


def is_hub(loads: Tensor, total: int, num_parts: int, limit: int) -> Tensor:
    """Return which nodes would take a part of mean load above the limit: fewer than parts over slack."""
    return loads * num_parts > limit * num_parts - total


def relieve(part_of: Tensor, sums: Tensor, hubs: Tensor, loads: Tensor, limit: int) -> None:
    """Move a hub out of each part above the limit that stays above it otherwise.

    It goes to the lightest part whose other nodes can make room for it, which is above the limit then, until
    these are placed again. Updates ``part_of`` and the parts' ``sums``; ``loads`` are those of ``hubs``.
    """
    fixed = torch.zeros_like(sums).index_add_(0, part_of[hubs], loads)
    for part in (sums > limit).nonzero().squeeze(1).tolist():
        excess = int(sums[part]) - limit
        able = ((part_of[hubs] == part) & (loads >= excess)).nonzero().squeeze(1)
        if not able.numel() or sums[part] - fixed[part] >= excess:
            continue
        hub = able[loads[able].argmin()]
        load = int(loads[hub])
        has_room = fixed + load <= limit
        has_room[part] = False
        if bool(has_room.any()):
            to = int(torch.where(has_room, sums, sums.max() + 1).argmin())
            part_of[hubs[hub]] = to
            for of_parts in (sums, fixed):
                of_parts[to] += load
                of_parts[part] -= load


PASSES = 10
LEAST_MOVED = 0.001
"""Share of the nodes: a pass that moves fewer is the last."""
PRICE = 0.45
"""Price of load, in Fennel's unit, in which its authors have 1.5. Less follows neighbours more and balances
less, which the largest load bounds: it cuts fewer edges of meshes, web graphs and most others that were
tried."""
NODE_BYTES = 16
"""Bytes of a node: two partitions, until the better one goes on; at the end, one partition and a list of
nodes without a load."""
PART_BYTES = 64
"""Bytes of the arrays per part, rounded up."""
BLOCK_BYTES = 1 << 26
_LEAST_BLOCK_BYTES = 1 << 16
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, slots=True)
class Streamed:
    """The result of streaming."""

    part_of: Tensor
    """``(num_nodes,)`` int32 part of each node."""
    loads: Tensor
    """``(num_parts,)`` int64, of the parts."""
    cut: int
    """Number of edges between parts."""
    passes: int
    """How often the graph was read."""


def stream(
    csc: Csc,
    num_parts: int,
    balance: Balance,
    *,
    tolerance: float,
    memory: int | None = None,
    passes: int = PASSES,
) -> Streamed:
    """Read the rows in blocks and place each node among its in-neighbours, in several passes.

    Fennel (Tsourakakis et al., "FENNEL: Streaming Graph Partitioning for Massive Scale Graphs", gamma = 3/2)
    over loads, restreamed as in Nishimura and Ugander, "Restreaming Graph Partitioning": from the second pass
    on a node sees where all its neighbours were. Departs from both: a node leaves its part before it is
    placed again, instead of every pass beginning with empty parts; no part takes more than ``tolerance``
    times the mean load, unless none has room; and the first pass is made twice, from nothing and from
    contiguous ranges of nodes, whose ids may say who is near whom: the one that cuts fewer edges goes on.

    Memory holds two parts of each node (8 bytes, 16 at the end) and a block of rows with their loads. A
    node's in-neighbours alone are seen: of a directed graph the cut is larger than of its symmetric one.
    Nodes without a load are spread evenly. ``memory`` is in bytes beside the graph; None takes blocks of 64
    MiB. At most ``passes`` over the graph place nodes.

    Raises:
        ResourceError: ``memory`` does not hold the nodes' parts and a small block.
    """
    block_bytes = _block_bytes(csc.num_dst, num_parts, memory)
    begun = [_Stream(csc, num_parts, balance, tolerance, block_bytes) for _ in range(2)]
    # Passes over the edges: ranges of nodes, two first passes, the others, and three counts of the cut.
    with stage("streaming the edges", passes + 5) as advance:
        begun[1].divide_in_order()
        for one in begun:
            one.run()
        advance(3)
        kept = min(begun, key=_Stream.cut)  # of equals the first
        advance(2)
        del begun
        done = 1
        while done < passes:
            done += 1
            moved = kept.run()
            advance(1)
            if moved <= LEAST_MOVED * csc.num_dst:
                break
        spread(kept.part_of, (kept.part_of < 0).nonzero().squeeze(1), num_parts)
        return Streamed(kept.part_of, kept.loads, kept.cut(), done)


class _Stream:
    """A partition in the making."""

    def __init__(
        self, csc: Csc, num_parts: int, balance: Balance, tolerance: float, block_bytes: int
    ) -> None:
        self._csc, self._block_bytes = csc, block_bytes
        self._per_edge, self._per_node = PER_EDGE_AND_NODE[balance]
        self._total = self._per_edge * csc.num_edges + self._per_node * csc.num_dst
        self._most = math.ceil(tolerance * self._total / num_parts)
        self._price = PRICE * math.sqrt(num_parts) * csc.num_edges / max(self._total, 1) ** 1.5
        self.part_of = torch.full((csc.num_dst,), -1, dtype=torch.int32)
        self.loads = torch.zeros(num_parts, dtype=torch.int64)

    def divide_in_order(self) -> None:
        """Begin with ranges of nodes of about equal load."""
        before = 0
        for block in row_blocks(self._csc, self._block_bytes):
            own = self._own(block)
            middle = own.cumsum(0) + before - own // 2
            parts = (middle * self.loads.numel() // max(self._total, 1)).clamp(max=self.loads.numel() - 1)
            parts[own == 0] = -1
            self.part_of[block.first : block.first + own.numel()] = parts.to(torch.int32)
            self.loads.index_add_(0, parts.clamp(min=0), own)
            before += int(own.sum())

    def run(self) -> int:
        """Place all nodes that have a load; return how many have another part than before."""
        moved, hubs = 0, [(torch.empty(0, dtype=torch.int64),) * 2]
        for block in row_blocks(self._csc, self._block_bytes):
            own = self._own(block)
            has_load = own > 0
            nodes = has_load.nonzero().squeeze(1) + block.first
            indptr = torch.cat([block.indptr[:-1][has_load], block.indptr[-1:]])
            rows = (indptr, block.indices, None)
            own = own[has_load]
            moved += place(nodes, rows, own, self.part_of, self.loads, most=self._most, price=self._price)
            heavy = is_hub(own, self._total, self.loads.numel(), self._most)
            hubs.append((nodes[heavy], own[heavy]))
        _log.debug("a pass moved %d of %d nodes", moved, self._csc.num_dst)
        found, loads = (torch.cat(values) for values in zip(*hubs, strict=True))
        relieve(self.part_of, self.loads, found, loads, self._most)
        return moved

    def cut(self) -> int:
        """Count the edges between parts."""
        return cut_edges(self._csc, self.part_of, self._block_bytes)

    def _own(self, block: RowBlock) -> Tensor:
        return block.indptr.diff() * self._per_edge + self._per_node


def cut_edges(csc: Csc, part_of: Tensor, block_bytes: int = BLOCK_BYTES) -> int:
    """Return how many edges have their ends in two parts; of a mapped graph, files are read by blocks."""
    count = (native.kernels() or reference).count_cut
    blocks = row_blocks(csc, block_bytes)
    return sum(int(count(block.indptr, block.indices, block.first, part_of)) for block in blocks)


def place(
    nodes: Tensor,
    rows: tuple[Tensor, Tensor, Tensor | None],
    loads: Tensor,
    part_of: Tensor,
    part_loads: Tensor,
    *,
    most: int,
    price: float,
) -> int:
    """Place some nodes in their order, given ``indptr``, ``indices`` and ``weight`` of their rows.

    The twin :func:`.reference.place_nodes` says how.
    """
    run = (native.kernels() or reference).place_nodes
    return int(run(nodes, *rows, loads, part_of, part_loads, most, price))


def _block_bytes(num_nodes: int, num_parts: int, memory: int | None) -> int:
    if memory is None:
        return BLOCK_BYTES
    kept = NODE_BYTES * num_nodes + PART_BYTES * num_parts
    least = kept + _LEAST_BLOCK_BYTES * 3
    if memory < least:
        raise ResourceError(
            f"streaming {num_nodes:,} nodes into {num_parts} parts takes at least "
            f"{format_bytes(least)}; memory allows {format_bytes(memory)}"
        )
    return min((memory - kept) // 3, BLOCK_BYTES)  # the allocator keeps some of what a block gave back

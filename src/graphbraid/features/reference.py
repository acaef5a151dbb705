# ruff: noqa: PLR0917 - the kernels take their arguments by position
"""Plain-PyTorch twins of the kernels of features: renumbered lists, walks of scores, and lists in files.

Of a CSC, ``indptr`` is ``(num_nodes + 1,)`` int64 and ``indices`` ``(num_edges,)`` int32 or int64 sources.
Arguments ``out...``, ``sums`` and ``missed`` are overwritten.
"""

import threading

import torch
from torch import Tensor

from graphbraid.features.rows.reference import DiskRows
from graphbraid.graph.csc import indptr_of, ranges

# ---- lists in another order, as csrc/graph/reorder.cpp


def count_lists(indptr: Tensor, rows: Tensor, out_indptr: Tensor) -> None:
    """Write to ``out_indptr``, ``(num_rows + 1,)`` int64, the ``indptr`` of the lists of ``rows`` in turn."""
    out_indptr.copy_(indptr_of(indptr.diff()[rows.long()]))


def rename_lists(
    indptr: Tensor,
    indices: Tensor,
    rank: Tensor,
    rows: Tensor,
    out_indptr: Tensor,
    out: Tensor,
    rising: bool,
) -> None:
    """Write the sources of ``rows``' in-edges by their new ids ``rank``, after :func:`count_lists`.

    ``rising`` sorts each list, instead of keeping the stored order.
    """
    by_rank = (indices, rank) if rising else (None, None)
    out.copy_(rank[indices[_places(indptr, rows, out_indptr, *by_rank)].long()])


def move_lists(
    indptr: Tensor,
    values: Tensor,
    rows: Tensor,
    out_indptr: Tensor,
    out: Tensor,
    indices: Tensor | None,
    rank: Tensor | None,
) -> None:
    """Write the ``(num_values, width)`` values of the list entries of ``rows``, after :func:`count_lists`.

    With ``indices`` and ``rank``, the new id of each node, the lists were sorted by new id.
    """
    torch.index_select(values, 0, _places(indptr, rows, out_indptr, indices, rank), out=out)


def _places(
    indptr: Tensor, rows: Tensor, out_indptr: Tensor, indices: Tensor | None, rank: Tensor | None
) -> Tensor:
    """Return the position in the stored lists of each output entry."""
    counts = out_indptr.diff()
    places = ranges(indptr[rows.long()], counts)
    if indices is None or rank is None:
        return places
    by_id = rank[indices[places].long()].argsort(stable=True)
    row = torch.repeat_interleave(torch.arange(rows.numel(), device=rows.device), counts)
    return places[by_id[row[by_id].argsort(stable=True)]]


# ---- walks and counts, as csrc/graph/scores.cpp

MOST_NATS = 40.0
UNITS_PER_NAT = 2.0**46
_MOST_UNITS = int(MOST_NATS * UNITS_PER_NAT)
_NEWTON_STEPS = 64


def push_shares(indptr: Tensor, indices: Tensor, shares: Tensor, sums: Tensor) -> None:
    """For each source, sum the shares of its edges' destinations.

    Shares are ``(num_nodes,)`` int64, not negative, such that no sum reaches ``2**63``.
    """
    sums.zero_().index_add_(0, indices.long(), shares[_rows(indptr)])


def push_draws(
    indptr: Tensor,
    indices: Tensor,
    weight: Tensor | None,
    chance: Tensor,
    fanout: int,
    replace: bool,
    sums: Tensor,
    missed: Tensor,
) -> None:
    """Multiply ``missed`` by each node's probability that no destination of its out-edges draws it.

    ``weight`` has float32 odds of edges, or None. ``chance`` is the float64 probability that a node draws,
    and ``fanout`` the number of in-edges that it draws; -1 takes all. ``sums``, int64, is minus the logarithm
    of the probability, in units of 2**-46; ``missed`` is float64.
    """
    sums.zero_()
    if fanout == 0 or not indices.numel():
        return
    rows, sources = _rows(indptr), indices.long()
    if weight is None:
        drawn = _chance_of_degree(indptr.diff().double(), fanout, replace)[rows]
    else:
        drawn = _chance_by_weight(rows, weight.double(), indptr.numel() - 1, fanout, replace)
    nats = -torch.log1p(-(chance[rows] * drawn).clamp(max=1.0))
    units = (nats.clamp(max=MOST_NATS) * UNITS_PER_NAT).round().long()
    sums.index_add_(0, sources, units)  # may wrap: sums that are too large for that are replaced below
    is_full = torch.zeros_like(missed).index_add_(0, sources, units.double()) >= _MOST_UNITS
    sums[is_full] = _MOST_UNITS
    missed *= torch.exp(-sums.double() / UNITS_PER_NAT)


def count_ids(ids: Tensor, counts: Tensor) -> None:
    """Add 1 to ``(num_nodes,)`` int64 ``counts`` for each of the int64 ``ids``."""
    counts += torch.bincount(ids, minlength=counts.numel())


def _rows(indptr: Tensor) -> Tensor:
    return torch.repeat_interleave(torch.arange(indptr.numel() - 1), indptr.diff())


def _chance_of_degree(degree: Tensor, fanout: int, replace: bool) -> Tensor:
    """Return the probability that a row of each degree draws a given one of its edges."""
    if replace:
        return -torch.expm1(fanout * torch.log1p(-1.0 / degree))  # degree 1: log 0, and the chance is 1
    return torch.ones_like(degree) if fanout < 0 else (fanout / degree).clamp(max=1.0)


def _chance_by_weight(rows: Tensor, weight: Tensor, num_rows: int, fanout: int, replace: bool) -> Tensor:
    """Return each edge's probability when its row draws; without replacement, by the race's expected end."""

    def summed(values: Tensor) -> Tensor:
        return torch.zeros(num_rows, dtype=torch.float64).index_add_(0, rows, values)

    total, runners = summed(weight), summed((weight > 0).double())
    if replace:
        share = (weight / total[rows]).nan_to_num(0.0)  # a row whose weights are all zero draws nothing
        return -torch.expm1(fanout * torch.log1p(-share))
    takes_all = (runners <= fanout) | (fanout < 0)
    time = torch.where(takes_all, 0.0, fanout / total)
    for _ in range(_NEWTON_STEPS):
        runs = torch.exp(-weight * time[rows])
        missing, rate = fanout - summed(1.0 - runs), summed(weight * runs)
        goes_on = ~takes_all & (rate > 0) & (missing > 1e-12 * fanout)
        time = torch.where(goes_on, time + missing / rate, time)
    return torch.where(takes_all[rows], (weight > 0).double(), -torch.expm1(-weight * time[rows]))


# ---- lists in memory and in a file, as csrc/disk/neighbor_lists.cpp: one list at a time

_NODES_PER_WORD, _WORD_BYTES = 64, 16


class NeighborLists:
    """The lists of ``hot`` nodes, ascending, in memory; those of the others in a file, as rows of one id."""

    def __init__(self, *, disk: DiskRows, indptr: Tensor, hot: Tensor) -> None:
        self._disk, self._num_nodes = disk, indptr.numel() - 1
        self._dtype = torch.int32 if disk.row_bytes == torch.int32.itemsize else torch.int64
        self._counting = threading.Lock()
        self._counts = [0, 0, 0, 0]
        edges = [torch.arange(int(indptr[v]), int(indptr[v + 1])) for v in hot.tolist()]
        ids = self._read(torch.cat([torch.empty(0, dtype=torch.int64), *edges]))
        sizes = [positions.numel() for positions in edges]
        self._hot = dict(zip(hot.tolist(), torch.split(ids, sizes) if sizes else (), strict=True))

    def read(self, indptr: Tensor, nodes: Tensor, ends: Tensor, positions: Tensor, out: Tensor) -> None:
        """Write ``out``, ``(edges,)`` int64 ids of the edges drawn by ``nodes``.

        Row r drew the edges ``[ends[r], ends[r + 1])``, at these ``positions`` in the graph.
        """
        is_cold = torch.zeros(positions.numel(), dtype=torch.bool)
        counts = [0, 0, 0, 0]
        for node, begin, end in zip(nodes.tolist(), ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            if begin == end:
                continue
            here = slice(begin, end)
            if node in self._hot:
                out[here] = self._hot[node][positions[here] - int(indptr[node])].long()
            else:
                is_cold[here] = True
            kind = 0 if node in self._hot else 2
            counts[kind] += 1
            counts[kind + 1] += end - begin
        out[is_cold] = self._read(positions[is_cold]).long()
        with self._counting:
            self._counts = [a + b for a, b in zip(self._counts, counts, strict=True)]

    def counts(self) -> tuple[int, int, int, int]:
        """Lists and edges read from memory, and those read from the file."""
        hot_lists, hot_edges, cold_lists, cold_edges = self._counts
        return hot_lists, hot_edges, cold_lists, cold_edges

    def hot_edges(self) -> int:
        """Number of edges of the hot lists."""
        return sum(ids.numel() for ids in self._hot.values())

    def overhead_bytes(self) -> int:
        """Bookkeeping of the compiled lists, so that budgets hold the same number of lists."""
        words = -(-self._num_nodes // _NODES_PER_WORD) * _WORD_BYTES
        return words + 8 * (len(self._hot) + 1) + self._disk.buffer_bytes()

    def _read(self, positions: Tensor) -> Tensor:
        rows = torch.empty(positions.numel(), self._disk.row_bytes, dtype=torch.uint8)
        if positions.numel():
            self._disk.read(positions, rows)
        ids = rows.view(self._dtype).flatten()
        is_outside = (ids < 0) | (ids >= self._num_nodes)
        if bool(is_outside.any()):
            at = int(is_outside.nonzero()[0])
            raise ValueError(
                f"{self._disk.path} has changed since it was written: the source of edge "
                f"{int(positions[at])} is {int(ids[at])}, which is no node in [0, {self._num_nodes}); "
                "store again"
            )
        return ids

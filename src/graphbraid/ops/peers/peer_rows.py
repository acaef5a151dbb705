"""PeerTable and PeerEdges: the rows of all ranks, and one rank's in-edges from own and from peers' rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graphbraid.arguments import as_count, check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc, index_dtype
from graphbraid.graph.scans import first_out_of_range
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.kernels import check_row_dtype
from graphbraid.signatures import typed

VECTOR_BYTES = 16
"""Bytes that a thread of a GPU reads at once where addresses are multiples of it."""


@typed
class PeerTable:
    """The rows of all ranks. Kernels of this rank read any row by its owner and its place there.

    Args:
        parts: of each rank, ``(num_rows, width)`` contiguous rows of one floating-point dtype, which this
            rank's device can read: its own memory, or a peer's that has been opened
            (:mod:`graphbraid.machine.shared_tensors`). A rank may have no rows.
        rank: this rank, whose part lies on the device that reads.

    Raises:
        ConfigError: there is no such rank.
        DataError: a part has another dtype or width, has gaps, or is not on a kind of device that reads it.
    """

    def __init__(self, parts: Sequence[Tensor], rank: int) -> None:
        if not parts:
            raise DataError("a table of peers needs one part per rank, of no rows if need be; got none")
        self.rank = as_count(rank, "rank", most=len(parts) - 1)
        own = parts[self.rank]
        for owner, part in enumerate(parts):
            _check_part(part, f"the part of rank {owner}", own)
        self.parts = tuple(part.detach() for part in parts)
        """The rows of each rank; held, so that their memory stays."""
        self.dtype, self.width, self.device = own.dtype, own.shape[1], own.device
        self.num_rows = tuple(part.shape[0] for part in self.parts)
        """Number of rows of each rank."""
        addresses = [part.data_ptr() for part in self.parts]
        self.bases = torch.tensor(addresses, dtype=torch.int64).to(self.device)
        """``(num_ranks,)`` int64 addresses of the first row of each rank; of a rank without rows, any."""
        row_bytes = self.width * self.dtype.itemsize
        self.in_vectors = all(number % VECTOR_BYTES == 0 for number in (*addresses, row_bytes))
        """Whether every row begins at a multiple of :data:`VECTOR_BYTES`."""

    @property
    def rows(self) -> Tensor:
        """This rank's rows."""
        return self.parts[self.rank]

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.parts)


def _check_part(part: Tensor, name: str, own: Tensor) -> None:
    check_tensor(part, name, ndim=2)
    check_row_dtype(part, name)
    if part.dtype != own.dtype or part.shape[1] != own.shape[1]:
        raise DataError(
            f"{name} must be {own.dtype} of {own.shape[1]} columns, as this rank's is; got {part.dtype} of "
            f"{part.shape[1]}"
        )
    if not part.is_contiguous():
        raise DataError(f"{name} must be contiguous, since it is read by its address; make it .contiguous()")
    if part.device.type != own.device.type:
        raise DataError(
            f"{name} must be on a {own.device.type} device, which reads it; it is on {part.device}"
        )


@typed
@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class PeerEdges:
    """A linear map to one rank's rows from those of all ranks, in two graphs as MGG divides them.

    ``out[v] = dst_scale[v] * (sum of local_factor[e] * rows[rank][u] + sum of remote_factor[e] *
    rows[owner[e]][u])`` over the edges ``e = u -> v`` of ``local`` and of ``remote``. Factors that are None
    are ones.

    Raises:
        DataError: arrays do not fit each other, or an edge names a rank that there is not.
    """

    rank: int
    """The rank whose rows are summed up."""
    num_ranks: int
    """Number of ranks."""
    local: Csc
    """In-edges from the rank's own rows."""
    remote: Csc
    """In-edges of the same rows from peers' rows: a column is a row's place on its owner."""
    owner: Tensor
    """``(num_remote_edges,)`` int32 rank that keeps the source of each edge of ``remote``."""
    local_factor: Tensor | None = None
    """``(num_local_edges,)`` float32."""
    remote_factor: Tensor | None = None
    """``(num_remote_edges,)`` float32."""
    dst_scale: Tensor | None = None
    """``(num_rows,)`` float32."""
    rows_read: tuple[int, ...] = field(init=False)
    """Number of rows that each rank must have: one more than the last that is read."""

    def __post_init__(self) -> None:
        as_count(self.num_ranks, "num_ranks", least=1)
        as_count(self.rank, "rank", most=self.num_ranks - 1)
        if self.local.num_dst != self.remote.num_dst:
            raise DataError(
                f"local and remote edges must end in the same rows; those of the local graph are "
                f"{self.local.num_dst}, of the remote one {self.remote.num_dst}"
            )
        self._check_length(self.owner, "owner", self.remote.num_edges, torch.int32)
        factors = (
            ("local_factor", self.local.num_edges),
            ("remote_factor", self.remote.num_edges),
            ("dst_scale", self.num_rows),
        )
        for name, count in factors:
            if (factor := getattr(self, name)) is not None:
                self._check_length(factor, name, count, torch.float32)
        at = first_out_of_range(self.owner, self.num_ranks)
        if at >= 0:
            raise DataError(f"owner must be ranks in [0, {self.num_ranks}); owner[{at}] is {self.owner[at]}")
        object.__setattr__(self, "rows_read", self._rows_read())

    @property
    def num_rows(self) -> int:
        """Number of rows that are summed up."""
        return self.local.num_dst

    @property
    def num_edges(self) -> int:
        """Number of edges of both graphs."""
        return self.local.num_edges + self.remote.num_edges

    @classmethod
    def of(
        cls, how: Aggregation, num_own: int, owner: Tensor, row: Tensor, *, rank: int, num_ranks: int
    ) -> PeerEdges:
        """Divide an aggregation over own rows and, after them, a halo, whose rows are read where they are.

        Self-loops become edges, the last of their row; ones that are skipped are left out.

        Args:
            how: the map; its first ``num_own`` sources are own rows, and its destinations are a prefix of
                them.
            num_own: number of own rows.
            owner: ``(num_halo,)`` rank that keeps each row of the halo.
            row: ``(num_halo,)`` its place there.
            rank: this rank.
            num_ranks: number of ranks.

        Raises:
            DataError: the halo's arrays do not fit the map.
        """
        num_halo = how.csc.num_src - num_own
        for array, name in ((owner, "owner"), (row, "row")):
            if check_tensor(array, name, ndim=1).numel() != num_halo:
                raise DataError(
                    f"{name} must have one value for each of the {num_halo} rows of the halo; got "
                    f"{array.numel()}"
                )
        if how.csc.num_dst > num_own:
            raise DataError(f"the {how.csc.num_dst} destinations must be a prefix of the {num_own} own rows")
        src_scale, dst_scale = how.scales(torch.float32)
        edges = _EdgesByDestination(how, src_scale)
        is_own = edges.source < num_own
        of_halo = edges.source[~is_own] - num_own
        local, local_factor = edges.of_kind(is_own, edges.source[is_own], num_own)
        most = int(row.max()) + 1 if num_halo else 0
        remote, remote_factor = edges.of_kind(~is_own, row.long()[of_halo], most)
        return cls(
            rank=rank,
            num_ranks=num_ranks,
            local=local,
            remote=remote,
            owner=owner.to(torch.int32)[of_halo],
            local_factor=local_factor,
            remote_factor=remote_factor,
            dst_scale=None if dst_scale is None else dst_scale.float().contiguous(),
        )

    @staticmethod
    def _check_length(array: Tensor, name: str, count: int, dtype: torch.dtype) -> None:
        if array.shape != (count,) or array.dtype != dtype:
            raise DataError(f"{name} must be ({count},) {dtype}; got {tuple(array.shape)} {array.dtype}")

    def _rows_read(self) -> tuple[int, ...]:
        read = torch.zeros(self.num_ranks, dtype=torch.int64)
        if self.remote.num_edges:
            ends = self.remote.indices.long() + 1
            read.scatter_reduce_(0, self.owner.long(), ends, "amax")
        if self.local.num_edges:
            read[self.rank] = max(int(read[self.rank]), int(self.local.indices.max()) + 1)
        return tuple(read.tolist())


class _EdgesByDestination:
    """The edges of an aggregation, self-loops among them, by destination."""

    def __init__(self, how: Aggregation, src_scale: Tensor | None) -> None:
        csc = how.csc
        self._num_dst = csc.num_dst
        row, source = csc.destinations().long(), csc.indices.long()
        weight = None if how.weight is None else how.weight.float()
        if how.skip_loops:
            kept = row != source
            row, source = row[kept], source[kept]
            weight = None if weight is None else weight[kept]
        if how.num_loops:
            weight = torch.ones(row.numel()) if weight is None else weight
            loop = torch.ones(how.num_loops) if how.loop is None else how.loop.float()
            nodes = torch.arange(how.num_loops)
            order = torch.cat([row, nodes]).argsort(stable=True)
            row, source = torch.cat([row, nodes])[order], torch.cat([source, nodes])[order]
            weight = torch.cat([weight, how.loop_scale * loop])[order]
        if src_scale is not None:
            factor = src_scale[source]
            weight = factor if weight is None else weight * factor
        self.source = source
        """``(num_edges,)`` int64 source of each."""
        self._row, self._factor = row, weight

    def of_kind(self, kind: Tensor, indices: Tensor, num_src: int) -> tuple[Csc, Tensor | None]:
        """Return the graph of the edges of a kind, whose sources are ``indices``, and their factors."""
        indptr = torch.zeros(self._num_dst + 1, dtype=torch.int64)
        torch.cumsum(torch.bincount(self._row[kind], minlength=self._num_dst), 0, out=indptr[1:])
        csc = Csc(indptr, indices.to(index_dtype(max(num_src, 1))), num_src, trusted=True)
        return csc, None if self._factor is None else self._factor[kind].contiguous()

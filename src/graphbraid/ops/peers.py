"""Sums over in-neighbours that other ranks keep: the rows of all ranks, a rank's edges, and one launch.

:func:`pipelined_sum` reads peers' rows where they are. A rank's edges are cut into neighbour partitions and
dealt to warps. After section 3.3 of Wang et al., "MGG", local and remote partitions are dealt in turns. A
warp that waits for rows of another device holds nothing up if it, or its neighbour on the multiprocessor, has
rows of its own device to sum meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphbraid.arguments import as_count, check_tensor
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc, index_dtype, indptr_of
from graphbraid.graph.scans import first_out_of_range
from graphbraid.ops import reference
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.kernels import check_results, check_row_dtype, row_contiguous, triton_kernels
from graphbraid.signatures import typed

VECTOR_BYTES = 16
"""Bytes that a thread of a GPU reads at once where addresses are multiples of it."""


@typed
class PeerTable:
    """The rows of all ranks. Kernels of this rank read any row by its owner and its place there.

    Args:
        parts: for each rank ``(num_rows, width)`` contiguous rows of one floating-point dtype. This rank's
            device can read them: they are in its own memory, or in a peer's memory that has been opened
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
        destination, source, factor = _edges_by_destination(how, src_scale)

        def graph_of(kept: Tensor, indices: Tensor, num_src: int) -> tuple[Csc, Tensor | None]:
            indptr = indptr_of(torch.bincount(destination[kept], minlength=how.csc.num_dst))
            csc = Csc(indptr, indices.to(index_dtype(max(num_src, 1))), num_src, trusted=True)
            return csc, None if factor is None else factor[kept].contiguous()

        is_own = source < num_own
        of_halo = source[~is_own] - num_own
        local, local_factor = graph_of(is_own, source[is_own], num_own)
        most = int(row.max()) + 1 if num_halo else 0
        remote, remote_factor = graph_of(~is_own, row.long()[of_halo], most)
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


def _edges_by_destination(how: Aggregation, src_scale: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return destination and source of each edge, int64, in the order of destinations, and its factor.

    Self-loops come last in their row.
    """
    row, source = how.csc.destinations().long(), how.csc.indices.long()
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
    return row, source, weight


NOTHING = -1
"""Stands where a warp has no partition."""


def interleaved(num_local: int, num_remote: int, dist: int) -> Tensor:
    """Deal local and remote partitions to warps, ``dist`` of each to every warp, in their order.

    Warp ``i`` has the local partitions ``[i * dist, (i + 1) * dist)`` and then the remote ones of the same
    range; so the list of all work has ``dist`` local partitions, ``dist`` remote ones, and so on, until one
    kind is used up. There are ``ceil(max(num_local, num_remote) / dist)`` warps, equation 2 of the paper.

    Local partitions are numbered from 0, remote ones behind these.

    Returns:
        ``(num_warps, 2 * dist)`` int32 numbers of partitions, :data:`NOTHING` where there is none. The pair
        in columns ``j`` and ``dist + j`` is worked on at the same time.

    Raises:
        ConfigError: ``dist`` is less than 1, or a count is negative.
    """
    as_count(num_local, "num_local")
    as_count(num_remote, "num_remote")
    as_count(dist, "dist", least=1)
    num_warps = -(-max(num_local, num_remote) // dist)
    return torch.cat(
        [_dealt(0, num_local, num_warps, dist), _dealt(num_local, num_remote, num_warps, dist)], 1
    )


def _dealt(first: int, count: int, num_warps: int, each: int) -> Tensor:
    work = torch.full((num_warps * each,), NOTHING, dtype=torch.int32)
    work[:count] = torch.arange(first, first + count, dtype=torch.int32)
    return work.view(num_warps, each)


MOST_WARPS = 16
"""Most warps of a block."""


@typed
@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineConfig:
    """How MGG's kernel divides its work. The bits of sums depend on ``ps``, not on ``dist`` and ``wpb``.

    Raises:
        ConfigError: a number is out of bounds.
    """

    ps: int = 16
    """Edges of a neighbour partition."""
    dist: int = 1
    """Interleaving distance: local partitions of a warp, and remote ones."""
    wpb: int = 4
    """Warps of a block: a power of two, at most 16."""

    def __post_init__(self) -> None:
        as_count(self.ps, "ps", least=1)
        as_count(self.dist, "dist", least=1)
        if as_count(self.wpb, "wpb", least=1, most=MOST_WARPS) & (self.wpb - 1):
            raise ConfigError(f"wpb must be a power of two, as the kernel's tiles are; got {self.wpb}")


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class PipelinePlan:
    """Arguments of the kernel beside rows: partitions, the warps' work, and the place of each sum.

    Partitions are numbered local ones first, each kind in the order of its rows. The sum of a row's only
    partition is finished at once; the sums of a row of several go to ``partial``, row by row, local ones
    first, and are added up there by a second pass, which writes the rows without edges, too.
    """

    edges: PeerEdges
    """The map, which says how many rows of each rank are read."""
    config: PipelineConfig
    """How it was cut and dealt."""
    work: Tensor
    """``(num_warps, 2 * dist)`` int32 partitions of each warp, -1 where there is none."""
    indptr: Tensor
    """``(num_partitions + 1,)`` int64: partition ``p`` has the edges ``[indptr[p], indptr[p + 1])``."""
    indices: Tensor
    """``(num_edges,)`` int32 or int64 place of each edge's source on its owner, local edges first."""
    owner: Tensor
    """``(num_remote_edges,)`` int32."""
    factor: Tensor | None
    """``(num_edges,)`` float32, or None for ones."""
    dst_scale: Tensor | None
    """``(num_rows,)`` float32, or None for ones."""
    target: Tensor
    """``(num_partitions,)`` int64: row ``t`` that a sum finishes, or place ``-1 - t`` among partial sums."""
    rest: Tensor
    """``(num_rest,)`` int64 rows that no partition finishes."""
    rest_first: Tensor
    """``(num_rest + 1,)`` int64: row ``rest[i]`` has partial sums ``[rest_first[i], rest_first[i + 1])``."""
    num_partials: int
    """Number of partial sums that wait for the second pass."""

    @classmethod
    def of(cls, edges: PeerEdges, config: PipelineConfig) -> PipelinePlan:
        """Cut a map into partitions of ``ps`` edges and deal them to warps."""
        local, remote = (slices_of(csc, config.ps) for csc in (edges.local, edges.remote))
        target, rest, rest_first = _targets(local, remote)
        ids = torch.promote_types(edges.local.indices.dtype, edges.remote.indices.dtype)
        return cls(
            edges=edges,
            config=config,
            work=interleaved(local.row.numel(), remote.row.numel(), config.dist),
            indptr=torch.cat([local.indptr[:-1], remote.indptr + edges.local.num_edges]),
            indices=torch.cat([edges.local.indices.to(ids), edges.remote.indices.to(ids)]),
            owner=edges.owner,
            factor=_factors(edges),
            dst_scale=edges.dst_scale,
            target=target,
            rest=rest,
            rest_first=rest_first,
            num_partials=int(rest_first[-1]),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that the kernel reads."""
        return sum(array.nbytes for array in self._arrays().values())

    def to(self, device: torch.device) -> PipelinePlan:
        """Return the plan with its arrays on a device."""
        moved: dict[str, Any] = {name: array.to(device) for name, array in self._arrays().items()}
        return replace(self, **moved)

    def _arrays(self) -> dict[str, Tensor]:
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def most_bytes(num_edges: int, num_rows: int, ps: int) -> int:
    """Return the most bytes that a plan of these numbers of edges and rows takes, without making it."""
    num_partitions = num_edges // ps + 2 * num_rows
    return 16 * num_edges + (8 + 8 + 2 * 4) * num_partitions + (8 + 8 + 4) * (num_rows + 1)


class Slices(NamedTuple):
    """The rows of an adjacency in slices of equal size, row by row; none where a row has no edge."""

    row: Tensor
    indptr: Tensor
    first: Tensor


def slices_of(csc: Csc, size: int) -> Slices:
    """Cut rows into slices of ``size`` edges, the last shorter, so that a hub is the work of many warps."""
    degrees = csc.degrees()
    first = indptr_of((degrees + size - 1) // size)
    counts = first.diff()
    row = torch.arange(csc.num_dst, dtype=csc.indices.dtype).repeat_interleave(counts)
    begin = csc.indptr[:-1].repeat_interleave(counts)
    begin += (torch.arange(row.numel()) - first[:-1].repeat_interleave(counts)) * size
    # A slice ends where the next begins, since rows without edges have no slice.
    return Slices(row, torch.cat([begin, csc.indptr[-1:]]), first)


def _targets(local: Slices, remote: Slices) -> tuple[Tensor, Tensor, Tensor]:
    """Return where each partition's sum goes, and the other rows with their partial sums."""
    of_local, of_remote = local.first.diff(), remote.first.diff()
    counts = of_local + of_remote
    rest = (counts != 1).nonzero().squeeze(1)
    rest_first = indptr_of(counts[rest])
    # A row of one partition is the target of its sum; a place among the partial sums is stored as -1 - place.
    before = torch.zeros_like(counts)
    before[rest] = rest_first[:-1]
    targets = []
    for slices, begin in ((local, before), (remote, before + of_local)):
        row = slices.row.long()
        place = begin[row] + torch.arange(row.numel()) - slices.first[row]
        targets.append(torch.where(counts[row] == 1, row, -1 - place))
    return torch.cat(targets), rest, rest_first


def _factors(edges: PeerEdges) -> Tensor | None:
    given = edges.local_factor, edges.remote_factor
    if all(factor is None for factor in given):
        return None
    counts = edges.local.num_edges, edges.remote.num_edges
    return torch.cat([torch.ones(n) if f is None else f for f, n in zip(given, counts, strict=True)])


@typed
def pipelined_sum(
    plan: PipelinePlan, table: PeerTable, *, addend: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Sum own and peers' rows: ``out[v] = dst_scale[v] * sum of factor[e] * rows[owner(e)][u] + addend[v]``.

    The kernel of Wang et al., "MGG" (sections 3.1 to 3.3): warps sum neighbour partitions, those of peers'
    rows in turns with those of own rows, and read peers' rows where they are, by their address. Departs from
    it in how partial sums come together: each is written to a row of its own, and a second pass adds up those
    of a node, so that no atomic operation is needed. Sums run in float32 (float64 for float64): within a
    partition edge by edge, then over a row's partitions, local ones first, in an order that their number and
    the width of a row fix. So the bits depend on the size of a partition, and on neither ``dist`` nor ``wpb``
    nor on which warp comes first.

    The caller makes sure that peers have written their rows, and that these stay as they are until it has run
    (:class:`graphbraid.distributed.peers.SharedRows`). It records nothing for autograd: :class:`.PeerSum`
    computes the gradient, a sum over the reversed edges.

    Args:
        plan: of this rank, with its arrays on the table's device.
        table: the rows of all ranks, float32, float64, float16 or bfloat16.
        addend: ``(at most num_rows, width)`` of the result's dtype, added to its first rows.
        out: ``(num_rows, width)`` of the rows' dtype or the one they are summed in, with contiguous rows,
            which may be strided. If None, a new matrix of the rows' dtype.

    Raises:
        DataError: the plan is of other ranks than the table, reads rows that are not there, or is elsewhere;
            ``addend`` or ``out`` does not fit.
    """
    _check_plan(plan, table)
    num_rows = plan.edges.num_rows
    check_results(table.rows, addend, out, num_rows)
    if out is None:
        out = torch.empty(num_rows, table.width, dtype=table.dtype, device=table.device)
    addend = None if addend is None else row_contiguous(addend.detach())
    if out.numel():
        _kernels(table).pipelined_sum(plan, table, addend, out.detach())
    return out


def _kernels(table: PeerTable) -> Any:
    on_gpu = table.device.type == "cuda" and table.dtype != torch.float64
    return (triton_kernels() if on_gpu else None) or reference


def _check_plan(plan: PipelinePlan, table: PeerTable) -> None:
    edges = plan.edges
    if (edges.rank, edges.num_ranks) != (table.rank, table.num_ranks):
        raise DataError(
            f"the plan is of rank {edges.rank} of {edges.num_ranks}, and the table of rank {table.rank} of "
            f"{table.num_ranks}"
        )
    for rank, (read, there) in enumerate(zip(edges.rows_read, table.num_rows, strict=True)):
        if read > there:
            raise DataError(f"the plan reads row {read - 1} of rank {rank}, which has {there} rows")
    if plan.work.device.type != table.device.type:
        raise DataError(
            f"the plan must be on the table's device, {table.device}; it is on {plan.work.device}: "
            "plan.to(table.device)"
        )

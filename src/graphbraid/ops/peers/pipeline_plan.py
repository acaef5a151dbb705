"""PipelinePlan: a rank's edges, cut into neighbour partitions and dealt to warps for one kernel launch.

After section 3.3 of Wang et al., "MGG": local and remote partitions are dealt in turns. A warp that waits for
rows of another device holds nothing up if it, or its neighbour on the multiprocessor, has rows of its own
device to sum meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import as_count
from graphbraid.errors import ConfigError
from graphbraid.graph.csc import Csc
from graphbraid.graph.slices import NeighborPartitions, neighbor_partitions
from graphbraid.ops.peers.peer_rows import PeerEdges
from graphbraid.signatures import typed

NOTHING = -1
"""Stands where a warp has no partition."""


def interleaved(num_local: int, num_remote: int, dist: int) -> Tensor:
    """Deal local and remote partitions to warps, ``dist`` of each to every warp, in their order.

    Warp ``i`` has the local partitions ``[i * dist, (i + 1) * dist)`` and then the remote ones of the same
    range; so the list of all work has ``dist`` local partitions, ``dist`` remote ones, and so on, until one
    kind is used up. There are ``ceil(max(num_local, num_remote) / dist)`` warps, equation 2 of the paper.

    Args:
        num_local: Number of partitions of own rows, numbered from 0.
        num_remote: Number of partitions of peers' rows, numbered from ``num_local``.
        dist: The interleaving distance, at least 1.

    Returns:
        ``(num_warps, 2 * dist)`` int32 numbers of partitions, :data:`NOTHING` where there is none. The pair
        in columns ``j`` and ``dist + j`` is worked on at the same time.

    Raises:
        ConfigError: ``dist`` is less than 1, or a count is negative.
    """
    _check(num_local, num_remote, dist)
    num_warps = -(-max(num_local, num_remote) // dist)
    return torch.cat(
        [_dealt(0, num_local, num_warps, dist), _dealt(num_local, num_remote, num_warps, dist)], 1
    )


def apart(num_local: int, num_remote: int, dist: int) -> Tensor:
    """Deal the same partitions without interleaving: all local ones come before all remote ones.

    A warp has ``2 * dist`` partitions that follow each other, as many as in :func:`interleaved`, with which
    it is compared; arguments, errors and what is returned are the same.
    """
    _check(num_local, num_remote, dist)
    count = num_local + num_remote
    return _dealt(0, count, -(-count // (2 * dist)), 2 * dist)


def _check(num_local: int, num_remote: int, dist: int) -> None:
    as_count(num_local, "num_local")
    as_count(num_remote, "num_remote")
    as_count(dist, "dist", least=1)


def _dealt(first: int, count: int, num_warps: int, each: int) -> Tensor:
    work = torch.full((num_warps * each,), NOTHING, dtype=torch.int32)
    work[:count] = torch.arange(first, first + count, dtype=torch.int32)
    return work.view(num_warps, each)


MOST_WARPS = 16
"""Most warps of a block."""
Order = Callable[[int, int, int], Tensor]
"""How partitions are dealt to warps: one of :mod:`.work_order`."""


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
    def of(cls, edges: PeerEdges, config: PipelineConfig, order: Order = interleaved) -> PipelinePlan:
        """Cut a map into partitions of ``ps`` edges and deal them to warps.

        Args:
            edges: the map.
            config: how the kernel divides the work.
            order: how partitions are dealt.
        """
        local, remote = (neighbor_partitions(csc, config.ps) for csc in (edges.local, edges.remote))
        target, rest, rest_first = _targets(local, remote)
        ids = torch.promote_types(edges.local.indices.dtype, edges.remote.indices.dtype)
        return cls(
            edges=edges,
            config=config,
            work=order(local.num_slices, remote.num_slices, config.dist),
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
        return sum(array.nbytes for array in self._arrays().values() if array is not None)

    def to(self, device: torch.device) -> PipelinePlan:
        """Return the plan with its arrays on a device."""
        moved: dict[str, Any] = {
            name: None if array is None else array.to(device) for name, array in self._arrays().items()
        }
        return replace(self, **moved)

    def _arrays(self) -> dict[str, Tensor | None]:
        names = ("work", "indptr", "indices", "owner", "factor", "dst_scale", "target", "rest", "rest_first")
        return {name: getattr(self, name) for name in names}


def count_partitions(csc: Csc, ps: int) -> int:
    """Return the number of neighbour partitions of ``ps`` edges without making them."""
    return int(((csc.degrees() + ps - 1) // ps).sum())


def most_bytes(num_edges: int, num_rows: int, ps: int) -> int:
    """Return the most bytes of a plan of so many edges and rows, without making it."""
    num_partitions = num_edges // ps + 2 * num_rows
    return 16 * num_edges + (8 + 8 + 2 * 4) * num_partitions + (8 + 8 + 4) * (num_rows + 1)


def _targets(local: NeighborPartitions, remote: NeighborPartitions) -> tuple[Tensor, Tensor, Tensor]:
    """Return where each partition's sum goes, and the other rows with their partial sums."""
    of_local, of_remote = local.first.diff(), remote.first.diff()
    counts = of_local + of_remote
    rest = (counts != 1).nonzero().squeeze(1)
    rest_first = torch.zeros(rest.numel() + 1, dtype=torch.int64)
    torch.cumsum(counts[rest], 0, out=rest_first[1:])
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

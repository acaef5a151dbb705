"""What ranks tell each other once about edges between them: where a halo's rows are, and edges that leave."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.ops.peers.peer_rows import PeerEdges


def places_of_halo(
    comm: Communicator, send: Tensor, send_rows: Sequence[int], receive_rows: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return who keeps each row of this rank's halo, and where; all ranks call this together.

    Args:
        comm: the ranks.
        send: ``(num_sent,)`` int64 own rows that are in others' halos, by receiver, in the order in which
            those have them.
        send_rows: how many of them are in each rank's.
        receive_rows: how many rows of the halo each rank keeps, in this order.

    Returns:
        ``(num_halo,)`` int32 owners and ``(num_halo,)`` int64 rows there.

    Raises:
        RankError: a rank was lost.
    """
    row = comm.all_to_all(send, send_rows, receive_rows).wait()
    owner = torch.arange(comm.size, dtype=torch.int32)
    return owner.repeat_interleave(torch.tensor(receive_rows)), row


def reversed_edges(comm: Communicator, edges: PeerEdges) -> PeerEdges:
    """Return the transposed map of a rank's: to its sources, from the rows that they are summed into.

    Its sums are the gradients of the rows that this rank keeps: peers' contributions are pulled by this rank,
    from the gradients that they keep, and not pushed by them, so that nobody writes to another's memory. For
    that each rank tells the owners of its halo which edges leave their rows. All call this together.

    Args:
        comm: the ranks.
        edges: of this rank.

    Raises:
        RankError: a rank was lost.
    """
    local_factor, remote_factor = _folded(edges)
    has_factor = any(comm.gather(local_factor is not None or remote_factor is not None))
    local, perm = coo_to_csc(
        edges.local.destinations(), edges.local.indices, edges.local.num_dst, edges.local.num_src
    )
    leaving, owner, factor = _leaving(comm, edges, remote_factor, has_factor)
    most = int(leaving[:, 1].max()) + 1 if leaving.shape[0] else 0
    remote, order = coo_to_csc(
        owner.long() * max(most, 1) + leaving[:, 1],
        leaving[:, 0],
        comm.size * max(most, 1),
        edges.local.num_src,
    )
    order = torch.arange(owner.numel()) if order is None else order
    ids = torch.int32 if most <= torch.iinfo(torch.int32).max else torch.int64
    place = leaving[order, 1].to(ids)
    return PeerEdges(
        rank=edges.rank,
        num_ranks=edges.num_ranks,
        local=Csc(local.indptr, local.indices, local.num_src, trusted=True),
        remote=Csc(remote.indptr, place, most, trusted=True),
        owner=owner[order],
        local_factor=_ones_or(local_factor, edges.local.num_edges, perm) if has_factor else None,
        remote_factor=None if factor is None else factor[order],
    )


def _folded(edges: PeerEdges) -> tuple[Tensor | None, Tensor | None]:
    """Return each edge's factor by that of its destination."""
    if edges.dst_scale is None:
        return edges.local_factor, edges.remote_factor
    found = []
    for csc, factor in ((edges.local, edges.local_factor), (edges.remote, edges.remote_factor)):
        scale = edges.dst_scale[csc.destinations().long()]
        found.append(scale if factor is None else scale * factor)
    return found[0], found[1]


def _leaving(
    comm: Communicator, edges: PeerEdges, factor: Tensor | None, has_factor: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Tell the owners of the edges that leave their rows; return those of own rows, who has them, factors.

    The edges are ``(num_edges, 2)`` int64: the own row, and the row on the other rank that it is summed into.
    """
    order = edges.owner.argsort(stable=True)
    sent = torch.bincount(edges.owner, minlength=comm.size).tolist()
    received = comm.counts(sent)
    pairs = torch.stack([edges.remote.indices.long(), edges.remote.destinations().long()], 1)
    leaving = comm.all_to_all(pairs[order].contiguous(), sent, received).wait()
    owner = torch.arange(comm.size, dtype=torch.int32).repeat_interleave(torch.tensor(received))
    if not has_factor:
        return leaving, owner, None
    factors = _ones_or(factor, edges.remote.num_edges, order)
    return leaving, owner, comm.all_to_all(factors, sent, received).wait()


def _ones_or(factor: Tensor | None, count: int, order: Tensor | None) -> Tensor:
    factor = torch.ones(count) if factor is None else factor
    return factor if order is None else factor[order].contiguous()


__all__ = ["places_of_halo", "reversed_edges"]

"""Peers: the ranks that read each other's memory, found by trying, and aggregations over their rows.

PeerMap and PeerSum aggregate rows of several ranks, and their gradients, where the rows lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import as_count
from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.machine.shared_tensors import check_reads, handle_of, machine_name, opened
from graphbraid.ops.library import once_differentiable
from graphbraid.ops.peers import PeerEdges, PeerTable, PipelineConfig, PipelinePlan, pipelined_sum
from graphbraid.signatures import typed


def reasons_not_to_read(
    comm: Communicator, device: torch.device | None, others: Iterable[int], instead: str
) -> list[str]:
    """Return for each rank why it cannot read the memory of its ``others``, empty where it can.

    All ranks call it together, and each gets the same answer. Without a ``device``, a rank's memory is not
    for others. ``instead`` is what happens where one cannot, for the message. RankError: a rank was lost.
    """
    probe = torch.full((1,), comm.rank, dtype=torch.int64, device=device or torch.device("cpu"))
    handle, reason = "", ""
    if device is not None:
        handle, reason = _tried(lambda: handle_of(probe).hex(), "")
    handles: list[str] = comm.gather(handle)
    for rank in others:
        if not reason and rank != comm.rank:
            _, reason = _tried(lambda rank=rank: _read(probe, rank, handles[rank], instead), "")  # type: ignore[misc]
    return comm.gather(reason)


@dataclass(frozen=True, slots=True)
class ReadingGroup:
    """The ranks of one machine that read each other's memory, this one among them."""

    comm: Communicator
    ranks: tuple[int, ...]
    """Their numbers, ascending."""
    why_not: str
    """Why this rank reads no other's; empty if it does."""

    @property
    def place(self) -> int:
        """This rank's place in the group."""
        return self.ranks.index(self.comm.rank)

    def gather(self, value: object) -> list[object]:
        """Return the values of the group by place; all ranks of the job call it together."""
        values = self.comm.gather(value)
        return [values[rank] for rank in self.ranks]

    def exchange(self, handle: bytes) -> Sequence[bytes]:
        """Return the handles of the group by place; all ranks of the job call it together."""
        return [bytes.fromhex(str(given)) for given in self.gather(handle.hex())]


def reading_group(
    comm: Communicator, device: torch.device | None, kind: str, instead: str, *, why_apart: str = ""
) -> ReadingGroup:
    """Find the ranks that read each other's memory: on one machine, of one kind, and each tries all others.

    All ranks call it together. A rank without a ``device``, or with ``why_apart``, reads no other and is not
    read; ``instead`` is what happens then, for the message. RankError: a rank was lost.
    """
    known = comm.gather([machine_name(), kind, why_apart])
    own = known[comm.rank]
    ranks = tuple(
        rank for rank, given in enumerate(known) if given[:2] == own[:2] and not given[2] and not why_apart
    )
    reasons = reasons_not_to_read(comm, None if why_apart else device, ranks, instead)
    said = (f"rank {rank}: {reasons[rank]}" for rank in ranks if reasons[rank])
    why_not = why_apart or next(said, "") or ("" if len(ranks) > 1 else _alone(comm, known))
    return ReadingGroup(comm, (comm.rank,) if why_not else ranks, why_not)


def _alone(comm: Communicator, known: list[list[str]]) -> str:
    """Say why no other rank can be read, by the first of them."""
    own = known[comm.rank]
    rank, other = next((rank, given) for rank, given in enumerate(known) if rank != comm.rank)
    if other[0] != own[0]:
        return f"rank {rank} is on another machine"
    return f"rank {rank} computes on {other[1]}" if other[1] != own[1] else f"rank {rank}: {other[2]}"


def _read(probe: torch.Tensor, rank: int, handle: str, instead: str) -> str:
    if not handle:
        raise ConfigError(f"rank {rank} cannot share its memory")
    there = opened(bytes.fromhex(handle))
    check_reads(probe.device, there.device, instead)
    if int(there.to(probe.device)) != rank:
        raise ConfigError(f"the memory of rank {rank} does not hold what it wrote there; {instead}")
    return ""


def _tried(call: Callable[[], str], otherwise: str) -> tuple[str, str]:
    """Return a call's result and an empty reason, or the reason of its failure for the other ranks."""
    try:
        return call(), ""
    except (RuntimeError, OSError, ConfigError) as error:
        return otherwise, str(error).splitlines()[0]


INSTEAD = "rows are exchanged instead"


@typed
class Peers:
    """The ranks of a job as peers.

    All ranks make it together. They also call its methods together, and the methods of what is made with it.
    Whether they can read each other's memory is tried, not assumed: each opens a number of every other.
    RankError: a rank was lost.
    """

    def __init__(self, comm: Communicator, device: torch.device) -> None:
        self.comm, self.device = comm, device
        self.num_meetings = 0
        """Number of times at which all ranks have met."""
        self._places = comm.gather([machine_name(), device.type, _card(device)])
        self.why_not = self._why_not()
        """Why ranks cannot read each other's memory, the same on all of them; empty if they can."""

    @property
    def by_host(self) -> bool:
        """Whether rows that travel between devices go by way of the host's memory.

        NCCL moves them from device to device, where each rank has one of its own; Gloo and MPI, and ranks
        that share a device, do not.
        """
        cards = [(machine, card) for machine, _, card in self._places]
        on_cards = self.device.type == "cuda" and len(set(cards)) == len(cards)
        return self.device.type != "cpu" and not (on_cards and "nccl" in self.comm.name)

    def meet(self) -> None:
        """Full barrier of all ranks and their devices.

        Earlier writes are visible after it, and buffers that were read may be written again. The host waits
        for its device's queue. An event between processes would save that wait, but no measurement on a
        device shows yet that it pays.

        Raises:
            RankError: a rank was lost.
        """
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        self.comm.barrier()
        self.num_meetings += 1

    def check(self) -> None:
        """Raise ConfigError that says why ranks cannot read each other's memory, if so."""
        if self.why_not:
            raise ConfigError(f"{self.why_not}; let rows travel between these ranks")

    def shared(self, own: Tensor) -> list[Tensor]:
        """Let all ranks read ``own``, each its own tensor; return those of all ranks; errors as of rows."""
        self.check()
        if self.comm.size == 1:
            return [own]
        handles = self.comm.gather(handle_of(own).hex())
        parts = [
            own if rank == self.comm.rank else opened(bytes.fromhex(handle))
            for rank, handle in enumerate(handles)
        ]
        self.meet()  # handles are good for one opening, which all have done
        return parts

    def _why_not(self) -> str:
        if self.comm.size == 1:
            return ""
        places = self._places
        for rank, (machine, kind, _) in enumerate(places):
            if machine != places[0][0]:
                return f"rank {rank} is on another machine than rank 0"
            if kind != places[0][1]:
                return f"rank {rank} computes on {kind} and rank 0 on {places[0][1]}"
        reasons = reasons_not_to_read(self.comm, self.device, range(self.comm.size), INSTEAD)
        return next((f"rank {rank}: {reason}" for rank, reason in enumerate(reasons) if reason), "")


def _card(device: torch.device) -> str:
    """Return a unique mark of a device on its machine."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


@typed
class SharedRows:
    """Memory for a rank's ``(num_rows, width)`` rows that are written, published and read, again and again.

    All ranks make it, of one width and dtype, and call its methods, together. All ranks meet between writing
    and reading, and again before they write anew. The meeting of another exchange counts, so that an engine
    with two exchanges meets once for each. ConfigError: ranks cannot read each other's memory. RankError: one
    was lost.
    """

    def __init__(self, peers: Peers, num_rows: int, width: int, dtype: torch.dtype = torch.float32) -> None:
        num_rows, width = as_count(num_rows, "num_rows"), as_count(width, "width")
        peers.check()
        self._peers, self._read_at, self._is_published = peers, -1, False
        counts = [num_rows] if peers.comm.size == 1 else peers.comm.gather(num_rows)
        memory = torch.zeros(max(1, num_rows * width), dtype=dtype, device=peers.device)  # none is not shared
        parts = [
            part[: count * width].view(count, width)
            for part, count in zip(peers.shared(memory), counts, strict=True)
        ]
        self._table: PeerTable | None = PeerTable(parts, peers.comm.rank)

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's rows."""
        return 0 if self._table is None else self._table.rows.nbytes

    def writable(self) -> Tensor:
        """Return own rows to write, once nobody reads earlier values; RankError if a rank was lost."""
        if self._read_at == self._peers.num_meetings:
            self._peers.meet()
        self._is_published = False
        return self._open_table().rows

    def publish(self) -> None:
        """Wait until all ranks have written; RankError if one was lost."""
        self._peers.meet()
        self._is_published = True

    def readable(self) -> PeerTable:
        """Return the rows of all ranks, to be read before the ranks meet again."""
        assert self._is_published, "rows are read that were not published"
        self._read_at = self._peers.num_meetings
        return self._open_table()

    def close(self) -> None:
        """Free the rows once no rank reads them; all call it together; RankError if one was lost."""
        if self._table is None:
            return
        self._peers.meet()
        self._table = None
        self._peers.meet()  # owners free memory only after the others have closed it

    def _open_table(self) -> PeerTable:
        assert self._table is not None, "rows were closed"
        return self._table


def places_of_halo(
    comm: Communicator, send: Tensor, send_rows: Sequence[int], receive_rows: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return who keeps each row of this rank's halo (int32), and where (int64); all ranks call it together.

    ``send`` are own rows that are in others' halos, ``send_rows`` of them in each rank's, in the order in
    which those have them; the halo has ``receive_rows`` of each rank. RankError: a rank was lost.
    """
    row = comm.all_to_all(send, send_rows, receive_rows).wait()
    owner = torch.arange(comm.size, dtype=torch.int32)
    return owner.repeat_interleave(torch.tensor(receive_rows)), row


def reversed_edges(comm: Communicator, edges: PeerEdges) -> PeerEdges:
    """Return the transposed map of a rank's: to its sources, from the rows that they are summed into.

    Its sums are the gradients of the rows that this rank keeps: peers' contributions are pulled by this rank,
    from the gradients that they keep, and not pushed by them, so that nobody writes to another's memory. For
    that each rank tells the owners of its halo which edges leave their rows. All call this together.
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


@typed
class PeerMap:
    """A linear map from the rows that ranks keep to this rank's, and, if it ``learns``, the map back.

    All ranks make it together. DataError: the edges are of another rank. RankError: a rank was lost.
    """

    def __init__(
        self, peers: Peers, edges: PeerEdges, *, config: PipelineConfig | None = None, learns: bool = True
    ) -> None:
        if (edges.rank, edges.num_ranks) != (peers.comm.rank, peers.comm.size):
            raise DataError(
                f"the edges are of rank {edges.rank} of {edges.num_ranks}; this is rank {peers.comm.rank} of "
                f"{peers.comm.size}"
            )
        self.peers, self.edges = peers, edges
        self.reverse = reversed_edges(peers.comm, edges) if learns else None
        """The edges back; None if no gradient is asked for."""
        self._config = config or PipelineConfig()
        self._plans: dict[bool, PipelinePlan] = {}

    @property
    def config(self) -> PipelineConfig:
        """The kernel's configuration; setting another cuts the edges anew when a sum next needs them."""
        return self._config

    @config.setter
    def config(self, config: PipelineConfig) -> None:
        if config != self._config:
            self._plans.clear()
        self._config = config

    def plan(self, *, back: bool) -> PipelinePlan:
        """Return the edges of one direction as the kernel reads them."""
        if back not in self._plans:
            edges = self.reverse if back else self.edges
            assert edges is not None, "made without a gradient"
            self._plans[back] = PipelinePlan.of(edges, self._config).to(self.peers.device)
        return self._plans[back]


@typed
class PeerSum:
    """The sums of a :class:`PeerMap` over rows of one width, without a copy of any peer's row.

    Forward, each rank writes its rows where all can read them and, when all have, sums what it needs by
    :func:`.pipelined_sum`; backward, the same over the reversed edges, so that a rank computes the gradients
    of its own rows alone. All ranks make it, and call it and its methods, together; errors as of their rows.
    """

    def __init__(self, mapped: PeerMap, width: int, dtype: torch.dtype = torch.float32) -> None:
        self._mapped, edges = mapped, mapped.edges
        self._rows = SharedRows(mapped.peers, edges.local.num_src, width, dtype)
        self._grads = None
        if mapped.reverse is not None:
            self._grads = SharedRows(mapped.peers, edges.num_rows, width, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the sums of ``x``, ``(num_own, width)``, under autograd; DataError if it does not fit."""
        out: Tensor = _Sum.apply(x, self)  # type: ignore[no-untyped-call]
        return out

    def forward(self, x: Tensor, *, addend: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Sum up without recording anything for autograd; see :func:`.pipelined_sum` and :meth:`__call__`."""
        return self._run(self._rows, x, addend, out, back=False)

    def backward(self, grad: Tensor, *, addend: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Return the gradients of this rank's rows by those of all sums, ``(num_rows, width)`` of each rank.

        Arguments and errors are as those of :meth:`forward`.
        """
        assert self._grads is not None, "made without a gradient"
        return self._run(self._grads, grad, addend, out, back=True)

    def close(self) -> None:
        """Free the shared memory; all ranks call it together."""
        self._rows.close()
        if self._grads is not None:
            self._grads.close()

    def _run(
        self, shared: SharedRows, x: Tensor, addend: Tensor | None, out: Tensor | None, *, back: bool
    ) -> Tensor:
        """Publish ``x`` and sum up."""
        rows = shared.writable()
        if x.shape != rows.shape or x.dtype != rows.dtype:
            raise DataError(
                f"rows must be {rows.dtype} of shape {tuple(rows.shape)}; got {x.dtype} of {tuple(x.shape)}"
            )
        rows.copy_(x.detach())
        shared.publish()
        return pipelined_sum(self._mapped.plan(back=back), shared.readable(), addend=addend, out=out)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, how: PeerSum) -> Tensor:
        ctx.how = how
        return how.forward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.how.backward(grad) if ctx.needs_input_grad[0] else None, None

"""Peers: the ranks that read each other's memory, found by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.errors import ConfigError
from graphbraid.machine.shared_tensors import check_reads, handle_of, machine_name, opened
from graphbraid.signatures import typed


def reasons_not_to_read(
    comm: Communicator, device: torch.device | None, others: Iterable[int], instead: str
) -> list[str]:
    """Return for each rank why it cannot read the memory of its ``others``, empty where it can.

    All ranks call it together, and each gets the same answer.

    Args:
        comm: the ranks.
        device: this rank's. If None, its memory is not for others.
        others: the ranks that this one is to read.
        instead: what happens where one cannot, for the message.

    Raises:
        RankError: a rank was lost.
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

    All ranks call it together.

    Args:
        comm: the ranks.
        device: this rank's. If None, its memory is not for others.
        kind: ranks of other kinds are not read, nor do they read.
        instead: what happens where one cannot, for the message.
        why_apart: why this rank is to read no other. If empty, it may.

    Raises:
        RankError: a rank was lost.
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
    """Read the number of a rank."""
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
    """The ranks of a job as peers; all make it, and call it and what is made with it, together.

    Whether they can read each other's memory is tried, not assumed: each opens a number of every other.

    Args:
        comm: the ranks.
        device: this rank's.

    Raises:
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
        """Check that ranks can read each other's memory.

        Raises:
            ConfigError: they cannot; the message says why.
        """
        if self.why_not:
            raise ConfigError(f"{self.why_not}; let rows travel between these ranks")

    def shared(self, own: Tensor) -> list[Tensor]:
        """Let all ranks read ``own``, each its own tensor; return those of all ranks.

        Raises:
            ConfigError: ranks cannot read each other's memory.
            RankError: a rank was lost.
        """
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

"""Peers: the ranks of a job whose devices read each other's memory, and when they may."""

from __future__ import annotations

import torch
from torch import Tensor

from graphbraid.distributed.peers.probing import reasons_not_to_read
from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.errors import ConfigError
from graphbraid.machine.shared_tensors import handle_of, machine_name, opened
from graphbraid.signatures import typed

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
        """Wait until all ranks are here, with what their devices were to do before this.

        After it, what any of them wrote before it is there, and what any of them read before it may be
        written over. The device's queue is waited for by the host: an event between processes would spare
        that, and nobody has yet shown on a device that it pays.

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
    """Return what tells a device from the others of its machine."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


__all__ = ["Peers"]

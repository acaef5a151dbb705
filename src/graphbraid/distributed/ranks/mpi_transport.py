"""The transport of MPI, by mpi4py; tensors on a device pass through host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from graphbraid.distributed.ranks.transport import Pending, Reduction, pause
from graphbraid.errors import ConfigError, MissingPackageError

if TYPE_CHECKING:
    import types


def load_mpi() -> types.ModuleType:
    """Return ``mpi4py.MPI``, initialised, which this module finalises itself.

    Raises:
        MissingPackageError: mpi4py or the MPI library it needs is not there.
    """
    try:
        import mpi4py

        # At its exit, a process that has lost another would wait for it in MPI_Finalize.
        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MissingPackageError(
            f"comm='mpi' needs mpi4py and an MPI library ({error}): pip install 'graphbraid[mpi]'"
        ) from error
    found: types.ModuleType = MPI
    return found


class MpiTransport:
    """The ranks of ``MPI.COMM_WORLD``."""

    name = "mpi"

    def __init__(self) -> None:
        self._mpi = load_mpi()
        self._comm = self._mpi.COMM_WORLD.Dup()
        self._comm.Set_errhandler(self._mpi.ERRORS_RETURN)
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        self._ops = {"sum": self._mpi.SUM, "max": self._mpi.MAX, "min": self._mpi.MIN}

    def all_reduce(self, tensor: Tensor, op: Reduction) -> Pending:
        """Begin a reduction in place."""
        data = _on_host(tensor)
        return _Request(self._comm.Iallreduce(self._mpi.IN_PLACE, data, op=self._ops[op]), data)

    def all_to_all(
        self, send: Tensor, send_bytes: Sequence[int], receive: Tensor, receive_bytes: Sequence[int]
    ) -> Pending:
        """Begin an exchange of bytes."""
        given, taken = _on_host(send), _on_host(receive)
        byte = self._mpi.BYTE
        request = self._comm.Ialltoallv(
            [given, (list(send_bytes), _starts(send_bytes)), byte],
            [taken, (list(receive_bytes), _starts(receive_bytes)), byte],
        )
        return _Request(request, given, taken)

    def broadcast(self, data: Tensor, root: int) -> Pending:
        """Begin a broadcast of bytes."""
        host = _on_host(data)
        return _Request(self._comm.Ibcast([host, self._mpi.BYTE], root=root), host)

    def send(self, data: Tensor, to: int, tag: int) -> Pending:
        """Begin to send bytes."""
        host = _on_host(data)
        return _Request(self._comm.Isend([host, self._mpi.BYTE], dest=to, tag=tag), host)

    def receive(self, data: Tensor, source: int, tag: int) -> Pending:
        """Begin to receive bytes."""
        host = _on_host(data)
        return _Request(self._comm.Irecv([host, self._mpi.BYTE], source=source, tag=tag), host)

    def close(self) -> None:
        """Finalise MPI, together with all ranks."""
        self._comm.Free()
        self._mpi.Finalize()

    def abort(self) -> None:
        """Leave MPI as it is: mpirun ends the others when this process ends without having finalised."""


class _Request:
    """A request of MPI, which makes progress as it is tested, and the memory that it uses."""

    def __init__(self, request: Any, *memory: Any) -> None:
        self._request, self._memory = request, memory

    def done(self) -> bool:
        return bool(self._request.Test())

    def rest(self, waited_seconds: float) -> None:
        pause(waited_seconds)

    def finish(self) -> None:
        self._request.Wait()


def _on_host(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return the memory of a tensor as an array that shares it."""
    if tensor.device.type != "cpu":
        raise ConfigError(
            f"comm='mpi' moves tensors of the host; got one on {tensor.device}. Copy it there, or use "
            "torchrun with NCCL."
        )
    array: np.ndarray[Any, Any] = tensor.detach().numpy()
    return array


def _starts(counts: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(counts)[:-1].tolist()]

"""Transports: what a :class:`Communicator` asks of a library of communication, and two that give it.

They are torch.distributed (Gloo on the host, NCCL on CUDA devices), and MPI by mpi4py. With MPI, tensors on a
device pass through host memory.
"""

from __future__ import annotations

import ctypes
import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from graphbraid.arguments import check_tensor
from graphbraid.errors import ConfigError, MissingPackageError

if TYPE_CHECKING:
    import types

Reduction = Literal["sum", "max", "min"]
REDUCED = (torch.float32, torch.float64, torch.int32, torch.int64)
"""Dtypes that every transport reduces; of other dtypes, bytes are moved."""

_SPIN_SECONDS = 5e-4
_LONGEST_PAUSE_SECONDS = 1e-3


def pause(waited_seconds: float, shortest: float = 0.0) -> None:
    """Sleep before an operation is asked again whether it has ended, longer the longer it was waited for.

    ``shortest`` 0 keeps the core, for operations that make progress as they are asked. Where another thread
    makes progress, which may have no core but this one, it must be more.
    """
    growing = 0.0 if waited_seconds < _SPIN_SECONDS else min(waited_seconds / 10, _LONGEST_PAUSE_SECONDS)
    time.sleep(max(growing, shortest))


class Pending:
    """An operation that has begun; its tensors must stay as they are until it is finished.

    This one ended when it began.
    """

    def done(self) -> bool:
        """Return whether the operation has ended, well or not, and make progress on it."""
        return True

    def rest(self, waited_seconds: float) -> None:
        """Pause before :meth:`done` is called again, after ``waited_seconds`` of waiting; never for long."""

    def finish(self) -> None:
        """Complete an operation that is done; RuntimeError if it failed."""


class Transport:
    """The ranks of a job and their connection. Every operation begins at once and never waits.

    This one is a single rank, which reaches itself only. Collective operations must be begun in the same
    order on all ranks. Tensors are contiguous; those of bytes have one dimension and dtype uint8.
    """

    name = "none"
    """Name of the library, for messages."""
    rank = 0
    """Number of this rank, from 0."""
    size = 1
    """Number of ranks."""

    def all_reduce(self, tensor: Tensor, op: Reduction) -> Pending:
        """Replace ``tensor``, of a dtype in ``REDUCED``, by its reduction, of the same bits on all ranks."""
        return Pending()

    def all_to_all(
        self, send: Tensor, send_bytes: Sequence[int], receive: Tensor, receive_bytes: Sequence[int]
    ) -> Pending:
        """Send the next ``send_bytes[r]`` bytes to each rank r, and receive ``receive_bytes[r]`` from it."""
        receive.copy_(send)
        return Pending()

    def broadcast(self, data: Tensor, root: int) -> Pending:
        """Replace the bytes ``data`` by those of rank ``root``."""
        return Pending()

    def twin(self) -> Transport:
        """Make another transport of the same ranks, whose operations have an order of their own.

        All ranks must call it together. It ends with this one.
        """
        return Transport()

    def close(self) -> None:
        """Close the transport. All ranks must have finished all operations."""

    def abort(self) -> None:
        """Close the transport after a failure, without waiting for other ranks."""


def check_contiguous(tensor: Tensor, name: str) -> None:
    """Raise ConfigError for a tensor whose memory cannot be sent as it is."""
    check_tensor(tensor, name)
    if not tensor.is_contiguous():
        raise ConfigError(
            f"{name} must be contiguous, since its memory is sent as it is; got strides {tensor.stride()} of "
            f"shape {tuple(tensor.shape)}. Call .contiguous() first."
        )


def check_sent(send: Tensor, send_rows: Sequence[int]) -> None:
    """Raise ConfigError unless the first dimension of ``send`` counts the rows that are sent."""
    check_contiguous(send, "send")
    if send.ndim == 0:
        raise ConfigError("send must have rows, at least one dimension; got a scalar.")
    if sum(send_rows) != send.shape[0]:
        raise ConfigError(
            f"send_rows must add up to the rows of send ({send.shape[0]}); {send_rows} add up to "
            f"{sum(send_rows)}."
        )


def check_received(out: Tensor, send: Tensor, num_rows: int) -> None:
    """Raise ConfigError unless ``out`` has room for ``num_rows`` rows like those of ``send``."""
    check_contiguous(out, "out")
    if out.shape != (num_rows, *send.shape[1:]) or out.dtype != send.dtype:
        raise ConfigError(
            f"out must be {send.dtype} of {[num_rows, *send.shape[1:]]}; got {out.dtype} of "
            f"{list(out.shape)}."
        )


def row_bytes(tensor: Tensor) -> int:
    """Return the bytes of a row of a tensor, which may have none."""
    return tensor.element_size() * math.prod(tensor.shape[1:])


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the memory of a contiguous tensor as ``(num_bytes,)`` uint8."""
    # Not view(-1), which keeps any stride of a single element.
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def packed(value: Any) -> Tensor:
    """Return a plain value as ``(num_bytes,)`` uint8 of JSON."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def unpacked(data: Tensor) -> Any:
    """Return the plain value of :func:`packed`."""
    return json.loads(data.numpy().tobytes())


_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
_EXCHANGE_TAGS = 1 << 15
"""Number of tags, which the exchanges take in turn."""
_SWAPPED_BYTES = 1 << 18
"""Most bytes that a rank sends for a sum without Gloo's reduction."""
_SUM_TAGS = 1 << 16
"""First tag of sums; each number of bytes has a tag of its own."""
_LEAST_PAUSE_SECONDS = 5e-5
"""A thread of Gloo makes progress. Where a rank has one core, it gets it at once only if who waits lets go of
it: else when the scheduler's slice has ended, after milliseconds."""
_LONGEST_REST_SECONDS = 0.02
"""Longest wait for a message before the watch is asked whether all ranks are alive."""


class TorchTransport(Transport):
    """The ranks of a process group, by default the default one, which closing ends if it ``owns`` it."""

    def __init__(self, group: Any = None, *, owns: bool) -> None:
        self._group, self._owns = group or dist.group.WORLD, owns
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.name = "gloo+nccl" if "nccl" in dist.get_backend_config(group) else "gloo"
        self._global_ranks = dist.get_process_group_ranks(self._group)
        self._num_exchanges = 0
        self._posted = dict[int, list[tuple[Any, Tensor]]]()
        self._twins: list[TorchTransport] = []

    def all_reduce(self, tensor: Tensor, op: Reduction) -> Pending:
        """Begin a reduction in place.

        For a small sum on the host all ranks send each other their numbers, and each adds them up in the
        order of the ranks. That is one message from rank to rank. Gloo's reduction has at least two that wait
        for each other, and each may stand behind rows of features in a link's queue.
        """
        if op == "sum" and not tensor.is_cuda and 0 < (self.size - 1) * tensor.nbytes <= _SWAPPED_BYTES:
            return self._sum(tensor)
        return _Collective(dist.all_reduce(tensor, _OPS[op], group=self._group, async_op=True))

    def _sum(self, tensor: Tensor) -> Pending:
        """Begin a small sum, and be ready for the next one of its size.

        A sender of Gloo waits for a notice that there is room. So it has come before the next sum begins.
        """
        num_bytes, given, ranks = tensor.nbytes, tensor.reshape(-1).clone(), self._global_ranks
        tag, others = _SUM_TAGS + num_bytes, [rank for rank in range(self.size) if rank != self.rank]

        def posted() -> list[tuple[Any, Tensor]]:
            rooms = [torch.empty(num_bytes, dtype=torch.uint8) for _ in others]
            received = zip(others, rooms, strict=True)
            return [(dist.irecv(room, ranks[r], group=self._group, tag=tag), room) for r, room in received]

        coming = self._posted.pop(num_bytes, None) or posted()
        self._posted[num_bytes] = posted()
        works = [work for work, _ in coming]
        data = given.view(torch.uint8)
        works += [dist.isend(data, ranks[rank], group=self._group, tag=tag) for rank in others]
        terms = [room.view(tensor.dtype) for _, room in coming]
        terms.insert(self.rank, given)

        def add() -> None:
            tensor.view(-1).copy_(sum(terms[1:], terms[0]))

        return _Messages(works, data, then=add)

    def all_to_all(
        self, send: Tensor, send_bytes: Sequence[int], receive: Tensor, receive_bytes: Sequence[int]
    ) -> Pending:
        """Begin an exchange of bytes. On the host these are messages, and all ranks receive before they send.

        A sender of Gloo waits for a notice that there is room, which comes in the stream of bytes the other
        way. Gloo's own ``alltoallv`` sends first: the rank that comes last, which knows already that
        it may, puts its bytes before its notice, so that the other sends only when all of them have
        arrived, and a link that carries both ways at a time carries one.
        """
        if send.is_cuda:
            return _Collective(
                dist.all_to_all_single(
                    receive, send, list(receive_bytes), list(send_bytes), group=self._group, async_op=True
                )
            )
        given, taken = torch.split(send, list(send_bytes)), torch.split(receive, list(receive_bytes))
        tag = self._num_exchanges % _EXCHANGE_TAGS
        self._num_exchanges += 1
        taken[self.rank].copy_(given[self.rank])
        works = []
        for begin, parts, step in ((dist.irecv, taken, -1), (dist.isend, given, 1)):
            for away in range(1, self.size):
                other = (self.rank + step * away) % self.size
                if parts[other].numel():
                    works.append(begin(parts[other], self._global_ranks[other], group=self._group, tag=tag))
        return _Messages(works, send, receive) if works else Pending()

    def broadcast(self, data: Tensor, root: int) -> Pending:
        """Begin a broadcast of bytes."""
        source = self._global_ranks[root]
        return _Collective(dist.broadcast(data, source, group=self._group, async_op=True))

    def twin(self) -> TorchTransport:
        """Make another process group of the same ranks, over Gloo alone."""
        made = TorchTransport(dist.new_group(self._global_ranks, backend="gloo"), owns=False)
        self._twins.append(made)
        return made

    def close(self) -> None:
        """End the process group, if it is ours."""
        if self._owns:
            dist.destroy_process_group()

    def abort(self) -> None:
        """End the process group, if it is ours, though operations may be under way."""
        if self._owns:
            for group in (self._group, *(twin._group for twin in self._twins)):
                # Never released: Gloo's destructor would wait for pending operations until their timeout.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
                for backend in {id(b): b for b in _backends(group)}.values():
                    backend.abort()
            dist.destroy_process_group()


def _backends(group: Any) -> list[Any]:
    return [group._get_backend(device) for device in group._device_types]


class _Collective(Pending):
    """A collective operation; torch tells when it has ended."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def done(self) -> bool:
        return bool(self._work.is_completed())

    def rest(self, waited_seconds: float) -> None:
        pause(waited_seconds, _LEAST_PAUSE_SECONDS)

    def finish(self) -> None:
        self._work.wait()


class _Messages(Pending):
    """Messages. Gloo does not tell of one that it has arrived, so a thread waits for them."""

    def __init__(self, works: Sequence[Any], *data: Tensor, then: Callable[[], None] = lambda: None) -> None:
        self._works, self._data, self._then = works, data, then  # Gloo itself does not keep the memory
        self._error: RuntimeError | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._wait, name="graphbraid-message", daemon=True).start()

    def _wait(self) -> None:
        try:
            for work in self._works:
                work.wait()
        except RuntimeError as error:
            self._error = error
        finally:
            self._ended.set()
            del self._data

    def done(self) -> bool:
        return self._ended.is_set()

    def rest(self, waited_seconds: float) -> None:
        self._ended.wait(_LONGEST_REST_SECONDS)

    def finish(self) -> None:
        if self._error is not None:
            raise self._error
        self._then()


def load_mpi() -> types.ModuleType:
    """Return ``mpi4py.MPI``, initialised, which this module finalises; MissingPackageError without it."""
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


class MpiTransport(Transport):
    """The ranks of ``comm``, which is copied; by default of all, and closing finalises MPI."""

    name = "mpi"

    def __init__(self, comm: Any = None) -> None:
        self._mpi, self._owns = load_mpi(), comm is None
        self._comm = (comm or self._mpi.COMM_WORLD).Dup()
        self._comm.Set_errhandler(self._mpi.ERRORS_RETURN)
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        self.library = self._mpi.Get_library_version().strip().splitlines()[0].split(",")[0]
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

    def twin(self) -> MpiTransport:
        """Make another communicator of the ranks; ConfigError if MPI lets only one thread in."""
        if self._mpi.Query_thread() < self._mpi.THREAD_MULTIPLE:
            raise ConfigError(
                "this MPI lets only one thread communicate, and ranks that prepare batches together have "
                "two; use an MPI with MPI_THREAD_MULTIPLE, or torchrun (--comm torch)."
            )
        return MpiTransport(self._comm)

    def close(self) -> None:
        """Finalise MPI, together with all ranks."""
        self._comm.Free()
        if self._owns:
            self._mpi.Finalize()

    def abort(self) -> None:
        """Leave MPI as it is: mpirun ends the others when this process ends without having finalised."""


class _Request(Pending):
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

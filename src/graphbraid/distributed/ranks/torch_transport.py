"""The transport of torch.distributed: Gloo for tensors on the host, NCCL for those on CUDA devices."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from graphbraid.distributed.ranks.transport import MOST_TAG, Finished, Pending, Reduction, pause

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
_EXCHANGE_TAGS = 1 << 15
"""Number of tags above those of single messages, which the exchanges take in turn."""
_LEAST_PAUSE_SECONDS = 5e-5
"""A thread of Gloo makes progress. Where a rank has one core, it gets it at once only if who waits lets go of
it: else when the scheduler's slice has ended, after milliseconds."""
_LONGEST_REST_SECONDS = 0.02
"""Longest wait for a message before the watch is asked whether all ranks are alive."""


class TorchTransport:
    """The ranks of a process group.

    Args:
        group: process group. If None, the default one.
        owns: whether closing the transport also ends the default group.
    """

    def __init__(self, group: Any = None, *, owns: bool) -> None:
        self._group, self._owns = group or dist.group.WORLD, owns
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.name = "gloo+nccl" if "nccl" in dist.get_backend_config(group) else "gloo"
        self._global_ranks = dist.get_process_group_ranks(self._group)
        self._num_exchanges = 0

    def all_reduce(self, tensor: Tensor, op: Reduction) -> Pending:
        """Begin a reduction in place."""
        return _Collective(dist.all_reduce(tensor, _OPS[op], group=self._group, async_op=True))

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
        tag = MOST_TAG + 1 + self._num_exchanges % _EXCHANGE_TAGS
        self._num_exchanges += 1
        taken[self.rank].copy_(given[self.rank])
        works = []
        for begin, parts, step in ((dist.irecv, taken, -1), (dist.isend, given, 1)):
            for away in range(1, self.size):
                other = (self.rank + step * away) % self.size
                if parts[other].numel():
                    works.append(begin(parts[other], self._global_ranks[other], group=self._group, tag=tag))
        return _Messages(works, send, receive) if works else Finished()

    def broadcast(self, data: Tensor, root: int) -> Pending:
        """Begin a broadcast of bytes."""
        source = self._global_ranks[root]
        return _Collective(dist.broadcast(data, source, group=self._group, async_op=True))

    def send(self, data: Tensor, to: int, tag: int) -> Pending:
        """Begin to send bytes."""
        return _Messages([dist.isend(data, self._global_ranks[to], group=self._group, tag=tag)], data)

    def receive(self, data: Tensor, source: int, tag: int) -> Pending:
        """Begin to receive bytes."""
        return _Messages([dist.irecv(data, self._global_ranks[source], group=self._group, tag=tag)], data)

    def close(self) -> None:
        """End the process group, if it is ours."""
        if self._owns:
            dist.destroy_process_group()

    def abort(self) -> None:
        """End the process group, if it is ours, though operations may be under way."""
        if self._owns:
            # Never released: Gloo's destructor would wait for pending operations until their long timeout.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))
            for backend in {id(b): b for b in _backends(self._group)}.values():
                backend.abort()
            dist.destroy_process_group()


def _backends(group: Any) -> list[Any]:
    return [group._get_backend(device) for device in group._device_types]


class _Collective:
    """A collective operation; torch tells when it has ended."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def done(self) -> bool:
        return bool(self._work.is_completed())

    def rest(self, waited_seconds: float) -> None:
        pause(waited_seconds, _LEAST_PAUSE_SECONDS)

    def finish(self) -> None:
        self._work.wait()


class _Messages:
    """Messages. Gloo does not tell of one that it has arrived, so a thread waits for them."""

    def __init__(self, works: Sequence[Any], *data: Tensor) -> None:
        self._works, self._data = works, data  # Gloo itself does not keep the memory
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

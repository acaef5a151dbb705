"""The transport of ranks on one machine: through memory that they share, and another one for the rest."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.distributed.ranks.mailbox import Address, Mailbox, Message, Segments, mapped
from graphbraid.distributed.ranks.transport import Pending, Reduction, Transport, as_bytes
from graphbraid.errors import ResourceError
from graphbraid.machine.shared_tensors import machine_name

_WRITTEN, _READ = range(2)
"""Kinds of messages."""
_LONGEST_REST_SECONDS = 0.02
"""Longest wait for a message before the watch is asked whether all ranks are alive."""
_KEPT_REST_SECONDS = 1e-3
"""The same while own messages wait for room in another's mailbox."""
_MOST_REDUCED_BYTES = 16 << 20
"""Most bytes that a rank reads for a reduction, each reading what all others have; more goes round the
inner's ring."""


def sharing_memory(talk: Communicator, inner: Transport, *, wants_to: bool = True) -> Transport:
    """Return a transport by which ranks share memory, if all are on one machine and want to; else ``inner``.

    Whether they can is tried, not assumed: each reads a number of every other. All ranks call it together,
    over ``inner``. RankError: a rank was lost.
    """
    mailbox = _new_mailbox(talk.rank, talk.size) if wants_to else None
    places = talk.gather([machine_name(), *(("", "") if mailbox is None else mailbox.address)])
    if any(machine != places[0][0] or not name for machine, name, _ in places):
        if mailbox is not None:
            mailbox.close()
        return inner
    assert mailbox is not None, "it has a name"
    is_connected = _is_connected(mailbox, [Address(*address) for _, *address in places])
    talk.barrier()  # all have tried
    made = MemoryTransport(inner, mailbox)
    probe, found = _probed(made) if is_connected and mailbox.accept(talk.size) else (None, torch.empty(0))
    talk.barrier()  # now all messages to this rank have arrived
    reads_all = probe is not None and probe.done() and found.tolist() == list(range(talk.size))
    if all(talk.gather(reads_all)):
        return made
    made.close_memory()
    return inner


def _probed(made: MemoryTransport) -> tuple[Pending | None, Tensor]:
    """Begin to send this rank's number to every other, and to receive theirs; None if nothing can be sent."""
    found, counts = torch.full((made.size,), -1), [8] * made.size
    own = torch.full((made.size,), made.rank)
    try:
        return made.all_to_all(as_bytes(own), counts, as_bytes(found), counts), found
    except (OSError, ResourceError):
        return None, found


def _new_mailbox(rank: int, size: int) -> Mailbox | None:
    if not hasattr(os, "memfd_create"):
        return None
    try:
        made = Mailbox(rank)
        made.open(size)
    except OSError:
        return None
    return made


def _is_connected(mailbox: Mailbox, addresses: Sequence[Address]) -> bool:
    try:
        mailbox.connect(addresses)
    except OSError:  # as from one network namespace to another
        return False
    return True


class MemoryTransport(Transport):
    """Ranks on one machine. A sender copies once into its own memory, a receiver once out of it.

    That takes fewer copies than a socket, and no further thread: a rank has written its bytes when it has
    begun an operation, and copies the bytes of others while it waits for them. Tensors on
    devices, broadcasts and large reductions go through ``inner``, a transport of the same ranks.
    """

    def __init__(self, inner: Transport, mailbox: Mailbox) -> None:
        self._inner, self._mailbox = inner, mailbox
        self.rank, self.size, self.name = inner.rank, inner.size, f"{inner.name}+memory"
        self._own, self._opened = Segments(), dict[tuple[int, int], Tensor]()
        self._arrived: dict[tuple[int, int], Message] = {}
        self._num_operations = 0

    def all_reduce(self, tensor: Tensor, op: Reduction) -> Pending:
        """Begin a reduction in place, in the order of the ranks."""
        data = as_bytes(tensor)
        if tensor.device.type != "cpu" or data.numel() * (self.size - 1) > _MOST_REDUCED_BYTES:
            return _Inner(self, self._inner.all_reduce(tensor, op))
        others = dict.fromkeys(self._others(), data.numel())
        number = self._write(data, dict.fromkeys(others, (0, data.numel())))

        def reduce(come: Mapping[int, Tensor]) -> None:
            found = {rank: data.view(tensor.dtype).view(tensor.shape) for rank, data in come.items()}
            parts = [found.get(rank, tensor) for rank in range(self.size)]
            tensor.copy_(functools.reduce(_REDUCTIONS[op], parts))

        return _Awaited(self, number, others, reduce, together=True)

    def all_to_all(
        self, send: Tensor, send_bytes: Sequence[int], receive: Tensor, receive_bytes: Sequence[int]
    ) -> Pending:
        """Begin an exchange of bytes."""
        if send.device.type != "cpu":
            return _Inner(self, self._inner.all_to_all(send, send_bytes, receive, receive_bytes))
        ends = list(itertools.accumulate(send_bytes))
        number = self._write(send, {to: (ends[to] - send_bytes[to], send_bytes[to]) for to in self._others()})
        taken = torch.split(receive, list(receive_bytes))
        taken[self.rank].copy_(send[ends[self.rank] - send_bytes[self.rank] : ends[self.rank]])

        def take(come: Mapping[int, Tensor]) -> None:
            for source, data in come.items():
                taken[source].copy_(data)

        return _Awaited(self, number, {source: receive_bytes[source] for source in self._others()}, take)

    def broadcast(self, data: Tensor, root: int) -> Pending:
        """Begin a broadcast of bytes."""
        return _Inner(self, self._inner.broadcast(data, root))

    def twin(self) -> Transport:
        """Return a twin of the other transport: messages in memory advance in the thread that waits."""
        return self._inner.twin()

    def close(self) -> None:
        """Close the transport. All ranks must have finished all operations."""
        self.close_memory()
        self._inner.close()

    def abort(self) -> None:
        """Close the transport after a failure, without waiting for other ranks."""
        self.close_memory()
        self._inner.abort()

    def close_memory(self) -> None:
        """Close the mailbox and all shared memory."""
        self._mailbox.close()
        self._own.close()
        self._opened.clear()

    # ---- messages

    def collect(self) -> None:
        """Receive messages, and send those that wait; ResourceError if shared memory cannot be opened."""
        for message, descriptor in self._mailbox.collect():
            if message.kind == _READ:
                self._own.was_read(message.segment, message.source)
                continue
            if descriptor is not None:
                self._opened[message.source, message.segment] = _opened(descriptor, message.source)
            self._arrived[message.number, message.source] = message

    def message_of(self, number: int, source: int) -> Message | None:
        """Return the message about a rank's part; None before it comes and after :meth:`let_go`."""
        return self._arrived.get((number, source))

    def memory_of(self, message: Message) -> Tensor:
        """Return the bytes that a message tells of, where they are."""
        memory = self._opened[message.source, message.segment]
        return memory[message.offset : message.offset + message.nbytes]

    def let_go(self, message: Message) -> None:
        """Tell the sender that its bytes have been read."""
        del self._arrived[message.number, message.source]
        self._mailbox.send(message.source, message._replace(source=self.rank, kind=_READ))

    def rest(self) -> None:
        """Wait for a message, for a moment."""
        self._mailbox.wait(_KEPT_REST_SECONDS if self._mailbox.has_kept else _LONGEST_REST_SECONDS)

    def _others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def _write(self, data: Tensor, parts: Mapping[int, tuple[int, int]]) -> int:
        """Write bytes into own memory and tell others of their parts; return the operation's number.

        ``parts`` are begin and bytes for each rank; one with 0 bytes is not told. ResourceError: no memory.
        """
        number, self._num_operations = self._num_operations, self._num_operations + 1
        told = {to: part for to, part in parts.items() if part[1] > 0}
        if not told:
            return number
        self.collect()  # others may have read what was written before
        segment = self._own.take(data.numel())
        segment.memory[: data.numel()].copy_(data)
        segment.readers.update(told)
        for to, (offset, nbytes) in told.items():
            is_new = to not in segment.known_to
            segment.known_to.add(to)
            message = Message(self.rank, _WRITTEN, number, segment.number, offset, nbytes)
            self._mailbox.send(to, message, segment.descriptor if is_new else None)
        return number


def _opened(descriptor: int, source: int) -> Tensor:
    try:
        return mapped(descriptor)
    except OSError as error:
        raise ResourceError(f"the memory that rank {source} shares cannot be opened: {error}") from error
    finally:
        os.close(descriptor)


_REDUCTIONS: dict[Reduction, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}


class _Awaited(Pending):
    """An operation that waits for parts of other ranks, of ``awaited`` bytes each; none has no message.

    ``take`` takes parts that have come, by rank, ``together`` or not; they are there until it returns.
    """

    def __init__(
        self,
        transport: MemoryTransport,
        number: int,
        awaited: Mapping[int, int],
        take: Callable[[Mapping[int, Tensor]], None],
        *,
        together: bool = False,
    ) -> None:
        self._transport, self._number, self._take, self._together = transport, number, take, together
        self._awaited = {source: nbytes for source, nbytes in awaited.items() if nbytes > 0}
        self._error = ""

    def done(self) -> bool:
        """Return whether the operation has ended, well or not, and make progress on it."""
        if self._error:
            return True
        self._transport.collect()
        messages = {source: self._transport.message_of(self._number, source) for source in self._awaited}
        come = {source: message for source, message in messages.items() if message is not None}
        self._error = next(filter(None, itertools.starmap(self._wrong, come.items())), "")
        if not self._error and come and not (self._together and len(come) < len(self._awaited)):
            self._take({source: self._transport.memory_of(message) for source, message in come.items()})
            for source, message in come.items():
                self._transport.let_go(message)
                del self._awaited[source]
        return bool(self._error) or not self._awaited

    def rest(self, waited_seconds: float) -> None:
        self._transport.rest()

    def finish(self) -> None:
        """Complete an operation; RuntimeError if a rank has sent other bytes than were awaited."""
        if self._error:
            raise RuntimeError(self._error)

    def _wrong(self, source: int, message: Message) -> str:
        awaited = self._awaited[source]
        if message.nbytes == awaited:
            return ""
        return (
            f"rank {source} has sent {message.nbytes} bytes where {awaited} were awaited; "
            "GRAPHBRAID_RANK_CHECKS=1 finds the operation in which ranks differ"
        )


class _Inner(Pending):
    """An operation of the inner transport. While this rank waits for it, kept messages are still sent.

    Other ranks may wait for these messages, and this rank may wait for nothing else meanwhile.
    """

    def __init__(self, transport: MemoryTransport, pending: Pending) -> None:
        self._transport, self._pending = transport, pending

    def done(self) -> bool:
        """Return whether the operation has ended, well or not, and make progress on it."""
        self._transport.collect()
        return self._pending.done()

    def rest(self, waited_seconds: float) -> None:
        self._pending.rest(waited_seconds)

    def finish(self) -> None:
        """Complete an operation that is done; RuntimeError if it failed."""
        self._pending.finish()

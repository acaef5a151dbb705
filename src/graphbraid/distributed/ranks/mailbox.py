"""Memory that ranks on one machine share, and the mailbox for messages about it."""

import contextlib
import mmap
import os
import secrets
import select
import socket
import struct
import uuid
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from graphbraid.errors import ResourceError
from graphbraid.files.writing import format_bytes

_LEAST_BYTES = 1 << 12


class Segment:
    """Memory that belongs to no file, of one rank, which others open by its descriptor; or OSError."""

    def __init__(self, number: int, nbytes: int) -> None:
        self.number = number
        """The number by which its rank calls it."""
        self.descriptor = os.memfd_create("graphbraid", os.MFD_CLOEXEC)
        """What opens it."""
        os.ftruncate(self.descriptor, nbytes)
        self.memory = mapped(self.descriptor)
        """All of it, ``(nbytes,)`` uint8."""
        self.readers: set[int] = set()
        """Ranks that have not read yet what lies in it."""
        self.known_to: set[int] = set()
        """Ranks that have its descriptor."""

    def close(self) -> None:
        """Close the descriptor. The memory is freed with its last tensor."""
        os.close(self.descriptor)


class Segments:
    """The segments of a rank. A segment is used again when all ranks have read it."""

    def __init__(self) -> None:
        self._all: list[Segment] = []

    def take(self, nbytes: int) -> Segment:
        """Return a segment of at least ``nbytes`` that nobody reads; ResourceError without memory."""
        free = [s for s in self._all if not s.readers and s.memory.numel() >= nbytes]
        if free:
            return min(free, key=lambda s: s.memory.numel())
        size = max(_LEAST_BYTES, 1 << (nbytes - 1).bit_length())  # sizes of batches differ: few segments
        try:
            self._all.append(Segment(len(self._all), size))
        except OSError as error:
            raise ResourceError(
                f"a rank has no {format_bytes(size)} of memory to share with the others on its machine: "
                f"{error}. Start the ranks with GRAPHBRAID_RANK_MEMORY=0, so that they send what they share."
            ) from error
        return self._all[-1]

    def was_read(self, number: int, reader: int) -> None:
        """Note that a rank has read what lay in a segment."""
        self._all[number].readers.discard(reader)

    def close(self) -> None:
        """Close all segments."""
        for segment in self._all:
            segment.close()
        self._all.clear()


def mapped(descriptor: int) -> Tensor:
    """Return the memory of a descriptor as ``(nbytes,)`` uint8; OSError if it cannot be mapped."""
    return torch.frombuffer(mmap.mmap(descriptor, 0), dtype=torch.uint8)


_KEY_BYTES = 16
_HELLO = struct.Struct(f"<{_KEY_BYTES}si")
_FORM = struct.Struct("<iiqqqq")


class Message(NamedTuple):
    """A message from one rank to another."""

    source: int
    """The rank that tells it."""
    kind: int
    """Kind of message; the mailbox does not read it."""
    number: int
    segment: int
    """Number of the sender's memory, or of the receiver's that it has read."""
    offset: int
    """Where in it the bytes begin."""
    nbytes: int


class Address(NamedTuple):
    """The address of a mailbox, and its key."""

    name: str
    key: str
    """Random, in hexadecimal: names of sockets can be seen by all users of a machine."""


class Mailbox:
    """The mailbox of one rank: sockets of this machine that never block; OSError where there are none.

    Messages of one sender arrive in their order. A message that a receiver has no room for is kept, and sent
    by a later :meth:`collect`. Messages to a rank that has ended are dropped: the watch reports lost ranks.
    """

    def __init__(self, rank: int) -> None:
        self._rank, self._key = rank, secrets.token_bytes(_KEY_BYTES)
        name = f"graphbraid-{uuid.uuid4().hex}"
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._door.setblocking(False)
        self._door.bind(f"\0{name}")  # a name that belongs to no file: nothing is left behind
        self.address = Address(name, self._key.hex())
        """What others connect by."""
        self._ways: dict[int, socket.socket] = {}
        self._kept: dict[int, deque[tuple[bytes, int | None]]] = defaultdict(deque)

    def open(self, size: int) -> None:
        """Let the other ones of ``size`` ranks connect."""
        self._door.listen(size)

    def connect(self, addresses: Sequence[Address]) -> None:
        """Connect to the ranks before this one, whose mailboxes are open; OSError if one is not."""
        for to, (name, key) in enumerate(addresses[: self._rank]):
            self._ways[to] = way = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            way.setblocking(False)
            way.connect(f"\0{name}")
            way.send(_HELLO.pack(bytes.fromhex(key), self._rank))

    def accept(self, size: int) -> bool:
        """Accept the ranks behind this one, which have connected; return whether all ranks are connected."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._let_in(self._door.accept()[0])
        self._door.close()
        return self._ways.keys() == set(range(size)) - {self._rank}

    def send(self, to: int, message: Message, descriptor: int | None = None) -> None:
        """Send a message, and a file descriptor with it, which must stay open until nothing is kept."""
        self._kept[to].append((_FORM.pack(*message), descriptor))
        self._send_kept(to)

    @property
    def has_kept(self) -> bool:
        """Whether there are messages that have not been sent yet."""
        return any(self._kept.values())

    def collect(self) -> list[tuple[Message, int | None]]:
        """Return the messages that have come, with their descriptors, and send those that were kept."""
        for to in self._kept:
            self._send_kept(to)
        return [found for source in list(self._ways) for found in self._come_from(source)]

    def wait(self, seconds: float) -> None:
        """Wait until a message comes, for ``seconds`` at most."""
        waiting = select.poll()  # not select(), which knows no descriptors above 1,023
        for way in self._ways.values():
            waiting.register(way, select.POLLIN)
        waiting.poll(1000 * seconds)

    def close(self) -> None:
        """Take no more messages."""
        for way in (self._door, *self._ways.values()):
            way.close()
        self._ways.clear()
        self._kept.clear()

    def _let_in(self, way: socket.socket) -> None:
        """Keep a connection that knows the key."""
        way.setblocking(False)
        try:
            key, rank = _HELLO.unpack(way.recv(_HELLO.size + 1))
        except (OSError, struct.error):
            key, rank = b"", -1
        if secrets.compare_digest(key, self._key) and rank > self._rank and rank not in self._ways:
            self._ways[rank] = way
        else:
            way.close()

    def _send_kept(self, to: int) -> None:
        kept = self._kept[to]
        while kept:
            data, descriptor = kept[0]
            try:
                socket.send_fds(self._ways[to], [data], [] if descriptor is None else [descriptor])
            except BlockingIOError:
                return
            except (ConnectionError, KeyError):  # the rank has ended
                kept.clear()
                return
            kept.popleft()

    def _come_from(self, source: int) -> list[tuple[Message, int | None]]:
        found: list[tuple[Message, int | None]] = []
        while True:
            try:
                data, descriptors, *_ = socket.recv_fds(self._ways[source], _FORM.size, 1)
            except BlockingIOError:
                return found
            except ConnectionError:
                data, descriptors = b"", []
            if not data:  # its rank has ended; the watch reports that
                self._ways.pop(source).close()
                return found
            found.append((Message(*_FORM.unpack(data)), descriptors[0] if descriptors else None))

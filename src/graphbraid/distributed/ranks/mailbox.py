"""Mailbox: where a rank is told by others on its machine what lies in memory that they share with it."""

from __future__ import annotations

import array
import contextlib
import secrets
import select
import socket
import struct
import uuid
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

_KEY_BYTES = 16
_HELLO = struct.Struct(f"<{_KEY_BYTES}si")
_FORM = struct.Struct("<iiqqqq")
_DESCRIPTOR_BYTES = array.array("i").itemsize


class Letter(NamedTuple):
    """What one rank tells another."""

    source: int
    """The rank that tells it."""
    kind: int
    """What it is about; the mailbox does not mind."""
    number: int
    """Number of the operation."""
    segment: int
    """Number of the sender's memory, or of the receiver's that it has read."""
    offset: int
    """Where in it the bytes begin."""
    nbytes: int


class Address(NamedTuple):
    """Where a mailbox is, and what lets one in."""

    name: str
    key: str
    """Random, in hexadecimal: names of sockets can be seen by all users of a machine."""


class Mailbox:
    """The mailbox of one rank: sockets of this machine, which wait neither to send nor to receive.

    Letters of one sender arrive in their order. What a receiver has no room for is kept and sent later, as
    :meth:`collect` is called; what nobody takes any more is dropped, since the watch tells of lost ranks.

    Args:
        rank: number of this rank.

    Raises:
        OSError: the system has no such sockets.
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
        """Connect to the ranks before this one, all of which are open.

        Raises:
            OSError: one is not there.
        """
        for to, (name, key) in enumerate(addresses[: self._rank]):
            self._ways[to] = way = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            way.setblocking(False)
            way.connect(f"\0{name}")
            way.send(_HELLO.pack(bytes.fromhex(key), self._rank))

    def accept(self, size: int) -> bool:
        """Let in the ranks behind this one, which have connected; return whether all ranks are there."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._let_in(self._door.accept()[0])
        self._door.close()
        return self._ways.keys() == set(range(size)) - {self._rank}

    def send(self, to: int, letter: Letter, descriptor: int | None = None) -> None:
        """Send a letter, and a file descriptor with it, which must stay open until nothing is kept."""
        self._kept[to].append((_FORM.pack(*letter), descriptor))
        self._send_kept(to)

    @property
    def has_kept(self) -> bool:
        """Whether there are letters that have not been sent yet."""
        return any(self._kept.values())

    def collect(self) -> list[tuple[Letter, int | None]]:
        """Return the letters that have come, with their descriptors, and send those that were kept."""
        for to in self._kept:
            self._send_kept(to)
        return [found for source in list(self._ways) for found in self._come_from(source)]

    def wait(self, seconds: float) -> None:
        """Wait until a letter comes, so many seconds at most."""
        waiting = select.poll()  # not select(), which knows no descriptors above 1,023
        for way in self._ways.values():
            waiting.register(way, select.POLLIN)
        waiting.poll(1000 * seconds)

    def close(self) -> None:
        """Take no more letters."""
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
            rights = [] if descriptor is None else [array.array("i", [descriptor])]
            try:
                self._ways[to].sendmsg(
                    [data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, one) for one in rights]
                )
            except BlockingIOError:
                return
            except (ConnectionError, KeyError):  # nobody is there any more
                kept.clear()
                return
            kept.popleft()

    def _come_from(self, source: int) -> list[tuple[Letter, int | None]]:
        found: list[tuple[Letter, int | None]] = []
        while True:
            try:
                data, rights, *_ = self._ways[source].recvmsg(
                    _FORM.size, socket.CMSG_SPACE(_DESCRIPTOR_BYTES)
                )
            except BlockingIOError:
                return found
            except ConnectionError:
                data, rights = b"", []
            if not data:  # its rank has ended, of which the watch tells
                self._ways.pop(source).close()
                return found
            descriptor = array.array("i", rights[0][2][:_DESCRIPTOR_BYTES])[0] if rights else None
            found.append((Letter(*_FORM.unpack(data)), descriptor))

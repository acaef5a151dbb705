"""Meeting: how ranks find each other at one address, and the store they keep there."""

from __future__ import annotations

import functools
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from graphbraid.errors import ConfigError, GraphbraidError, RankError, ResourceError

_FAULT = "fault"
_PAUSE_SECONDS = 0.05
_SLACK_SECONDS = 1.0
_TOLD_SECONDS = 5.0
"""Seconds that the rank with the store waits until the others have read why it ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """Where the ranks of a job meet."""

    host: str
    """Name or address of the machine."""
    port: int
    """Port; 0 lets the system choose, for the one who opens it."""
    rank: int
    """Number of this rank."""
    size: int
    """Number of ranks."""
    opens: bool
    """Whether this rank opens the port, as rank 0 does unless a launcher has."""
    attempt: str = "0"
    """What tells this start of the job from earlier ones at the same address, as after a restart."""
    listener: int | None = None
    """File descriptor of a socket that listens at the port already. If None, one is made."""
    seconds: float = 60.0
    """Seconds to wait for the others."""

    def store(self) -> TCPStore:
        """Open the port, or connect to it.

        Raises:
            ResourceError: the port is used by another program.
            RankError: nobody answers there, or another program does.
        """
        if not self.opens and _speaks_as_stores_do():
            self._find()
        made: queue.SimpleQueue[TCPStore | RuntimeError] = queue.SimpleQueue()
        # In a thread: what listens at the port may be no store and stay silent, and torch would wait forever.
        threading.Thread(target=self._connect, args=(made,), name="graphbraid-meeting", daemon=True).start()
        try:
            found = made.get(timeout=self.seconds + _SLACK_SECONDS)
        except queue.Empty:
            raise self._explained(RuntimeError("no answer")) from None
        if isinstance(found, RuntimeError):
            raise self._explained(found) from found
        return found

    def _find(self) -> None:
        """Wait until a store answers at the port.

        Without this, torch's client would connect again and again. It prints a stack trace each time, and
        aborts a process that ends meanwhile.
        """
        until, cause = time.monotonic() + self.seconds, ""
        while (left := until - time.monotonic()) > 0:
            try:
                if _is_store(self.host, self.port, left):
                    return
                cause = "another program answers there"
            except OSError as error:
                cause = error.strerror or str(error)
            time.sleep(_PAUSE_SECONDS)
        raise self._explained(RuntimeError(cause))

    def _connect(self, made: queue.SimpleQueue[TCPStore | RuntimeError]) -> None:
        try:
            store = TCPStore(
                self.host,
                self.port,
                is_master=self.opens,
                wait_for_workers=False,
                timeout=timedelta(seconds=self.seconds),
                multi_tenant=False,
                master_listen_fd=self.listener if self.opens else None,
            )
        except RuntimeError as error:
            made.put(error)
        else:
            made.put(store)

    def rooms(self, connect: Callable[[], TCPStore]) -> Callable[[str], Store]:
        """Return a function that gives the part of a name of the store, each by a connection of its own."""
        return lambda name: PrefixStore(f"graphbraid/{self.attempt}/{name}", connect())

    def wait_for_all(self, store: Store) -> None:
        """Wait until all ranks are here.

        Raises:
            ConfigError: ranks disagree on their number, or two have the same number.
            RankError: some have not come.
        """
        try:
            self._wait_for_all(store)
        except GraphbraidError as error:
            self._tell(store, error)
            raise
        except RuntimeError as error:
            raise self._closed() from error

    def wait_for(self, store: Store, names: Sequence[str]) -> None:
        """Wait until the store has these names.

        Raises:
            RankError: a rank does not write its own, or the store was closed.
        """
        try:
            store.wait(list(names), timedelta(seconds=self.seconds))
        except RuntimeError as error:
            raise self._closed() from error

    def _wait_for_all(self, store: Store) -> None:
        store.add("here", 1)
        if store.add(f"here/{self.rank}", 1) > 1:
            raise ConfigError(
                f"two processes say that they are rank {self.rank} at {self.host}:{self.port}; give each its "
                "own RANK, and each job its own MASTER_PORT."
            )
        store.set(f"size/{self.rank}", str(self.size))
        until, missing = time.monotonic() + self.seconds, set(range(self.size))
        while True:
            has_fault = store.check([_FAULT])  # before the sizes: a rank writes its size before a fault
            for rank in sorted(missing):
                if store.check([f"size/{rank}"]):
                    missing.remove(rank)
                    self._check_size(rank, int(store.get(f"size/{rank}")))
            if not missing:
                return
            if has_fault:
                raise RankError(f"another rank did not start: {store.get(_FAULT).decode()}")
            if time.monotonic() > until:
                names = ", ".join(map(str, sorted(missing)))
                raise RankError(
                    f"of {self.size} ranks, {names} did not come to {self.host}:{self.port} in "
                    f"{self.seconds:g} s; look at their messages."
                )
            time.sleep(_PAUSE_SECONDS)

    def _check_size(self, rank: int, size: int) -> None:
        if size != self.size:
            raise ConfigError(
                f"rank {self.rank} was started as one of {self.size} ranks, rank {rank} as one of {size}; "
                "start all with the same WORLD_SIZE."
            )

    def _tell(self, store: Store, error: GraphbraidError) -> None:
        """Tell the other ranks why this one ends; the rank with the store waits until they have left."""
        try:
            store.compare_set(_FAULT, "", str(error))
            store.add("left", 1)
            until = time.monotonic() + _TOLD_SECONDS
            while self.opens and time.monotonic() < until and store.add("left", 0) < store.add("here", 0):
                time.sleep(_PAUSE_SECONDS)
        except RuntimeError:
            return  # the store was closed, so the rank that had it has ended

    def _closed(self) -> RankError:
        return RankError(
            f"the meeting point {self.host}:{self.port} was closed before all ranks were there; "
            "look at the message of rank 0."
        )

    def _explained(self, error: RuntimeError) -> GraphbraidError:
        text = str(error)
        if "EADDRINUSE" in text or "already in use" in text:
            return ResourceError(
                f"port {self.port} is in use by another program on this machine; choose another: "
                "MASTER_PORT, or torchrun --master-port (0 takes a free one with --standalone)."
            )
        if self.opens:
            return ResourceError(f"cannot open port {self.port} of {self.host}: {text.splitlines()[0]}")
        return RankError(
            f"rank {self.rank} found nobody at {self.host}:{self.port} in {self.seconds:g} s "
            f"({text.splitlines()[0]}); rank 0 must be started there, and MASTER_ADDR and MASTER_PORT must "
            "be the same for all."
        )


@functools.cache
def _speaks_as_stores_do() -> bool:
    """Return whether :func:`_is_store` knows the protocol of this version of torch, which is not public."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    try:
        return _is_store("127.0.0.1", store.port, _SLACK_SECONDS)
    except OSError:
        return False


def _is_store(host: str, port: int, seconds: float) -> bool:
    """Return whether a store of torch answers at a port: it sends back the number of a ping.

    Raises:
        OSError: nobody answers.
    """
    number = 0x67726272
    with socket.create_connection((host, port), seconds) as connection:
        connection.sendall(struct.pack("=BIBI", 0, 0x3C85F7CE, 13, number))
        return connection.recv(4) == struct.pack("=I", number)

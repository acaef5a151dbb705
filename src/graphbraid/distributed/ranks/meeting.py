"""Meeting: how ranks find each other at one address, and the store they keep there."""

import functools
import itertools
import json
import logging
import queue
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from graphbraid.errors import ConfigError, GraphbraidError, RankError, ResourceError

_log = logging.getLogger(__name__)
_FAULT = "fault"
_SHOWN_SECONDS = 30.0
"""Seconds after which it is shown who is missing."""
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
    size: int
    opens: bool
    """Whether this rank opens the port, as rank 0 does unless a launcher has."""
    restarts: bool = False
    """Whether ranks may be started again while the store stays, as by ``torchrun --max-restarts``. All ranks
    are ended before, and none of an earlier start comes later."""
    listener: int | None = None
    """File descriptor of a socket that listens at the port already. If None, one is made."""
    seconds: float = 60.0
    """Seconds to wait for the others."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of packages, which all ranks must have alike."""

    def store(self) -> TCPStore:
        """Open the port, or connect to it; ResourceError if it is in use, RankError if no rank answers."""
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

    def meet(self, connect: Callable[[], TCPStore]) -> Callable[[str], Store]:
        """Wait until all ranks are here; return what gives a part of the store, each by its own connection.

        ConfigError: ranks disagree on their number or their versions, or two have the same number.
        RankError: some have not come.
        """
        store = PrefixStore("graphbraid", connect())
        while True:
            try:
                start = self._start(store)
                if self.wait_for_all(PrefixStore(start, store), lambda: self._is_last(store, start)):  # noqa: B023
                    return lambda name: PrefixStore(f"graphbraid/{start}/{name}", connect())
            except GraphbraidError:
                raise
            except RuntimeError as error:
                raise self._closed() from error

    def _start(self, store: Store) -> str:
        """Return the number of this start of the job, which rank 0 gives.

        The restarts that torchrun counts may differ between its machines. A number that this rank knows
        already is that of an earlier start.
        """
        if not self.restarts:
            return "0"
        if self.rank == 0:
            store.set("last", str(store.add("starts", 1)))
            return store.get("last").decode()
        until, old = time.monotonic() + self.seconds, ""
        while time.monotonic() < until:
            last = store.get("last").decode() if store.check(["last"]) else ""
            if last != old and store.add(f"joined/{last}/{self.rank}", 1) == 1:
                return last
            old = last
            time.sleep(_PAUSE_SECONDS)
        raise self._missing({0})

    def _is_last(self, store: Store, start: str) -> bool:
        return not self.restarts or store.get("last").decode() == start

    def wait_for_all(self, store: Store, is_last: Callable[[], bool] = lambda: True) -> bool:
        """Wait for all ranks; False if some started again meanwhile; errors as of :meth:`meet`."""
        try:
            return self._wait_for_all(store, is_last)
        except GraphbraidError as error:
            self._tell(store, error)
            raise

    def wait_for(self, store: Store, names: Sequence[str]) -> None:
        """Wait until the store has these names; RankError if a rank writes none, or it was closed."""
        try:
            store.wait(list(names), timedelta(seconds=self.seconds))
        except RuntimeError as error:
            raise self._closed() from error

    def _wait_for_all(self, store: Store, is_last: Callable[[], bool]) -> bool:
        store.add("here", 1)
        if store.add(f"here/{self.rank}", 1) > 1:
            raise ConfigError(
                f"two processes say that they are rank {self.rank} at {self.host}:{self.port}; give each its "
                "own RANK, and each job its own MASTER_PORT."
            )
        store.set(f"here/{self.rank}/who", json.dumps([socket.gethostname(), dict(self.versions)]))
        store.set(f"size/{self.rank}", str(self.size))
        began, missing = time.monotonic(), set(range(self.size))
        until, told_at = began + self.seconds, began + _SHOWN_SECONDS
        while True:
            has_fault = store.check([_FAULT])  # before the sizes: a rank writes its size before a fault
            for rank in sorted(missing):
                if store.check([f"size/{rank}"]):
                    missing.remove(rank)
                    self._check_size(rank, int(store.get(f"size/{rank}")))
            if not missing:
                everyone = [json.loads(store.get(f"here/{rank}/who"))[1] for rank in range(self.size)]
                check_equal(everyone, "install the same on all machines")
                return True
            if not is_last():
                return False
            if has_fault:
                raise RankError(f"another rank did not start: {store.get(_FAULT).decode()}")
            if time.monotonic() > told_at:
                told_at = float("inf")
                if self.rank == min(set(range(self.size)) - missing):  # one rank says it for all
                    _log.warning("%s", self._table(store, missing))
            if time.monotonic() > until:
                raise self._missing(missing)
            time.sleep(_PAUSE_SECONDS)

    def _table(self, store: Store, missing: set[int]) -> str:
        """Return who is missing, and where the others are."""
        places = defaultdict[str, list[int]](list)
        for rank in set(range(self.size)) - missing:
            places[json.loads(store.get(f"here/{rank}/who"))[0]].append(rank)
        width = max(map(len, ("missing", *places)))
        rows = [f"  {machine:{width}}  {in_ranges(ranks)}" for machine, ranks in sorted(places.items())]
        return "\n".join(
            [
                f"{len(missing)} of {self.size} ranks have not come to {self.host}:{self.port} in "
                f"{_SHOWN_SECONDS:g} s; they are awaited for {self.seconds:g} s:",
                f"  {'machine':{width}}  ranks",
                *rows,
                f"  {'missing':{width}}  {in_ranges(missing)}",
            ]
        )

    def _missing(self, ranks: set[int]) -> RankError:
        return RankError(
            f"of {self.size} ranks, {in_ranges(ranks)} did not come to {self.host}:{self.port} in "
            f"{self.seconds:g} s; look at their messages."
        )

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


def check_equal(everyone: Sequence[Mapping[str, Any]], advice: str) -> None:
    """Raise ConfigError for the first value that a rank has otherwise than rank 0, with ``advice``."""
    first, *others = everyone
    for rank, theirs in enumerate(others, start=1):
        for name in {**first, **theirs}:
            if first.get(name) != theirs.get(name):
                raise ConfigError(
                    f"rank 0 has {name} {first.get(name)!r}, rank {rank} has {theirs.get(name)!r}; {advice}."
                )


def in_ranges(numbers: Collection[int]) -> str:
    """Return whole numbers in a short form, as in ``0-3, 7``."""
    parts: list[str] = []
    for _, run in itertools.groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        parts.append(str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}")
    return ", ".join(parts)


@functools.cache
def _speaks_as_stores_do() -> bool:
    """Return whether :func:`_is_store` knows the protocol of this version of torch, which is not public."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    try:
        return _is_store("127.0.0.1", store.port, _SLACK_SECONDS)
    except OSError:
        return False


def _is_store(host: str, port: int, seconds: float) -> bool:
    """Return whether a torch store at a port sends a ping's number back; OSError if nobody answers."""
    number = 0x67726272
    with socket.create_connection((host, port), seconds) as connection:
        connection.sendall(struct.pack("=BIBI", 0, 0x3C85F7CE, 13, number))
        return connection.recv(4) == struct.pack("=I", number)

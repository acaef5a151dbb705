"""Meeting: how ranks find each other at one address, and the store they keep there."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from graphbraid.errors import ConfigError, GraphbraidError, RankError, ResourceError

_PAUSE_SECONDS = 0.05
_SLACK_SECONDS = 1.0


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
            RankError: nobody answers there.
        """
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
        except RankError:
            raise
        except RuntimeError as error:
            raise RankError(
                f"the meeting point {self.host}:{self.port} was closed before all ranks were there; "
                "look at the message of rank 0."
            ) from error

    def _wait_for_all(self, store: Store) -> None:
        if store.add(f"here/{self.rank}", 1) > 1:
            raise ConfigError(
                f"two processes say that they are rank {self.rank} at {self.host}:{self.port}; give each its "
                "own RANK, and each job its own MASTER_PORT."
            )
        store.set(f"size/{self.rank}", str(self.size))
        until, missing = time.monotonic() + self.seconds, set(range(self.size))
        while missing := {rank for rank in missing if not store.check([f"size/{rank}"])}:
            if time.monotonic() > until:
                names = ", ".join(map(str, sorted(missing)))
                raise RankError(
                    f"of {self.size} ranks, {names} did not come to {self.host}:{self.port} in "
                    f"{self.seconds:g} s; look at their messages."
                )
            time.sleep(_PAUSE_SECONDS)
        for rank in range(self.size):
            if (theirs := int(store.get(f"size/{rank}"))) != self.size:
                raise ConfigError(
                    f"rank {self.rank} was started as one of {self.size} ranks, rank {rank} as one of "
                    f"{theirs}; start all with the same WORLD_SIZE."
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
            f"rank {self.rank} found nobody at {self.host}:{self.port} in {self.seconds:g} s; rank 0 must be "
            "started there, and MASTER_ADDR and MASTER_PORT must be the same for all."
        )

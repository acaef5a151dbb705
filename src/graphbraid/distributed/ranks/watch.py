"""Watch: notices on every rank that another is lost, stopped or has failed, and says which and why.

A thread of each rank writes a sign of life to the meeting point (a store of torch.distributed) several times
a second, reads that of the next rank, and reads whether a fault was reported. The main thread looks at what
the thread found whenever it waits for other ranks. So it also works while all ranks compute, and a rank in
the middle of a collective operation of any library ends with the message of the one that found out.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from graphbraid.errors import RankError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

ROUND_SECONDS = 0.25
"""Seconds between two signs of life."""
_FAULT = "fault"
_LEFT = "left"
_TOLD_SECONDS = 5.0
"""Seconds that a failed rank waits for the others to have taken note."""


class NoWatch:
    """The watch of a rank that is alone."""

    def begun(self, what: str) -> None:
        """Do nothing."""

    def check(self) -> None:
        """Do nothing."""

    def knows_a_fault(self) -> bool:
        """Return False."""
        return False

    def explained(self, error: RuntimeError, what: str) -> RankError:
        """Return the error for a failed operation."""
        return RankError(f"{what} failed: {_first_line(error)}")

    def waited_too_long(self, what: str, seconds: float) -> RankError:
        """Return the error for an operation that does not end."""
        return RankError(f"{what} has not ended in {seconds:.0f} s.")

    def report(self, fault: str) -> None:
        """Do nothing."""

    def leave(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Watch:
    """The watch of one rank over the next one, and over all others by their reports.

    Nothing else uses the connection ``store``. A rank without a sign of life for ``limit_seconds`` is lost.
    """

    def __init__(self, store: Store, rank: int, size: int, *, limit_seconds: float, host: str) -> None:
        self._store, self._rank, self._size, self._limit, self._host = store, rank, size, limit_seconds, host
        self._next = (rank + 1) % size
        self._fault: str | None = None
        self._noted = False  # the main thread has raised the fault
        self._operation = "0 nothing"
        self._num_operations = 0
        self._ending = threading.Event()
        self._last_round = time.monotonic()
        self._process = _Process.here()
        store.set(f"process/{rank}", self._process.text())
        store.set(f"alive/{rank}", "0")
        if rank == 0:
            store.set(_FAULT, "")
        self._kept: object = None
        self._thread = threading.Thread(target=self._run, name="graphbraid-watch", daemon=True)

    def keep(self, opened: object) -> None:
        """Keep the meeting point open that this rank has opened, as long as the watch lives."""
        self._kept = opened

    def start(self) -> None:
        """Start watching; all ranks have made their watch."""
        self._last_round = time.monotonic()
        self._thread.start()

    # ---- the main thread

    def begun(self, what: str) -> None:
        """Note the operation that this rank has come to."""
        self._num_operations += 1
        self._operation = f"{self._num_operations} {what}"

    def knows_a_fault(self) -> bool:
        """Return whether :meth:`check` would raise."""
        return (self._fault or self._silence_of_the_host()) is not None

    def check(self) -> None:
        """Raise a fault that is known, as RankError."""
        fault = self._fault or self._silence_of_the_host()
        if fault is not None:
            self._noted = True
            raise RankError(fault)

    def explained(self, error: RuntimeError, what: str) -> RankError:
        """Return the error for a failed operation, waiting until it is known which rank is the cause."""
        until = time.monotonic() + self._limit + 4 * ROUND_SECONDS
        while time.monotonic() < until:
            try:
                self.check()
            except RankError as found:
                return found
            time.sleep(ROUND_SECONDS / 5)
        return RankError(f"{what} failed though all ranks give signs of life: {_first_line(error)}")

    def waited_too_long(self, what: str, seconds: float) -> RankError:
        """Return the error for an operation that does not end, naming the ranks that have not come to it."""
        behind = [
            f"rank {rank} ({at})" for rank, at in self._positions() if _number(at) < self._num_operations
        ]
        others = ", ".join(behind) or "no rank by its own account"
        fault = (
            f"rank {self._rank} has waited {seconds:.0f} s in {what} (its operation {self._num_operations}); "
            f"not there yet: {others}. A rank is stuck, or GRAPHBRAID_RANK_PATIENCE is shorter than a step."
        )
        self._tell(fault)
        return RankError(fault)

    def report(self, fault: str) -> None:
        """Report that this rank has failed, and wait a moment until the others have taken note."""
        if self._fault is not None or not self._thread.is_alive():
            self._noted = True
            return
        self._tell(fault)
        until = time.monotonic() + _TOLD_SECONDS
        while time.monotonic() < until and not self._all_noted():
            time.sleep(ROUND_SECONDS / 5)

    def leave(self) -> None:
        """Stop watching in an orderly end; who holds the meeting point leaves last."""
        self.close()
        self._store.set(f"alive/{self._rank}", _LEFT)
        if self._rank == 0:
            until = time.monotonic() + _TOLD_SECONDS
            while time.monotonic() < until and any(at != _LEFT for _, at in self._positions()):
                time.sleep(ROUND_SECONDS / 25)

    def close(self) -> None:
        """Stop the thread; first tell the others an error of the main thread.

        After a fault, the rank that holds the meeting point waits a moment: the others read the fault there.
        """
        if self._rank == 0 and self._fault is not None:
            until = time.monotonic() + 3 * ROUND_SECONDS  # a rank that is lost takes no note
            while time.monotonic() < until and not self._all_noted():
                time.sleep(ROUND_SECONDS / 5)
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(4 * ROUND_SECONDS)  # it may hang on a store that does not answer

    def _tell(self, fault: str) -> None:
        self._fault, self._noted = fault, True
        try:
            self._store.compare_set(_FAULT, "", fault)
        except RuntimeError:
            return  # the meeting point is gone: the others notice that

    def _all_noted(self) -> bool:
        try:
            return all(
                at == _LEFT or at.endswith(" !") for rank, at in self._positions() if rank != self._rank
            )
        except RuntimeError:
            return True

    def _positions(self) -> list[tuple[int, str]]:
        keys = [f"alive/{rank}" for rank in range(self._size)]
        values = [bytes(value).decode() for value in self._store.multi_get(keys)]
        return [
            (rank, value.partition(" ")[2] if " " in value else value) for rank, value in enumerate(values)
        ]

    def _silence_of_the_host(self) -> str | None:
        """Return a fault if the watching thread itself has waited too long for the meeting point."""
        silent = time.monotonic() - self._last_round
        if silent <= self._limit or not self._thread.is_alive():
            return None
        return (
            f"{self._host} has not answered for {silent:.0f} s: it is stopped or its machine is unreachable."
        )

    # ---- the watching thread

    def _run(self) -> None:
        rounds, seen, seen_at, other = 0, b"", time.monotonic(), None
        while True:
            last = self._ending.is_set()
            rounds += 1
            mark = " !" if self._noted else ""
            try:
                self._store.set(f"alive/{self._rank}", f"{rounds} {self._operation}{mark}")
                fault, sign = self._store.multi_get([_FAULT, f"alive/{self._next}"])
                other = other or _Process.of(self._store.get(f"process/{self._next}").decode())
            except RuntimeError as error:
                if not last:
                    self._fault = self._fault or f"{self._host} is lost: {_first_line(error)}"
                return
            self._last_round = time.monotonic()
            if last:
                return
            if bytes(fault):
                self._fault = self._fault or bytes(fault).decode()
            elif bytes(sign) != seen:
                seen, seen_at = bytes(sign), self._last_round
            elif seen != _LEFT.encode():
                self._look_at_next(other, self._last_round - seen_at)
            self._ending.wait(ROUND_SECONDS)

    def _look_at_next(self, process: _Process, silent: float) -> None:
        if silent > 2 * ROUND_SECONDS and process.has_ended(self._process):
            why = f"its process ({process.pid}) has ended without a word, as after SIGKILL or out of memory."
            self._lost(f"rank {self._next} is lost: {why}")
        elif silent > self._limit:
            self._lost(
                f"rank {self._next} has given no sign of life for {silent:.0f} s: its process "
                f"({process.pid} on {process.host}) is stopped, or its machine is unreachable."
            )

    def _lost(self, fault: str) -> None:
        self._fault = self._fault or fault
        self._store.compare_set(_FAULT, "", fault)


class _Process(NamedTuple):
    """A process, and the machine on which its number means something."""

    pid: int
    host: str
    namespace: str

    @classmethod
    def here(cls) -> _Process:
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            namespace = f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
        except OSError:
            namespace = "unknown"
        return cls(os.getpid(), socket.gethostname(), namespace)

    @classmethod
    def of(cls, text: str) -> _Process:
        pid, host, namespace = text.split(" ", 2)
        return cls(int(pid), host, namespace)

    def text(self) -> str:
        """Return a description in one line."""
        return f"{self.pid} {self.host} {self.namespace}"

    def has_ended(self, here: _Process) -> bool:
        """Return whether the process is known to have ended; one that nobody has waited for counts."""
        if self.namespace == "unknown" or self.namespace != here.namespace:
            return False
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except OSError:
            return True
        return state in ("Z", "X")


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _number(position: str) -> int:
    first = position.partition(" ")[0]
    return int(first) if first.isdigit() else 0

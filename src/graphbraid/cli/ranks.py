"""Ranks of ``graphbraid train``: which one this process is, and starting all of them on this machine.

``--ranks N`` starts N processes of the same command. The process that starts them imports no PyTorch; it
divides its cores among them, hands Ctrl-C and SIGTERM on, and ends them all when one has failed. The ranks
end, too, if it is killed. They meet at a socket that it has opened, so no port can be taken meanwhile.
"""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

from graphbraid.cli import signals
from graphbraid.errors import ConfigError, RankError
from graphbraid.machine.launcher import place

MOST_RANKS = 1024
LISTENER = "GRAPHBRAID_LISTENER"
"""Variable with the file descriptor of the socket that rank 0 takes over."""
_STARTED = "GRAPHBRAID_RANKS"
"""Variable that tells a process that it was started here."""
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 15.0
"""Seconds that the ranks get to notice by themselves that one has failed, and to say so."""
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


def world_size() -> int:
    """Return the number of ranks that a launcher has started, by its variables; 1 without one."""
    found = place()
    return 1 if found is None else found.size


def rank() -> int:
    """Return the number of this rank by the launcher's variables; 0 without one."""
    found = place()
    return 0 if found is None or found.size == 1 else found.rank


def must_start(ranks: int | None, comm: str | None = None) -> bool:
    """Return whether this process has to start the ranks that ``--ranks`` asks for."""
    if ranks is None or _STARTED in os.environ:
        return False
    if not 1 <= ranks <= MOST_RANKS:
        raise ConfigError(f"--ranks must be from 1 to {MOST_RANKS}; got {ranks}")
    if world_size() > 1:
        raise ConfigError(
            f"--ranks starts the ranks itself, but a launcher has started {world_size()}; leave --ranks out"
        )
    if ranks > 1 and comm == "mpi":
        raise ConfigError(
            "--ranks starts the ranks itself, which MPI does not know of; leave --comm mpi out, or start "
            f"them by: mpirun -n {ranks} graphbraid train --comm mpi"
        )
    return ranks > 1


def resumed_ranks() -> list[str]:
    """Return the option that starts as many ranks as ``--ranks`` started here: with others, bits differ."""
    return ["--ranks", os.environ[_STARTED]] if _STARTED in os.environ else []


def start(ranks: int, arguments: Sequence[str]) -> int:
    """Run ``graphbraid ARGUMENTS`` as ``ranks`` processes; return the exit code of the first that failed."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        errors = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(ranks)]
        job = _Job()
        stack.enter_context(job.hands_signals_on())
        for number, cores in enumerate(_divided_cores(ranks)):
            own: IO[bytes] = errors[number]
            job.add(_begin(number, ranks, cores=cores, listener=listener, arguments=arguments, errors=own))
        listener.close()
        statuses = job.wait()
        code, failed = _outcome(statuses)
        if failed is not None and not job.signals_seen:
            _tell(failed, statuses[failed], errors)
        return signals.EXIT_CODE if job.signals_seen else code


class _Job:
    """The processes of the ranks."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self.signals_seen = 0

    def add(self, process: subprocess.Popen[bytes]) -> None:
        self._processes.append(process)

    def wait(self) -> dict[int, int]:
        """Wait for all ranks; return how each has ended, in the order in which they ended.

        Ranks that do not end soon after another has failed are killed and left out: files are written whole
        or not at all, so none is damaged.
        """
        statuses: dict[int, int] = {}
        until = float("inf")
        try:
            while len(statuses) < len(self._processes) and time.monotonic() < until:
                for number, process in enumerate(self._processes):
                    if number not in statuses and (status := process.poll()) is not None:
                        statuses[number] = status
                        until = min(until, time.monotonic() + _GRACE_SECONDS) if status else until
                time.sleep(_POLL_SECONDS)
            return statuses
        finally:
            for process in self._processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()

    @contextlib.contextmanager
    def hands_signals_on(self) -> Iterator[None]:
        """Send the ranks each SIGINT and SIGTERM that this process gets; the third one kills them."""
        former = {number: signal.signal(number, self._hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _hand_on(self, *_: object) -> None:
        self.signals_seen += 1
        self._send(signal.SIGTERM if self.signals_seen < 3 else signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)


def _begin(
    number: int,
    ranks: int,
    *,
    cores: set[int] | None,
    listener: socket.socket,
    arguments: Sequence[str],
    errors: IO[bytes],
) -> subprocess.Popen[bytes]:
    """Start one rank. The first uses this process's terminal; error output of the others goes to a file."""
    host, port = listener.getsockname()[:2]
    environment = os.environ | {
        _STARTED: str(ranks),
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }
    if sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if number == 0:
        environment[LISTENER] = str(listener.fileno())
    return subprocess.Popen(
        [sys.executable, "-m", "graphbraid", *arguments],
        env=environment,
        pass_fds=(listener.fileno(),) if number == 0 else (),
        stdout=None if number == 0 else subprocess.DEVNULL,
        stderr=None if number == 0 else errors,
        start_new_session=True,  # the terminal's Ctrl-C comes to this process alone, which hands it on
        preexec_fn=_prepare(cores),  # noqa: PLW1509 (this process has one thread)
    )


def _prepare(cores: set[int] | None) -> Callable[[], None]:
    """Return a new process's first action: take its cores, and ask to be killed when this process ends."""
    prctl = None
    if sys.platform == "linux":
        import ctypes

        prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def prepare() -> None:
        if cores is not None:
            os.sched_setaffinity(0, cores)
        if prctl is not None:
            prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # it has ended meanwhile
                os._exit(1)

    return prepare


def _divided_cores(ranks: int) -> list[set[int] | None]:
    """Divide this process's cores into contiguous parts; with fewer cores than ranks, some share one."""
    if not hasattr(os, "sched_getaffinity"):
        return [None] * ranks
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < ranks:
        return [{cores[number % len(cores)]} for number in range(ranks)]
    ends = [len(cores) * number // ranks for number in range(ranks + 1)]
    return [set(cores[begin:end]) for begin, end in itertools.pairwise(ends)]


def _outcome(statuses: Mapping[int, int]) -> tuple[int, int | None]:
    """Return the job's exit code, and the rank whose failure caused it, if one did.

    Ranks that lose another rank end with RankError's code, so the cause is the first rank that failed with
    another code. A rank that a signal has ended counts as lost, unless all ranks were stopped. ``statuses``
    are in the order in which the ranks ended.
    """
    failed = [number for number, status in statuses.items() if status]
    if not failed:
        return 0, None
    cause = next((number for number in failed if statuses[number] != RankError.exit_code), failed[0])
    stopped = set(statuses.values()) == {signals.EXIT_CODE}
    lost = statuses[cause] < 0 or (statuses[cause] == signals.EXIT_CODE and not stopped)
    return (RankError.exit_code if lost else statuses[cause]), cause


def _tell(failed: int, status: int, errors: Sequence[IO[bytes]]) -> None:
    if status < 0:
        name = signal.Signals(-status).name
        advice = "; did the machine run out of memory?" if name == "SIGKILL" else ""
        sys.stderr.write(f"error: rank {failed} was ended by {name}{advice}\n")
    if failed != 0:
        errors[failed].seek(0)
        sys.stderr.write(errors[failed].read()[-20_000:].decode(errors="backslashreplace"))

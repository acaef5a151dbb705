"""Joining a job: ``init()`` makes the communicator of the ranks that a launcher has started."""

from __future__ import annotations

import importlib.util
import os
import platform
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

import torch

from graphbraid.arguments import as_count
from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.distributed.ranks.transport import Alone
from graphbraid.errors import ConfigError
from graphbraid.signatures import typed

CommName = Literal["auto", "torch", "mpi"]
LISTENER = "GRAPHBRAID_LISTENER"
"""Variable with which ``graphbraid train --ranks`` hands rank 0 a socket that listens already."""
_MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
_LATER_SECONDS = 60.0
_LOOK_SECONDS = 0.1
"""Seconds between two looks at the watch while the process group is made."""
_current: Communicator | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLimits:
    """How long ranks wait for each other, and whether they compare what they do."""

    silence_seconds: float
    """Seconds without a sign of life after which a rank counts as lost (``GRAPHBRAID_RANK_LIMIT``)."""
    patience_seconds: float
    """Longest wait for one operation while all ranks are alive (``GRAPHBRAID_RANK_PATIENCE``)."""
    meeting_seconds: float
    """Seconds to wait for all ranks at the start (``GRAPHBRAID_RANK_MEETING``)."""
    checks: bool
    """Whether ranks compare each operation before they begin it (``GRAPHBRAID_RANK_CHECKS=1``)."""
    shares_memory: bool
    """Whether ranks on one machine pass bytes through memory that they share, if all of them want to
    (``GRAPHBRAID_RANK_MEMORY=0``: not)."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> RankLimits:
        """Return the limits that environment variables give, the others being the defaults."""
        return cls(
            silence_seconds=_seconds(environment, "GRAPHBRAID_RANK_LIMIT", 20.0),
            patience_seconds=_seconds(environment, "GRAPHBRAID_RANK_PATIENCE", 1800.0),
            meeting_seconds=_seconds(environment, "GRAPHBRAID_RANK_MEETING", 60.0),
            checks=environment.get("GRAPHBRAID_RANK_CHECKS", "0") not in ("", "0"),
            shares_memory=environment.get("GRAPHBRAID_RANK_MEMORY", "1") not in ("", "0"),
        )


@typed
def init(comm: CommName = "auto") -> Communicator:
    """Join the job that this process was started in, and return its communicator; again, the same one.

    Started by ``torchrun`` or with its ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``, ranks
    talk by Gloo and, on CUDA devices, NCCL; started by ``mpirun``, by MPI; by no launcher, the process
    is the only rank. A default process group of torch.distributed that exists is used. From then on, a
    :class:`graphbraid.Trainer` trains with all ranks.

    Args:
        comm: ``torch`` or ``mpi``; ``auto`` chooses by the launcher.

    Raises:
        ConfigError: variables are missing or contradict each other, or versions differ between ranks.
        MissingPackageError: MPI is asked for and not installed.
        RankError: other ranks did not come, or were lost.
        ResourceError: the port to meet at is in use.
    """
    global _current  # noqa: PLW0603 (one process is one rank of one job)
    if _current is None:
        made = join(comm, RankLimits.of(os.environ))
        try:
            _check_versions(made)
        except BaseException as error:
            made.fail(error)
            raise
        _current = made
    return _current


def current() -> Communicator | None:
    """Return the communicator that :func:`init` made; None before."""
    return _current


def local_rank() -> int:
    """Return the number of this rank on its machine, as the launcher gives it; 0 without one."""
    names = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK")
    return next((int(os.environ[name]) for name in names if name in os.environ), 0)


def join(comm: CommName, limits: RankLimits) -> Communicator:
    """Join the job as :func:`init` does, which also compares versions and keeps the communicator."""
    launched = "WORLD_SIZE" in os.environ and "RANK" in os.environ
    size = _mpi_size()
    if comm == "mpi" or (comm == "auto" and size and not launched and (size > 1 or has_mpi())):
        return _join_mpi(limits)
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        from graphbraid.distributed.ranks.transports import TorchTransport

        return _with_own_meeting(TorchTransport(owns=False), limits)
    if not launched:
        if comm == "torch" and size > 1:
            raise ConfigError(
                "mpirun has started this process, and comm='torch' needs torchrun; give comm='mpi'."
            )
        return Communicator(Alone(), checks=limits.checks)
    return _join_torch(limits)


def _mpi_size() -> int:
    """Return the number of ranks that ``mpirun`` has started; 0 if it has not started this process."""
    return next((int(os.environ[name]) for name in _MPI_SIZES if os.environ.get(name, "").isdigit()), 0)


def has_mpi() -> bool:
    """Return whether mpi4py is installed, which the only rank of a job can do without."""
    return importlib.util.find_spec("mpi4py") is not None


def _join_torch(limits: RankLimits) -> Communicator:
    """Meet at the address of torchrun's variables, which the launcher may have opened."""
    from graphbraid.distributed.ranks.meeting import Meeting

    size = as_count(_number("WORLD_SIZE"), "WORLD_SIZE", least=1)
    rank = as_count(_number("RANK"), "RANK", most=size - 1)
    agent_opens = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    listener = os.environ.pop(LISTENER, None)
    meeting = Meeting(
        host=os.environ.get("MASTER_ADDR", "127.0.0.1"),
        port=as_count(_number("MASTER_PORT"), "MASTER_PORT", least=1, most=65535),
        rank=rank,
        size=size,
        opens=rank == 0 and not agent_opens,
        attempt=os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
        listener=None if listener is None else int(listener),
        seconds=limits.meeting_seconds,
    )
    holder = "torchrun" if agent_opens else "rank 0"
    return _met(meeting, limits, holder, transport=None)


def _join_mpi(limits: RankLimits) -> Communicator:
    from graphbraid.distributed.ranks.transports import MpiTransport

    return _with_own_meeting(MpiTransport(), limits)


def _with_own_meeting(transport: Any, limits: RankLimits) -> Communicator:
    """Open a meeting point for ranks that can already talk, so that they can watch each other."""
    from graphbraid.distributed.ranks.meeting import Meeting

    talk = Communicator(transport, checks=False, patience_seconds=limits.meeting_seconds)
    if talk.size == 1:
        return Communicator(transport, checks=limits.checks)
    meeting = Meeting(
        host="127.0.0.1" if len(set(talk.gather(socket.gethostname()))) == 1 else socket.getfqdn(),
        port=0,
        rank=talk.rank,
        size=talk.size,
        opens=talk.rank == 0,
        seconds=limits.meeting_seconds,
    )
    opened = meeting.store() if meeting.opens else None
    host, port = talk.share([meeting.host, 0 if opened is None else opened.port])
    meeting = replace(meeting, host=host, port=port)
    return _met(meeting, limits, "rank 0", transport=transport, opened=opened)


def _met(
    meeting: Any, limits: RankLimits, holder: str, *, transport: Any, opened: Any = None
) -> Communicator:
    """Wait for all ranks at the meeting point, and return their communicator."""
    from graphbraid.distributed.ranks.watch import Watch

    opened = opened or meeting.store()
    rooms = meeting.rooms(replace(meeting, opens=False).store)
    start = rooms("start")
    meeting.wait_for_all(start)
    watch = Watch(
        rooms("watch"),
        meeting.rank,
        meeting.size,
        limit_seconds=limits.silence_seconds,
        host=f"the meeting point {meeting.host}:{meeting.port}, which {holder} holds,",
    )
    watch.keep(opened)
    start.set(f"watches/{meeting.rank}", "1")
    meeting.wait_for(start, [f"watches/{rank}" for rank in range(meeting.size)])
    watch.start()
    if transport is None:
        transport = _torch_group(rooms("group"), meeting, limits, watch)
    talk = Communicator(transport, watch, patience_seconds=limits.patience_seconds)
    transport = _by_memory(talk, transport, limits)
    return Communicator(transport, watch, patience_seconds=limits.patience_seconds, checks=limits.checks)


def _torch_group(store: Any, meeting: Any, limits: RankLimits, watch: Any) -> Any:
    """Make the process group, and stop waiting for it when a rank is lost.

    Gloo connects all ranks to each other and waits for a lost one until its timeout. So a thread makes the
    group, while this one looks at the watch.

    Raises:
        RankError: a rank was lost, or the group could not be made.
    """
    import torch.distributed as dist

    from graphbraid.distributed.ranks.transports import TorchTransport

    backend = "gloo"
    if torch.cuda.is_available() and dist.is_nccl_available():
        torch.cuda.set_device(local_rank() % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    is_made, errors = threading.Event(), list[RuntimeError]()

    def make() -> None:
        try:
            dist.init_process_group(
                backend,
                store=store,
                rank=meeting.rank,
                world_size=meeting.size,
                # Later than the communicator's patience, which can say what rank it waited for.
                timeout=timedelta(seconds=limits.patience_seconds + _LATER_SECONDS),
            )
        except RuntimeError as error:
            errors.append(error)
        finally:
            is_made.set()

    threading.Thread(target=make, name="graphbraid-group", daemon=True).start()
    while not is_made.wait(_LOOK_SECONDS):
        watch.check()
    if errors:
        raise watch.explained(errors[0], "init_process_group") from errors[0]
    return TorchTransport(owns=True)


def _by_memory(talk: Communicator, transport: Any, limits: RankLimits) -> Any:
    """Return the transport with memory that ranks of one machine share; MPI has its own."""
    from graphbraid.distributed.ranks.memory_transport import sharing_memory

    if transport.name == "mpi" or transport.size == 1:
        return transport
    return sharing_memory(talk, transport, wants_to=limits.shares_memory)


def _check_versions(comm: Communicator) -> None:
    import graphbraid

    mine = {
        "graphbraid": graphbraid.__version__,
        "torch": torch.__version__,
        "Python": ".".join(platform.python_version_tuple()[:2]),
    }
    check_alike(comm, mine, "install the same on all machines")


def check_alike(comm: Communicator, mine: Mapping[str, Any], advice: str) -> None:
    """Check on every rank that all have the same values under the same names.

    Args:
        comm: the ranks.
        mine: plain values of this rank.
        advice: what to do if they differ, without a full stop.

    Raises:
        ConfigError: a value differs; the message names the first, and the rank that differs from rank 0.
    """
    first, *others = comm.gather(dict(mine))
    for rank, theirs in enumerate(others, start=1):
        for name in {**first, **theirs}:
            if first.get(name) != theirs.get(name):
                raise ConfigError(
                    f"rank 0 has {name} {first.get(name)!r}, rank {rank} has {theirs.get(name)!r}; {advice}."
                )


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e7:
        raise ConfigError(f"{name} must be a number of seconds above 0; got {text!r}.")
    return seconds


def _number(name: str) -> int:
    text = os.environ.get(name)
    if text is None:
        raise ConfigError(
            f"RANK and WORLD_SIZE are set, but {name} is not; start with torchrun, or set it too."
        )
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} must be a whole number; got {text!r}.") from None

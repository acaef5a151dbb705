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
from graphbraid.errors import ConfigError
from graphbraid.machine.launcher import RankPlace, address, interface_to, place
from graphbraid.machine.shared_tensors import machine_name
from graphbraid.signatures import typed

CommName = Literal["auto", "torch", "mpi"]
LISTENER = "GRAPHBRAID_LISTENER"
"""Variable with which ``graphbraid train --ranks`` hands rank 0 a socket that listens already."""
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

    Started by ``torchrun`` or with its ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``, or by
    ``srun``, ranks talk by Gloo and, on CUDA devices, NCCL; started by ``mpirun``, by MPI, or by Gloo where
    mpi4py is not installed; by no launcher, the process is the only rank. A default process group of
    torch.distributed that exists is used, as Ray Train makes one. From then on, a
    :class:`graphbraid.Trainer` trains with all ranks.

    Args:
        comm: ``torch`` or ``mpi``; ``auto`` chooses by the launcher.

    Raises:
        ConfigError: variables are missing or contradict each other, versions differ between ranks, or the
            launcher is of another MPI than mpi4py.
        MissingPackageError: MPI is asked for and not installed.
        RankError: other ranks did not come, or were lost.
        ResourceError: the port to meet at is in use.
    """
    global _current  # noqa: PLW0603 (one process is one rank of one job)
    if _current is None:
        _current = join(comm, RankLimits.of(os.environ))
    return _current


def current() -> Communicator | None:
    """Return the communicator that :func:`init` made; None before."""
    return _current


def join(comm: CommName, limits: RankLimits) -> Communicator:
    """Join the job as :func:`init` does, which also keeps the communicator."""
    import torch.distributed as dist

    found = place()
    if comm != "mpi" and dist.is_available() and dist.is_initialized():
        from graphbraid.distributed.ranks.transport import TorchTransport

        return _with_own_meeting(TorchTransport(owns=False), limits)
    if comm == "mpi" or (comm == "auto" and found is not None and found.is_of_mpi and has_mpi()):
        return _join_mpi(found, limits)
    if found is None or (found.size == 1 and found.launcher != "torchrun"):
        return Communicator(checks=limits.checks)
    return _join_torch(found, limits)


def has_mpi() -> bool:
    """Return whether mpi4py is installed, without which ranks of ``mpirun`` talk by Gloo."""
    return importlib.util.find_spec("mpi4py") is not None


def _join_torch(found: RankPlace, limits: RankLimits) -> Communicator:
    """Meet at the address that the launcher's variables give, which the launcher may have opened."""
    from graphbraid.distributed.ranks.meeting import Meeting

    size = as_count(found.size, "WORLD_SIZE", least=1)
    rank = as_count(found.rank, "RANK", most=size - 1)
    host, port = address(found)
    agent_opens = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    listener = os.environ.pop(LISTENER, None)
    meeting = Meeting(
        host=host,
        port=as_count(port, "MASTER_PORT", least=1, most=65535),
        rank=rank,
        size=size,
        opens=rank == 0 and not agent_opens,
        restarts=agent_opens and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0",
        listener=None if listener is None else int(listener),
        seconds=limits.meeting_seconds,
        versions=_versions(),
    )
    holder = "torchrun" if agent_opens else "rank 0"
    return _met(meeting, limits, holder, transport=None)


def _join_mpi(found: RankPlace | None, limits: RankLimits) -> Communicator:
    from graphbraid.distributed.ranks.transport import MpiTransport

    transport = MpiTransport()
    if found is not None and found.size != transport.size:  # else each would train alone, into one folder
        raise ConfigError(
            f"{found.launcher} has started {found.size} ranks, and mpi4py's library ({transport.library}) "
            f"finds {transport.size}. Start them by the mpirun of that library, or let MPI4PY_MPIABI name "
            "the library of the launcher."
        )
    return _with_own_meeting(transport, limits)


def _with_own_meeting(transport: Any, limits: RankLimits) -> Communicator:
    """Open a meeting point for ranks that can already talk, so that they can watch each other."""
    from graphbraid.distributed.ranks.meeting import Meeting

    talk = Communicator(transport, checks=False, patience_seconds=limits.meeting_seconds)
    if talk.size == 1:
        return Communicator(transport, checks=limits.checks)
    name_for_others = os.environ.get("MASTER_ADDR") or socket.getfqdn()
    meeting = Meeting(
        host="127.0.0.1" if len(set(talk.gather(machine_name()))) == 1 else name_for_others,
        port=0,
        rank=talk.rank,
        size=talk.size,
        opens=talk.rank == 0,
        seconds=limits.meeting_seconds,
        versions=_versions(),
    )
    opened = meeting.store() if meeting.opens else None
    host, port = talk.share([meeting.host, 0 if opened is None else opened.port])
    meeting = replace(meeting, host=host, port=port)
    return _met(meeting, limits, "rank 0", transport=transport, opened=opened)


def _met(
    meeting: Any, limits: RankLimits, holder: str, *, transport: Any, opened: Any = None
) -> Communicator:
    """Wait for all ranks at the meeting point, and return their communicator."""
    from graphbraid.distributed.ranks.memory_transport import sharing_memory
    from graphbraid.distributed.ranks.watch import Watch

    opened = opened or meeting.store()
    rooms = meeting.meet(replace(meeting, opens=False).store)
    watches = rooms("watches")
    watch = Watch(
        rooms("watch"),
        meeting.rank,
        meeting.size,
        limit_seconds=limits.silence_seconds,
        host=f"the meeting point {meeting.host}:{meeting.port}, which {holder} holds,",
    )
    watch.keep(opened)
    watches.set(f"{meeting.rank}", "1")
    meeting.wait_for(watches, [f"{rank}" for rank in range(meeting.size)])
    watch.start()
    if transport is None:
        transport = _torch_group(rooms("group"), meeting, limits, watch)
    talk = Communicator(transport, watch, patience_seconds=limits.patience_seconds)
    if transport.name != "mpi" and transport.size > 1:  # MPI has its own shared memory
        transport = sharing_memory(talk, transport, wants_to=limits.shares_memory)
    return Communicator(transport, watch, patience_seconds=limits.patience_seconds, checks=limits.checks)


def _torch_group(store: Any, meeting: Any, limits: RankLimits, watch: Any) -> Any:
    """Make the process group, and stop waiting for it when a rank is lost.

    Gloo connects all ranks to each other and waits for a lost one until its timeout. So a thread makes the
    group, while this one looks at the watch.

    Raises:
        RankError: a rank was lost, or the group could not be made.
    """
    import torch.distributed as dist

    from graphbraid.distributed.ranks.transport import TorchTransport

    backend = "gloo"
    if torch.cuda.is_available() and dist.is_nccl_available():
        here = place()
        torch.cuda.set_device((0 if here is None else here.local_rank) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    if "GLOO_SOCKET_IFNAME" not in os.environ and (name := interface_to(meeting.host, meeting.port)):
        os.environ["GLOO_SOCKET_IFNAME"] = name
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


def _versions() -> dict[str, str]:
    import graphbraid

    return {
        "graphbraid": graphbraid.__version__,
        "torch": torch.__version__,
        "Python": ".".join(platform.python_version_tuple()[:2]),
    }


def check_alike(comm: Communicator, mine: Mapping[str, Any], advice: str) -> None:
    """Check on every rank that all have the same plain values under the same names.

    ConfigError names the first value that differs, and the rank that differs from rank 0, and gives
    ``advice``.
    """
    from graphbraid.distributed.ranks.meeting import check_equal

    check_equal(comm.gather(dict(mine)), advice)


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

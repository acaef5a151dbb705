"""The launcher: torchrun, Kubernetes, ``mpirun`` or ``srun`` give a process its rank by variables."""

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from graphbraid.errors import ConfigError

_VARIABLES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "mpirun of Open MPI": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "mpirun of MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "mpirun of MVAPICH": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "-"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "-"),
}
"""Variables of each launcher, the first found wins: rank, ranks, rank on its machine, ranks on the machine.
Those of ``srun`` come last: ``mpirun`` hands the variables of the step that it was started in to its ranks.
``SLURM_NTASKS`` is also set in a batch script, which is one process."""
_PORT = 29500
_PORTS = 10_000
"""Jobs of Slurm use one of this many ports above ``_PORT``, as other users' jobs may run beside them."""


class RankPlace(NamedTuple):
    """A process's place in its job."""

    launcher: str
    rank: int
    size: int
    local_rank: int
    """Number of the rank on its machine; 0 where the launcher does not say it."""
    is_on_one_machine: bool
    """Whether the launcher says that all ranks are on this machine."""

    @property
    def is_of_mpi(self) -> bool:
        """Whether ranks may talk by MPI."""
        return self.launcher.startswith("mpirun")


def place(environment: Mapping[str, str] | None = None) -> RankPlace | None:
    """Return the place that a launcher gave this process; None if no launcher has started it.

    Raises:
        ConfigError: a variable is no whole number.
    """
    known = os.environ if environment is None else environment
    for launcher, (rank, size, *local) in _VARIABLES.items():
        if rank in known and size in known:
            here, beside = (_number(known, name) if name in known else 0 for name in local)
            count = _number(known, size)
            return RankPlace(launcher, _number(known, rank), count, here, beside == count)
    return None


def address(found: RankPlace, environment: Mapping[str, str] | None = None) -> tuple[str, int]:
    """Return name and port at which the ranks of a job meet: on the machine of rank 0."""
    known = os.environ if environment is None else environment
    nodes, job = known.get("SLURM_STEP_NODELIST", ""), known.get("SLURM_JOB_ID", "")
    is_of_slurm = found.launcher == "srun"
    port = _PORT + int(job) % _PORTS if is_of_slurm and job.isdigit() else _PORT
    if found.launcher == "torchrun" or "MASTER_PORT" in known:
        port = _number(known, "MASTER_PORT")
    if "MASTER_ADDR" in known:
        return known["MASTER_ADDR"], port
    if is_of_slurm and nodes:
        return first_node(nodes), port
    if found.is_on_one_machine or found.launcher == "torchrun":
        return "127.0.0.1", port
    raise ConfigError(
        f"{found.launcher} has started this process, and no variable says on which machine rank 0 is. Set "
        "MASTER_ADDR to its name for all ranks: mpirun -x MASTER_ADDR=NAME, or -genv MASTER_ADDR NAME."
    )


def first_node(nodes: str) -> str:
    """Return the first name of Slurm's short form of names, as in ``gpu[003-006,9],login``."""
    found = re.match(r"([^\[,]+)(?:\[([0-9]+)[^\]]*\]([^,\[]*))?", nodes)
    if found is None:
        raise ConfigError(f"SLURM_STEP_NODELIST must begin with the name of a machine; got {nodes!r}.")
    return "".join(part or "" for part in found.groups())


def interface_to(host: str, port: int) -> str | None:
    """Return the name of the network interface by which this machine reaches a host; None if unknown.

    By default Gloo uses the address of this machine's own name. Many systems give 127.0.1.1 for it, which
    other machines cannot reach.
    """
    try:
        import fcntl

        family, kind, *_, reached = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(reached)  # of a datagram's socket: sends nothing
            own = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                try:
                    asked = name.encode()[:15].ljust(256, b"\0")
                    given = fcntl.ioctl(probe, 0x8915, asked)  # SIOCGIFADDR of Linux
                except OSError:
                    continue  # it has no address of this family
                if socket.inet_ntoa(given[20:24]) == own:
                    return name
    except (ImportError, OSError):
        pass
    return None


def restartable_job() -> str:
    """Return an identity of this job; empty if no launcher starts its ranks again.

    It is that of ``torchrun --rdzv-id``, else the process of ``torchrun`` on this machine.
    """
    if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0":
        return ""
    named = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if named != "none":
        return named
    parent = os.getppid()
    try:
        started = Path(f"/proc/{parent}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:
        return ""
    return f"{socket.gethostname()}/{parent}/{started}"


def _number(known: Mapping[str, str], name: str) -> int:
    text = known.get(name)
    if text is None:
        raise ConfigError(
            f"RANK and WORLD_SIZE are set, but {name} is not; start with torchrun, or set it too."
        )
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} must be a whole number; got {text!r}.") from None

"""Python programs as processes of their own that need not import torch again, which outlasts most of them."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.extras import PATIENCE

ROOT = Path(__file__).parents[1]
ADDRESS = "GRAPHBRAID_WARM_PROCESSES"
"""Variable with the path of the server's socket, for all processes of a test run."""
PYTHON = "GRAPHBRAID_WARM_PYTHON"
"""Variable with what programs of the warm processes are to take for Python."""


class WarmServer:
    """Runs tests/warm_server.py, which imports nothing before the first test asks for a process.

    Args:
        at_once: whether it imports now, while tests are collected, instead.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self._folder = tempfile.mkdtemp(prefix="warm-")
        os.environ[ADDRESS] = str(Path(self._folder) / "socket")
        paths = (os.environ.get("PYTHONPATH"), str(ROOT), str(ROOT / "src"))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.environ[ADDRESS])
            listener.listen()
            command = [sys.executable, str(ROOT / "tests" / "warm_server.py"), str(listener.fileno())]
            self._process = subprocess.Popen(
                [*command, *(["at-once"] if at_once else [])],
                stdin=subprocess.PIPE,  # which ends with this process, however that ends
                stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            )

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=PATIENCE)
        shutil.rmtree(self._folder)


class WarmProcesses:
    """Starts programs by forking from the server's process for this one.

    Not for a test of what happens while Python starts and imports, or lets go of its modules at its end, nor
    of variables that a library reads when it is loaded, as OpenMP does.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._started_seconds = folder, folder / "seconds"
        self._connection: socket.socket | None = None
        self._received, self._pid, self._seconds = b"", 0, 0.0
        self._seconds_read = 0.0

    def run(
        self,
        arguments: Sequence[object],
        *,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        timeout: float = 2 * PATIENCE,
    ) -> subprocess.CompletedProcess[str]:
        """Do as ``subprocess.run([sys.executable, *arguments], capture_output=True, text=True)`` does."""
        texts = [str(argument) for argument in arguments]
        if "LD_PRELOAD" in os.environ:  # a sanitizer, which does not follow threads begun after a fork
            return subprocess.run(
                [sys.executable, *texts],
                cwd=cwd,
                env=environment,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        connection = self._connected()
        streams = {name: str(self._folder / name) for name in ("stdout", "stderr")}
        where = {"cwd": str(cwd or Path.cwd()), "environment": dict(environment or os.environ)}
        connection.sendall(json.dumps({"arguments": texts, **where, **streams}).encode() + b"\n")
        process = self._answer(timeout)
        try:
            status = self._answer(timeout)
        except subprocess.TimeoutExpired:
            os.kill(process, signal.SIGKILL)
            self._answer(timeout)
            raise
        out, err = (Path(path).read_text() for path in streams.values())
        return subprocess.CompletedProcess(texts, os.waitstatus_to_exitcode(status), out, err)

    def python(self) -> str:
        """A program that stands for Python: it has a warm process run its arguments, and ends as that does.

        Signals but SIGINT and SIGTERM reach the program alone. When it is killed, the process is, too.
        """
        program = self._folder / "python"
        stand_in = shlex.join([sys.executable, "-IS", str(ROOT / "tests" / "warm_python.py")])
        program.write_text(f'#!/bin/sh\nexec {stand_in} {shlex.quote(str(self._started_seconds))} "$@"\n')
        program.chmod(0o755)
        return str(program)

    def close(self) -> None:
        """Let go of the server."""
        if self._connection is not None:
            self._seconds = self._own_seconds()
            self._connection.close()
            self._connection = None

    def processor_seconds(self) -> float:
        """Processor seconds of the programs that have ended, as Linux knows them; 0 elsewhere."""
        return self._own_seconds() + self._seconds_of_started()

    def _seconds_of_started(self) -> float:
        """Processor seconds of the processes that programs have started by :meth:`python`."""
        with contextlib.suppress(OSError):  # none was started, or this process is nobody meanwhile
            self._seconds_read = sum(map(float, self._started_seconds.read_text().split()))
        return self._seconds_read

    def _own_seconds(self) -> float:
        if self._connection is None:
            return self._seconds
        try:
            fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            return 0.0
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def _connected(self) -> socket.socket:
        if self._connection is None:
            self._connection = socket.socket(socket.AF_UNIX)
            self._connection.connect(os.environ[ADDRESS])
            self._pid = self._answer(2 * PATIENCE)
        return self._connection

    def _answer(self, timeout: float) -> int:
        assert self._connection is not None
        self._connection.settimeout(timeout)
        while b"\n" not in self._received:
            try:
                more = self._connection.recv(4096)
            except TimeoutError as error:
                raise subprocess.TimeoutExpired("a warm process", timeout) from error
            assert more, "the server of warm processes has ended"
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        return int(line)


def processes_in(folder: Path) -> list[int]:
    """Living processes that work in a folder, as a command that was started there and those it started do."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if link.readlink() == folder:
                found.append(int(link.parent.name))
    return found

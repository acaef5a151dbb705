"""Runs Python programs in processes forked from one that has imported what they all import.

Takes connections on the socket whose descriptor is its argument, until standard input ends, and serves each
by a process of its own, which first says its number. It imports when the first one comes, or before, if a
second argument says ``at-once``. The process of a connection reads requests, one JSON object a line:
``arguments`` (as of ``python``: a file, ``-m`` and a module, or ``-c`` and code, and what follows), ``cwd``,
``environment``, and the files ``stdout`` and ``stderr``, in whose place descriptors of three streams, of a
network namespace and of the socket that the environment names may come with the line; where it has ``cores``,
it runs on them, and where it has ``seconds``, processor seconds are added to that file.
It answers with two lines: the process's number when it has begun, its wait status when it has ended. What it
runs is killed when the connection ends before. tests/warm.py and tests/warm_python.py are the other side.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

# Imports alone: no kernel may run and no variable of the environment be read before the fork.
COMMON = (
    "torch",
    "torch._dynamo",  # what the first optimizer imports
    "torchmetrics",
    "torch_geometric.nn",
    "torch_geometric.loader",
    "graphbraid.cli.main",
    "graphbraid.datasets",
    "graphbraid.fullgraph",
    "graphbraid.train",
    "hypothesis",  # what modules of tests import, of which ranks run functions
    "pytest",
)

PASSED = ("GRAPHBRAID_LISTENER", "PMI_FD")
"""Variables that name a socket to hand on; of ranks of one job there is one or the other."""


def main() -> None:
    """Serve until standard input ends; in a forked process, serve a connection or run what was asked for."""
    listener, imported = socket.socket(fileno=int(sys.argv[1])), "at-once" in sys.argv[2:]
    if imported:
        _import_common()
    while listener in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        _let_go_of_ended()
        if not imported:
            _import_common()
            imported = True
        if os.fork() == 0:
            listener.close()
            _serve(connection)
            return
        connection.close()


def _import_common() -> None:
    for name in COMMON:
        try:
            importlib.import_module(name)
        except ImportError:  # an optional package
            continue
    # As in tests/conftest.py: else each process measures anew what others that tests run beside it disturb.
    importlib.import_module("graphbraid.machine.measurements").MOST_OTHERS = 1.0  # type: ignore[attr-defined]
    # What each process that trains would work out by itself.
    importlib.import_module("graphbraid.train").TrainConfig()
    gc.freeze()  # else each process looks through all of that for garbage, at its end above all


def _let_go_of_ended() -> None:
    """Take note of the processes of connections that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _serve(connection: socket.socket) -> None:
    connection.sendall(b"%d\n" % os.getpid())
    for request, given in _requests(connection):
        child = os.fork()
        if child == 0:
            connection.close()
            _become(request, given)
            _run_to_the_end(request["arguments"])
            return
        for descriptor in given:
            os.close(descriptor)
        _answer(connection, child)
        status, seconds = _ended(child, connection)
        if file := request.get("seconds"):
            with open(file, "a") as times:  # noqa: PTH123
                times.write(f"{seconds}\n")
        _answer(connection, status)


def _answer(connection: socket.socket, number: int) -> None:
    """Say a number; who asked may have been killed, after which :func:`_ended` ends what was begun for it."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(b"%d\n" % number)


def _requests(connection: socket.socket) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """Each request, with the standard streams and the network that came with it."""
    received, given = b"", list[int]()
    while True:
        more, passed, *_ = socket.recv_fds(connection, 1 << 16, 4 + len(PASSED))
        if not more:
            return
        received, given = received + more, given + passed
        if received.endswith(b"\n"):
            yield json.loads(received), given
            received, given = b"", []


def _ended(child: int, connection: socket.socket) -> tuple[int, float]:
    """Wait for a process; return its wait status and its processor seconds."""
    if hasattr(os, "pidfd_open"):
        end = os.pidfd_open(child)
        if end not in select.select([end, connection], [], [])[0]:
            os.kill(child, signal.SIGKILL)  # nobody waits for it any more
        os.close(end)
    _, status, usage = os.wait4(child, 0)
    return status, usage.ru_utime + usage.ru_stime


def _become(request: dict[str, Any], given: list[int]) -> None:
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.executable = os.environ.get("GRAPHBRAID_WARM_PYTHON", sys.executable)
    if cores := request.get("cores"):
        os.sched_setaffinity(0, cores)
    if given:
        *streams, network = given[:4]
        _enter(network)
        for name, passed in zip([name for name in PASSED if name in os.environ], given[4:], strict=True):
            _move(passed, int(os.environ[name]), streams)
    else:
        names = (os.devnull, request["stdout"], request["stderr"])
        streams = [os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for name in names]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    _open_streams()


def _open_streams() -> None:
    """Open the standard streams as Python does: whether one can be sought in is asked once."""
    encoding = sys.stdout.encoding
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1 if os.isatty(1) else -1, encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding=encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def _move(descriptor: int, number: int, others: list[int]) -> None:
    """Give a descriptor the number that a program knows it by; another one that has it gets a new one."""
    if descriptor == number:
        return
    others[:] = [os.dup(other) if other == number else other for other in others]
    os.dup2(descriptor, number)
    os.close(descriptor)


def _enter(network: int) -> None:
    """Go into a network namespace, which takes rights where it is another one."""
    if os.fstat(network).st_ino != os.stat("/proc/self/ns/net").st_ino:  # noqa: PTH116
        system = ctypes.CDLL(None, use_errno=True)
        if system.setns(network, 0):
            raise OSError(ctypes.get_errno(), "no way into another network")
    os.close(network)


def _run_to_the_end(arguments: list[str]) -> None:
    """Run a program and end this process as Python does, but let go of no module.

    To free each object of thousands of modules takes half a second. What the program itself has made is let
    go of: its threads and exit handlers end, and its objects are gone by then or found by the collector.
    """
    code: object = None
    try:
        _run(arguments)
    except SystemExit as end:
        code = end.code
        if not isinstance(code, int | None):
            raise
    if "mpi4py" in sys.modules:  # which lets go of MPI as the very last thing that Python does
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # a reader that has gone: Python finds it again, says so and ends with a code of its own
        sys.exit(code)
    os._exit(0 if code is None else int(code) & 0xFF)


def _run(arguments: list[str]) -> None:
    kind = arguments[0]
    if kind in ("-m", "-c"):
        sys.argv, sys.path[0] = [kind, *arguments[2:]], ""
    else:
        sys.argv, sys.path[0] = arguments, os.path.dirname(os.path.abspath(kind))  # noqa: PTH100, PTH120
    if kind == "-m":
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    main()

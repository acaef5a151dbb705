"""Runs Python programs in processes forked from one that has imported what they all import.

Takes connections on the socket whose descriptor is its argument, until standard input ends, and serves each
by a process of its own, which first says its number. It imports when the first one comes, or before, if a
second argument says ``at-once``. The process of a connection reads requests, one JSON object a line:
``arguments`` (as of ``python``: a file, ``-m`` and a module, or ``-c`` and code, and what follows), ``cwd``,
``environment``, and the files ``stdout`` and ``stderr``. It answers with two lines: the process's number when
it has begun, its wait status when it has ended. tests/warm.py is the other side.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import socket
import sys
from typing import Any

# Imports alone: no kernel may run and no variable of the environment be read before the fork.
COMMON = (
    "torch",
    "torch._dynamo",  # what the first optimizer imports
    "lightning_fabric",
    "torchmetrics",
    "torch_geometric.nn",
    "torch_geometric.loader",
    "graphbraid.cli.main",
    "graphbraid.datasets",
    "graphbraid.fullgraph",
    "graphbraid.train",
)


def main() -> None:
    """Serve until standard input ends; in a forked process, serve a connection or run what was asked for."""
    listener, imported = socket.socket(fileno=int(sys.argv[1])), "at-once" in sys.argv[2:]
    if imported:
        _import_common()
    while listener in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
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
    gc.freeze()  # else each process looks through all of that for garbage, at its end above all


def _serve(connection: socket.socket) -> None:
    requests = connection.makefile()
    connection.sendall(b"%d\n" % os.getpid())
    for line in requests:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            requests.close()
            connection.close()
            _become(request)
            _run(request["arguments"])
            return
        connection.sendall(b"%d\n" % child)
        connection.sendall(b"%d\n" % os.waitpid(child, 0)[1])


def _become(request: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    for stream, name in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, stream)
        os.close(file)


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

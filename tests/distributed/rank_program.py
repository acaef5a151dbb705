"""Runs a function on ranks: ``python rank_program.py SIZE MODULE FUNCTION [ARGUMENT ...]``.

With SIZE 0 this process is a rank that a launcher has started. Else it forks SIZE ranks, which saves each
the seconds of importing torch, and prints a JSON list of ``[exit code, stdout, stderr, seconds]``.

The function is called as ``function(comm, *arguments)``; what it returns is printed as one line of JSON. An
error of graphbraid ends the rank with its exit code and its message on standard error, as in the command
line.
"""

import faulthandler
import gc
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed
from tests.extras import PATIENCE

import graphbraid
from graphbraid import distributed
from graphbraid.distributed.ranks import joining
from graphbraid.distributed.ranks.joining import LISTENER
from graphbraid.errors import GraphbraidError


def rank(module: str, function: str, *arguments: str) -> int:
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(0.75 * PATIENCE, exit=True)  # before who waits for it gives up
    if pretended := os.environ.get("PRETENDED_VERSION"):
        graphbraid.__version__ = pretended
    if "LOST_AT_GROUP" in os.environ:
        torch.distributed.init_process_group = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    if "GIVEN_GROUP" in os.environ:
        os.environ.pop(LISTENER, None)
        place = [os.environ.pop(name) for name in ("RANK", "WORLD_SIZE")]
        meeting = f"file://{os.environ['GIVEN_FOLDER']}/group"
        torch.distributed.init_process_group(
            "gloo", init_method=meeting, rank=int(place[0]), world_size=int(place[1])
        )
    called = getattr(importlib.import_module(module), function)
    code = 0
    try:
        with distributed.init() as comm:
            result = called(comm, *arguments)
    except GraphbraidError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        code = error.exit_code
    comm = joining._current = None
    gc.collect()  # as the end of a process does: what is under way must not hold it up
    if code:
        return code
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def fork_ranks(size: int, arguments: list[str]) -> list[tuple[int, str, str, float]]:
    each = json.loads(os.environ.pop("EACH_RANK", "{}"))
    listener = socket.create_server(("127.0.0.1", 0))
    os.environ |= {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
    os.environ.setdefault("MASTER_PORT", str(listener.getsockname()[1]))
    torch.set_num_threads(1)
    importlib.import_module(arguments[0])  # once for all of them
    with tempfile.TemporaryDirectory() as folder:
        started, pids = time.monotonic(), {}
        os.environ["GIVEN_FOLDER"] = folder
        for number in range(size):
            pid = os.fork()
            if pid == 0:
                os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number)} | each.get(str(number), {})
                if number == 0 and os.environ["MASTER_PORT"] == str(listener.getsockname()[1]):
                    os.environ[LISTENER] = str(listener.fileno())
                _in_fork(number, folder, arguments)
            pids[pid] = number
        listener.close()
        said = [(0, "", "", 0.0)] * size
        stopped = "STOPPED" in os.environ  # the last rank does not end by itself, or not soon
        for _ in range(size - stopped):
            pid, status = os.wait()
            number = pids.pop(pid)
            texts = [(Path(folder) / f"{number}.{name}").read_text() for name in ("out", "err")]
            code = os.waitstatus_to_exitcode(status)
            said[number] = (code, texts[0], texts[1], time.monotonic() - started)
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    return said


def _in_fork(number: int, folder: str, arguments: list[str]) -> None:
    for name, descriptor in (("out", 1), ("err", 2)):
        file = os.open(f"{folder}/{number}.{name}", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, descriptor)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    code = 1
    try:
        code = rank(*arguments)
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    count, *rest = sys.argv[1:]
    if count == "0":
        sys.exit(rank(*rest))
    sys.stdout.write(json.dumps(fork_ranks(int(count), rest)) + "\n")

"""Python programs in processes that are forked from one which has imported what most programs import."""

import atexit
import contextlib
import functools
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from unittest import mock

from tests.extras import PATIENCE

ROOT = Path(__file__).parents[1]
_STARTING = threading.Lock()


def run(
    arguments: Sequence[object],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float = 2 * PATIENCE,
) -> subprocess.CompletedProcess[str]:
    """Do as ``subprocess.run([sys.executable, *arguments], capture_output=True, text=True)`` does.

    Not for a test of what happens while Python starts and imports, nor of variables that a library reads when
    it is loaded, as OpenMP does.
    """
    texts, folder = [str(argument) for argument in arguments], str(cwd or Path.cwd())
    given = dict(os.environ if environment is None else environment)
    if "LD_PRELOAD" in os.environ:  # a sanitizer, which does not follow threads begun after a fork
        command = [sys.executable, *texts]
        return subprocess.run(
            command, cwd=folder, env=given, capture_output=True, text=True, timeout=timeout, check=False
        )
    with tempfile.TemporaryDirectory(prefix="warm-") as place:
        streams = [f"{place}/stdout", f"{place}/stderr"]
        with _STARTING:  # of two threads that run programs one starts the server
            server = _server()
        process = server.Process(target=_program, args=(texts, folder, given, streams))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(texts, timeout)
        out, err = (Path(stream).read_text(encoding="utf-8") for stream in streams)
    return subprocess.CompletedProcess(texts, process.exitcode, out, err)


@functools.cache
def _server() -> ForkServerContext:
    """Start the process that is forked, which imports tests/warm_imports.py."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.warm_imports"])
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with mock.patch.dict(os.environ, PYTHONPATH=paths):  # a test may have left the repository's folder
        forkserver.ensure_running()
    return context


def _program(arguments: list[str], cwd: str, environment: dict[str, str], streams: list[str]) -> None:
    """Run a program in this process, which has just been forked."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for number, stream in enumerate(streams, start=1):
        file = os.open(stream, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    kind, name = arguments[0], arguments[1] if len(arguments) > 1 else ""
    try:
        if kind == "-m":
            sys.argv, sys.path[0] = [kind, *arguments[2:]], ""
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        elif kind == "-c":
            sys.argv, sys.path[0] = [kind, *arguments[2:]], ""
            exec(compile(name, "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv, sys.path[0] = arguments, str(Path(kind).resolve().parent)
            runpy.run_path(kind, run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out


def processes_in(folder: Path) -> list[int]:
    """Return the living processes that work in a folder, as a command that was started there does."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if link.readlink() == folder:
                found.append(int(link.parent.name))
    return found

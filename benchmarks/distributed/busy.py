"""Cores kept busy: other processes that train the same, each on its own core, while one is measured.

    python -m benchmarks.distributed.busy CORE NODES BLOCKS VISIBLE

is one of these processes, which trains a planted graph; other benchmarks have their own. It ends when its
input does, and so with the process that started it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import torch

from benchmarks.common.contenders import ROOT, ours
from benchmarks.distributed.planted import planted
from benchmarks.distributed.training import Training


@contextlib.contextmanager
def others_busy(num_cores: int, module: str, *arguments: str) -> Iterator[None]:
    """Keep this process on one core, and each other one of so many busy with a benchmark's module.

    It is called with the core before its arguments, and says a line when it has begun.
    """
    given = os.sched_getaffinity(0)
    first, *others = sorted(given)[:num_cores]
    processes = [_started(core, module, arguments) for core in others]
    try:
        for process in processes:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise SystemExit("a process that was to keep a core busy has ended")
        os.sched_setaffinity(0, {first})
        yield
    finally:
        os.sched_setaffinity(0, given)
        for process in processes:
            process.kill()
            process.communicate()


def _started(core: int, module: str, arguments: tuple[str, ...]) -> subprocess.Popen[str]:
    command = ours(module, str(core), *arguments)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, cwd=ROOT, text=True)


def main() -> None:
    """Train until the input ends, as it does when the process that started this one does."""
    core, num_nodes, num_blocks, visible = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    torch.set_num_threads(1)
    training = Training(planted(int(num_nodes), int(num_blocks), float(visible)), None)
    busy_until_end(training.epoch)


def busy_until_end(run: Callable[[], object]) -> None:
    """Call something again and again until the input ends; says so after the first time."""
    run()
    print("busy", flush=True)
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    while not ended.is_set():
        run()


if __name__ == "__main__":
    main()

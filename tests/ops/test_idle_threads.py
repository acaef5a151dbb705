"""Threads that wait for work sleep, also where torch was imported and used first (decision 0009)."""

import json
import os
import sys

import pytest
from tests.extras import once_undisturbed, ran

from graphbraid import native

# A worker that sleeps after each region gives its core up that often; one that spins until the next does not.
PROGRAM = """
import json, os, time
from pathlib import Path
import torch

def others():
    return {int(p) for p in os.listdir("/proc/self/task")} - {os.getpid()}

def naps(thread):
    status = Path(f"/proc/self/task/{thread}/status").read_text()
    return int(status.split("\\nvoluntary_ctxt_switches:")[1].split()[0])

torch.set_num_threads(2)
before = others()
x = torch.zeros(1 << 17)
x.add_(1)
workers = others() - before
from graphbraid import native
native.kernels()
started = {thread: naps(thread) for thread in workers}
for _ in range(300):
    x.add_(1)
    until = time.perf_counter() + 2e-4
    while time.perf_counter() < until:
        pass
print(json.dumps([naps(thread) - started[thread] for thread in workers]))
"""

WITH_OPENMP = native.kernels() is not None and native.kernels().let_idle_threads_sleep()
"""Not so in the thread sanitizer's build, which has plain threads."""


def naps_of_workers(**variables: str) -> list[int]:
    """How often each of torch's workers slept during 300 regions with short pauses between them."""
    unset = dict.fromkeys(native.WAIT_VARIABLES, "")
    environment = {k: v for k, v in {**os.environ, **unset, **variables}.items() if v}
    done = ran([sys.executable, "-c", PROGRAM], env=environment)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.slow
@pytest.mark.skipif(
    not WITH_OPENMP, reason="it is the kernels that do it, where they are compiled with OpenMP"
)
def test_workers_that_torch_started_first_sleep_between_regions():
    def sleep():
        (naps,) = naps_of_workers()
        assert naps > 100

    once_undisturbed(sleep)


@pytest.mark.slow
def test_a_user_who_says_how_threads_wait_is_heard():
    def spin():
        (naps,) = naps_of_workers(GOMP_SPINCOUNT="100000000")
        assert naps < 100

    once_undisturbed(spin)

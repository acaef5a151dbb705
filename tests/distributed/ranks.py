"""Starts the ranks of a test as real processes and collects what they say."""

import functools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from benchmarks.synth.program import OPEN_MPI
from tests import warm
from tests.extras import PATIENCE, ran

PROGRAM = Path(__file__).with_name("rank_program.py")
ROOT = Path(__file__).parents[2]
NO_MPI = "needs MPI: pip install 'graphbraid[mpi]'"


@dataclass(frozen=True)
class Said:
    """What one rank has said, and how and when it ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float = 0.0

    @property
    def result(self) -> Any:
        assert self.code == 0, self.stderr
        return json.loads(self.stdout.splitlines()[-1])


def environment(**variables: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path}
    return os.environ | own | OPEN_MPI | variables


def assert_learned_alike(found, alone, *, rel: float = 1e-5) -> None:
    """Losses, weights and scores of a run on several ranks are those of one rank, up to rounding."""
    assert len(found["losses"]) == len(alone["losses"])
    assert found["losses"] == pytest.approx(alone["losses"], rel=rel)
    assert found["weights"] == pytest.approx(alone["weights"], rel=10 * rel, abs=1e-5)
    for ours, theirs in zip(found["history"], alone["history"], strict=True):
        assert ours[:2] == pytest.approx(theirs[:2], rel=1e-4)
        assert ours[2] == pytest.approx(theirs[2], abs=0.011)  # two of 200 nodes may be near a border
    assert found["test"] == pytest.approx(alone["test"], rel=1e-3, abs=0.011)


def run(
    size: int,
    function: Any,
    *arguments: object,
    each: Mapping[int, Mapping[str, str]] | None = None,
    **variables: str,
) -> list[Said]:
    """Run ``function(comm, *arguments)`` on ``size`` ranks over Gloo.

    Args:
        size: number of ranks.
        function: a function of a module that can be imported.
        arguments: texts.
        each: further variables by rank.
        variables: variables of all ranks.
    """
    own = environment(EACH_RANK=json.dumps(each or {}), **variables)
    called = (function.__module__, function.__name__, *arguments)
    done = warm.run([PROGRAM, size, *called], environment=own)
    assert done.returncode == 0, done.stderr
    return [Said(*said) for said in json.loads(done.stdout)]


@functools.cache
def mpi_launcher() -> str:
    """Return the ``mpiexec`` whose ranks find each other by mpi4py; skips the test where there is none.

    mpi4py loads one of the MPI libraries that are installed. Ranks of another one's launcher are alone.
    """
    pytest.importorskip("mpi4py", reason=NO_MPI)
    meets = "import sys; from mpi4py import MPI; sys.exit(MPI.COMM_WORLD.size != 2)"
    found = (
        shutil.which("mpiexec", path=path)
        for path in (sysconfig.get_path("scripts"), *os.environ["PATH"].split(os.pathsep))
    )
    for launcher in dict.fromkeys(filter(None, found)):
        command = [launcher, "-n", "2", sys.executable, "-W", "ignore", "-c", meets]
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE, env=environment(), check=False)
        if done.returncode == 0:
            return launcher
    pytest.skip(NO_MPI)


def run_mpi(size: int, function: Any, *arguments: object, **variables: str) -> Said:
    """Run the same over MPI; the ranks' output is one text. Skips the test where there is no MPI."""
    called = (PROGRAM, 0, function.__module__, function.__name__, *arguments)
    command = [mpi_launcher(), "-n", str(size), sys.executable, *map(str, called)]
    done = ran(command, env=environment(**variables))
    return Said(done.returncode, done.stdout, done.stderr)

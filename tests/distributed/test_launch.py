"""``graphbraid train --ranks N`` starts ranks, which end with it however that ends."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from tests import warm
from tests.extras import PATIENCE
from typer.testing import CliRunner

from graphbraid.cli import ranks
from graphbraid.cli.main import app

pytestmark = pytest.mark.distributed


@pytest.fixture
def data(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    np.savez(
        tmp_path / "data.npz",
        edge_index=random.integers(0, 600, (2, 3000)),
        num_nodes=np.int64(600),
        x=random.normal(size=(600, 8)).astype(np.float32),
        y=random.integers(0, 3, 600),
        train_idx=np.arange(400),
        val_idx=np.arange(400, 600),
    )
    return tmp_path / "data.npz"


def called(data: Path, *arguments: object) -> list[str]:
    """How Python is called to train."""
    common = (
        *("-m", "graphbraid", "train"),
        "--data",
        data,
        "--hidden",
        8,
        "--batch-size",
        50,
        "--layout",
        "blocks",
        "--dropout",
        0,
    )
    return list(map(str, (*common, *arguments)))


def start(data: Path, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *called(data, *arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=data.parent,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _, rest = stat.read_text().partition(" (")
        except OSError:  # it ended meanwhile
            continue
        fields = rest.rpartition(") ")[2].split()
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(pid))
    return found


def ranks_of(folder: Path) -> dict[int, int]:
    """The processes of the ranks that train into a folder, by rank."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
            if str(folder) not in words:
                continue
            variables = (process / "environ").read_bytes().decode().split("\0")
        except OSError:  # it ended meanwhile
            continue
        found |= {int(v[5:]): int(process.name) for v in variables if v.startswith("RANK=")}
    return found


def steps_done(folder: Path) -> int:
    file = folder / "steps.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def train_losses(folder: Path) -> list[float]:
    with (folder / "metrics.csv").open() as file:
        return [float(row["train_loss"]) for row in csv.DictReader(file)]


def wait_for_steps(process: subprocess.Popen[str], folder: Path) -> None:
    until = time.monotonic() + PATIENCE
    while steps_done(folder) < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:  # where nobody waits for orphans, one that has ended stays as a zombie
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def are_gone(pids: Iterable[int]) -> bool:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if not any(map(is_alive, pids)):
            return True
        time.sleep(0.05)
    return False


STAND_IN = """#!/bin/sh
echo "$LOCAL_RANK of $WORLD_SIZE at $MASTER_ADDR, ${GRAPHBRAID_LISTENER:+listening, }$*" >"${0%/*}/rank-$RANK"
echo "out of $RANK"
echo "error of $RANK" >&2
test "$RANK" != 1 || exit 3
"""
"""What stands for the Python of the ranks: it says what it was told, and rank 1 fails."""
START = """
import sys
from graphbraid.cli import ranks

sys.executable = sys.argv[1]
sys.exit(ranks.start(3, sys.argv[2:]))
"""


def test_ranks_are_told_who_they_are_and_the_first_that_fails_counts(tmp_path):
    stand_in = tmp_path / "python"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    command = [sys.executable, "-c", START, stand_in, "train", "--epochs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    said = [(tmp_path / f"rank-{number}").read_text() for number in range(3)]
    assert said == [
        "0 of 3 at 127.0.0.1, listening, -m graphbraid train --epochs 2\n",
        "1 of 3 at 127.0.0.1, -m graphbraid train --epochs 2\n",
        "2 of 3 at 127.0.0.1, -m graphbraid train --epochs 2\n",
    ]
    assert done.returncode == 3
    assert done.stdout == "out of 0\n"  # only rank 0 shows anything
    assert done.stderr == "error of 0\nerror of 1\n"  # and why the first failed


@pytest.mark.slow
def test_two_ranks_give_one_result_and_learn_what_one_does(data):
    both = start(data, "--epochs", 2, "--json", "--out", data.parent / "two", "--ranks", 2)
    words = called(data, "--epochs", 2, "--json", "--out", data.parent / "one")
    alone = warm.run(words, cwd=data.parent)
    out, err = both.communicate(timeout=PATIENCE)
    assert (alone.returncode, both.returncode) == (0, 0), (alone.stderr, err)
    one, two = map(json.loads, (alone.stdout, out))
    assert set(two) == set(one)
    assert train_losses(data.parent / "two") == pytest.approx(train_losses(data.parent / "one"), rel=1e-5)
    assert err.count("\n") == alone.stderr.count("\n")  # only rank 0 shows anything


@pytest.mark.slow
def test_sigterm_saves_and_ends_all_ranks(data):
    out = data.parent / "run"
    process = start(data, "--epochs", 100_000, "--ranks", 2, "--out", out)
    wait_for_steps(process, out)
    started = ranks_of(out)
    assert sorted(started) == [0, 1]
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, stderr
    assert "go on with: graphbraid train --resume --ranks 2 --out " in stderr
    assert (out / "checkpoints" / "last.pt").exists()
    assert are_gone(started.values())


WAITS = """#!/bin/sh
touch "${0%/*}/rank-$RANK"
exec sleep 1000
"""


def test_ranks_end_with_the_process_that_started_them(tmp_path):
    """What they ask of the system when they are started: they need do nothing by themselves."""
    stand_in = tmp_path / "python"
    stand_in.write_text(WAITS)
    stand_in.chmod(0o755)
    process = subprocess.Popen([sys.executable, "-c", START, stand_in, "train"])
    until = time.monotonic() + PATIENCE
    while len(started := children(process.pid)) < 3 or len([*tmp_path.glob("rank-*")]) < 3:
        assert time.monotonic() < until
        time.sleep(0.02)
    process.kill()
    assert process.wait(PATIENCE) == -signal.SIGKILL
    assert are_gone(started)


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_and_is_named(data):
    out = data.parent / "run"
    process = start(data, "--epochs", 100_000, "--ranks", 3, "--out", out)
    wait_for_steps(process, out)
    started = ranks_of(out)
    assert sorted(started) == [0, 1, 2]
    os.kill(started[2], signal.SIGKILL)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 8, stderr
    assert "error: rank 2 was ended by SIGKILL" in stderr
    assert "rank 2 is lost: its process" in stderr  # as rank 0 says
    assert are_gone(started.values())


@pytest.mark.parametrize(
    ("arguments", "variables", "says"),
    [
        (("--ranks", "0"), {}, "--ranks must be from 1 to 1024; got 0"),
        (("--ranks", "2"), {"WORLD_SIZE": "4", "RANK": "0"}, "a launcher has started 4; leave --ranks out"),
        (("--ranks", "2", "--comm", "mpi"), {}, "start them by: mpirun -n 2 graphbraid train --comm mpi"),
        (("--comm", "nccl"), {}, "--comm must be one of 'auto', 'torch', 'mpi'; got 'nccl'"),
    ],
)
def test_options_that_cannot_be_are_refused(arguments, variables, says, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, ["train", *arguments])
    assert result.exit_code == 2
    assert says in result.stderr


@pytest.mark.parametrize(
    ("statuses", "outcome"),
    [
        ({1: 0, 0: 0}, (0, None)),
        ({0: 8, 1: 3}, (3, 1)),  # rank 0 was told of rank 1's failure, and was faster to end
        ({0: 8, 2: -9, 1: 8}, (8, 2)),
        ({0: -11, 1: 8}, (8, 0)),
        ({1: 130, 0: 8}, (8, 1)),  # somebody has stopped one rank before it could tell the others
        ({1: 130, 0: 130}, (130, 1)),  # all have agreed to stop
        ({0: 8}, (8, 0)),  # the other does not end
    ],
)
def test_a_rank_that_a_signal_ends_is_a_lost_rank(statuses, outcome):
    assert ranks._outcome(statuses) == outcome


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_cores_are_divided(count, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 6, 7, 9}, raising=False)
    parts = ranks._divided_cores(count)
    assert sorted(core for part in parts for core in part) == [2, 3, 6, 7, 9]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert ranks._divided_cores(7)[5:] == [{2}, {3}]

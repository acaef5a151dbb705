"""Stopping ``graphbraid train`` from outside: an exit code, whole files, nothing left, a run that goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.extras import PATIENCE
from tests.warm import processes_in
from typer.testing import CliRunner

from graphbraid.cli.main import app

Start = Callable[..., subprocess.Popen[str]]
NUM_STEPS = 400  # of an epoch


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Enough training nodes for an epoch of many small steps."""
    random = np.random.default_rng(0)
    np.savez(
        tmp_path / "data.npz",
        edge_index=random.integers(0, 6000, (2, 30_000)),
        num_nodes=np.int64(6000),
        x=random.normal(size=(6000, 8)).astype(np.float32),
        y=random.integers(0, 3, 6000),
        train_idx=np.arange(8 * NUM_STEPS),
    )
    return tmp_path / "data.npz"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the command in the test's folder; what still runs at the end of the test is killed."""
    started: list[subprocess.Popen[str]] = []
    yield lambda *arguments: started.append(process_of(tmp_path, *arguments)) or started[-1]
    for process in started:
        process.kill()
        process.communicate()


def process_of(folder: Path, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "graphbraid", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=folder,
        start_new_session=True,
    )


def steps_of(run: Path) -> list[int]:
    return [json.loads(line)["global_step"] for line in (run / "steps.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_signal_in_the_middle_of_an_epoch_leaves_a_whole_run_that_goes_on(number, data, tmp_path, start):
    run = tmp_path / "a run"
    options = ("--fanouts", "5,5", "--hidden", 8, "--batch-size", 8, "--workers", 2, "--threads", 1)
    process = start("train", "--data", data, "--out", run, "--epochs", 50, *options)
    steps, deadline = run / "steps.jsonl", time.monotonic() + PATIENCE
    while not (steps.exists() and steps.read_text().count("\n") >= 5):
        assert time.monotonic() < deadline, "training did not start"
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    if Path("/proc").is_dir():
        assert processes_in(tmp_path)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert "Traceback" not in out + err
    assert f"go on with: graphbraid train --resume --out '{run}'" in err
    if Path("/proc").is_dir():
        assert processes_in(tmp_path) == []
    done = steps_of(run)
    assert len(done) >= 5
    assert len(done) % NUM_STEPS, "the signal did not come in the middle of an epoch"
    epochs = 1 + len(done) // NUM_STEPS
    assert {path.name for path in run.rglob("*") if path.is_file()} == {
        ".lock",
        "config.json",
        "environment.json",
        "last.pt",
        "metrics.csv",
        "result.json",
        "steps.jsonl",
    }
    assert json.loads((run / "result.json").read_text())["status"] == "interrupted"
    resumed = CliRunner().invoke(
        app, ["train", "--resume", "--out", str(run), "--epochs", str(epochs), "--quiet", "--json"]
    )
    assert resumed.exit_code == 0, resumed.stdout + resumed.stderr
    assert json.loads(resumed.stdout)["result"]["status"] == "finished"
    assert steps_of(run) == list(range(epochs * NUM_STEPS))  # each step once, none left out


def takes_signals(pid: int) -> bool:
    """Whether the process has a handler for SIGTERM, as Python itself has none."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    "number",
    [
        1,
        *(pytest.param(number, marks=pytest.mark.slow) for number in (0, 2, 3)),
        *(pytest.param(number, marks=pytest.mark.long) for number in range(4, 8)),
    ],
)
def test_sigterm_ends_a_command_at_any_instant(number, data, tmp_path, start):
    """Also while it imports, reads and plans: 130, no traceback, no half-written file."""
    out = tmp_path / "out"
    commands = [
        ("train", "--data", data, "--out", out, "--epochs", 1, "--plan", "auto", "--json"),
        ("convert", data, out),
        ("doctor", "--json"),
        ("reorder", "--data", data, "--by", "degree", "--out", out),
    ]
    random = np.random.default_rng(number)
    process = start(*commands[number % len(commands)])
    while not takes_signals(process.pid):
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)  # the cores are the command's
    time.sleep(random.uniform(0.0, 3.0 if number < 3 else 0.5))
    process.send_signal(signal.SIGTERM)
    printed, err = process.communicate(timeout=PATIENCE)
    assert process.returncode in (0, 130), (process.returncode, printed, err)
    assert "Traceback" not in printed + err
    assert "Exception ignored" not in err
    if process.returncode == 130 and "--json" in process.args:
        told = json.loads(printed)
        assert "error" not in told or told["error"]["exit_code"] == 130
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")]


@pytest.mark.slow
def test_ctrl_c_before_the_training_starts_leaves_nothing(tmp_path, start):
    run = tmp_path / "run"
    process = start("train", "--data", "braid-10k", "--out", run, "--json")
    while not takes_signals(process.pid):
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert json.loads(out)["error"]["message"] == "interrupted"
    assert "Traceback" not in err  # where the signal comes late, the table of options stands there
    assert not run.exists()

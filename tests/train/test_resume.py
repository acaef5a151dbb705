"""A run that is killed, interrupted or out of disk goes on as if nothing had happened."""

import csv
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests import warm
from tests.extras import PATIENCE, ran
from tests.train.communities import Sage, community_graph, new_model

from graphbraid.errors import ResourceError
from graphbraid.train import Callback, Trainer
from graphbraid.train.run_folder import folder

SCRIPT = Path(__file__).parent / "resume_script.py"
STEPS_PER_EPOCH, EPOCHS = 7, 4


def start(*options: str) -> subprocess.Popen[str]:
    source = str(Path(__file__).parents[2] / "src")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))}
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


Run = Callable[..., int]
"""Trains into a folder in a process of its own; 0, or minus the signal that ended it."""


@pytest.fixture(scope="module")
def run() -> Run:
    def train(out_dir: Path, *options: str) -> int:
        done = warm.run([SCRIPT, out_dir, *options])
        assert done.returncode in (0, -signal.SIGKILL), done.stdout + done.stderr
        return done.returncode

    return train


@pytest.fixture(scope="module")
def uninterrupted(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out_dir = tmp_path_factory.mktemp("uninterrupted")
    assert run(out_dir) == 0
    assert len(steps_of(out_dir).splitlines()) == STEPS_PER_EPOCH * EPOCHS
    return out_dir


def steps_of(out_dir: Path) -> bytes:
    return (out_dir / "steps.jsonl").read_bytes()


def epochs_of(out_dir: Path) -> list[list[str]]:
    columns = ("epoch", "global_step", "train_loss", "val_loss", "val_accuracy", "is_best")
    with (out_dir / "metrics.csv").open() as file:
        return [[row[name] for name in columns] for row in csv.DictReader(file)]


def assert_same_run(out_dir: Path, other: Path) -> None:
    """Every step's line has the same bytes (losses to the last bit), and the weights are equal."""
    assert steps_of(out_dir) == steps_of(other)
    assert epochs_of(out_dir) == epochs_of(other)
    for name in ("last.pt", "best.pt"):
        left, right = (torch.load(folder / "checkpoints" / name) for folder in (out_dir, other))
        for key, value in left["model"].items():
            assert torch.equal(value, right["model"][key]), (name, key)


@pytest.mark.slow
# 10: in the middle of an epoch, past a checkpoint; 2: before the first; 13: an epoch's last step
@pytest.mark.parametrize("step", [10, *(pytest.param(step, marks=pytest.mark.slow) for step in (2, 13))])
def test_killed_run_resumes_to_the_bit(step, run, uninterrupted, tmp_path):
    assert run(tmp_path, "--kill-at", str(step)) == -signal.SIGKILL
    assert len((tmp_path / "steps.jsonl").read_text().splitlines()) == step + 1
    assert run(tmp_path, "--resume") == 0
    assert_same_run(tmp_path, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("step", [10, pytest.param(15, marks=pytest.mark.long)])
def test_a_run_with_a_plan_killed_on_the_emulated_device_resumes_to_the_bit(
    step, run, uninterrupted, tmp_path
):
    out_dir = tmp_path / "run"
    assert run(out_dir, "--braided", "--kill-at", str(step)) == -signal.SIGKILL
    assert len((out_dir / "steps.jsonl").read_text().splitlines()) == step + 1
    assert torch.load(out_dir / "checkpoints" / "last.pt")["progress"]["global_step"] < step + 1
    assert run(out_dir, "--braided", "--resume") == 0
    assert_same_run(out_dir, uninterrupted)


# The 1st write is the run's start, the 4th an epoch's best.pt, the 5th its last.pt, the 6th in mid-epoch.
@pytest.mark.parametrize(
    ("write", "fraction"),
    [
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((4, 0.5), (5, 0.5), (6, 0.0), (6, 1.0))),
        pytest.param(6, 0.9, marks=pytest.mark.long),
    ],
)
def test_run_killed_while_writing_a_checkpoint_resumes_to_the_bit(
    write, fraction, run, uninterrupted, tmp_path
):
    options = ("--kill-in-write", str(write), "--fraction", str(fraction))
    assert run(tmp_path, *options) == -signal.SIGKILL
    remains = list((tmp_path / "checkpoints").glob(".*.tmp"))
    assert len(remains) == 1  # the kill did come in the middle
    torch.load(tmp_path / "checkpoints" / "last.pt")
    assert run(tmp_path, "--resume") == 0
    assert_same_run(tmp_path, uninterrupted)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["best.pt", "last.pt"]


@pytest.mark.slow
def test_run_killed_twice_and_then_finished_resumes_to_the_bit(run, uninterrupted, tmp_path):
    assert run(tmp_path, "--kill-at", "4") == -signal.SIGKILL
    assert run(tmp_path, "--resume", "--kill-at", "17") == -signal.SIGKILL
    assert run(tmp_path, "--resume") == 0
    assert_same_run(tmp_path, uninterrupted)
    assert run(tmp_path, "--resume") == 0  # a finished run has nothing left to do
    assert_same_run(tmp_path, uninterrupted)


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_the_run_goes_on(run, uninterrupted, tmp_path):
    process = start(str(tmp_path), "--slow")
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output) == (0, "interrupted\n")
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "interrupted"
    done = len((tmp_path / "steps.jsonl").read_text().splitlines())
    assert torch.load(tmp_path / "checkpoints" / "last.pt")["progress"]["global_step"] == done
    assert not list(tmp_path.rglob("*.tmp"))
    assert run(tmp_path, "--resume") == 0
    assert_same_run(tmp_path, uninterrupted)


@pytest.mark.slow
def test_native_attention_model_resumes_to_the_bit(run, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(whole, "--native") == 0
    assert run(killed, "--native", "--kill-at", "11") == -signal.SIGKILL
    assert run(killed, "--native", "--resume") == 0
    assert_same_run(killed, whole)


class SignalAt(Callback):
    def __init__(self, step: int, times: int = 1) -> None:
        self.step, self.times = step, times

    def on_step_end(self, trainer: Trainer, record: object) -> None:
        if record.global_step == self.step:  # type: ignore[attr-defined]
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)


class SignalInEvaluation(Callback):
    def on_evaluate_start(self, trainer: Trainer, split: str) -> None:
        if trainer.progress.epoch == 1:
            os.kill(os.getpid(), signal.SIGINT)


OPTIONS = {"epochs": EPOCHS, "batch_size": 32, "fanouts": (5, 3), "threads": 1}


def test_interrupt_leaves_no_thread_and_gives_the_handler_back(tmp_path):
    graph, before = community_graph(), set(threading.enumerate())
    handler = signal.getsignal(signal.SIGINT)
    trainer = Trainer(new_model(graph), graph, **OPTIONS, out_dir=tmp_path, callbacks=[SignalAt(9)])
    assert trainer.fit().status == "interrupted"
    assert trainer.progress.global_step == 10
    assert set(threading.enumerate()) <= before  # of which one of an earlier test may end meanwhile
    assert signal.getsignal(signal.SIGINT) is handler


def test_second_ctrl_c_ends_at_once(tmp_path):
    graph = community_graph()
    trainer = Trainer(new_model(graph), graph, **OPTIONS, out_dir=tmp_path, callbacks=[SignalAt(9, times=2)])
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert torch.load(tmp_path / "checkpoints" / "last.pt")["progress"]["global_step"] == STEPS_PER_EPOCH
    assert not list(tmp_path.rglob("*.tmp"))
    resumed = Trainer(new_model(graph), graph, **OPTIONS, out_dir=tmp_path, resume=True)
    assert resumed.fit().status == "finished"


@pytest.mark.slow
def test_interrupt_during_an_evaluation_repeats_it_after_the_resume(tmp_path):
    graph = community_graph()
    whole = Trainer(new_model(graph), graph, **OPTIONS, out_dir=tmp_path / "whole").fit()
    options = OPTIONS | {"out_dir": tmp_path / "cut"}
    cut = Trainer(new_model(graph), graph, **options, callbacks=[SignalInEvaluation()])
    assert cut.fit().status == "interrupted"
    assert (cut.progress.epoch, cut.progress.step, len(cut.progress.history)) == (1, STEPS_PER_EPOCH, 1)
    result = Trainer(new_model(graph), graph, **options, resume=True).fit()
    assert steps_of(tmp_path / "cut") == steps_of(tmp_path / "whole")
    assert [row["val_loss"] for row in result.history] == [row["val_loss"] for row in whole.history]
    assert result.test == whole.test


@pytest.mark.slow
def test_what_an_interrupted_evaluation_drew_shifts_nothing_after_the_resume(tmp_path):
    class Noisy(Sage):
        interrupts = False

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            if not self.training:
                torch.rand(1)
                if self.interrupts:
                    self.interrupts = False
                    os.kill(os.getpid(), signal.SIGINT)
            return super().forward(x, edge_index)

    class InterruptSecond(Callback):
        def on_evaluate_start(self, trainer: Trainer, split: str) -> None:
            trainer.model.interrupts = trainer.progress.epoch == 1

    def noisy() -> Noisy:
        torch.manual_seed(0)
        return Noisy(graph.num_features, graph.num_classes)

    # Compiled, the model would be read first, by a call that interrupts the run once more.
    graph, options = community_graph(), OPTIONS | {"eval_batch_size": 50, "compiled": False}
    Trainer(noisy(), graph, **options, out_dir=tmp_path / "whole").fit()
    options |= {"out_dir": tmp_path / "cut"}
    assert Trainer(noisy(), graph, **options, callbacks=[InterruptSecond()]).fit().status == "interrupted"
    assert Trainer(noisy(), graph, **options, resume=True).fit().status == "finished"
    assert steps_of(tmp_path / "cut") == steps_of(tmp_path / "whole")


@pytest.mark.parametrize("error", ["during the write", "at the sync"])
def test_full_disk_leaves_the_former_checkpoint_whole(error, tmp_path, monkeypatch):
    graph, options = community_graph(), OPTIONS | {"out_dir": tmp_path}
    whole = Trainer(new_model(graph), graph, **OPTIONS).fit()

    class FillDiskLater(Callback):
        def on_step_end(self, trainer: Trainer, record: object) -> None:
            if record.global_step == 10:  # type: ignore[attr-defined]
                monkeypatch.setattr(*target)

    def no_space(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    target = (torch, "save", no_space) if error == "during the write" else (os, "fsync", no_space)
    with pytest.raises(ResourceError, match="disk is full"):
        Trainer(new_model(graph), graph, **options, callbacks=[FillDiskLater()]).fit()
    monkeypatch.undo()
    assert torch.load(tmp_path / "checkpoints" / "last.pt")["progress"]["global_step"] == STEPS_PER_EPOCH
    assert not list(tmp_path.rglob("*.tmp"))
    result = Trainer(new_model(graph), graph, **options, resume=True).fit()
    assert result.test == whole.test


@pytest.mark.slow
@pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0,
    reason="needs root on Linux, to mount a small disk",
)
def test_really_full_disk_leaves_the_former_checkpoint_whole(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ran(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)])
    if mount.returncode:
        pytest.skip(f"needs the right to mount (CAP_SYS_ADMIN): {mount.stderr.strip()}")
    try:
        graph = community_graph()

        class FillDisk(Callback):
            def on_step_end(self, trainer: Trainer, record: object) -> None:
                if record.global_step == 10:  # type: ignore[attr-defined]
                    filler = (disk / "filler").open("wb", buffering=0)
                    with filler, pytest.raises(OSError, match="No space"):
                        while True:
                            filler.write(bytes(4096))

        options = OPTIONS | {"out_dir": disk / "run"}
        with pytest.raises(ResourceError):
            Trainer(new_model(graph), graph, **options, callbacks=[FillDisk()]).fit()
        (disk / "filler").unlink()
        assert (
            torch.load(disk / "run" / "checkpoints" / "last.pt")["progress"]["global_step"] == STEPS_PER_EPOCH
        )
        assert Trainer(new_model(graph), graph, **options, resume=True).fit().status == "finished"
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_run_is_gone_on_with_by_the_job_that_began_it_and_no_other(tmp_path, monkeypatch):
    """As torchrun --max-restarts starts ranks again; ``overwrite`` replaced a former run the first time."""

    def decided(job: str, *, process: str, begins: bool = False) -> bool:
        monkeypatch.setattr(folder, "restartable_job", lambda: job)
        monkeypatch.setattr(folder, "_PROCESS", process)
        with folder.RunFolder(tmp_path / "run") as run:
            if begins:
                run.clear()
                run.checkpoints.mkdir(exist_ok=True)
                run.last.touch()
            return run.decide(resume=False, overwrite=True)

    assert not decided("job 1", process="a", begins=True)  # a second fit of the same process
    assert decided("job 1", process="b")
    assert folder.folders_of_job(tmp_path) == [tmp_path / "run"]
    assert not decided("job 2", process="c")
    assert not decided("", process="c")
    assert not decided("", process="a", begins=True)
    assert not decided("job 1", process="b")
    assert not (tmp_path / "run" / ".job").exists()

"""A run with a plan on the emulated accelerator, killed in the middle of an epoch, ends as if undisturbed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.train.communities import community_graph, new_model
from tests.train.plan_resume_script import STEPS_PER_EPOCH, TIMES

from graphbraid.collective.emulated import EmulatedAccelerator
from graphbraid.errors import ConfigError
from graphbraid.train import Trainer

SCRIPT = Path(__file__).parent / "plan_resume_script.py"


def start(out_dir: Path, plan: str, last: str) -> subprocess.Popen[str]:
    source = str(Path(__file__).parents[2] / "src")
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH")))),
        "GRAPHBRAID_CACHE": str(out_dir.parent / "cache"),
    }
    command = [sys.executable, str(SCRIPT), str(out_dir), plan, last]
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def end(process: subprocess.Popen[str], code: int) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    return out


def results(out_dir: Path) -> tuple[bytes, dict[str, torch.Tensor]]:
    weights = torch.load(out_dir / "checkpoints" / "last.pt")["model"]
    return (out_dir / "steps.jsonl").read_bytes(), weights


def test_a_killed_run_resumes_to_the_bit_whatever_the_plan(tmp_path: Path) -> None:
    step = STEPS_PER_EPOCH + 8  # after the checkpoint at step 20
    undisturbed = start(tmp_path / "undisturbed", "file", "")
    killed = start(tmp_path / "killed", "file", str(step))
    end(killed, -signal.SIGKILL)
    assert len((tmp_path / "killed" / "steps.jsonl").read_text().splitlines()) == step + 1
    resumed = start(tmp_path / "killed", "file", "--resume")
    assert end(undisturbed, 0) == "finished braided\n"
    assert end(resumed, 0) == "finished braided\n"
    plain = start(tmp_path / "plain", "cpu", "")
    end(plain, 0)
    steps, weights = results(tmp_path / "undisturbed")
    for other in ("killed", "plain"):
        other_steps, other_weights = results(tmp_path / other)
        assert other_steps == steps
        assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


def test_an_accelerator_is_measured_planned_and_followed(tmp_path: Path) -> None:
    graph = community_graph()

    def losses(**options: object) -> list[float]:
        trainer = Trainer(
            new_model(graph), graph, epochs=1, batch_size=16, fanouts=(5, 3), threads=1, **options
        )
        found = [row["train_loss"] for row in trainer.fit().history]
        if trainer.plan is not None:
            assert trainer.plan.times.uva is not None
            assert trainer.plan.times.uva.seconds >= TIMES.uva.seconds
        return found

    assert losses(plan="auto", accelerator=EmulatedAccelerator(TIMES)) == losses()
    with pytest.raises(ConfigError, match="give plan='auto' as well"):
        losses(accelerator=EmulatedAccelerator(TIMES))

"""A run killed in the middle of an epoch goes on at the very step, with the same losses to the bit."""

import json
import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

import torch

import graphbraid
from graphbraid.train import Callback, StepRecord, Trainer


class KillAt(Callback):
    """Kills this process after a step: nothing is flushed, nothing is tidied up."""

    def __init__(self, global_step: int) -> None:
        self.global_step = global_step

    def on_step_end(self, trainer: Trainer, record: StepRecord) -> None:
        if record.global_step == self.global_step:
            os.kill(os.getpid(), signal.SIGKILL)


def train(out_dir: Path, kill_at: int | None = None) -> None:
    """Train for three epochs, going on where a former run in ``out_dir`` stopped."""
    torch.manual_seed(0)
    graph = graphbraid.datasets.load("braid-100k")
    model = graphbraid.nn.GraphSAGE(graph.num_features, 32, graph.num_classes, num_layers=2)
    graphbraid.Trainer(
        model,
        graph,
        callbacks=[] if kill_at is None else [KillAt(kill_at)],
        epochs=3,
        fanouts=(10, 5),
        batch_size=64,
        out_dir=out_dir,
        resume="auto",
        checkpoint_every_steps=3,
    ).fit()


def losses(out_dir: Path) -> list[float]:
    """The loss of each step, as logged."""
    return [json.loads(line)["loss"] for line in (out_dir / "steps.jsonl").read_text().splitlines()]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        train(whole)
        num_steps = len(losses(whole))
        # spawn: a process of its own, without a copy of this one's threads
        process = multiprocessing.get_context("spawn").Process(target=train, args=(killed, num_steps // 2))
        process.start()
        process.join()
        print(f"killed by signal {-(process.exitcode or 0)} after {len(losses(killed))} of {num_steps} steps")
        train(killed)
        same = losses(killed) == losses(whole)
        print(f"resumed: {len(losses(killed))} steps; losses equal to the bit: {same}")


if __name__ == "__main__":
    main()

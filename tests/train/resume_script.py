"""A training process that a test can kill: ``python resume_script.py OUT_DIR [--kill-at STEP | ...]``."""

import argparse
import os
import signal
import sys
import time
import zipfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.train.communities import community_graph, new_model

from graphbraid.train import Callback, Trainer

EPOCHS, BATCH_SIZE = 4, 32  # 200 training nodes: 7 steps an epoch, the last one short


class KillAt(Callback):
    """SIGKILL right after a step, with its line in the log and no checkpoint of it."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, trainer, record) -> None:
        if record.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def kill_in_write(number: int, fraction: float) -> None:
    """Make the ``number``-th checkpoint write part of its bytes to the file it was given, and then die."""
    save, count = torch.save, [0]

    def save_and_die(contents, path, *args, **kwargs):
        count[0] += 1
        if count[0] < number:
            save(contents, path, *args, **kwargs)
            return
        save(contents, path, *args, **kwargs)
        os.truncate(path, int(Path(path).stat().st_size * fraction))
        assert fraction == 1.0 or not zipfile.is_zipfile(path)
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    torch.save = save_and_die


class SlowDown(Callback):
    """Says that training runs, and leaves time for a signal from outside."""

    def on_step_end(self, trainer, record) -> None:
        if record.global_step == 8:
            print("running", flush=True)
        if record.global_step >= 8:
            time.sleep(0.05)


def braided(out_dir: str) -> dict:
    """A plan for the emulated accelerator: half of the batches on each route."""
    from benchmarks.common.emulated import EmulatedAccelerator
    from tests.collective.cases import stage_times

    from graphbraid.collective import Profile, fixed_plan

    times = stage_times(0.008, 0.002, 0.003, 0.004, workers=2)
    path = Path(out_dir).with_suffix(".plan")
    fixed_plan(Profile(times=(times,)), 7, 0.5).save(path)
    return {"plan": str(path), "accelerator": EmulatedAccelerator(times)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out_dir")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--kill-in-write", type=int)
    parser.add_argument("--fraction", type=float, default=0.5)
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--braided", action="store_true")
    args = parser.parse_args()
    if args.kill_in_write:
        kill_in_write(args.kill_in_write, args.fraction)
    graph = community_graph()
    if args.native:
        from graphbraid.nn import GAT

        torch.manual_seed(0)
        model = GAT(graph.num_features, 8, graph.num_classes, 2, dropout=0.5)
    else:
        model = new_model(graph)
    threads = None if args.native else 1
    planned = braided(args.out_dir) if args.braided else {}
    callbacks = [KillAt(args.kill_at)] if args.kill_at is not None else []
    trainer = Trainer(
        model,
        graph,
        epochs=EPOCHS,
        batch_size=BATCH_SIZE,
        fanouts=(5, 3),
        scheduler="cosine",
        clip=1.0,
        checkpoint_every_steps=args.every,
        out_dir=args.out_dir,
        resume=args.resume,
        threads=threads,
        **planned,
        callbacks=[*callbacks, *([SlowDown()] if args.slow else [])],
    )
    result = trainer.fit()
    if args.braided:
        assert trainer.plan.name == "braided"
    print(result.status, flush=True)


if __name__ == "__main__":
    main()

"""A training run on the emulated accelerator: ``python plan_resume_script.py OUT_DIR PLAN STEP | --resume``.

It sends itself SIGKILL after global step STEP, in the middle of an epoch and beyond its last checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.collective.cases import stage_times
from tests.train.communities import community_graph, new_model

from graphbraid.collective import Profile, fixed_plan
from graphbraid.collective.emulated import EmulatedAccelerator
from graphbraid.train import Callback, Trainer

TIMES = stage_times(0.008, 0.002, 0.003, 0.004, workers=2)
STEPS_PER_EPOCH, EPOCHS = 13, 3


class KillAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, trainer, record) -> None:
        if record.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def run(out_dir: str, plan: str, last: str) -> None:
    fixed_plan(Profile(times=(TIMES,)), STEPS_PER_EPOCH, 0.5).save(Path(out_dir).with_suffix(".plan"))
    graph = community_graph()
    resumes = last == "--resume"
    trainer = Trainer(
        new_model(graph),
        graph,
        epochs=EPOCHS,
        batch_size=16,
        fanouts=(5, 3),
        checkpoint_every_steps=5,
        out_dir=out_dir,
        resume=resumes,
        threads=1,
        plan=str(Path(out_dir).with_suffix(".plan")) if plan == "file" else plan,
        accelerator=None if plan == "cpu" else EmulatedAccelerator(TIMES),
        callbacks=[] if resumes or not last else [KillAt(int(last))],
    )
    print(trainer.fit().status, trainer.plan.name, flush=True)


if __name__ == "__main__":
    run(*sys.argv[1:])

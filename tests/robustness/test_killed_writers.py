"""SIGKILL at any instant of writing a checkpoint: afterwards a whole one is there, and none is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.robustness.workplace import graph
from tests.warm import WarmProcesses

from graphbraid.nn import GraphSAGE
from graphbraid.train import Trainer
from graphbraid.train.run_folder.folder import RunFolder

KILLS = 20
# One process imports; each of its children writes checkpoint after checkpoint until it is killed.
SCRIPT = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from graphbraid.train.run_folder import checkpoint

last, draw = Path(sys.argv[1]), random.Random(0)
contents = checkpoint.read(last)
contents.pop("format")
weights = contents["model"]

def write(number):
    for value in weights.values():
        value.fill_(number)
    checkpoint.write(last, contents)

started = time.perf_counter()
write(0)
seconds = time.perf_counter() - started
newest = 0
for _ in range(int(sys.argv[2])):
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        number = newest
        while True:
            number += 1
            write(number)
            os.write(tell, number.to_bytes(8, "little"))
    time.sleep(draw.uniform(0.1, 4.0) * seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(tell)
    finished = newest
    while part := os.read(told, 8):
        finished = int.from_bytes(part, "little")
    os.close(told)
    found = {float(v) for value in checkpoint.read(last)["model"].values() for v in value.flatten()}
    assert len(found) == 1, found
    newest = int(found.pop())
    assert newest in (finished, finished + 1), (newest, finished)
print(newest)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_writer_leaves_a_whole_checkpoint_and_loses_none(
    tmp_path: Path, warm: WarmProcesses
) -> None:
    options = {"epochs": 1, "fanouts": (3, 3), "batch_size": 32, "test_at_end": False}
    Trainer(GraphSAGE(6, 8, 3), graph(), **options, out_dir=tmp_path / "run").fit()
    last = tmp_path / "run" / "checkpoints" / "last.pt"
    done = warm.run(["-c", SCRIPT, last, KILLS])
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0, "no child finished a checkpoint: none was killed while it wrote one"
    with RunFolder(tmp_path / "run"):  # the next run removes what the killed ones left
        left = [path.name for path in last.parent.iterdir() if path.name != "best.pt"]
    assert left == ["last.pt"]

"""SIGKILL at any instant of writing: afterwards a whole checkpoint or folder is there, and none is lost."""

import os
import subprocess
import sys

import pytest
from tests import warm
from tests.robustness.workplace import graph

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
def test_a_killed_writer_leaves_a_whole_checkpoint_and_loses_none(tmp_path):
    options = {"epochs": 1, "fanouts": (3, 3), "batch_size": 32, "test_at_end": False}
    Trainer(GraphSAGE(6, 8, 3), graph(), **options, out_dir=tmp_path / "run").fit()
    last = tmp_path / "run" / "checkpoints" / "last.pt"
    done = warm.run(["-c", SCRIPT, last, KILLS])
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0, "no child finished a checkpoint: none was killed while it wrote one"
    with RunFolder(tmp_path / "run"):  # the next run removes what the killed ones left
        left = [path.name for path in last.parent.iterdir() if path.name != "best.pt"]
    assert left == ["last.pt"]


# Each child replaces the folder and is killed before its first, second ... system call, until one ends.
# It stops before and after each, and what it leaves is the same after one and before the next.
REPLACE = """
import ctypes, os, signal, sys
from pathlib import Path
from graphbraid.files import writing
from graphbraid.files.writing import atomic_directory, remove_stale, restore

folder, ptrace = Path(sys.argv[1]), ctypes.CDLL(None).ptrace
TRACE_ME, TO_THE_NEXT_STOP = 0, 24
writing.sync = writing.sync_folder = lambda path: None  # a kill loses nothing that the system has
if sys.argv[2] == "two renames":
    writing._renamed_at_once = lambda *names: False

def replace(text):
    with atomic_directory(folder, if_exists="replace") as temp:
        (temp / "a").write_text(text)

replace("old")
was_gone = False
for stops in range(1, 2000, 2):
    child = os.fork()
    if child == 0:
        ptrace(TRACE_ME, 0, None, None)
        os.kill(os.getpid(), signal.SIGSTOP)
        replace("new")
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    for _ in range(stops):
        if os.WIFSTOPPED(status):
            assert ptrace(TO_THE_NEXT_STOP, child, None, None) == 0
            status = os.waitpid(child, 0)[1]
    if os.WIFSTOPPED(status):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    was_gone |= not folder.exists()
    restore(folder)
    assert [file.read_text() for file in folder.iterdir()] in (["old"], ["new"]), stops
    remove_stale(folder, after_seconds=0)
    assert os.listdir(folder.parent) == [folder.name], (stops, os.listdir(folder.parent))
    if os.WIFEXITED(status):
        break
    replace("old")
assert os.WIFEXITED(status) and (folder / "a").read_text() == "new"
print(stops, was_gone)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs ptrace as Linux has it")
@pytest.mark.parametrize("way", ["at once", "two renames"])
def test_a_killed_replacement_leaves_the_old_folder_or_the_new(way, tmp_path):
    command = [sys.executable, "-c", REPLACE, tmp_path / "stores" / "mine", way]  # forks faster without torch
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    stops, was_gone = done.stdout.split()
    assert int(stops) > 20
    assert was_gone == str(way == "two renames"), "the file system cannot exchange two names"

"""Loaders and processes: spawned and forked ones go on with the same batches, and nothing hangs."""

import os
import subprocess
import sys

import pytest
import torch
from tests.sampling.test_loader import digest, make_data, make_graph
from torch import multiprocessing

from graphbraid import kernels
from graphbraid.loader import NeighborLoader

FORKED = """
import os, sys, torch
from tests.sampling.test_loader import digest, make_graph
from graphbraid.loader import NeighborLoader

used, unused = (NeighborLoader(make_graph(), [4], batch_size=50, num_workers=2, seed=0) for _ in range(2))
opened = iter(used)
next(opened)
kept = next(opened)
child = os.fork()
if child == 0:
    try:
        next(opened)
    except RuntimeError as error:
        assert "in the process that was forked" in str(error)
    else:
        os._exit(3)
    torch.set_num_threads(1)  # OpenMP's threads stayed behind too
    print(digest(used.batches(0)), digest(unused.batches(0)), flush=True)
    assert used([5]).batch_size == 1
    used.close()
    del opened, used, kept
    sys.exit(0)  # with all that ends a process, destructors included
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
list(opened)
print(digest(used.batches(0)))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system whose processes fork")
def test_a_forked_child_begins_anew_and_its_open_iterators_raise():
    if kernels.native() is None:
        pytest.skip("without the compiled kernels a loader has no threads to lose")
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = digest(NeighborLoader(make_graph(), [4], batch_size=50, seed=0).batches(0))
    assert done.stdout.split() == [expected, expected, expected]


def put_digest(loader, queue):
    torch.set_num_threads(1)
    queue.put((digest(loader.batches(1)), loader.epoch, loader.seed))


def test_a_spawned_process_gets_a_loader_with_the_same_batches():
    loader = NeighborLoader(make_data(), [4], batch_size=50, shuffle=True, num_workers=2)
    list(loader)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=put_digest, args=(loader, queue))
    process.start()
    seen = queue.get(timeout=120)
    process.join()
    assert seen == (digest(loader.batches(1)), 1, loader.seed)

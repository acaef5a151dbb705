"""Loaders and processes: spawned and forked ones go on with the same batches, and nothing hangs."""

import os

import pytest
import torch
from tests import warm
from tests.extras import PATIENCE
from tests.sampling.test_loader import digest, make_data, make_graph
from torch import multiprocessing

from graphbraid import native
from graphbraid.errors import ConfigError
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


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system whose processes fork")
def test_a_forked_child_begins_anew_and_its_open_iterators_raise():
    if native.kernels() is None:
        pytest.skip("without the compiled kernels a loader has no threads to lose")
    done = warm.run(["-c", FORKED])
    assert done.returncode == 0, done.stderr
    expected = digest(NeighborLoader(make_graph(), [4], batch_size=50, seed=0).batches(0))
    assert done.stdout.split() == [expected, expected, expected]


def put_digest(loader, queue):
    torch.set_num_threads(1)
    queue.put((digest(loader.batches(1)), loader.epoch, loader.seed))


@pytest.mark.slow
def test_a_spawned_process_gets_a_loader_with_the_same_batches():
    loader = NeighborLoader(make_data(), [4], batch_size=50, shuffle=True, num_workers=2)
    list(loader)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=put_digest, args=(loader, queue))
    process.start()
    seen = queue.get(timeout=PATIENCE)
    process.join()
    assert seen == (digest(loader.batches(1)), 1, loader.seed)


def test_tensors_that_moved_into_shared_memory_are_read_where_they_lie_now():
    data = make_data()
    loader = NeighborLoader(data, [4], batch_size=50, shuffle=True, num_workers=2, seed=2)
    expected = digest(loader.batches(0))
    for tensor in (loader.graph.x, loader.graph.csc.indptr, loader.graph.csc.indices):
        tensor.share_memory_()
    seconds = loader.stage_seconds["batches"]
    assert digest(loader.batches(0)) == expected
    assert loader.stage_seconds["batches"] == 2 * seconds
    if native.kernels() is not None:  # else nothing keeps an address
        moved = loader._batches._pipeline
        assert moved._places == moved._places_now()


def test_a_loader_is_not_sent_while_it_is_iterated():
    loader = NeighborLoader(make_data(), [4], batch_size=50, num_workers=2)
    opened = iter(loader)
    next(opened)
    process = multiprocessing.get_context("spawn").Process(target=put_digest, args=(loader, None))
    with pytest.raises(ConfigError, match="while it is iterated"):
        process.start()
    assert len(list(opened)) == len(loader) - 1

"""Loaders and processes: spawned and forked ones go on with the same batches, and nothing hangs."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests import warm
from tests.extras import PATIENCE
from tests.sampling.test_loader import digest, make_data, make_graph
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from graphbraid import native
from graphbraid.errors import ConfigError
from graphbraid.loader import NeighborLoader
from graphbraid.nn import GraphSAGE

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


ROOT = Path(__file__).parents[2]
RANKS, BATCH, EPOCHS = 2, 25, 2
LAYOUTS = ("subgraph", "blocks")


def make_model(graph):
    torch.manual_seed(0)
    return GraphSAGE(graph.num_features, 8, 5, dropout=0.0)


def make_loader(graph, layout, **order):
    """All neighbours, so that a seed's loss does not depend on the batch it is in."""
    return NeighborLoader(graph, [-1, -1], "train", layout=layout, seed=0, num_workers=2, **order)


def gradients_of_steps(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for batch in batches:
        optimizer.zero_grad()
        out = model(batch.x, batch.blocks)[: batch.batch_size]
        F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
        optimizer.step()
    return found


def train(rank, layout, folder):
    """What each process runs, of its arguments."""
    rank = int(rank)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    graph = make_graph()
    order = DistributedSampler(graph.splits["train"], RANKS, rank, shuffle=True, seed=3)
    loader = make_loader(graph, layout, batch_size=BATCH, sampler=order)
    model = DistributedDataParallel(make_model(graph))
    seeds, gradients = [], []
    for epoch in range(EPOCHS):
        order.set_epoch(epoch)
        batches = list(loader)
        seeds += [batch.input_id for batch in batches]
        gradients += gradients_of_steps(model, batches)
    torch.save((seeds, gradients), f"{folder}/{rank}.pt")
    Path(folder, f"{rank}.done").touch()
    while not all(Path(folder, f"{one}.done").exists() for one in range(RANKS)):
        time.sleep(0.01)
    # PyTorch may deadlock as its reducer is freed: that waits, with the interpreter's lock, for a thread of
    # gloo that wants the lock to let go of the last all-reduce.
    os._exit(0)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_processes_learn_what_one_does_from_the_seeds_of_both(layout, tmp_path):
    program = "import sys; from tests.sampling.test_loader_processes import train; train(*sys.argv[1:])"
    with ThreadPoolExecutor(RANKS) as pool:
        runs = [
            pool.submit(warm.run, ["-c", program, rank, layout, tmp_path], cwd=ROOT) for rank in range(RANKS)
        ]
    for run in runs:
        assert run.result().returncode == 0, run.result().stderr
    (seeds, gradients), (other_seeds, other_gradients) = (
        torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS)
    )
    graph = make_graph()
    num_seeds, steps = len(graph.splits["train"]), len(seeds) // EPOCHS
    for epoch in range(EPOCHS):
        shares = [torch.cat(part[epoch * steps : (epoch + 1) * steps]) for part in (seeds, other_seeds)]
        assert [len(share) for share in shares] == [num_seeds // 2] * 2
        assert torch.cat(shares).sort().values.equal(torch.arange(num_seeds))
    assert not torch.cat(seeds[:steps]).equal(torch.cat(seeds[steps:]))  # shuffled anew

    union = [torch.cat(pair).tolist() for pair in zip(seeds, other_seeds, strict=True)]
    alone = make_loader(graph, layout, batch_sampler=union)
    for ours, theirs, whole in zip(
        gradients, other_gradients, gradients_of_steps(make_model(graph), alone), strict=True
    ):
        for a, b, c in zip(ours, theirs, whole, strict=True):
            assert torch.equal(a, b)
            torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-6)

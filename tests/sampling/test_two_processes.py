"""Data-parallel training in two processes: each has its share of the seeds, gradients are the whole's."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests import warm
from tests.sampling.test_loader import make_graph
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from graphbraid.loader import NeighborLoader
from graphbraid.nn import GraphSAGE

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
    program = "import sys; from tests.sampling.test_two_processes import train; train(*sys.argv[1:])"
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

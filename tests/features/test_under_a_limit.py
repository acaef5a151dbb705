"""A graph whose topology and features both exceed the memory there is trains as it does where they fit."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from tests import warm
from tests.extras import PATIENCE, ran
from tests.features.tables import stored_graph
from tests.kernels import needs_kernels

from graphbraid import Graph
from graphbraid.datasets import save_store
from graphbraid.graph.csc import Csc

ROOT = Path(__file__).parents[2]
LIMIT = 64 << 20
NUM_NODES, DEGREE, WIDTH = 70_000, 300, 320


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """A store of which either part is larger than the limit, and a small one."""
    folder = tmp_path_factory.mktemp("s")
    generator = torch.Generator().manual_seed(4)
    some = torch.rand(NUM_NODES * DEGREE, generator=generator)
    indices = (some.square_() * NUM_NODES).int()  # some nodes are found far more often than others
    graph = Graph(
        csc=Csc(torch.arange(NUM_NODES + 1) * DEGREE, indices, NUM_NODES),
        x=torch.randn(NUM_NODES, WIDTH, generator=generator),
        y=torch.randint(4, (NUM_NODES,), generator=generator),
        splits={"train": torch.arange(192), "val": torch.arange(192, 256)},
    )
    assert graph.csc.indices.nbytes > 1.2 * LIMIT
    assert graph.x.nbytes > 1.2 * LIMIT
    stored_graph(folder, width=WIDTH)
    return save_store(graph, folder / "large"), folder / "store"


def limited(stores):
    """What a run finds in a process that has imported nothing: of one that was forked, pages count anew."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = ran(
        [sys.executable, *program(stores), "--limit", str(LIMIT), "--host", "24MiB"],
        env=os.environ | {"PYTHONPATH": paths},
        cwd=ROOT,
        timeout=2 * PATIENCE,
    )
    return found(done)


def program(stores):
    return "-m", "tests.features.limited_run", *map(str, stores)


def found(done):
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@needs_kernels
def test_training_under_a_limit_of_memory_learns_the_same_to_the_bit(stores):
    under_limit = limited(stores)
    if "refused" in under_limit:
        pytest.skip(f"needs a limit of memory: {under_limit['refused']}")
    in_memory = found(warm.run(program(stores), cwd=ROOT))
    assert under_limit["losses"] == in_memory["losses"]
    assert under_limit["weights"] == in_memory["weights"]
    assert under_limit["peak"] <= LIMIT
    assert min(under_limit["disk"]) > 0
    assert all(0 < share < 1 for share in under_limit["host_share"])

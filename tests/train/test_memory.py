"""A training run holds the graph and its features once."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from tests import warm
from tests.extras import NO_PEAK
from tests.peaks import least_peak

TRAIN = """
import json, resource, sys, torch
from graphbraid import nn as gnn
from graphbraid.graph import Graph
from graphbraid.train import Trainer

torch.set_num_threads(1)

def graph(n):
    edges = torch.randint(n, (2, 8 * n))
    ids = torch.arange(n)
    count = min(n // 10, 4096)  # eight batches: more of them take no more memory
    splits = {"train": ids[:count], "val": ids[count : 2 * count], "test": ids[-count:]}
    return Graph.from_edge_index(edges, n, x=torch.rand(n, 64), y=ids % 5, splits=splits, keep_edge_id=False)

def train(g):
    model = getattr(gnn, sys.argv[2])(64, 32, 5, 2)
    batches = {"fanouts": (5, 5), "batch_size": 512, "eval_batch_size": 512}
    Trainer(model, g, epochs=1, memory_budget_bytes=16 << 20, **batches).fit()

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

train(graph(2000))
g = graph(int(sys.argv[1]))
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak counts from here
before = resident()
train(g)
with open("/proc/self/status") as file:
    peak = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
print(json.dumps([g.nbytes, peak - before]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason=NO_PEAK)
@pytest.mark.parametrize("model", ["GraphSAGE", pytest.param("GCN", marks=pytest.mark.long)])
def test_training_adds_a_fifth_of_the_graph_and_a_constant_at_most(model: str, tmp_path: Path) -> None:
    """The constant: 96 MiB for batches under way, the model, and exact inference under its 16 MiB."""
    for num_nodes in (50_000, 400_000):

        def above(num_nodes: int = num_nodes) -> float:
            environment = os.environ | {"TMPDIR": str(tmp_path)}
            done = warm.run(["-c", TRAIN, num_nodes, model], environment=environment)
            assert done.returncode == 0, done.stderr
            graph_bytes, grown = json.loads(done.stdout)
            return float(grown - 0.2 * graph_bytes)

        assert least_peak(above, 96 << 20) <= 96 << 20, num_nodes

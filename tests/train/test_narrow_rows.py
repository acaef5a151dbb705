"""Runs on rows of int8: they take as much less memory as their bytes say, and learn as well."""

import functools
import os
import sys

import pytest
import torch
from tests.extras import NO_PEAK
from tests.peaks import least_peak, printed

from graphbraid import Graph, Trainer, datasets, nn
from graphbraid.datasets import open_store, save_store

NODES, WIDTH = 150_000, 128
TRAIN = """
import sys, torch
from graphbraid import nn as gnn
from graphbraid.datasets import open_store
from graphbraid.train import Trainer
from tests.peaks import rise

torch.set_num_threads(1)

def train(path):
    torch.manual_seed(0)
    graph = open_store(path, mmap=False, verify=False)
    batches = {"fanouts": (3, 3), "batch_size": 256, "eval_batch_size": 256, "workers": 1}
    Trainer(gnn.GraphSAGE(128, 32, 5, 2), graph, epochs=1, memory_budget_bytes=16 << 20, **batches).fit()

train(sys.argv[1])
print(rise(lambda: train(sys.argv[2])))
"""


def made(num_nodes: int) -> Graph:
    draw = torch.Generator().manual_seed(0)
    edges, ids = torch.randint(num_nodes, (2, 3 * num_nodes), generator=draw), torch.arange(num_nodes)
    splits = {"train": ids[:2000], "val": ids[-1000:], "test": ids[2000:3000]}
    x = torch.rand(num_nodes, WIDTH, generator=draw)
    return Graph.from_edge_index(edges, num_nodes, x=x, y=ids % 5, splits=splits, keep_edge_id=False)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason=NO_PEAK)
def test_memory_of_training_falls_by_what_features_take_less(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path)}

    def peak(dtype):
        small, large = (tmp_path / f"{dtype}{n}" for n in (3000, NODES))
        if not large.exists():
            save_store(made(3000), small, features_dtype=dtype)
            save_store(made(NODES), large, features_dtype=dtype)
        return printed(TRAIN, small, large, environment=environment)

    whole = min(peak(None) for _ in range(2))
    for dtype, row_bytes in (("float16", 2 * WIDTH), ("int8", WIDTH + 4)):
        most = whole - 0.8 * NODES * (4 * WIDTH - row_bytes)
        assert least_peak(lambda dtype=dtype: peak(dtype), most) <= most, dtype


# ---- rounding the features of a real graph changes what is learned by less than another seed does


SEEDS = range(5)


@pytest.fixture(scope="module")
def cora(shared_graph):
    """Cora with 64 real numbers a node: its words' principal components, and not zeros and ones."""
    graph = datasets.load(str(shared_graph("cora")), symmetrize=True, dedupe=True)
    words = graph.dense_x()
    torch.manual_seed(0)
    _, _, directions = torch.svd_lowrank(words, q=64, niter=4)
    return graph.replace(x=words @ directions)


def accuracies(graph: Graph, mode: str) -> list[float]:
    found = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        model = nn.GCN(graph.num_features, 32, graph.num_classes, 2, dropout=0.5)
        options = {"mode": mode, "epochs": 60, "lr": 0.02, "seed": seed, "eval_every": 0}
        batches = {} if mode == "full" else {"fanouts": (10, 10), "batch_size": 70, "epochs": 20}
        found.append(Trainer(model, graph, **(options | batches)).fit().test["accuracy"])
    return found


@pytest.fixture(scope="module")
def plain(cora):
    """Accuracies of float32 by mode."""
    return functools.cache(lambda mode: torch.tensor(accuracies(cora, mode)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "dtype"),
    [
        ("full", "float16"),
        ("sampled", "bfloat16"),
        ("sampled", "int8"),
        pytest.param("full", "int8", marks=pytest.mark.long),
        pytest.param("full", "bfloat16", marks=pytest.mark.long),
        pytest.param("sampled", "float16", marks=pytest.mark.long),
    ],
)
def test_accuracy_is_that_of_float32_within_the_noise_of_seeds(cora, plain, mode, dtype, tmp_path):
    expected = plain(mode)
    assert float(expected.mean()) > 0.74, "it learns"
    store = open_store(save_store(cora, tmp_path / dtype, features_dtype=dtype))
    found = torch.tensor(accuracies(store, mode))
    assert abs(float(found.mean() - expected.mean())) < 0.01, (found, expected)  # the spread of seeds

"""Rounding the features of a real graph changes what is learned by less than another seed does."""

import functools

import pytest
import torch

from graphbraid import Graph, Trainer, datasets, nn
from graphbraid.datasets import open_store, save_store

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

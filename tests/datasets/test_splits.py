import numpy as np
import pytest
import torch

from graphbraid import datasets
from graphbraid.datasets import random_share_split, random_split
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph


def labelled(y):
    return Graph.from_edge_index(torch.tensor([[0], [1]]), len(y), y=y)


def test_every_class_gets_its_share_and_the_rest_is_for_testing():
    y = torch.arange(1000) % 4
    y[::10] = -1
    graph = random_split(labelled(y), train_per_class=7, val_per_class=11, seed=3)
    parts = graph.splits
    assert torch.bincount(graph.y[parts["train"]]).tolist() == [7] * 4
    assert torch.bincount(graph.y[parts["val"]]).tolist() == [11] * 4
    every = torch.cat(list(parts.values())).sort().values
    assert torch.equal(every, (y >= 0).nonzero().flatten())
    graph.validate()


def test_a_seed_names_the_split():
    graph = labelled(torch.arange(500) % 3)
    first, again, other = (random_split(graph, seed=seed).split("train").tolist() for seed in (5, 5, 6))
    assert first == again != other
    assert first[:5] == FIRST_OF_SEED_5


def test_every_node_type_with_labels_gets_a_split():
    y, target = torch.arange(300) % 3, torch.rand(50)
    graph = Graph.from_relations(
        {("author", "writes", "paper"): [[0], [1]]},
        {"paper": 300, "author": 50, "venue": 4},
        y={"paper": y, "author": target},
        splits={"paper": {"train": [1]}},
    )
    split = datasets.prepare(graph, split_seed=5)
    alone = datasets.prepare(labelled(y), split_seed=5)
    papers, authors = split.nodes_of("paper").splits, split.nodes_of("author").splits
    assert {name: ids.tolist() for name, ids in papers.items()} == {
        name: ids.tolist() for name, ids in alone.splits.items()
    }
    assert {name: ids.numel() for name, ids in authors.items()} == {"train": 30, "val": 10, "test": 10}
    assert split.nodes_of("venue").splits == {}
    few = Graph.from_relations({}, {"paper": 3}, y={"paper": torch.tensor([0, 1, 1])})
    with pytest.raises(DataError, match="nodes of type 'paper': class 0 has 1 labelled nodes"):
        datasets.prepare(few, split_seed=0)


FIRST_OF_SEED_5 = [18, 46, 48, 53, 85]


def test_every_node_is_as_likely_to_be_drawn():
    graph = labelled(torch.zeros(100, dtype=torch.int64))
    hits = np.zeros(100)
    for seed in range(400):
        hits[random_split(graph, train_per_class=20, val_per_class=30, seed=seed).split("train")] += 1
    chi_square = ((hits - 80) ** 2 / (80 * 0.8)).sum()
    assert chi_square < 149  # 99.9 % of chi-square with 99 degrees of freedom


@pytest.mark.parametrize("y", [torch.rand(10), (torch.rand(10, 3) > 0.5).float()])
def test_a_split_by_class_needs_classes(y):
    with pytest.raises(ConfigError, match="needs single-label classes"):
        random_split(labelled(y))


def test_counts_must_be_positive():
    with pytest.raises(ConfigError, match="must be at least 1; got 0 and 30"):
        random_split(labelled(torch.zeros(100, dtype=torch.int64)), train_per_class=0)


def test_shares_work_for_every_kind_of_label():
    targets = torch.rand(50)
    targets[7] = torch.nan
    graph = random_share_split(labelled(targets), train=0.5, val=0.25, seed=1)
    assert [len(ids) for ids in graph.splits.values()] == [24, 13, 12]
    assert 7 not in torch.cat(list(graph.splits.values())).tolist()


@pytest.mark.parametrize(("train", "val"), [(0, 0.5), (0.5, 0.5), (0.9, 0.2), (float("nan"), 0.1)])
def test_shares_must_leave_something(train, val):
    with pytest.raises(ConfigError, match="must be positive and sum to less than 1"):
        random_share_split(labelled(torch.zeros(10, dtype=torch.int64)), train=train, val=val)


def test_too_few_nodes_and_no_labels_are_said():
    with pytest.raises(DataError, match="2 labelled nodes are too few"):
        random_share_split(labelled(torch.zeros(2, dtype=torch.int64)))
    with pytest.raises(DataError, match="needs labels; the graph has none"):
        random_share_split(Graph.from_edge_index(torch.tensor([[0], [1]])))


def test_load_draws_a_split_by_seed(shared_graph):
    graph = datasets.load(shared_graph("amazon_computers"), split_seed=0)
    assert len(graph.split("train")) == 200
    assert len(graph.split("val")) == 300
    assert len(graph.split("test")) == 13_752 - 500
    multi = datasets.load(shared_graph("blogcatalog_multilabel"), split_seed=0)
    assert len(multi.split("train")) == round(0.6 * 10_312)

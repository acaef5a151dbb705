import numpy as np
import pytest
import torch

from graphbraid import datasets
from graphbraid.datasets import random_share_split, random_split, split_nodes
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


def typed_graph(y, **nodes):
    given = {name: {"paper": value} for name, value in nodes.items()}
    return Graph.from_relations(
        {("author", "writes", "paper"): [[0], [1]]}, {"paper": len(y), "author": 9}, y={"paper": y}, **given
    )


def parts_of(graph):
    nodes = graph.nodes_of("paper") if graph.is_typed else graph
    return {name: ids.tolist() for name, ids in nodes.splits.items()}


def test_shares_leave_unlabelled_nodes_out_and_a_third_share_leaves_the_rest():
    y = torch.arange(100) % 2
    y[:20] = -1
    whole = parts_of(split_nodes(labelled(y), "0.5,0.25"))
    assert [len(ids) for ids in whole.values()] == [40, 20, 20]
    assert sorted(torch.cat([torch.tensor(ids) for ids in whole.values()]).tolist()) == list(range(20, 100))
    some = parts_of(split_nodes(labelled(y), "fractions:0.5,0.25,0.125"))
    assert [len(ids) for ids in some.values()] == [40, 20, 10]
    assert some["train"] == whole["train"]
    assert parts_of(split_nodes(labelled(y), "0.5,0.25", seed=1)) != whole
    assert parts_of(random_share_split(labelled(y), train=0.5, val=0.25)) == whole


def test_a_stratified_split_gives_every_class_its_share():
    y = torch.tensor([0] * 10 + [1] * 90 + [-1] * 5)
    graph = split_nodes(labelled(y), "stratified:0.6,0.2")
    counts = {name: torch.bincount(y[ids], minlength=2).tolist() for name, ids in graph.splits.items()}
    assert counts == {"train": [6, 54], "val": [2, 18], "test": [2, 18]}


def test_a_split_by_time_is_by_date_or_number():
    days = torch.arange(40) * 86400 + 1767225600  # from 2026-01-01 on
    y = torch.arange(40) % 2
    y[3] = -1
    graph = split_nodes(typed_graph(y, node_time=days), "time:2026-01-11,2026-01-21T00:00:01")
    parts = parts_of(graph)
    assert parts["train"] == [0, 1, 2, *range(4, 10)]
    assert (parts["val"], parts["test"]) == (list(range(10, 21)), list(range(21, 40)))
    by_number = split_nodes(labelled(y), "time:5,7.5", values=torch.arange(40.0))
    assert [len(ids) for ids in by_number.splits.values()] == [4, 3, 32]
    narrow = split_nodes(labelled(y), "time:5,7.5", values=torch.arange(40.0).bfloat16())
    assert parts_of(narrow) == parts_of(by_number)
    with pytest.raises(DataError, match="times must be a dense tensor that holds values"):
        split_nodes(labelled(y), "time:5,7.5", values=torch.empty(40, device="meta"))


def test_a_split_by_group_keeps_groups_together():
    y, group = torch.arange(300) % 2, [f"city {i % 30}" for i in range(300)]
    graph = split_nodes(labelled(y), "group:0.6,0.2", values=group)
    homes = [{group[i] for i in ids.tolist()} for ids in graph.splits.values()]
    assert [len(one) for one in homes] == [18, 6, 6]
    assert not homes[0] & homes[1] and not homes[0] & homes[2] and not homes[1] & homes[2]


def test_types_are_split_in_their_own_ways():
    graph = Graph.from_relations(
        {("author", "writes", "paper"): [[0], [1]]},
        {"paper": 300, "author": 50},
        y={"paper": torch.arange(300) % 3, "author": torch.rand(50)},
    )
    split = split_nodes(graph, "paper=per-class;author=0.5,0.25")
    alone = random_split(labelled(torch.arange(300) % 3))
    assert parts_of(split) == {name: ids.tolist() for name, ids in alone.splits.items()}
    assert [len(ids) for ids in split.nodes_of("author").splits.values()] == [25, 13, 12]
    one = split_nodes(graph, "0.5,0.25", node_type="author")
    assert one.nodes_of("paper").splits == {}


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ("0.9,0.2", ConfigError, "sum to less than 1; got 0.9 and 0.2"),
        ("0.9,0.1,0.2", ConfigError, "at most 1"),
        ("0.5", ConfigError, "two or three shares"),
        ("half,0.2", ConfigError, "'half' in the split"),
        ("startified:0.5,0.2", ConfigError, "no split 'startified'; did you mean 'stratified'"),
        ("per-class:20", ConfigError, "two whole numbers"),
        ("time:2026-02-01,2026-01-01", ConfigError, "two rising times"),
        ("time:soon,later", ConfigError, "'soon' is no time"),
        ("time:2031-01-01,2032-01-01", DataError, "val and test empty .*from 2026-01-01.* to 2026-02-09"),
        ("group:city:0.6,0.2", DataError, "a graph of tables, or values="),
        ("0.001,0.001", DataError, "train and val empty .train 0, val 0, test 40.: 40 labelled nodes"),
        ("venue=0.5,0.2", DataError, "no node type 'venue'"),
        ("author=0.5,0.2", DataError, "nodes of type 'author': a split needs labels"),
    ],
)
def test_impossible_splits_are_named(how, error, text):
    days = torch.arange(40) * 86400 + 1767225600
    with pytest.raises(error, match=text):
        split_nodes(typed_graph(torch.arange(40) % 2, node_time=days), how)

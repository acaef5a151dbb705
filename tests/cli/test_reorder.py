"""graphbraid reorder and convert --order: the same graph renumbered, predictions under the user's ids."""

import numpy as np
import pytest
import torch

from graphbraid import datasets
from graphbraid.cli import signals
from graphbraid.datasets.store import changed
from graphbraid.features import ORDERS, order_by, reorder, score
from graphbraid.sampling import SamplerConfig
from graphbraid.sampling.config import SeedSchedule

QUICK = ("--hidden", 8, "--batch-size", 32, "--fanouts", "5,5", "--epochs", 5, "--lr", 0.05, "--quiet")


def same_topology(store, graph, ids):
    """The store holds the graph, each node under ``ids``."""
    found = datasets.open_store(store)
    place = torch.empty(graph.num_nodes, dtype=torch.int64)
    place[ids] = torch.arange(graph.num_nodes)
    ours = sorted(map(tuple, found.to_edge_index().t().tolist()))
    theirs = sorted(map(tuple, place[graph.to_edge_index()].t().tolist()))
    return ours == theirs and torch.equal(found.x, graph.x[ids]) and torch.equal(found.y, graph.y[ids])


@pytest.mark.parametrize("by", ORDERS)
def test_a_store_is_reordered_and_keeps_the_ids(graphbraid, store, two_communities, tmp_path, by):
    done = graphbraid("reorder", "--data", store, "--by", by, "--out", tmp_path / "made", "--json")
    assert (done.json["order"], done.json["num_nodes"]) == (by, 200)
    ids = torch.from_numpy(datasets.open_names(tmp_path / "made").ids.values)
    assert torch.equal(ids, ORDERS[by](two_communities.csc))
    assert same_topology(tmp_path / "made", two_communities, ids)


def test_by_a_score_of_the_sampler(graphbraid, store, two_communities, tmp_path):
    options = ("--fanouts", "4,3", "--batch-size", 16, "--seed", 3)
    graphbraid("reorder", "--data", store, "--by", "presampled", "--out", tmp_path / "made", *options)
    schedule = SeedSchedule(seeds=two_communities.split("train"), batch_size=16, shuffle=True, seed=3)
    found = score(two_communities, "presampled", sampler=SamplerConfig(fanouts=(4, 3)), schedule=schedule)
    assert datasets.open_names(tmp_path / "made").ids.values.tolist() == order_by(found.values).tolist()


@pytest.mark.parametrize("option", [("--fanouts", "4,3"), ("--batch-size", 16), ("--seed", 3)])
def test_options_that_an_order_does_not_read_are_refused(graphbraid, store, tmp_path, option):
    done = graphbraid(
        "reorder", "--data", store, "--by", "degree", "--out", tmp_path / "made", *option, code=2
    )
    assert f"{option[0]} is of orders that follow a sampler, and --by degree does not" in done.stderr
    assert not (tmp_path / "made").exists()


def test_convert_orders_what_it_prepared(graphbraid, store, two_communities, tmp_path):
    done = graphbraid("convert", store, tmp_path / "made", "--symmetrize", "--order", "degree")
    assert "200 nodes" in done.stderr
    symmetric = two_communities.symmetrized()
    ids = torch.from_numpy(datasets.open_names(tmp_path / "made").ids.values)
    assert torch.equal(ids, reorder(symmetric, "degree").order)
    assert same_topology(tmp_path / "made", symmetric, ids)


def test_a_data_set_that_is_no_store_is_reordered_too(graphbraid, tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path / "cache"))
    graphbraid("reorder", "--data", "braid-10k", "--by", "rcm", "--out", tmp_path / "made", "--json")
    assert len(datasets.open_names(tmp_path / "made").ids) == 1000


@pytest.mark.slow
def test_predictions_come_under_the_users_ids(graphbraid, two_communities, tmp_path):
    names = datasets.NodeIds(np.array([f"node {i}" for i in range(200)], object))
    datasets.save_store(two_communities, tmp_path / "named", ids=names)
    for source, by in (("named", "communities"), ("once", "degree")):  # of a store that was reordered before
        out = tmp_path / ("once" if source == "named" else "twice")
        graphbraid("reorder", "--data", tmp_path / source, "--by", by, "--out", out)
    run = tmp_path / "run"
    graphbraid("train", "--data", tmp_path / "twice", "--out", run, *QUICK)
    graphbraid("predict", "--run", run, "--out", tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as file:
        found = dict(file)
    predicted = dict(zip(found["node"].tolist(), found["prediction"].tolist(), strict=True))
    right = [predicted[f"node {i}"] == int(two_communities.y[i]) for i in range(200)]
    assert len(predicted) == 200
    assert np.mean(right) > 0.85  # under ids mixed up it would be a half
    (tmp_path / "ids.txt").write_text("node 7\nnode 123\n")
    graphbraid("predict", "--run", run, "--nodes", tmp_path / "ids.txt", "--out", tmp_path / "q.npz")
    with np.load(tmp_path / "q.npz") as file:
        few = dict(file)
    assert few["node"].tolist() == ["node 7", "node 123"]
    assert few["prediction"].tolist() == [predicted["node 7"], predicted["node 123"]]


def test_a_store_that_is_there_stays_unless_it_is_to_be_replaced(graphbraid, store, tmp_path):
    arguments = ("reorder", "--data", store, "--by", "degree", "--out", store)
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    done = graphbraid(*arguments, code=4)
    assert "it exists already" in done.stderr
    assert {path.name: path.read_bytes() for path in store.iterdir()} == before
    graphbraid(*arguments, "--overwrite")
    assert datasets.open_names(store).ids is not None


def test_sigterm_while_it_writes_leaves_nothing(graphbraid, store, tmp_path, monkeypatch):
    sources, made = changed.Renumbering.sources, []

    def stopped(self, *arguments, **options):
        made.append(arguments)
        if len(made) == 3:
            raise signals.Stopped
        return sources(self, *arguments, **options)

    monkeypatch.setattr(changed, "part_bytes", lambda: 256)
    monkeypatch.setattr(changed.Renumbering, "sources", stopped)
    before = sorted(path.name for path in tmp_path.iterdir())
    graphbraid("reorder", "--data", store, "--by", "degree", "--out", tmp_path / "made", code=130)
    assert len(made) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == before

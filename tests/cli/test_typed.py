"""train and predict on a file with node types, from end to end."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.typed_communities import AUTHORS, PAPERS, VENUES, bibliography

from graphbraid import datasets

QUICK = ("--model", "rgcn", "--hidden", 8, "--batch-size", 32, "--fanouts", "5,5", "--quiet", "--epochs", 5)


@pytest.fixture(scope="module")
def typed_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = bibliography()
    names = list(graph.node_types)
    first = np.cumsum([0, AUTHORS, PAPERS, VENUES])
    forwards = {one: p for one, p in graph.to_edge_indices().items() if not one[1].startswith("rev_")}
    shifted = [
        pairs.numpy() + np.array([[first[names.index(one[0])]], [first[names.index(one[2])]]])
        for one, pairs in forwards.items()
    ]
    papers = graph.nodes_of("paper")
    y = np.full(first[-1], -1)
    y[first[1] : first[2]] = papers.y
    path = tmp_path_factory.mktemp("typed") / "bibliography.npz"
    np.savez(
        path,
        edge_index=np.concatenate(shifted, 1),
        edge_type=np.repeat(np.arange(len(shifted)), [pairs.shape[1] for pairs in shifted]),
        node_type=np.repeat(np.arange(3), np.diff(first)),
        node_type_names=np.array(names),
        x_author=graph.nodes_of("author").x,
        x_paper=papers.x,
        y=y,
        **{f"{split}_idx": ids.numpy() + first[1] for split, ids in papers.splits.items()},
    )
    return path


@pytest.mark.slow
def test_a_file_with_types_trains_goes_on_and_predicts(
    graphbraid: Any, typed_file: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    learning = ("--lr", 0.02, "--set", "dropout=0.2")
    done = graphbraid(
        "train", "--data", typed_file, "--symmetrize", "--out", run, *QUICK, *learning, "--json"
    )
    kept = json.loads((run / "config.json").read_text())
    assert kept["info"]["settings"]["node_type"] == "paper"  # data to predict may have no labels
    assert done.json["result"]["test"]["accuracy"] > 0.5
    more = graphbraid("train", "--resume", "--out", run, "--epochs", 6, "--quiet", "--json")
    assert more.json["result"]["num_epochs"] == 6
    out = tmp_path / "papers.csv"
    done = graphbraid("predict", "--run", run, "--out", out, "--json")
    assert done.json["num_nodes"] == PAPERS
    rows = list(csv.DictReader(out.read_text().splitlines()))
    graph = datasets.load(typed_file)
    papers = graph.nodes_of("paper")
    test = papers.split("test").tolist()
    assert papers.y is not None
    right = [int(rows[node]["prediction"]) == int(papers.y[node]) for node in test]
    assert np.mean(right) == pytest.approx(more.json["result"]["test"]["accuracy"])
    done = graphbraid("predict", "--run", run, "--split", "val", "--sampled", "--out", out, "--json")
    assert done.json["num_nodes"] == papers.split("val").numel()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--model", "sage"), "--model sage does not go with .*a graph with types; choose one of rgcn"),
        (("--set", "model_options={num_nodes: 3}"), "model_options: num_nodes"),
        (("--set", "model_options={bases: 3}"), "model 'rgcn' has no option 'bases'"),
    ],
)
def test_wrong_options_are_named(
    graphbraid: Any, typed_file: Path, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    done = graphbraid("train", "--data", typed_file, "--out", tmp_path / "run", *QUICK, *options, code=None)
    assert done.exit_code != 0
    assert re.search(says, done.stderr.replace("\n", " ")), done.stderr


@pytest.mark.slow
def test_rgcn_trains_on_the_whole_graph(graphbraid: Any, typed_file: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ("--model", "rgcn", "--mode", "full", "--symmetrize", "--epochs", 20, "--json", "--quiet")
    done = graphbraid("train", "--data", typed_file, "--out", run, *options)
    assert done.json["result"]["num_epochs"] == 20
    done = graphbraid("predict", "--run", run, "--out", tmp_path / "papers.csv", "--json")
    assert done.json["num_nodes"] == PAPERS


def test_a_model_of_types_needs_them_and_estimates_do_not_take_them(
    graphbraid: Any, typed_file: Path, tmp_path: Path
) -> None:
    done = graphbraid(
        "train", "--out", tmp_path / "run", "--set", "data_options={cache: false}", *QUICK, code=2
    )
    assert "a graph without types; choose one of gcn" in done.stderr.replace("\n", " ")
    done = graphbraid("estimate", "--data", typed_file, "--model", "rgcn", code=None)
    assert "graphbraid estimate takes graphs of one node type" in done.stderr.replace("\n", " ")


def test_reverse_relations_are_added_on_loading(typed_file: Path) -> None:
    stored, both = (datasets.load(typed_file, symmetrize=both) for both in (False, True))
    assert len(both.edge_types) == 2 * len(stored.edge_types)
    assert both.num_edges == 2 * stored.num_edges
    source, name, destination = stored.edge_types[0]
    back = both.to_edge_indices()[destination, f"rev_{name}", source]
    assert torch.equal(back.flip(0), stored.to_edge_indices()[source, name, destination])


@pytest.mark.slow
def test_predictions_of_a_store_have_the_type_s_own_ids_and_classes(graphbraid: Any, tmp_path: Path) -> None:
    graph = bibliography()
    ids = np.array([f"paper {number}" for number in range(PAPERS)], dtype=object)
    names = {
        "paper": datasets.StoreNames(ids=datasets.NodeIds(ids), class_names=("art", "law", "war")),
        "venue": datasets.StoreNames(ids=datasets.NodeIds(np.arange(VENUES) + 7)),
    }
    datasets.save_store(graph, tmp_path / "store", names=names)
    run, out, chosen = tmp_path / "run", tmp_path / "papers.csv", tmp_path / "ids.txt"
    graphbraid("train", "--data", tmp_path / "store", "--out", run, *QUICK)
    chosen.write_text("paper 12\npaper 3\n")
    graphbraid("predict", "--run", run, "--nodes", chosen, "--out", out)
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["node"] for row in rows] == ["paper 12", "paper 3"]
    assert all(row["class"] == ("art", "law", "war")[int(row["prediction"])] for row in rows)

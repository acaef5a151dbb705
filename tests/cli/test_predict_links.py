"""graphbraid predict of a run on links: pairs, splits and the likeliest, by the names that users have."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.linked_communities import KNOWS, NODES, one_relation, relations, rows_alone
from typer.testing import CliRunner

from graphbraid.cli.main import app
from graphbraid.datasets import NodeIds, open_store, save_store
from graphbraid.datasets.store.manifest import StoreNames
from graphbraid.train import Trainer

NAMES = [f"n{node}" for node in range(NODES)]
QUICK = ["--epochs", "1", "--hidden", "8", "--set", "threads=1", "--batch-size", "512"]


def run(*words: Any) -> tuple[int, Any, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    text = done.stdout.strip()
    made = json.loads(text) if text.startswith("{") else None
    message = done.stderr + (made or {}).get("error", {}).get("message", "")
    return done.exit_code, made, message.replace("\n", " ")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a store of three relations whose nodes are named n0, n1, ..."""
    folder = tmp_path_factory.mktemp("links")
    names = {"node": StoreNames(ids=NodeIds(np.array(NAMES, object)))}
    store = save_store(relations(), folder / "store", names=names)
    model = ["--model", "embedding", "--layers", "1"]
    code, _, text = run("train", "--task", "link", "--data", store, *model, *QUICK, "--out", folder / "run")
    assert code == 0, text
    return folder / "run"


def predict(trained: Path, out: Path, *words: Any) -> list[dict[str, str]]:
    code, made, text = run("predict", "--run", trained, "--out", out, "--json", *words)
    assert code == 0, text
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert made["columns"] == list(rows[0])
    assert made["num_links"] == len(rows)
    return rows


def trainer_of(trained: Path) -> Trainer:
    """Return the trainer that scores as the run does, made in Python."""
    graph = open_store(trained.parent / "store")
    trainer = Trainer(rows_alone(graph, channels=8), graph, task="link", fanouts=(0,), threads=1)
    trainer.load_weights(trained / "checkpoints" / "best.pt")
    return trainer


@pytest.mark.parametrize("text", ["n3 knows n7\nn3,likes,n8\n\n", "n3\tknows\tn7\nn3\t0\tn8\n"])
def test_pairs_of_a_file_are_scored_by_the_names_of_the_data(trained, tmp_path, text):
    pairs = tmp_path / "pairs.txt"
    pairs.write_text(text)
    rows = predict(trained, tmp_path / "p.csv", "--pairs", pairs)
    shown = [(row["source"], row["relation"], row["destination"]) for row in rows]
    assert shown == [("n3", "knows", "n7"), ("n3", "likes", "n8")]
    trainer = trainer_of(trained)
    kinds = [trainer.graph.edge_types.index(one) for one in (KNOWS, ("node", "likes", "node"))]
    expected = trainer.predict_links([[3, 3], [7, 8]], kinds)
    found = torch.tensor([float(row["score"]) for row in rows])
    torch.testing.assert_close(found, expected)
    chances = torch.tensor([float(row["probability"]) for row in rows])
    torch.testing.assert_close(chances, expected.sigmoid())


def test_the_links_of_a_split_are_scored_by_default_those_of_test(trained, tmp_path):
    graph = relations()
    rows = predict(trained, tmp_path / "p.csv")
    expected = set()
    for one in graph.edge_types:
        at = graph.edges_of(one).splits.get("test", torch.zeros(0, dtype=torch.int64))
        ends = graph.to_edge_indices()[one][:, at]
        expected |= {(f"n{s}", one[1], f"n{d}") for s, d in ends.t().tolist()}
    assert {(row["source"], row["relation"], row["destination"]) for row in rows} == expected
    assert len(predict(trained, tmp_path / "v.csv", "--split", "val")) == 90


def test_the_likeliest_are_those_of_all_scores_without_links_that_are_known(trained, tmp_path):
    heads = tmp_path / "heads.npy"
    np.save(heads, np.array([["n3", "knows"], ["n90", "likes"]]))
    rows = predict(trained, tmp_path / "p.csv", "--pairs", heads, "--top", 5)
    trainer, graph = trainer_of(trained), relations()
    for source, relation in ((3, "knows"), (90, "likes")):
        kind = [one[1] for one in trainer.graph.edge_types].index(relation)
        everyone = torch.stack([torch.full((NODES,), source), torch.arange(NODES)])
        scores = trainer.predict_links(everyone, [kind] * NODES)
        lists = graph.to_edge_indices()[("node", relation, "node")]
        scores[lists[1, lists[0] == source]] = -torch.inf
        scores[source] = -torch.inf
        own = [row for row in rows if row["source"] == f"n{source}"]
        assert [row["destination"] for row in own] == [f"n{node}" for node in scores.topk(5).indices.tolist()]
        assert [row["rank"] for row in own] == list("12345")
        assert {row["relation"] for row in own} == {relation}
    all_of_them = predict(trained, tmp_path / "k.csv", "--pairs", heads, "--top", 500, "--known")
    assert len(all_of_them) == 2 * NODES
    some = predict(trained, tmp_path / "s.csv", "--top", 1)
    asked = [(row["source"], row["relation"]) for row in some]
    assert len(asked) == len(set(asked))


def test_links_of_one_kind_are_named_by_numbers_where_the_data_has_no_others(tmp_path):
    path = tmp_path / "g.npz"
    np.savez(path, edge_index=one_relation().to_edge_index().numpy())
    model = ["--model", "embedding", "--negatives", "shared", "--layers", "1"]
    code, _, text = run("train", "--task", "link", "--data", path, *model, *QUICK, "--out", tmp_path / "run")
    assert code == 0, text
    (tmp_path / "pairs.csv").write_text("0,5\n5,0\n")
    rows = predict(tmp_path / "run", tmp_path / "p.csv", "--pairs", tmp_path / "pairs.csv")
    assert list(rows[0]) == ["source", "destination", "score"]  # shared negatives give no probabilities
    assert [(row["source"], row["destination"]) for row in rows] == [("0", "5"), ("5", "0")]
    (tmp_path / "far.csv").write_text("0,5\n5,500\n")
    code, _, text = run(
        "predict", "--run", tmp_path / "run", "--out", tmp_path / "p.csv", "--pairs", tmp_path / "far.csv"
    )
    assert code == 2
    assert "destinations of links must be ids of nodes of type 'node', in [0, 120); entry 1 is 500" in text


@pytest.mark.parametrize(
    ("content", "words", "code", "message"),
    [
        ("n3 n7", [], 3, "entry 1 must have source, relation, destination; got 2 values"),
        ("n3 knows n7", ["--top", "3"], 3, "entry 1 must have source, relation; got 3 values"),
        ("", [], 3, "holds nothing; each line needs source, relation, destination"),
        ("n3 know n7", [], 3, "entry 1 names the relation 'know'"),
        ("n3 9 n7", [], 3, "entry 1 names the relation '9'"),
        ("n3 knows n7\nn3 knows m7", [], 3, "no node has the id 'm7' (position 1)"),
        ("n3 knows n7", ["--split", "test"], 2, "--pairs and --split both choose the links"),
        ("n3 knows n7", ["--known"], 2, "give --top as well"),
        ("n3 knows", ["--top", "0"], 2, "--top must be"),
        ("n3 knows n7", ["--scores"], 2, "--scores is for predictions of nodes, and this run is on links"),
    ],
)
def test_pairs_and_options_that_do_not_fit_are_named(trained, tmp_path, content, words, code, message):
    pairs = tmp_path / "pairs.txt"
    pairs.write_text(content)
    found, _, text = run("predict", "--run", trained, "--out", tmp_path / "p.csv", "--pairs", pairs, *words)
    assert message in text
    assert found == code


def test_arrays_that_hold_no_pairs_are_named(trained, tmp_path):
    np.save(tmp_path / "p.npy", np.zeros((2, 3)))
    found, _, text = run(
        "predict", "--run", trained, "--out", tmp_path / "p.csv", "--pairs", tmp_path / "p.npy"
    )
    assert found == 3
    assert "must hold ids, a row for each; got float64 of shape (2, 3)" in text


def test_the_encoders_rows_are_written_with_the_users_ids(trained, tmp_path):
    import pyarrow.parquet

    rows = tmp_path / "rows.parquet"
    predict(trained, tmp_path / "p.csv", "--embeddings", rows, "--top", 3)
    table = pyarrow.parquet.read_table(rows).to_pydict()
    assert table["node"] == NAMES
    np.testing.assert_array_equal(
        np.array(table["embedding"], np.float32), trainer_of(trained).embed().numpy()
    )

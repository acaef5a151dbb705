"""graphbraid train --task link: from archives with relations and without, resumed; what it does not take."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.test_predict_links import run
from tests.train.linked_communities import NODES, one_relation, relations
from tests.train.linked_times import ends_and_times
from tests.train.linked_types import FILMS, MADE, RATES, STUDIOS, USERS, films

QUICK = ["--epochs", "2", "--batch-size", "256", "--hidden", "8", "--lr", "0.02", "--set", "threads=1"]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive of a knowledge graph, its edges in the order of its splits."""
    graph = relations()
    ends, kinds, sizes = [], [], [0]
    for split in ("train", "val", "test"):
        for number, one in enumerate(graph.edge_types):
            positions = graph.edges_of(one).splits.get(split, torch.zeros(0, dtype=torch.int64))
            ends.append(graph.to_edge_indices()[one][:, positions])
            kinds.append(torch.full((positions.numel(),), number))
        sizes.append(sum(kind.numel() for kind in kinds))
    path = tmp_path / "kg.npz"
    np.savez(
        path,
        edge_index=torch.cat(ends, 1).numpy(),
        edge_type=torch.cat(kinds).numpy(),
        edge_split_ptr=np.array(sizes),
        num_nodes=NODES,
        num_edge_types=3,
    )
    return path


def train(*words: str) -> tuple[int, Any, str]:
    return run("train", "--task", "link", "--json", *QUICK, *words)


@pytest.mark.parametrize("model", ["embedding", "rgcn", "sage"])
def test_links_of_relations_are_trained_and_go_on(model, archive, tmp_path):
    out = tmp_path / "run"
    chosen = ["--data", str(archive), "--model", model, "--layers", "1", "--negatives", "shared"]
    code, made, text = train(*chosen, "--out", str(out))
    assert code == 0, text
    assert set(made["result"]["test"]) == {"loss", "mrr", "auc", "hits@1", "hits@10"}
    assert made["options"]["task"] == "link"
    code, again, text = run("train", "--resume", "--out", str(out), "--epochs", "3", "--json")
    assert code == 0, text
    assert again["result"]["history"][:2] == made["result"]["history"]
    assert len(again["result"]["history"]) == 3
    code, made, text = run("predict", "--run", str(out), "--out", str(tmp_path / "p.csv"), "--json")
    assert code == 0, text
    assert made["columns"] == ["source", "relation", "destination", "score"]


@pytest.mark.parametrize(
    ("decoder", "negatives", "more"),
    [
        ("complex", "one-vs-all", ["--reciprocal", "--n3", "0.01"]),
        ("transe", "self-adversarial", ["--set", "predictor_options={margin: 3, norm: 2}"]),
        ("rotate", "self-adversarial", ["--set", "adversarial_temperature=0.5"]),
        ("distmult", "one-vs-all", ["--set", "plan=cpu"]),
    ],
)
def test_a_knowledge_graph_is_trained_and_predicted_by_every_decoder(
    decoder, negatives, more, archive, tmp_path
):
    out = tmp_path / "run"
    chosen = ["--data", str(archive), "--model", "embedding", "--hidden", "8", "--fanouts", "0"]
    words = [*chosen, "--decoder", decoder, "--negatives", negatives, *more]
    code, made, text = train(*words, "--out", str(out))
    assert code == 0, text
    assert made["result"]["test"]["mrr"] > 0
    assert made["options"]["predictor"] == decoder
    code, found, text = run("estimate", *words, "--set", "task=link", "--json")
    assert code == 0, text
    assert found
    code, found, text = run("predict", "--run", str(out), "--out", str(tmp_path / "p.csv"), "--json")
    assert code == 0, text
    assert found["columns"] == ["source", "relation", "destination", "score"]


@pytest.mark.slow
def test_links_without_relations_have_drawn_splits(tmp_path):
    graph = one_relation()
    path = tmp_path / "g.npz"
    np.savez(path, edge_index=graph.to_edge_index().numpy(), x=graph.dense_x().numpy())
    code, made, text = train("--data", str(path), "--predictor", "mlp", "--out", str(tmp_path / "run"))
    assert code == 0, text
    assert made["result"]["monitor"] == "mrr"
    code, plan, text = run("plan", "--data", str(path), "--json", "--set", "task=link", "--hidden", "8")
    assert code == 0, text
    assert plan["plan"]


def test_links_between_two_node_types_are_trained_and_predicted(tmp_path):
    graph = films()
    first = {"studio": 0, "user": STUDIOS, "film": STUDIOS + USERS}
    lists = {one: graph.to_edge_indices()[one] for one in (MADE, RATES)}
    ends = [edges + torch.tensor([[first[one[0]]], [first[one[2]]]]) for one, edges in lists.items()]
    path = tmp_path / "films.npz"
    np.savez(
        path,
        edge_index=torch.cat(ends, 1).numpy(),
        edge_type=np.repeat([0, 1], [edges.shape[1] for edges in ends]),
        edge_type_names=["made", "rates"],
        node_type=np.repeat([0, 1, 2], [STUDIOS, USERS, FILMS]),
        node_type_names=["studio", "user", "film"],
        x_film=graph.nodes_of("film").x.numpy(),  # type: ignore[union-attr]
    )
    out = tmp_path / "run"
    chosen = ["--data", str(path), "--model", "rgcn", "--fanouts", "5,5", "--set", "symmetrize=true"]
    code, _, text = train(*chosen, "--out", str(out))
    assert code == 2
    assert "say which with link_relation" in text
    code, made, text = train(*chosen, "--out", str(out), "--relation", "user,rates,film")
    assert code == 0, text
    assert made["result"]["test"]["auc"] > 0
    (tmp_path / "users.txt").write_text("3\n89\n")
    words = ["--pairs", str(tmp_path / "users.txt"), "--top", "4", "--json"]
    code, made, text = run("predict", "--run", str(out), "--out", str(tmp_path / "p.csv"), *words)
    assert code == 0, text
    assert (made["num_links"], made["columns"]) == (8, ["source", "destination", "rank", "score"])
    code, _, text = train(*chosen, "--out", str(tmp_path / "other"), "--relation", "user,rated,film")
    assert code == 2
    assert "link_relation='user,rated,film' is no relation" in text


@pytest.mark.slow
def test_a_run_on_links_is_estimated(archive, monkeypatch):
    monkeypatch.setattr("graphbraid.estimates.memory.baseline_bytes", lambda *_: 300 << 20)
    chosen = ["--data", str(archive), "--model", "embedding", "--layers", "1", "--negatives", "shared"]
    code, made, text = run("estimate", "--task", "link", "--no-times", "--json", *QUICK, *chosen)
    assert code == 0, text
    assert made["mode"] == "sampled"
    sampled, full = made["modes"]
    names = [need["name"] for need in (*sampled["host"]["held"], *sampled["host"]["phases"])]
    assert {"links", "step", "validation", "test"} <= set(names)
    assert not full["fits"]


@pytest.mark.slow
def test_links_with_times_are_trained_estimated_and_predicted(tmp_path, monkeypatch):
    monkeypatch.setattr("graphbraid.estimates.memory.baseline_bytes", lambda *_: 300 << 20)
    ends, times = ends_and_times()
    path, out = tmp_path / "met.npz", tmp_path / "run"
    np.savez(path, edge_index=ends.numpy(), edge_time=times.numpy(), num_nodes=NODES)
    chosen = ["--data", str(path), "--fanouts", "4,3", "--temporal", "last"]
    code, made, text = train(*chosen, "--out", str(out))
    assert code == 0, text
    assert made["result"]["test"]["auc"] > 0
    code, again, text = run("train", "--resume", "--out", str(out), "--epochs", "3", "--json")
    assert code == 0, text
    assert again["result"]["history"][:2] == made["result"]["history"]
    code, made, text = run("predict", "--run", str(out), "--out", str(tmp_path / "p.csv"), "--json")
    assert code == 0, text
    assert made["columns"] == ["source", "relation", "destination", "score", "probability"]
    code, made, text = run("estimate", "--task", "link", "--no-times", "--json", *QUICK, *chosen)
    assert code == 0, text
    assert made["mode"] == "sampled"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--predictor", "mlp", "--set", "predictor_options={size: 3}"], "predictor mlp cannot be made with"),
        (["--model", "rgcn"], "--model rgcn learns from relations"),
        (
            ["--predictor", "none"],
            "--predictor: predictor must be 'dot', 'mlp', 'distmult', 'complex', 'transe' or 'rotate'",
        ),
        (["--temporal", "first"], "--temporal: temporal_strategy must be 'uniform' or 'last'"),
        (["--negatives", "all"], "--negatives: negatives must be 'binary', 'triplet', 'shared',"),
        (["--task", "edges"], "--task: task must be 'node', 'link', 'edge' or 'graph'"),
        (["--task", "node", "--predictor", "dot"], "predictor='dot' scores links"),
    ],
)
def test_what_does_not_go_together_is_named(words, message, tmp_path):
    path = tmp_path / "g.npz"
    np.savez(path, edge_index=one_relation().to_edge_index().numpy())
    code, _, text = train("--data", str(path), "--out", str(tmp_path / "run"), *words)
    assert code == 2
    assert message in text.replace("\n", " ")
    code, _, text = run("plan", "--ranks", "2", "--data", str(path), "--set", "task=link")
    assert code == 2
    assert "this run has task='link'" in text

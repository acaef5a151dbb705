"""Labels of edges and of many small graphs by convert, train and predict, as Python learns them."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from graphbraid import Graph, GraphSet, Trainer, datasets
from graphbraid import nn as gnn
from graphbraid.errors import DataError

RATES = ("user", "rates", "item")
NUM_USERS, NUM_ITEMS, NUM_RATES = 40, 15, 400
QUICK = ("--hidden", 16, "--batch-size", 64, "--epochs", 8, "--lr", 0.02, "--set", "threads=1", "--quiet")

SHOP = """\
name: shop
nodes:
  user: {file: users.csv}
  item: {file: items.csv, features: [price]}
edges:
  - relation: [user, rates, item]
    file: rates.csv
    source: who
    destination: what
    features: [stars]
    label: mood
    time: when
reverse: true
"""
CHEMISTRY = """\
name: rings
nodes:
  molecule: {file: molecules.csv, label: kind}
  atom:
    file: atoms.csv
    keys: {molecule: molecule}
edges:
  - {relation: [atom, bond, atom], file: bonds.csv, features: [order]}
reverse: true
"""


def write_shop(folder: Path, *, first: int = 0, labels: bool = True, num: int = NUM_RATES) -> Path:
    """Users who rate items; whether they are glad follows from the stars and from the user's age."""
    drawn = np.random.default_rng(first)
    ages = drawn.normal(40, 12, NUM_USERS)
    users = pd.DataFrame({"id": [f"u{first + at}" for at in range(NUM_USERS)], "age": ages})
    items = pd.DataFrame({"id": [f"i{at}" for at in range(NUM_ITEMS)], "price": drawn.random(NUM_ITEMS)})
    who, what = drawn.integers(0, NUM_USERS, num), drawn.integers(0, NUM_ITEMS, num)
    stars = drawn.normal(size=num).round(3)
    glad = stars + (ages[who] - 40) / 12 > 0
    table = pd.DataFrame({"who": users["id"].to_numpy()[who], "what": items["id"].to_numpy()[what]})
    table["stars"], table["when"] = stars, np.arange(num)
    if labels:
        table["mood"] = np.where(np.arange(num) % 19 == 0, "", np.where(glad, "glad", "cross"))
    folder.mkdir(exist_ok=True)
    for name, one in (("users", users), ("items", items), ("rates", table)):
        one.to_csv(folder / f"{name}.csv", index=False)
    (folder / "shop.yaml").write_text(SHOP if labels else SHOP.replace("    label: mood\n", ""))
    return folder / "shop.yaml"


def write_molecules(folder: Path, *, num: int = 90, first: int = 0, labels: bool = True) -> Path:
    """Paths and rings of atoms; the tables of atoms and bonds are not in the order of the molecules."""
    drawn = np.random.default_rng(first)
    atoms, bonds, kinds = [], [], []
    for at in range(num):
        size, is_ring = 3 + at % 5, bool(drawn.random() < 0.5)
        kinds.append("ring" if is_ring else "path")
        atoms += [(f"m{first + at}a{i}", f"m{first + at}", drawn.normal(), "CNO"[i % 3]) for i in range(size)]
        joins = [(i, i + 1) for i in range(size - 1)] + [(size - 1, 0)] * is_ring
        bonds += [(f"m{first + at}a{i}", f"m{first + at}a{j}", 1.0 + i % 2) for i, j in joins]
    ids = [f"m{first + at}" for at in range(num)]
    molecules = pd.DataFrame({"id": ids, "kind": kinds, "charge": drawn.normal(size=num)})
    folder.mkdir(exist_ok=True)
    (molecules if labels else molecules.drop(columns="kind")).to_csv(folder / "molecules.csv", index=False)
    table = pd.DataFrame(atoms, columns=["id", "molecule", "mass", "kind"])
    table.sample(frac=1, random_state=0).to_csv(folder / "atoms.csv", index=False)
    table = pd.DataFrame(bonds, columns=["source", "destination", "order"])
    table.sample(frac=1, random_state=1).to_csv(folder / "bonds.csv", index=False)
    text = CHEMISTRY if labels else CHEMISTRY.replace(", label: kind", "")
    (folder / "rings.yaml").write_text(text)
    return folder / "rings.yaml"


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def shop(graphbraid: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A store of the shop, and a run on it."""
    folder = tmp_path_factory.mktemp("edges")
    graphbraid("convert", write_shop(folder / "tables"), folder / "store")
    given = ("--task", "edge", "--data", folder / "store", "--split", "time:240,320", "--model", "rgcn")
    graphbraid("train", *given, *QUICK, "--fanouts", "5,5", "--out", folder / "run")
    return folder / "store", folder / "run"


@pytest.mark.slow
def test_labels_of_edges_are_learned_and_predicted_by_the_names_of_the_tables(graphbraid, shop, tmp_path):
    store, run = shop
    kept = json.loads((run / "config.json").read_text())
    assert kept["info"]["settings"]["link_relation"] == list(RATES)  # data to predict may have no labels
    assert kept["info"]["outputs"] == {"task": "single-label", "width": 2, "class_names": ["cross", "glad"]}
    found = graphbraid(
        "predict", "--run", run, "--split", "test", "--scores", "--out", tmp_path / "a.csv", "--json"
    )
    rows, table = rows_of(tmp_path / "a.csv"), pd.read_csv(store.parent / "tables" / "rates.csv")
    tested = table[(table["when"] >= 320) & table["mood"].notna()]
    assert found.json["num_edges"] == len(rows) == len(tested)
    assert [int(row["edge"]) for row in rows] == list(tested.index)
    assert [row["source"] for row in rows] == list(tested["who"])
    assert [row["destination"] for row in rows] == list(tested["what"])
    right = np.mean([row["class"] == mood for row, mood in zip(rows, tested["mood"], strict=True)])
    assert right > 0.8
    # The same weights in Python, with the edges that the run validates and tests on out of the messages.
    graph = datasets.split_edges(datasets.load(store), RATES, "time:240,320")
    x = {name: graph.nodes_of(name).x.shape[1] for name in graph.node_types}
    encoder = gnn.RGCN(x, 16, 16, graph.edge_types)
    model = gnn.EdgeModel(encoder, gnn.EdgeDecoder(16, 2, edge_channels=1, dropout=0.5))
    trainer = Trainer(model, graph, task="edge", fanouts=(5, 5))
    trainer.load_weights(run / "checkpoints" / "best.pt")
    scores = trainer.predict(torch.from_numpy(tested.index.to_numpy().copy()), probabilities=True)
    expected = torch.tensor([[float(row[f"score_{at}"]) for at in (0, 1)] for row in rows])
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_other_edges_without_labels_are_predicted_and_the_rows_of_their_ends_written(
    graphbraid, shop, tmp_path
):
    graphbraid("convert", write_shop(tmp_path / "tables", first=1000, labels=False, num=50), tmp_path / "new")
    given = ("--run", shop[1], "--data", tmp_path / "new", "--out", tmp_path / "new.csv")
    more = ("--embeddings", tmp_path / "users.parquet", "--embeddings-of", "user")
    graphbraid("predict", *given, *more)
    rows, table = rows_of(tmp_path / "new.csv"), pd.read_csv(tmp_path / "tables" / "rates.csv")
    assert [(row["source"], row["destination"]) for row in rows] == list(
        zip(table["who"], table["what"], strict=True)
    )
    assert {row["class"] for row in rows} <= {"glad", "cross"}
    assert len(pd.read_parquet(tmp_path / "users.parquet")) == NUM_USERS
    top = graphbraid("predict", *given[:-1], tmp_path / "top.csv", "--top", 3, "--json")
    assert top.json["columns"][:3] == ["source", "destination", "edge"]
    assert len(rows_of(tmp_path / "top.csv")) == 6  # of each class


def test_what_does_not_go_with_labels_of_edges_is_said(graphbraid, shop, tmp_path):
    store, run = shop
    given = ("train", "--task", "edge", "--data", store, "--out", tmp_path / "run", "--fanouts", "5,5")
    for more, text in {
        ("--decoder", "complex"): "--decoder complex is for links of relations",
        ("--reciprocal",): "--reciprocal is for links of relations",
        ("--model", "sage"): "--model sage does not go with",
        ("--target", "user.age"): "target='user.age' is a column of nodes",
        ("--relation", "item,rev_rates,user"): "edges of item,rev_rates,user have no labels",
        ("--set", "predictor_options={how: sum}"): "how must be one of 'concat', 'product', 'dot'",
        ("--embedding-dim", 8): "embedding_dim=8 is for labels of nodes",
    }.items():
        given_model = () if "--model" in more else ("--model", "rgcn")
        said = graphbraid(*given, *given_model, *more, code=None).stderr
        assert text in " ".join(said.split()), more
    out = ("--out", tmp_path / "out.csv")
    for more, text in {
        ("--pairs", store / "graph.json"): "--pairs is for predictions of links, and this run is on edges",
        ("--nodes", store / "graph.json"): "--nodes is for predictions of nodes, and this run is on edges",
    }.items():
        assert text in " ".join(graphbraid("predict", "--run", run, *out, *more, code=2).stderr.split())


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("label: mood", "label: temper", "rates.csv has no column 'temper' (label)"),
        ("label: mood", "label: stars", "'stars' cannot be a feature and the label at once"),
        ("label: mood", "label: who", "'who' cannot be a label and the source at once"),
    ],
)
def test_a_wrong_label_column_of_edges_is_named(graphbraid, tmp_path, old, new, text):
    path = write_shop(tmp_path / "tables")
    path.write_text(path.read_text().replace(old, new))
    assert text in " ".join(graphbraid("convert", path, tmp_path / "store", code=None).stderr.split())


@pytest.fixture(scope="module")
def molecules(graphbraid: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A store of molecules, and a run on it."""
    folder = tmp_path_factory.mktemp("graphs")
    graphbraid("convert", write_molecules(folder / "tables"), folder / "store")
    given = ("--task", "graph", "--data", folder / "store", "--split", "stratified:0.6,0.2", "--model", "gin")
    more = ("--layers", 3, "--set", "predictor_options={readout: sum}", "--set", "dropout=0.0")
    graphbraid("train", *given, *more, *QUICK, "--epochs", 40, "--out", folder / "run")
    return folder / "store", folder / "run"


@pytest.mark.slow
def test_labels_of_graphs_are_learned_and_predicted_by_the_names_of_the_tables(
    graphbraid, molecules, tmp_path
):
    store, run = molecules
    found = graphbraid("predict", "--run", run, "--scores", "--out", tmp_path / "all.csv", "--json")
    rows, table = rows_of(tmp_path / "all.csv"), pd.read_csv(store.parent / "tables" / "molecules.csv")
    assert found.json["num_graphs"] == len(table)
    assert [row["graph"] for row in rows] == list(table["id"])
    assert np.mean([row["class"] == kind for row, kind in zip(rows, table["kind"], strict=True)]) > 0.7
    graphs = GraphSet.from_graph(datasets.load(store, split="stratified:0.6,0.2"))
    encoder = gnn.make_model("gin", graphs.num_features, 16, hidden_channels=16, num_layers=3, dropout=0.0)
    assert graphs.num_graph_features == 1  # the charge, behind the row of the atoms
    model = gnn.PooledModel(encoder, torch.nn.Linear(16 + 1, 2), readout="sum")
    trainer = Trainer(model, graphs, task="graph")
    trainer.load_weights(run / "checkpoints" / "best.pt")
    expected = torch.tensor([[float(row[f"score_{at}"]) for at in (0, 1)] for row in rows])
    torch.testing.assert_close(trainer.predict(probabilities=True), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_other_graphs_are_encoded_as_those_to_train_on(graphbraid, molecules, tmp_path):
    write_molecules(tmp_path / "tables", num=20, first=500, labels=False)
    atoms = pd.read_csv(tmp_path / "tables" / "atoms.csv")
    outs = []
    for name, table in {"straight": atoms, "turned": atoms[atoms.columns[::-1]]}.items():
        table.to_csv(tmp_path / "tables" / "atoms.csv", index=False)
        graphbraid("convert", tmp_path / "tables" / "rings.yaml", tmp_path / name)
        out = tmp_path / f"{name}.csv"
        graphbraid("predict", "--run", molecules[1], "--data", tmp_path / name, "--scores", "--out", out)
        outs.append(out.read_text())
    assert outs[0] == outs[1]
    assert [row["graph"] for row in rows_of(out)] == [f"m{500 + at}" for at in range(20)]
    atoms.drop(columns="mass").to_csv(tmp_path / "tables" / "atoms.csv", index=False)
    graphbraid("convert", tmp_path / "tables" / "rings.yaml", tmp_path / "less")
    given = ("predict", "--run", molecules[1], "--data", tmp_path / "less", "--out", tmp_path / "less.csv")
    assert "lacks columns that its encoders were fitted on: mass" in graphbraid(*given, code=None).stderr


def test_categories_with_learned_rows_are_refused_for_graphs(graphbraid, tmp_path):
    path = write_molecules(tmp_path / "tables", num=20)
    path.write_text(path.read_text().replace("atoms.csv", "atoms.csv\n    columns: {kind: learned}"))
    graphbraid("convert", path, tmp_path / "store")
    given = ("--task", "graph", "--data", tmp_path / "store", "--split", "0.6,0.2", "--model", "gin")
    said = graphbraid("train", *given, "--out", tmp_path / "run", code=2).stderr
    assert "categories of 'atom' have learned rows" in said


def test_what_does_not_go_with_graphs_is_said(graphbraid, molecules, shop, tmp_path):
    store, run = molecules
    given = ("train", "--task", "graph", "--out", tmp_path / "run", "--epochs", 1)
    split, data = ("--split", "0.6,0.2"), ("--data", store)
    for more, text in {
        (*data, "--model", "gin"): "the graphs have no split into train, val and test",
        (*data, *split, "--model", "rgcn"): "--task graph needs --model to be one of",
        (*data, *split, "--decoder", "dot"): "predictor='dot' is for one graph",
        (*data, *split, "--fanouts", "5,5"): "fanouts",
        (*data, *split, "--set", "predictor_options={readout: median}"): "readout must be one of 'sum'",
        ("--data", shop[0]): "many graphs are a graph with two node types",
    }.items():
        assert text in " ".join(graphbraid(*given, *more, code=None).stderr.split()), more
    out = ("--out", tmp_path / "out.csv", "--embeddings", tmp_path / "rows.npy")
    said = graphbraid("predict", "--run", run, *out, code=2).stderr
    assert "this one returns rows of graphs" in " ".join(said.split())


def union(members: Any = None, edges: Any = None, **more: Any) -> Graph:
    """Two molecules of three and two atoms, whose atoms are mixed."""
    of = [[0, 1, 2, 3, 4], [1, 0, 1, 0, 1]] if members is None else members
    joins = [[0, 2, 1], [2, 4, 3]] if edges is None else edges
    lists = {("atom", "bond", "atom"): torch.tensor(joins), ("atom", "in", "molecule"): torch.tensor(of)}
    x = {"atom": torch.arange(5.0)[:, None]}
    return Graph.from_relations(
        lists, {"atom": 5, "molecule": 2}, x=x, y={"molecule": torch.tensor([0, 1])}, **more
    )


def test_the_graphs_of_a_graph_have_their_own_nodes_edges_and_features():
    order = {("atom", "bond", "atom"): torch.tensor([[7.0], [8.0], [9.0]])}
    graphs = GraphSet.from_graph(union(edge_attr=order))
    assert len(graphs) == 2
    first, second = graphs.batch(torch.tensor([0])), graphs.batch(torch.tensor([1]))
    assert first.x.flatten().tolist() == [1, 3]
    assert second.x.flatten().tolist() == [0, 2, 4]
    assert first.edge_index.tolist() == [[0], [1]]
    assert second.edge_index.tolist() == [[0, 1], [1, 2]]
    assert first.edge_attr.flatten().tolist() == [9]
    assert second.edge_attr.flatten().tolist() == [7, 8]
    both = GraphSet.from_graph(union().with_reverse_relations()).batch(torch.tensor([1]))
    assert sorted(map(tuple, both.edge_index.t().tolist())) == [(0, 1), (1, 0), (1, 2), (2, 1)]


def test_a_graph_that_stands_for_no_graphs_is_refused():
    with pytest.raises(DataError, match="each atom must belong to one molecule; atom 4 belongs to 0"):
        GraphSet.from_graph(union([[0, 1, 2, 3], [1, 0, 1, 0]]))
    with pytest.raises(DataError, match="an edge joins atom 0 of molecule 1 and 1 of 0"):
        GraphSet.from_graph(union(edges=[[0], [1]]))
    with pytest.raises(DataError, match="two node types"):
        GraphSet.from_graph(Graph.from_edge_index([[0], [1]], 2))

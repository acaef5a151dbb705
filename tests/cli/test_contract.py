"""What a model was trained on: columns, classes and types are matched by name, or refused by name."""

import dataclasses
import logging

import numpy as np
import pyarrow as arrow
import pytest
import torch
from tests.train.linked_communities import relations, rows_alone
from tests.train.typed_communities import bibliography

from graphbraid import Trainer, datasets
from graphbraid.errors import DataError
from graphbraid.graph import Columns, Graph, ScaledFeatures, Schema, SparseFeatures
from graphbraid.nn import GraphSAGE, make_typed_model

NODES = 180
_draws = np.random.default_rng(0)
VALUES = {name: _draws.standard_normal(NODES).round(4) for name in "abcde"}
ENDS = _draws.integers(0, NODES, (2, 500))
SHADES = np.array(["green", "blue", "red"])[np.arange(NODES) % 3]
LABELS = {"p": np.arange(NODES) % 2, "q": np.arange(NODES) % 3 // 2, "r": np.arange(NODES) % 5 // 4}
OPTIONS = {"epochs": 1, "fanouts": (4,), "batch_size": 64, "threads": 1}
QUICK = ("--epochs", 2, "--batch-size", 64, "--hidden", 8, "--fanouts", 4, "--set", "threads=1", "--quiet")


def table(columns="abcd", *, shades=SHADES, labels="shade", fill=None, prepare=None, values=VALUES) -> Graph:
    """A graph from tables whose feature columns are in this order."""
    rows = {"id": np.arange(NODES), **{name: values[name] for name in columns}, **LABELS, "shade": shades}
    made = datasets.from_tables(
        arrow.table({"source": ENDS[0], "destination": ENDS[1]}),
        arrow.table(rows),
        features=list(columns),
        label=labels,
        fill_missing=fill,
    )
    return datasets.prepare(made.graph, split_seed=0, **(prepare or {}))


def model_of(graph, width=None):
    torch.manual_seed(0)
    return GraphSAGE(graph.num_features, 8, width or graph.num_classes, 1, dropout=0.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The checkpoint of a run on columns a, b, c, d, and its predictions and evaluation."""
    out, graph = tmp_path_factory.mktemp("run") / "r", table()
    trainer = Trainer(model_of(graph), graph, out_dir=out, **OPTIONS)
    trainer.fit()
    return out / "checkpoints" / "last.pt", trainer.predict(), trainer.evaluate("val")


def loaded(run, graph, width=3):
    trainer = Trainer(model_of(table(), width), graph, **OPTIONS)
    trainer.load_weights(run[0])
    return trainer


@pytest.mark.parametrize("columns", ["abcd", "dcba", "bead", "ecabd"])
def test_columns_in_another_order_and_beside_others_predict_the_same(run, tmp_path, columns):
    if missing := set("abcd") - set(columns):
        with pytest.raises(DataError, match=rf"lack columns .* trained on: {min(missing)}; .* not know: e\."):
            loaded(run, table(columns))
        return
    stored = datasets.open_store(datasets.save_store(table(columns), tmp_path / "s"))
    trainer = loaded(run, stored)
    assert torch.equal(trainer.predict(), run[1])
    assert trainer.evaluate("val") == run[2]
    assert trainer.graph.schema.columns["node"].names == tuple("abcd")
    again = Trainer(trainer.model, stored, **OPTIONS)  # the model alone tells, too
    assert torch.equal(again.predict(), run[1])


def test_graphs_without_names_go_by_their_width(run):
    x = table().x
    plain = table().replace(x=x)
    assert torch.equal(loaded(run, plain).predict(), run[1])
    assert plain.replace(x=x.flip(1)).schema.columns == {}
    dropped = table("dcba").replace(schema=Schema())
    assert not torch.equal(loaded(run, dropped).predict(), run[1])


@pytest.mark.parametrize("kind", ["sparse", "int8", "float16"])
def test_features_of_every_kind_are_matched(run, caplog, kind):
    def of(columns):
        graph = table(columns)
        made = {
            "sparse": SparseFeatures.from_dense,
            "int8": ScaledFeatures.from_dense,
            "float16": torch.Tensor.half,
        }
        return graph.replace(x=made[kind](graph.x), schema=graph.schema)

    same = loaded(run, of("abcd")).predict()
    with caplog.at_level(logging.WARNING, "graphbraid"):
        torch.testing.assert_close(loaded(run, of("dcba")).predict(), same, rtol=0.02, atol=0.02)
    assert ("trained on features of {'node': 'float32'}" in caplog.text) == (kind != "sparse")


def test_tiers_of_the_graph_as_it_is_are_refused(run, tmp_path):
    stored = datasets.open_store(datasets.save_store(table("dcba"), tmp_path / "s"))
    trainer = Trainer(model_of(stored), stored, host="all", **OPTIONS)
    with pytest.raises(DataError, match="tiers or topology were made in their own order"):
        trainer.load_weights(run[0])
    model = loaded(run, table()).model
    with pytest.raises(DataError, match="tiers or topology were made in their own order"):
        Trainer(model, stored, tiers=trainer.tiers, **OPTIONS)


@pytest.mark.parametrize(
    ("trained", "predicted", "says"),
    [
        ({"prepare": {"normalize_features": True}}, {}, "were normalised .* and are not in this graph"),
        ({}, {"prepare": {"normalize_features": True}}, "were not normalised .* and are in this graph"),
        ({"fill": 0.0}, {"fill": -1.0}, "filled with 0 when .* with -1 in this graph"),
        (
            {"prepare": {"normalize_features": True}},
            {"prepare": {"normalize_features": True}, "columns": "abcde"},
            "normalised together with columns that the model does not know: e",
        ),
    ],
)
def test_features_made_in_another_way_are_refused(tmp_path, trained, predicted, says):
    graph = table(**trained)
    model = model_of(graph)
    Trainer(model, graph, **OPTIONS).fit()
    other = datasets.open_store(datasets.save_store(table(**predicted), tmp_path / "s"))
    with pytest.raises(DataError, match=says):
        Trainer(model, other, **OPTIONS)


def test_classes_get_the_numbers_that_the_model_knows_them_by(run):
    greens = table(shades=np.where(SHADES == "blue", "red", SHADES))
    assert (greens.num_classes, greens.schema.class_names["node"]) == (2, ("green", "red"))
    matched = loaded(run, greens).graph
    assert matched.y.unique().tolist() == [1, 2]
    assert matched.schema.class_names["node"] == ("blue", "green", "red")
    violet = np.where(SHADES == "blue", "violet", SHADES)
    with pytest.raises(DataError, match="unknown: violet"):
        loaded(run, table(shades=violet))
    assert torch.equal(loaded(run, table(shades=violet).replace(y=None)).predict(), run[1])


def test_columns_of_labels_are_matched():
    graph = table(labels=["p", "q", "r"])
    model = model_of(graph)
    trainer = Trainer(model, graph, **OPTIONS)
    trainer.fit()
    other = Trainer(model, table(labels=["r", "p", "q"]), **OPTIONS)
    assert torch.equal(other.graph.y, graph.y)
    assert other.evaluate("val") == trainer.evaluate("val")
    with pytest.raises(DataError, match="missing: q"):
        Trainer(model, table(labels=["r", "p"]), **OPTIONS)


def in_order(graph, nodes, edges):
    """The same graph with types and relations in this order."""
    return Graph.from_relations(
        {one: graph.to_edge_indices()[one] for one in edges},
        {one: graph.nodes_of(one).num_nodes for one in nodes},
        x={one: graph.nodes_of(one).x for one in nodes},
        y={one: graph.nodes_of(one).y for one in nodes},
        splits={one: graph.nodes_of(one).splits for one in nodes},
        edge_splits={one: graph.edges_of(one).splits for one in edges},
        name=graph.name,
    )


def test_node_types_and_relations_in_another_order_predict_the_same(tmp_path):
    graph = bibliography()
    names = Columns(names=tuple(f"f{at}" for at in range(12)))
    graph = graph.replace(schema=Schema(columns={"paper": names}))
    torch.manual_seed(0)
    model = make_typed_model("rgcn", graph, 3, node_type="paper", hidden_channels=8, num_layers=1)
    trainer = Trainer(model, graph, **OPTIONS)
    trainer.fit()
    other = in_order(graph, graph.node_types[::-1], graph.edge_types[::-1])
    turned = names.names[::-1]
    papers = dataclasses.replace(other.types.nodes["paper"], x=other.nodes_of("paper").x.flip(1))
    types = dataclasses.replace(other.types, nodes=dict(other.types.nodes) | {"paper": papers})
    other = other.replace(types=types, schema=Schema(columns={"paper": Columns(names=turned)}))
    stored = datasets.open_store(datasets.save_store(other, tmp_path / "s"))
    again = Trainer(model, stored, **OPTIONS)
    assert again.graph.edge_types == graph.edge_types
    torch.testing.assert_close(again.predict(), trainer.predict())
    few = in_order(graph, graph.node_types, graph.edge_types[1:])
    with pytest.raises(DataError, match="missing: author__writes__paper; not known to the model: none"):
        Trainer(model, few, **OPTIONS)


def test_relations_of_links_are_matched_by_commands_and_refused_where_numbers_are_given(graphbraid, tmp_path):
    graph = relations()
    turned = in_order(graph, graph.node_types, graph.edge_types[::-1])
    for name, one in (("s", graph), ("t", turned)):
        datasets.save_store(one, tmp_path / name)
    linked = ("--task", "link", "--model", "embedding", "--layers", 1, "--negatives", "shared")
    graphbraid("train", "--data", tmp_path / "s", "--out", tmp_path / "r", *linked, *QUICK)
    (tmp_path / "pairs.txt").write_text("".join(f"{at},likes,{at + 1}\n{at},knows,3\n" for at in range(9)))
    texts = []
    for name in "st":
        out = tmp_path / f"{name}.csv"
        words = ("--run", tmp_path / "r", "--data", tmp_path / name, "--pairs", tmp_path / "pairs.txt")
        graphbraid("predict", *words, "--out", out)
        texts.append(out.read_text())
    assert texts[0] == texts[1]
    model = rows_alone(graph)
    options = {"task": "link", "negatives": "shared", "epochs": 1, "fanouts": (0,), "threads": 1}
    Trainer(model, graph, **options).fit()
    with pytest.raises(DataError, match="in the order likes, knows, odd"):
        Trainer(model, turned, **options)


def test_commands_match_columns_and_refuse_what_is_missing(graphbraid, tmp_path):
    for name, columns in {"s": "abcd", "t": "dceba", "few": "abc"}.items():
        datasets.save_store(table(columns), tmp_path / name)
    run = tmp_path / "r"
    done = graphbraid("train", "--data", tmp_path / "s", "--out", run, *QUICK)
    texts = []
    for name in ("s", "t", "few"):
        out = tmp_path / f"{name}.csv"
        code = 3 if name == "few" else 0
        done = graphbraid("predict", "--run", run, "--data", tmp_path / name, "--out", out, code=code)
        if name == "few":
            assert "lack columns that the model was trained on: d;" in done.stderr.replace("\n", " ")
        else:
            texts.append(out.read_text())
    assert texts[0] == texts[1]
    assert "blue" in texts[0]
    datasets.save_store(table("dcba"), tmp_path / "turned")
    done = graphbraid("train", "--resume", "--data", tmp_path / "turned", "--out", run, "--epochs", 3, code=3)
    assert "its columns was" in done.stderr.replace("\n", " ")


def test_edge_features_are_matched_by_relation():
    e, graph = ("node", "to", "node"), table()
    attr = torch.randn(graph.num_edges, 2)

    def with_edges(names, rows):
        schema = Schema(columns=dict(graph.schema.columns) | {e: Columns(names=names)})
        return graph.replace(edge_attr=rows, schema=schema)

    model = model_of(graph)
    Trainer(model, with_edges(("p", "q"), attr), **OPTIONS).fit()
    turned = with_edges(("q", "p"), attr.flip(1))
    assert torch.equal(Trainer(model, turned, **OPTIONS).graph.edge_attr, attr)
    with pytest.raises(DataError, match=r"features of 'node__to__node' lack columns .*: q"):
        Trainer(model, with_edges(("p", "z"), attr), **OPTIONS)


def test_a_schema_that_does_not_fit_is_refused():
    graph = table()
    for columns in ({"node": Columns(names=("a", "b"))}, {"node": Columns(names=tuple("aabc"))}):
        with pytest.raises(DataError, match="4 different names for the columns of 'node'"):
            graph.replace(schema=Schema(columns=columns))
    with pytest.raises(DataError, match="which has no features"):
        graph.replace(schema=Schema(columns={"paper": Columns(names=("a",))}))

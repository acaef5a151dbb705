"""Graphs with types from tables that a YAML file describes."""

import numpy as np
import pandas as pd
import pytest
import torch

from graphbraid import datasets
from graphbraid.datasets import from_typed_tables
from graphbraid.errors import ConfigError, DataError

PAPERS = (
    "key,f,g,field,part,year\n"
    "p3,0.5,1,maths,train,1999\n"
    "p1,1.5,2,biology,test,2001\n"
    "p2,2.5,3,maths,val,2005\n"
)
AUTHORS = "id,h,name\n30,1,Ann\n-5,2,Bob\n7,3,Cid\n"
WRITES = "author,paper,share,when\n7,p1,0.5,10\n30,p3,0.25,11\n7,p3,1,12\n"
CITES = "source,destination,kind,part\np1,p2,1,train\np2,p3,0,test\n"
ABOUT = "source,destination\np1,topology\np3,algebra\np1,algebra\n"
DESCRIBED = """\
name: bibliography
nodes:
  paper: {file: papers.csv, id: key, features: [f, g], label: field, split: part, time: year}
  author:
    file: authors.csv
  topic:
edges:
  - relation: [author, writes, paper]
    file: writes.csv
    source: author
    destination: paper
    weight: share
    time: when
  - relation: [paper, cites, paper]
    file: cites.csv
    features: [kind]
    split: part
  - {relation: [paper, about, topic], file: about.csv}
"""
FILES = {
    "papers.csv": PAPERS,
    "authors.csv": AUTHORS,
    "writes.csv": WRITES,
    "cites.csv": CITES,
    "about.csv": ABOUT,
    "typed.yaml": DESCRIBED,
}
WRITES_OF, CITES_OF, ABOUT_OF = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "about", "topic"),
)


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def change(folder, name, old, new):
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))


def check(made):
    graph = made.graph
    graph.validate()
    assert graph.name == "bibliography"
    assert graph.node_types == ("paper", "author", "topic")
    assert graph.edge_types == (WRITES_OF, CITES_OF, ABOUT_OF)
    assert made.names["paper"].ids.values.tolist() == ["p3", "p1", "p2"]  # the order of the table
    assert made.names["author"].ids.values.tolist() == [30, -5, 7]
    assert made.names["topic"].ids.values.tolist() == ["algebra", "topology"]  # alphabetical
    assert made.names["paper"].class_names == ("biology", "maths")
    lists = graph.to_edge_indices()
    assert lists[WRITES_OF].tolist() == [[2, 0, 2], [1, 0, 0]]
    assert lists[CITES_OF].tolist() == [[1, 2], [2, 0]]
    assert lists[ABOUT_OF].tolist() == [[1, 0, 1], [1, 0, 0]]
    papers = graph.nodes_of("paper")
    assert papers.x.tolist() == [[0.5, 1], [1.5, 2], [2.5, 3]]  # not the year, which is the time
    assert papers.y.tolist() == [1, 0, 1]
    assert {name: ids.tolist() for name, ids in papers.splits.items()} == {
        "train": [0],
        "val": [2],
        "test": [1],
    }
    assert papers.time.tolist() == [1999, 2001, 2005]
    assert papers.time.dtype == torch.int64
    of_authors = graph.nodes_of("author").x  # encoded, as no features are named: mean 0 and deviation 1
    assert of_authors.flatten().tolist() == pytest.approx([-(1.5**0.5), 0, 1.5**0.5])
    assert graph.nodes_of("topic").x is None
    assert made.unused_columns == {"author": ("name",)}
    writes, cites = graph.edges_of(WRITES_OF), graph.edges_of(CITES_OF)
    assert writes.time.tolist() == [10, 11, 12]
    assert (writes.weighted, cites.weighted) == (True, False)
    assert sorted(graph.relation(WRITES_OF).weight.tolist()) == [0.25, 0.5, 1]
    assert cites.edge_attr.tolist() == [[1], [0]]
    assert {name: ids.tolist() for name, ids in cites.splits.items()} == {"train": [0], "test": [1]}


def test_tables_make_a_graph_with_types(folder):
    check(from_typed_tables(folder / "typed.yaml"))
    assert datasets.load(folder / "typed.yaml").node_types == ("paper", "author", "topic")


def test_parquet_and_other_csv_give_the_same_graph(folder):
    for name in ("papers", "writes"):
        pd.read_csv(folder / f"{name}.csv").to_parquet(folder / f"{name}.parquet", index=False)
        change(folder, "typed.yaml", f"{name}.csv", f"{name}.parquet")
    (folder / "authors.csv").write_text("# made by hand\n" + AUTHORS.replace(",", ";"))
    change(
        folder, "typed.yaml", "file: authors.csv", "file: authors.csv\n    csv: {delimiter: ;, skip_rows: 1}"
    )
    check(from_typed_tables(folder / "typed.yaml"))


def test_reverse_adds_the_relations_back(folder):
    change(folder, "typed.yaml", "name: bibliography", "name: bibliography\nreverse: true")
    graph = from_typed_tables(folder / "typed.yaml").graph
    assert len(graph.edge_types) == 6
    assert graph.to_edge_indices()[("topic", "rev_about", "paper")].tolist() == [[1, 0, 0], [1, 0, 1]]


def test_ids_of_types_without_a_table_are_those_of_all_relations(folder):
    """Integers are in ascending order, over both ends and all tables that name the type."""
    (folder / "a.csv").write_text("source,destination\n900,5\n-3,900\n")
    (folder / "b.csv").write_text("source,destination\n5,x\n77,y\n")
    (folder / "t.yaml").write_text(
        "nodes: {user: , tag: {id_type: string}}\n"
        "edges:\n"
        "  - {relation: [user, follows, user], file: a.csv}\n"
        "  - {relation: [user, likes, tag], file: b.csv}\n"
    )
    made = from_typed_tables(folder / "t.yaml")
    assert made.names["user"].ids.values.tolist() == [-3, 5, 77, 900]
    assert made.graph.to_edge_indices()[("user", "follows", "user")].tolist() == [[3, 0], [1, 3]]
    assert made.graph.to_edge_indices()[("user", "likes", "tag")].tolist() == [[1, 2], [0, 1]]
    assert made.graph.name == "t"


def test_dates_become_seconds_and_fractions_stay(folder):
    change(folder, "papers.csv", "1999", "1970-01-02")
    change(folder, "papers.csv", "2001", "2001-01-01")
    change(folder, "papers.csv", "2005", "1969-12-31")
    change(folder, "writes.csv", "10\n", "10.5\n")
    graph = from_typed_tables(folder / "typed.yaml").graph
    assert graph.nodes_of("paper").time.tolist() == [86400, 978307200, -86400]
    assert graph.edges_of(WRITES_OF).time.tolist() == [10.5, 11, 12]


@pytest.mark.slow
def test_a_large_table_is_numbered_as_one(tmp_path):
    rng = np.random.default_rng(0)
    src, dst = rng.integers(-(10**6), 10**6, (2, 600_000))  # more than one batch of rows
    pd.DataFrame({"source": src, "destination": dst}).to_parquet(tmp_path / "e.parquet", index=False)
    (tmp_path / "t.yaml").write_text("nodes: {a: , b: }\nedges: [{relation: [a, to, b], file: e.parquet}]\n")
    made = from_typed_tables(tmp_path / "t.yaml")
    ends = made.graph.to_edge_indices()[("a", "to", "b")].numpy()
    np.testing.assert_array_equal(made.names["a"].ids.values[ends[0]], src)
    np.testing.assert_array_equal(made.names["b"].ids.values[ends[1]], dst)


WRONG = {
    "unknown paper": (
        ("cites.csv", "p2,p3", "p2,p9"),
        r"cites\.csv, line 3: column 'destination' names node 'p9', which the node table does not have",
    ),
    "text for an int": (("writes.csv", "30,p3", "x,p3"), r"writes\.csv.*line 3.*'author'|'author'.*line 3"),
    "no time": (("writes.csv", "0.25,11", "0.25,"), r"writes\.csv, line 3: time column 'when' is empty"),
    "no year": (("papers.csv", "test,2001", "test,"), r"papers\.csv, line 3: time column 'year' is empty"),
    "a text for a time": (
        ("writes.csv", "10\n", "soon\n"),
        r"typed\.yaml:8: .*writes\.csv: time column 'when' holds string; numbers or dates",
    ),
    "no column": (
        ("typed.yaml", "weight: share", "weight: shares"),
        r"typed\.yaml:8: .*writes\.csv has no column 'shares' \(weight\).*Did you mean 'share'",
    ),
    "no label column": (
        ("typed.yaml", "label: field", "label: fields"),
        r"typed\.yaml:3: .*papers\.csv has no column 'fields' \(label\)",
    ),
    "no file": (("typed.yaml", "about.csv", "abaut.csv"), r"typed\.yaml:18: there is no file .*abaut\.csv"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_tables_are_refused_with_file_and_place(folder, case):
    edit, message = WRONG[case]
    change(folder, *edit)
    with pytest.raises(DataError, match=message):
        from_typed_tables(folder / "typed.yaml")


MISTAKES = {
    "unknown type": (
        ("[paper, cites, paper]", "[paper, cites, papers]"),
        r"typed\.yaml:14: there is no node type 'papers' under nodes; .* Did you mean 'paper'",
    ),
    "a relation twice": (
        ("[paper, about, topic]", "[paper, cites, paper]"),
        r":18: the relation .* twice; first at .*:14",
    ),
    "two names": (
        ("[paper, about, topic]", "[paper, topic]"),
        r":18: edges\.2\.relation: List should have at least 3",
    ),
    "unknown entry": (
        ("label: field", "lable: field"),
        r":3: there is no entry 'lable'.* Did you mean 'label'",
    ),
    "unknown entry at the top": (("name: bib", "nmae: bib"), r":1: there is no entry 'nmae'"),
    "a number": (("id: key", "id: 3"), r":3: nodes\.paper\.id: Input should be a valid string; got 3"),
    "no edges": ((DESCRIBED[DESCRIBED.index("edges") :], "edges: []"), "edges: List should have at least 1"),
    "edges without a file": (("    file: cites.csv\n", ""), r":14: edges\.1\.file: Field required"),
    "a role without a file": (
        ("  topic:\n", "  topic: {label: l}\n"),
        r":6: label is a column .*'topic', which has no",
    ),
    "nodes that nothing names": (
        ("  topic:\n", "  topic:\n  city:\n"),
        r":7: nodes of type 'city' have no file",
    ),
    "one column for both ends": (
        ("source: author", "source: paper"),
        r":8: source and destination are the same",
    ),
    "a feature with a role": (
        ("features: [kind]", "features: [part]"),
        "cannot be a feature and the split at once",
    ),
    "a time that is a feature": (
        ("features: [f, g],", "features: [year],"),
        "cannot be a feature and the id",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_of_the_description_are_refused_with_the_line(folder, case):
    edit, message = MISTAKES[case]
    change(folder, "typed.yaml", *edit)
    with pytest.raises(ConfigError, match=message):
        from_typed_tables(folder / "typed.yaml")


def test_an_empty_description_is_said(tmp_path):
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"empty\.yaml: a description of tables is needed, with `nodes:`"):
        from_typed_tables(tmp_path / "empty.yaml")


def test_a_column_that_is_not_utf_8_is_refused_and_not_left_out(folder):
    change(folder, "typed.yaml", "    file: authors.csv\n", "    file: authors.csv\n    columns: {h: raw}\n")
    (folder / "authors.csv").write_text(AUTHORS.replace("Bob", "Zo\xeb"), encoding="latin-1")
    with pytest.raises(
        DataError, match=r"authors\.csv is not UTF-8 text in column 'name'; write it in UTF-8"
    ):
        from_typed_tables(folder / "typed.yaml")
    change(folder, "typed.yaml", "{h: raw}", "{h: raw, name: ignore}")
    assert from_typed_tables(folder / "typed.yaml").graph.nodes_of("author").x.shape == (3, 1)

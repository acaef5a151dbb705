"""None"""

import gzip
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from graphbraid.datasets import CsvOptions, NodeIds, from_frames, from_tables, open_names, save_store
from graphbraid.datasets.tables.file import TableFile
from graphbraid.errors import ConfigError, DataError

EDGES = "source,destination,weight\nann,bob,1.5\nbob,cid,2\nann,cid,0.5\nann,ann,1\n"
NODES = (
    "id,age,colour,height,member,class,part\n"
    "cid,30,red,1.5,true,dog,test\n"
    "ann,40,blue,1.25,false,cat,train\n"
    "dan,50,red,2,true,,\n"
    "bob,60,red,1,true,dog,valid\n"
)


@pytest.fixture
def files(tmp_path):
    (tmp_path / "edges.csv").write_text(EDGES)
    (tmp_path / "nodes.csv").write_text(NODES)
    return tmp_path / "edges.csv", tmp_path / "nodes.csv"


def write(folder, text, name="t.csv"):
    (folder / name).write_text(text)
    return folder / name


def test_a_table_of_edges_and_one_of_nodes_make_a_graph(files):
    made = from_tables(*files, weight="weight", label="class", split="part", name="people")
    graph = made.graph
    graph.validate()
    assert made.ids.values.tolist() == ["cid", "ann", "dan", "bob"]  # the order of the node table
    assert graph.to_edge_index(original_order=True).tolist() == [[1, 3, 1, 1], [3, 0, 0, 1]]
    assert graph.in_original_order(graph.csc.weight).tolist() == [1.5, 2, 0.5, 1]
    assert graph.x.tolist() == [[30, 1.5, 1], [40, 1.25, 0], [50, 2, 1], [60, 1, 1]]  # age, height, member
    assert graph.y.tolist() == [1, 0, -1, 1]
    assert made.class_names == ("cat", "dog")
    assert {name: ids.tolist() for name, ids in graph.splits.items()} == {
        "train": [1],
        "val": [3],
        "test": [0],
    }
    assert graph.name == "people"


def test_ids_and_class_names_travel_with_the_store(files, tmp_path):
    made = from_tables(*files, label="class")
    path = save_store(made.graph, tmp_path / "s", ids=made.ids, class_names=made.class_names)
    names = open_names(path)
    assert names.ids.originals(torch.tensor([3])) == ["bob"]
    assert names.class_names == ("cat", "dog")


def as_csv(table, path):
    table.to_pandas().to_csv(f"{path}.csv", index=False)
    return path.with_name(path.name + ".csv")


def as_gzip(table, path):
    (path.parent / f"{path.name}.csv.gz").write_bytes(gzip.compress(as_csv(table, path).read_bytes()))
    return path.parent / f"{path.name}.csv.gz"


def as_parquet(table, path):
    parquet.write_table(table, f"{path}.parquet", row_group_size=100)
    return path.with_name(path.name + ".parquet")


FORMS = {
    "csv": as_csv,
    "gzip": as_gzip,
    "parquet": as_parquet,
    "arrow": lambda table, path: table,
    "pandas": lambda table, path: table.to_pandas(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("id_kind", ["int", "str"])
@pytest.mark.parametrize("with_nodes", [True, False])
def test_every_form_gives_the_same_graph(tmp_path, form, id_kind, with_nodes):
    rng = np.random.default_rng(0)
    names = rng.permutation(10**12 + 7 * np.arange(300) ** 2) - 10**12 * 2
    if id_kind == "str":
        names = np.array([f"n{name}" for name in names])
    src, dst = rng.integers(0, 300, (2, 2000))
    edges = pa.table({"from": names[src], "to": names[dst], "note": ["x"] * 2000})
    nodes = pa.table(
        {"name": names, "f": rng.random(300), "g": rng.integers(0, 9, 300), "y": rng.integers(0, 4, 300)}
    )
    options = {"source": "from", "destination": "to"}
    if with_nodes:
        made = from_tables(
            *(FORMS[form](t, tmp_path / n) for t, n in ((edges, "e"), (nodes, "n"))),
            id_column="name",
            label="y",
            **options,
        )
        np.testing.assert_array_equal(made.ids.values, names)
        np.testing.assert_allclose(made.graph.x[:, 0], nodes["f"].to_numpy(), rtol=1e-6)
        assert made.graph.y.tolist() == nodes["y"].to_pylist()
    else:
        made = from_tables(FORMS[form](edges, tmp_path / "e"), **options)
        assert made.ids.values.tolist() == sorted({*names[src].tolist(), *names[dst].tolist()})
    back = made.graph.to_edge_index(original_order=True)
    np.testing.assert_array_equal(made.ids.values[back[0]], names[src])
    np.testing.assert_array_equal(made.ids.values[back[1]], names[dst])


@pytest.mark.slow
def test_files_larger_than_a_block_are_read_whole(tmp_path):
    count = 1_500_000  # 20 MB: more than one block of 16 MiB
    src = np.arange(count) % 1000
    path = tmp_path / "e.csv"
    lines = "\n".join(f"{u},{(u * 7) % 1000}" for u in src.tolist())
    path.write_text(f"source,destination\n{lines}\n")
    graph = from_tables(path).graph
    assert graph.num_edges == count
    assert graph.num_nodes == 1000
    assert graph.to_edge_index(original_order=True)[0].tolist() == src.tolist()


def test_a_list_without_header_and_with_other_delimiters(tmp_path):
    path = write(tmp_path, "% a comment\n5\t9\n9\t7\n", "e.tsv")
    made = from_tables(path, source="0", destination="1", csv=CsvOptions(header=False, skip_rows=1))
    assert made.ids.values.tolist() == [5, 7, 9]
    assert made.graph.to_edge_index(original_order=True).tolist() == [[0, 2], [2, 1]]
    path = write(tmp_path, "a;source;destination\n1;2;3\n")
    assert from_tables(path, csv=CsvOptions(delimiter=";")).ids.values.tolist() == [2, 3]


def test_ids_that_look_like_numbers_can_be_strings(tmp_path):
    path = write(tmp_path, "source,destination\n007,7\n")
    assert from_tables(path).ids.values.tolist() == [7]
    assert from_tables(path, id_type="string").ids.values.tolist() == ["007", "7"]


ONE_EDGE = pa.table({"source": [1], "destination": [2]})


def test_ids_that_another_program_wrote_as_floats_are_the_whole_numbers(tmp_path):
    nodes = write(tmp_path, "id,f\n3.0,1\n1.0,2\n2.0,3\n", "n.csv")
    edges = write(tmp_path, "source,destination\n1,2.0\n3,1.0\n", "e.csv")
    made = from_tables(edges, nodes)
    assert made.ids.values.tolist() == [3, 1, 2]
    assert made.graph.to_edge_index(original_order=True).tolist() == [[1, 0], [2, 1]]
    assert from_tables(edges).ids.values.tolist() == [1, 2, 3]
    stored = as_parquet(
        pa.table({"source": [1.0, 3.0], "destination": [Decimal(2), Decimal(1)]}), tmp_path / "e"
    )
    assert from_tables(stored, nodes).ids.values.tolist() == [3, 1, 2]
    part = write(tmp_path, "source,destination\n1.5,2\n1.25,2\n", "p.csv")
    assert from_tables(part).ids.values.tolist() == ["1.25", "1.5", "2"]
    with pytest.raises(DataError, match=r"p\.csv, line 2: column 'source' is 1\.5; ids that are stored"):
        from_tables(part, nodes)
    far = pa.table({"source": [1.0, 2.0**53], "destination": [1, 2]})
    with pytest.raises(DataError, match=r"the table, row 1: column 'source' is 9007199254740992"):
        from_tables(far)


def test_texts_of_several_lines_may_lie_on_both_sides_of_a_block(tmp_path, monkeypatch):
    monkeypatch.setattr("graphbraid.datasets.tables.file._BLOCK_BYTES", 4096)
    frame = pd.DataFrame({"id": range(500), "note": ['a "b"\n' + "c,\n" * (i % 9) for i in range(500)]})
    frame.assign(a=frame["id"] / 2).to_csv(tmp_path / "n.csv", index=False)
    made = from_tables(ONE_EDGE, tmp_path / "n.csv")
    assert made.graph.x.flatten().tolist() == [i / 2 for i in range(500)]
    assert made.ids.values.tolist() == list(range(500))


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
@pytest.mark.parametrize(
    ("early", "late"),
    [
        *(("1", one) for one in ("1.5", "unknown", "true")),
        *(("", one) for one in ("7", "0.5", "2026-01-01", "2026-01-01T10:00:00Z", "a")),
        *(("2026-01-01", one) for one in ("2026-01-01T10:00:00", "soon")),
        *(("true", "maybe"), ("10:30", "late"), ("2026-01-01T10:00:00", "2026-01-01T10:00:00.5"), ("a", "")),
    ],
)
def test_types_of_columns_hold_in_all_blocks_of_a_file(early, late, suffix, tmp_path, monkeypatch):
    text = "id,a\n" + "".join(f"{i},{early if i < 1500 else late}\n" for i in range(2000))
    file = tmp_path / f"n{suffix}"
    file.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    whole = TableFile(file).types
    monkeypatch.setattr("graphbraid.datasets.tables.file._BLOCK_BYTES", 4096)
    assert TableFile(file).types == whole


def test_the_index_that_pandas_writes_is_no_feature(tmp_path):
    frame = pd.DataFrame({"id": [3, 1, 2], "a": [0.5, 1.5, 2.5]}, index=[7, 8, 5])
    frame.to_csv(tmp_path / "n.csv")
    frame.to_parquet(tmp_path / "n.parquet")
    for name, column in (("n.csv", ""), ("n.parquet", "__index_level_0__")):
        made = from_tables(ONE_EDGE, tmp_path / name)
        assert (made.graph.x.tolist(), made.unused_columns) == ([[0.5], [1.5], [2.5]], (column,))
        typed = from_frames({"u": tmp_path / name}, {("u", "to", "u"): ONE_EDGE})
        assert {one.column: one.kind for one in typed.columns["u"]} == {column: "ignore", "a": "number"}
        assert from_tables(ONE_EDGE, tmp_path / name, features=[column]).graph.x.tolist() == [[7], [8], [5]]


def test_lists_of_numbers_and_decimals_are_features(tmp_path):
    rows = pa.array([[1.0, 2.0], [3.0, 4.0], None])
    price = pa.array([Decimal("1.50"), Decimal("2.25"), Decimal("3.00")])
    fixed = pa.array([[1], [2], [3]], pa.list_(pa.int32(), 1))
    names = pa.array([["a"], ["b"], ["c"]])
    nodes = pa.table({"id": [1, 2, 3], "e": rows, "price": price, "k": fixed, "names": names})
    for source in (nodes, as_parquet(nodes, tmp_path / "n")):
        made = from_tables(ONE_EDGE, source, fill_missing=0)
        assert made.graph.x.tolist() == [[1, 2, 1.5, 1], [3, 4, 2.25, 2], [0, 0, 3, 3]]
        assert made.graph.schema.columns["node"].names == ("e[0]", "e[1]", "price", "k[0]")
        assert made.unused_columns == ("names",)
    chosen = from_tables(ONE_EDGE, nodes, features=["k", "e"], label="price", fill_missing=0)
    assert chosen.graph.x.tolist() == [[1, 1, 2], [2, 3, 4], [3, 0, 0]]
    assert chosen.graph.y.tolist() == [1.5, 2.25, 3]
    with pytest.raises(DataError, match=r"row 2: feature column 'e\[0\]' holds no number"):
        from_tables(ONE_EDGE, nodes)
    ragged = pa.table({"id": [1, 2], "e": [[1.0], [1.0, 2.0]]})
    with pytest.raises(DataError, match="row 1: column 'e' holds 2 numbers; all rows need 1"):
        from_tables(ONE_EDGE, ragged)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("source;destination\n1;2\n", r"Is ';' between the fields.*description: csv: \{delimiter: \";\"\}"),
        ("source\tdestination\n1\t2\n", r"Is '\\t' between the fields"),
        ("5,9\n9,7\n", "first line looks like values: with header=False"),
        ("# a graph\n1,2\n", "first line looks like a comment: leave it out with skip_rows="),
    ],
)
def test_files_of_another_format_are_read_with_the_option_that_is_named(tmp_path, text, says):
    with pytest.raises(DataError, match=says):
        from_tables(write(tmp_path, text))


def test_labels_of_every_kind(tmp_path):
    edges = ONE_EDGE
    nodes = pa.table({"id": [1, 2, 3], "k": [4, None, -7], "t": [0.5, 1.5, 2.5], "b": [True, False, True]})

    def labels(label):
        made = from_tables(edges, nodes, label=label, fill_missing=0)
        return made.graph.y.tolist(), made.graph.task, made.graph.num_features

    assert labels("k") == ([4, -1, -1], "single-label", 2)
    assert labels("t") == ([0.5, 1.5, 2.5], "regression", 2)
    assert labels("b") == ([1, 0, 1], "single-label", 2)
    assert labels(["b"]) == ([[1.0], [0.0], [1.0]], "multi-label", 2)


def test_missing_features_are_filled_only_when_asked(tmp_path):
    edges = pa.table({"source": [1], "destination": [2]})
    nodes = write(tmp_path, "id,f\n1,0.5\n2,\n")
    with pytest.raises(
        DataError, match=r"t\.csv, line 3: feature column 'f' holds no number .*fill_missing="
    ):
        from_tables(edges, nodes)
    assert from_tables(edges, nodes, fill_missing=-1).graph.x.tolist() == [[0.5], [-1.0]]


def test_pandas_categories_are_labels(tmp_path):
    edges = pa.table({"source": ["a"], "destination": ["b"]})
    nodes = pd.DataFrame({"id": ["a", "b"], "y": pd.Categorical(["z", "k"])})
    made = from_tables(edges, nodes, label="y")
    assert made.class_names == ("k", "z")
    assert made.graph.y.tolist() == [1, 0]
    assert made.graph.x is None


def test_two_columns_of_one_name_are_refused(files, tmp_path):
    with pytest.raises(DataError, match="several columns called 'source'"):
        from_tables(write(tmp_path, "source,source,destination\na,b,c\n"), files[1])


BAD_NODES = {
    "no label": ("id,f\nann,1\n", {"label": "y"}, r"has no column 'y' \(label\); its columns are id, f"),
    "no rows": ("id,f\n", {}, "has no rows"),
    "label text": (
        "id,y\nann,red\n",
        {"label": ["y"]},
        "label column 'y' holds string; a matrix needs numbers",
    ),
}


@pytest.mark.parametrize("case", BAD_NODES)
def test_bad_node_tables_name_file_row_and_column(files, tmp_path, case):
    text, options, message = BAD_NODES[case]
    with pytest.raises(DataError, match=message):
        from_tables(files[0], write(tmp_path, text), **options)


def test_integers_that_are_none_are_named_with_their_row(tmp_path):
    path = write(tmp_path, "source,destination\n" + "1,2\n" * 5 + "x,1\n")
    made = from_tables(path)  # the first block holds the x, so the column is read as text
    assert made.ids.values.tolist() == ["1", "2", "x"]
    with pytest.raises(
        DataError, match=r"t\.csv cannot be read: column 'source': line 7: .* int64: invalid value 'x'"
    ):
        from_tables(path, id_type="int")
    path = write(tmp_path, "source,destination,w\n1,2,3\n1,2,\n")
    with pytest.raises(DataError, match=r"line 3: column 'w' is empty"):
        from_tables(path, weight="w")


def test_rows_of_tables_in_memory_count_from_zero(files):
    with pytest.raises(DataError, match=r"the table, row 1: column 'destination' names node 'eve'"):
        from_tables(pa.table({"source": ["ann"] * 2, "destination": ["bob", "eve"]}), files[1])


def test_files_that_are_no_tables_are_said(tmp_path, files):
    with pytest.raises(DataError, match="neither CSV nor Parquet by its name"):
        from_tables(write(tmp_path, "a,b\n", "t.xlsx"))
    with pytest.raises(DataError, match=r"t\.parquet cannot be read: .*Parquet magic bytes"):
        from_tables(write(tmp_path, "source,destination\n1,2\n" * 9, "t.parquet"))
    data = gzip.compress(b"source,destination\n" + b"1,2\n" * 100_000)
    (tmp_path / "cut.csv.gz").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"cut\.csv\.gz"):
        from_tables(tmp_path / "cut.csv.gz")


def test_options_that_cannot_be_meant_are_refused(files):
    with pytest.raises(ConfigError, match="name it with nodes="):
        from_tables(files[0], label="class")
    with pytest.raises(ConfigError, match="id_type must be"):
        from_tables(files[0], id_type="uuid")
    with pytest.raises(ConfigError, match=r"a table is a path, a pyarrow.Table .* got list"):
        from_tables([(1, 2)])
    with pytest.raises(ConfigError, match="'class' cannot be a feature and"):
        from_tables(*files, label="class", features=["class"])


@pytest.mark.parametrize("values", [np.array([30, -2, 1 << 50, 7]), np.array(["b", "a", "", "ü"], object)])
def test_originals_and_nodes_are_inverse(values):
    ids = NodeIds(values)
    nodes = torch.tensor([2, 0, 2, 3, 1])
    assert ids.nodes_of(ids.originals(nodes)).tolist() == nodes.tolist()
    assert [ids[node] for node in range(len(ids))] == values.tolist()
    assert NodeIds.from_arrays(ids.arrays()).values.tolist() == values.tolist()


@pytest.mark.parametrize(
    ("values", "unknown"), [(np.array([3, 1]), [1, 2]), (np.array(["x"], object), ["x", "y"])]
)
def test_an_unknown_id_is_named_with_its_position(values, unknown):
    with pytest.raises(DataError, match=rf"no node has the id {unknown[1]!r} \(position 1\)"):
        NodeIds(values).nodes_of(unknown)


def test_no_ids_at_all_know_nothing():
    with pytest.raises(DataError, match="0 ids are known"):
        NodeIds(np.empty(0, np.int64)).nodes_of([1])


def test_other_dtypes_are_refused():
    with pytest.raises(DataError, match="got float64"):
        NodeIds(np.zeros(3))

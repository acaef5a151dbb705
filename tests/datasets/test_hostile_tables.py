"""Columns that no one cleaned: each is encoded as its values say, or refused by its name."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from graphbraid.datasets import from_frames, from_typed_tables, prepare, split_nodes
from graphbraid.datasets.tables.column_types import HOWS, ColumnChoice, infer
from graphbraid.datasets.tables.encoding import applied, fitted
from graphbraid.errors import ConfigError, DataError

NUM = 40
EDGES = {("u", "to", "u"): pa.table({"source": [0, 1], "destination": [1, 2]})}
TIMES = np.arange(NUM).astype("M8[s]")
COLUMNS = {
    "nothing": pa.nulls(NUM),
    "empty text": [""] * NUM,
    "infinite": [float("inf"), *map(float, range(NUM - 1))],
    "beyond float32": [1e308 * (-1) ** i for i in range(NUM)],
    "beyond 2**53": [2**53 + 1 + 7 * i for i in range(NUM)],
    "unsigned": pa.array([2**63 + i for i in range(NUM)], pa.uint64()),
    "half": pa.array(np.arange(NUM, dtype=np.float16)),
    "old": pa.array(np.datetime64("1950-01-01") + np.arange(NUM)),
    "zone": pa.array(TIMES).cast(pa.timestamp("ns", tz="Asia/Tokyo")),
    "punctuation": ["!?" + "." * i for i in range(NUM)],
    "vectors": [None if i % 3 else [1.0 * i, 2.0] for i in range(NUM)],
    "unequal vectors": [[1.0] * (1 + i % 2) for i in range(NUM)],
    "texts with nulls": [["a", None] if i % 3 else None for i in range(NUM)],
    "coded numbers": pa.array([i % 3 for i in range(NUM)]).dictionary_encode(),
    "coded floats": pa.array([i / 3 for i in range(NUM)]).dictionary_encode(),
    "coded times": pa.array(TIMES).dictionary_encode(),
    "coded texts": pa.array(["ab"[i % 2] for i in range(NUM)]).dictionary_encode(),
    "views": pa.array(["ab"[i % 2] for i in range(NUM)], pa.string_view()),
    "structs": [{"a": i} for i in range(NUM)],
    "durations": pa.array(np.arange(NUM).astype("m8[s]")),
}


def graph_of(column, **roles):
    table = pa.table({"id": range(NUM), "y": [i % 2 for i in range(NUM)], "c": column})
    return from_frames({"u": table}, EDGES, roles={"u": roles}).graph


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_is_encoded_as_every_kind_or_refused_by_name(name):
    kinds = [None, *HOWS, *(how for hows in HOWS.values() for how in hows if how != "sentences")]
    for kind in kinds:
        try:
            graph = graph_of(COLUMNS[name], columns={} if kind is None else {"c": kind})
            x = prepare(graph, target="u.y", split="0.5,0.2").nodes_of("u").x
        except DataError as error:
            assert "column 'c'" in str(error), (kind, error)
        else:
            assert x is None or torch.isfinite(x).all(), kind


def test_dictionaries_and_nan_are_the_values_that_they_stand_for():
    for plain in ([i % 3 for i in range(NUM)], [i / 3 for i in range(NUM)], list(TIMES)):
        values = pa.array(np.asarray(plain))
        assert torch.equal(
            graph_of(values).nodes_of("u").x, graph_of(values.dictionary_encode()).nodes_of("u").x
        )
    floats = pa.array([None if i % 4 == 0 else float(i % 3) for i in range(NUM)])
    nan = pa.array(floats.to_numpy(zero_copy_only=False))
    for kind in ("number", "category"):
        two = [graph_of(one, columns={"c": kind}) for one in (floats, nan)]
        assert two[0].schema.columns["u"].encoders == two[1].schema.columns["u"].encoders
        assert torch.equal(two[0].nodes_of("u").x, two[1].nodes_of("u").x)


def encoded_by(before, after, kind):
    before, after = pa.chunked_array([before]), pa.chunked_array([after])
    return applied(fitted("c", before, None, ColumnChoice.of(kind), None), after, None)


def test_rounding_of_equal_numbers_is_no_deviation():
    assert abs(encoded_by(np.full(49, 0.1), [0.1, 0.2], "standard")).max() < 1


def test_a_category_of_numbers_is_called_the_same_beside_others():
    big = [1e7, 1e7, 2.0, 2.0]
    assert np.array_equal(encoded_by(big, [*big, 2.5], "one-hot")[:4], encoded_by(big, big, "one-hot"))


def test_empty_parts_count_for_no_category():
    lists = [["a", None], ["a", "b"], ["b", None], [None, None]]
    found = encoded_by(pa.array(lists), pa.array(lists), "multi-hot")
    assert found.tolist() == [[1, 0], [1, 1], [0, 1], [0, 0]]


def test_a_column_without_entries_takes_empty_rows():
    assert encoded_by(["!", "?"], pa.nulls(3), "words").shape == (3, 0)


@pytest.mark.parametrize("kind", ["standard", "quantile", "one-hot", "words"])
def test_encoders_are_the_same_whatever_they_were_fitted_on_before(kind):
    rng = np.random.default_rng(0)
    values = rng.normal(size=NUM) if kind in ("standard", "quantile") else rng.choice(list("abcdefgh"), NUM)
    graph = graph_of(values, columns={"c": kind})
    few = prepare(graph, target="u.y", split="0.1,0.1")
    again, once = (prepare(one, target="u.y", split="0.8,0.1") for one in (few, graph))
    assert again.schema.columns["u"].encoders == once.schema.columns["u"].encoders
    assert torch.equal(again.nodes_of("u").x, once.nodes_of("u").x)


def test_features_of_one_name_are_refused():
    table = pa.table({"id": range(NUM), "c#": np.arange(NUM) / 3, "c": ["ab"[i % 2] for i in range(NUM)]})
    with pytest.raises(DataError, match="several features would be called 'c#'"):
        from_frames({"u": table}, EDGES, roles={"u": {"columns": {"c": "learned"}}})


def test_unknown_groups_and_times_are_refused():
    graph = graph_of(["" if i == 3 else f"g{i % 9}" for i in range(NUM)], label="y")
    with pytest.raises(DataError, match="empty for 1 nodes"):
        split_nodes(graph, "group:c:0.5,0.2")
    times = torch.arange(NUM).double()
    times[4] = float("nan")
    with pytest.raises(DataError, match="node 4"):
        split_nodes(graph, "time:10,20", values=times)


@pytest.mark.parametrize("ids", [[" b", "b"], ["b", "b "], ["b ", " b"]])
def test_ids_of_a_node_table_that_differ_by_spaces_only_are_refused(ids):
    table = pa.table({"id": ["a", *ids], "age": [1.0, 2.0, 3.0]})
    with pytest.raises(DataError, match=r"column 'id': the ids ' ?b ?' and ' ?b ?' differ by spaces only"):
        from_frames({"u": table}, EDGES)


@pytest.mark.parametrize("date", ["31/01/20{:02}", "1.2.20{:02}", "01-31-20{:02} 10:30"])
def test_dates_that_are_not_iso_are_told(date):
    often, rare = ([date.format(i % count) for i in range(60)] for count in (3, 60))
    for values in (often, rare):
        kind, why = infer("at", pa.chunked_array([values]))
        assert kind != "time"
        assert why.endswith("dates are times if they are written as 2026-01-31")
    assert "dates" not in infer("at", pa.chunked_array([[*often[:-1], "soon"]]))[1]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"user": 1}, r"columns\['user'\] must map columns to types or encoders; got 1"),
        ({"user": "log"}, r"columns\['user'\] must map columns to types or encoders; got 'log'"),
        ({"user": {"age": 3}}, "the type or encoder of a column must be text; got 3"),
        ({"user": {"age": ["log"]}}, "the type or encoder of a column must be text"),
        ({3: {}}, "columns names the node type 3, and there are user"),
    ],
)
def test_choices_of_columns_that_are_no_text_are_refused(tmp_path, columns, says):
    (tmp_path / "u.csv").write_text("id,age\n1,3\n2,4\n")
    (tmp_path / "e.csv").write_text("a,b\n1,2\n")
    edges = "{file: e.csv, relation: [user, knows, user], source: a, destination: b}"
    (tmp_path / "t.yaml").write_text(f"nodes:\n  user: {{file: u.csv}}\nedges:\n  - {edges}\n")
    with pytest.raises(ConfigError, match=says):
        from_typed_tables(tmp_path / "t.yaml", columns=columns)

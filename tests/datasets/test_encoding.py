"""Kinds of columns are inferred; encoders are fitted on the rows for training and kept as plain data."""

import json
import math
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.preprocessing import QuantileTransformer, StandardScaler

from graphbraid.datasets import from_frames
from graphbraid.datasets.store.manifest import described_columns, schema_of
from graphbraid.datasets.tables.column_types import ColumnChoice, decide, infer
from graphbraid.datasets.tables.encoding import applied, encoded, fitted, names_of
from graphbraid.errors import ConfigError, DataError, MissingPackageError
from graphbraid.graph import Columns, Schema
from graphbraid.train.run_folder.contract import Contract

MANY = 400
RNG = np.random.default_rng(0)
DAYS = np.datetime64("2026-01-01") + RNG.integers(0, 500, MANY)
KINDS = {
    "number": RNG.normal(size=MANY),
    "category": RNG.choice(["a", "b", "c"], MANY),
    "categories": ["|".join(RNG.choice(["x", "y", "z"], 2)) for _ in range(MANY)],
    "boolean": RNG.random(MANY) < 0.5,
    "time": DAYS,
    "text": [" ".join(RNG.choice(["red", "blue", "soft", "hard", "old"], 5)) + f" {i}" for i in range(MANY)],
    "embedding": [RNG.normal(size=4) for _ in range(MANY)],
    "id": [f"u{i}" for i in range(MANY)],
    "constant": ["same"] * MANY,
}


def column(values, **options):
    return pa.chunked_array([pa.array(values, **options)])


def fit(values, choice, rows=None, reference=None):
    (decided, _) = decide(pa.table({"c": values}), {"c": ColumnChoice.of(choice)}, [])["c"]
    return fitted("c", values, rows, decided, reference)


def encoding(values, choice, rows=None, reference=None):
    encoder = fit(values, choice, rows, reference)
    return applied(encoder, values, reference), names_of(encoder)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_inferred(kind):
    assert infer("c", column(KINDS[kind]))[0] == kind


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("visits", list(range(100)), "number"),
        ("user_id", list(range(100)), "id"),
        ("stars", [1, 2, 3, 4, 5] * 20, "category"),
        ("children", [0, 1, 1, 0, 7], "number"),  # few rows say nothing
        ("day", ["2026-01-05", "2026-01-06T10:00:00"] * 20, "time"),
        ("day", ["2026-01-05", "2026-13-77"] * 20, "category"),
        ("day", ["2026-01-05T10:00:00Z", "2026-01-05 10:00:00.25+01:00"] * 20, "time"),
        ("day", ["2026-01-05T10:00:00Z", "2026-01-05T10:00:00"] * 20, "category"),  # of no one zone
        ("tags", [["a", "b"], ["c"], []] * 20, "categories"),
        ("vector", [[1.0, 2.0], [3.0]] * 20, "ignore"),
        ("empty", [None] * 20, "constant"),
        ("empty", pa.nulls(20), "constant"),
        ("word", [f"w{i % 90}" for i in range(900)], "category"),
        ("bytes", [b"x", b"y"] * 20, "ignore"),
    ],
)
def test_what_looks_alike_is_told_apart(name, values, kind):
    assert infer(name, column(values) if isinstance(values, list) else pa.chunked_array([values]))[0] == kind


def test_numbers_are_those_of_scikit_learn():
    values = RNG.lognormal(size=1000)
    ours, _ = encoding(column(values), "standard")
    theirs = StandardScaler().fit_transform(values[:, None])
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    ours, _ = encoding(column(values), "quantile")
    theirs = QuantileTransformer(n_quantiles=101, subsample=None).fit_transform(values[:, None])
    np.testing.assert_allclose(ours, 2 * theirs - 1, atol=1e-5)
    ours, _ = encoding(column(values), "log")
    np.testing.assert_allclose(ours, StandardScaler().fit_transform(np.log1p(values)[:, None]), rtol=1e-4)
    ours, _ = encoding(column(values), "raw")
    np.testing.assert_allclose(ours, values[:, None].astype(np.float32))


def test_buckets_say_how_far_a_number_has_come():
    values = column([*np.arange(101.0), None])
    made, names = encoding(values, "buckets")
    assert names == [*(f"c {i}" for i in range(1, 21)), "c is empty"]
    come = np.clip(np.arange(101.0)[:, None] / 5 - np.arange(20), 0, 1)
    np.testing.assert_allclose(made[:101, :20], (come - come.mean(0)) / come.std(0), rtol=1e-5, atol=1e-6)
    assert made[101].tolist() == [0] * 20 + [1]  # nothing is known of it
    encoder = fit(column([1.0] * 50), "buckets")  # all buckets are of one value
    beyond = applied(encoder, column([-9.0, 1.0, 1.5, 99.0]), None)
    assert beyond.tolist() == [[come] * 20 for come in (0, 0, 0.5, 1)]
    earlier = replace(encoder, numbers=encoder.numbers[:11])
    with pytest.raises(DataError, match="column 'c' was encoded by an earlier version; convert its tables"):
        applied(earlier, values, None)


def test_a_long_tail_is_taken_by_its_logarithm():
    table = pa.table({"price": RNG.lognormal(0, 2, 1000), "age": RNG.normal(40, 9, 1000)})
    hows = {name: choice.encoder for name, (choice, _) in decide(table, {}, []).items()}
    assert hows == {"price": "log", "age": "standard"}


def test_encoders_see_the_rows_for_training_alone():
    values = column([1.0, 3.0, 1000.0, None])
    made, names = encoding(values, "standard", rows=np.array([0, 1]))
    assert made[:, 0].tolist() == [-1, 1, 998, 0]  # no training row is empty: an empty one is the mean
    assert names == ["c"]
    made, names = encoding(column(["a", "b", "b", "a", "new"]), "one-hot", rows=np.array([0, 1, 2, 3]))
    assert names == ["c=a", "c=b"]
    assert made.tolist() == [[1, 0], [0, 1], [0, 1], [1, 0], [0, 0]]


def test_empty_cells_have_a_column_where_training_has_some():
    made, names = encoding(column([1.0, None, 3.0]), "standard")
    assert names == ["c", "c is empty"]
    assert made.tolist() == [[-1, 0], [0, 1], [1, 0]]
    made, names = encoding(column(["a", None, "a", "", "b", "b"]), "one-hot")
    assert names == ["c=a", "c=b", "c is empty"]
    assert made[:, 2].tolist() == [0, 1, 0, 1, 0, 0]
    made, _ = encoding(column([True, None, False]), "boolean")
    assert made.tolist() == [[1, 0], [0, 1], [0, 0]]


def test_rare_categories_stand_for_those_that_are_not_known():
    values = column([*["a"] * 5, *["b"] * 5, "rare", "odd"])
    encoder = fit(values, "one-hot")
    assert names_of(encoder) == ["c=a", "c=b", "c is another"]
    now = applied(encoder, column(["b", "never seen", "rare", None]), None)
    assert now.tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0]]
    learned = fit(column([*["a"] * 5, *["b"] * 4, None, "rare"]), "learned")
    assert applied(learned, column(["b", "new", None, "a"]), None).flatten().tolist() == [2, 0, 3, 1]


def test_numbers_and_texts_of_one_category_are_the_same():
    encoder = fit(column([1.0, 2.0, 1.0, 2.0]), "category")
    assert applied(encoder, column([2, 1, 3]), None).tolist() == [[0, 1], [1, 0], [0, 0]]


def test_several_categories_and_words_are_marked():
    made, names = encoding(column(["x|y", "y;z", " y , x", None, "x|x"] * 2), "categories")
    assert names == ["c=x", "c=y", "c=z", "c is empty"]
    assert made[:5].tolist() == [[1, 1, 0, 0], [0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]]
    lists = encoding(column([["x", "y"], [], ["z", "z"]] * 2), "categories")
    assert lists[0][:3].tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    texts = column(["Very late!", "late, and broken", "the fine one", "the one"] * 3)
    made, names = encoding(texts, ColumnChoice(type="text", size=3))
    assert names == ["c=late", "c=one", "c=the"]
    assert made[:4].tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 1], [0, 1, 1]]
    # A word in most rows tells as many apart as one in few; a word in all rows tells none apart.
    texts = column([*["parcel late"] * 7, *["parcel here"] * 3])
    assert encoding(texts, ColumnChoice(type="text", size=1))[1] == ["c=here"]
    assert encoding(texts, "text")[1] == ["c=here", "c=late"]


@pytest.mark.parametrize(
    ("other", "kind"), [(["1", "2"] * 30, "category"), ([str(at) for at in range(60)], "id")]
)
def test_a_text_among_numbers_is_told_before_they_are_lost(other, kind):
    found, why = infer("c", column([*other, "unknown"]))
    assert found == kind
    assert "98 % are numbers: empty the others to have numbers" in why
    assert "are numbers" not in infer("c", column(other))[1]


@pytest.mark.parametrize("values", [["1,5", "2,25"], ["1,234", "12"], ["$5", "$6"], ["5 %", "6%"]])
def test_numbers_that_are_written_otherwise_are_told(values):
    assert "numbers are read if they are written as 1234.5" in infer("c", column(values * 20))[1]
    assert "written" not in infer("c", column(["1,5", "none"] * 20))[1]


def test_times_have_an_age_and_calendar_parts():
    times = column(np.array(["2026-01-05", "2026-03-01", "2025-12-31"], "datetime64[s]"))
    reference = np.array(["2026-01-06", "2026-03-08", "2026-01-01"], "datetime64[s]").astype(np.int64)
    made, names = encoding(times, "time", reference=reference.astype(np.float64))
    assert made[0, :20].tolist() == made[2, :20].tolist()  # one day old
    assert (made[1, 10:20] > made[0, 10:20]).all()  # seven days
    on = [[names[at] for at in np.flatnonzero(row[20:]) + 20] for row in made]
    assert on == [["c weekday 1", "c month 1"], ["c weekday 7", "c month 3"], ["c weekday 3", "c month 12"]]
    made, names = encoding(
        column(np.array(["2026-01-05T06:00", "2026-01-05T12:00"], "datetime64[s]")), "time"
    )
    assert names[-2:] == ["c hour sin", "c hour cos"]
    np.testing.assert_allclose(made[:, -2:], [[1, 0], [0, -1]], atol=1e-6)
    before = column(np.array(["1969-12-31T23:00", "1970-01-02"], "datetime64[s]"))
    made, names = encoding(before, "time")
    assert [names[at] for at in np.flatnonzero(made[0, 20:39]) + 20] == ["c weekday 3", "c month 12"]
    texts, _ = encoding(column(["2026-01-05", "2026-03-01", "2025-12-31"]), "time", reference=reference * 1.0)
    np.testing.assert_array_equal(texts, encoding(times, "time", reference=reference * 1.0)[0])
    written = ["2026-01-05T06:00:00.000000001Z", None, "2026-01-05 13:00:00+01:00"]
    plain = [
        None if one is None else one + "Z" for one in ("2026-01-05T06:00:00", None, "2026-01-05T12:00:00")
    ]
    in_utc = pa.array(plain).cast(pa.timestamp("s", "UTC"))
    np.testing.assert_array_equal(
        encoding(column(written), "time")[0], encoding(pa.chunked_array([in_utc]), "time")[0]
    )


def test_encoders_survive_json():
    table = pa.table({name: column(values) for name, values in KINDS.items()})
    decided = decide(table, {}, [])
    encoders = tuple(
        one
        for name, (choice, _) in decided.items()
        if (one := fitted(name, table.column(name), None, choice, None)) is not None
    )
    assert [one.column for one in encoders] == [n for n in KINDS if n not in ("id", "constant")]
    before = encoded(table, encoders, None)
    listed = described_columns(Schema(columns={"u": Columns(encoders=encoders)}))
    text = json.dumps([one.model_dump() for one in listed])
    again = schema_of([type(listed[0]).model_validate(one) for one in json.loads(text)], {})
    assert again.columns["u"].encoders == encoders
    order = table.select(table.column_names[::-1]).append_column("further", column([0] * MANY))
    np.testing.assert_array_equal(encoded(order, again.columns["u"].encoders, None), before)


@pytest.mark.parametrize(
    ("choice", "before", "after", "text"),
    [
        ("standard", [1.0, 2.0], ["1", "x"], "'c' .number. held numbers .* holds text now"),
        ("category", ["007", "a"], [7, 8], "'c' .category. held text .* holds numbers now"),
        ("time", np.array(["2026-01-01"], "datetime64[s]"), [True], "held times .* true and false now"),
        ("vector", [[1.0, 2.0]], [[1.0]], "lists of 2 numbers .* of 1 now"),
        ("vector", [[1.0, 2.0]], [[1.0, 2.0], [1.0]], "lists of 2 and of 1 numbers"),
        ("vector", [[1.0, 2.0]], [[1.0, math.nan]], "not finite in row 0"),
        ("standard", [1.0, 2.0], [1.0, math.inf], "'c' is inf in row 1"),
        ("boolean", ["yes", "no"], ["yes", "maybe"], "'maybe', neither true nor false"),
        ("time", ["2026-01-01"], ["soon"], "no time"),
    ],
)
def test_changed_columns_are_refused_by_name(choice, before, after, text):
    encoder = fit(column(before), choice)
    with pytest.raises(DataError, match=text):
        applied(encoder, column(after), None)
    assert len(applied(encoder, pa.chunked_array([pa.nulls(2)]), None)) == 2  # an empty column fits all


def test_missing_columns_are_refused_by_name():
    encoder = fit(column([1.0, 2.0]), "number")
    with pytest.raises(DataError, match="lacks columns that its encoders were fitted on: c; it has d"):
        encoded(pa.table({"d": [1.0]}), [encoder], None)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("numbr", "no type or encoder of columns 'numbr'; did you mean 'number'"),
        (
            ColumnChoice(type="text", encoder="one-hot"),
            "the type text has no encoder 'one-hot'; it has words",
        ),
        (ColumnChoice(type="kind"), "no type or encoder of columns 'kind'"),
        (ColumnChoice(encoder="sentences"), "needs model"),
        (ColumnChoice(type="text", size=0), "at least 1"),
    ],
)
def test_impossible_choices_are_refused(given, text):
    with pytest.raises(ConfigError, match=text):
        ColumnChoice.of(given)


def test_a_choice_of_no_column_is_refused():
    with pytest.raises(ConfigError, match=r"columns names 'agee', and the table has age. Did you mean 'age'"):
        decide(pa.table({"age": [1.0]}), {"agee": ColumnChoice.of("log")}, [])


def test_sentences_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    nodes = {"u": pa.table({"id": [0, 1], "note": ["a b", "c d"]})}
    columns = {"note": {"encoder": "sentences", "model": "some"}}
    edges = {("u", "to", "u"): pa.table({"source": [0], "destination": [1]})}
    with pytest.raises(MissingPackageError, match=r"graphbraid\[text\].*column of lists.*words"):
        from_frames(nodes, edges, roles={"u": {"columns": columns}})


def test_sentences_become_columns_that_only_their_model_makes(monkeypatch):
    class SentenceTransformer:
        def __init__(self, name):
            self.name = name

        def encode(self, texts):
            return np.array([[len(text), len(self.name)] for text in texts], np.float32)

    module = type(math)("sentence_transformers")
    module.SentenceTransformer = SentenceTransformer
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    nodes = {"u": pa.table({"id": [0, 1, 2], "note": ["a b", "c", None]})}
    edges = {("u", "to", "u"): pa.table({"source": [0], "destination": [1]})}
    choice = {"encoder": "sentences", "model": "some"}
    graph = from_frames(nodes, edges, roles={"u": {"columns": {"note": choice}}}).graph
    assert graph.nodes_of("u").x.tolist() == [[3, 4, 0], [1, 4, 0], [0, 0, 1]]

    other = from_frames(nodes, edges, roles={"u": {"columns": {"note": choice | {"model": "none"}}}}).graph
    with pytest.raises(DataError, match="encoded by the model 'some'"):
        Contract.of(graph).matched(other)
    plain = from_frames(nodes, edges, roles={"u": {"columns": {"note": "words"}}}).graph
    with pytest.raises(DataError, match="encoded by the model 'some'"):
        Contract.of(graph).matched(plain)
    assert torch.equal(Contract.of(graph).matched(graph).nodes_of("u").x, graph.nodes_of("u").x)

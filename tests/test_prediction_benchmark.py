"""benchmarks.tiers.prediction on a tiny graph: it checks what it measures; its table and its picture."""

import re
import xml.etree.ElementTree as ET

import pytest
from benchmarks.common.rows import read_lines
from benchmarks.graphs import generated
from benchmarks.graphs.folder import save
from benchmarks.tables import pages, tiers
from benchmarks.tiers import prediction


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The folder of a graph and the rows of it."""
    folder = tmp_path_factory.mktemp("graphs")
    save(generated.make("dense", generated.SMOKE["dense"]), folder / "tiny")
    out = folder / "out.jsonl"
    prediction.main(arguments(folder, out))
    return folder, read_lines(out)


def arguments(folder, out):
    samplers = ["--samplers", "3,2x10", "2x5"]
    return ["--graphs", str(folder), "--names", "tiny", *samplers, "--epochs", "2", "--out", str(out)]


def test_looking_ahead_is_the_best_fixed_choice_and_belady_is_above_it(measured):
    rows = measured[1]
    assert [row["row"] for row in rows] == ["tiny, 3,2x10", "tiny, 2x5"]
    for row in rows:
        assert row["served"]["lookahead"] == row["best"]
        for kind in prediction.SCORES:
            assert all(a <= b for a, b in zip(row["served"][kind], row["best"], strict=True))
            assert row["curves"][kind] == sorted(row["curves"][kind])
        assert all(a >= b for a, b in zip(row["belady"], row["best"], strict=True))
        assert row["auto"] in row["trial"]
    three_hops, two_hops = rows
    assert two_hops["num_batches"] > three_hops["num_batches"] > 2


@pytest.mark.parametrize(
    ("name", "said"), [("lookahead", "looking ahead serves"), ("belady", "Belady answers")]
)
def test_a_figure_that_cannot_be_ends_the_benchmark(measured, name, said):
    row = measured[1][0]
    worse = [0.99 * share for share in row["best"]]
    served = row["served"] | ({"lookahead": worse} if name == "lookahead" else {})
    with pytest.raises(SystemExit, match=said):
        prediction.check(row | {"served": served, "belady": worse if name == "belady" else row["belady"]})


def test_the_table_marks_what_auto_takes_and_the_picture_has_a_line_for_each_score(measured, monkeypatch):
    rows = measured[1]
    monkeypatch.setattr(tiers, "read_rows", lambda _: rows)
    table = tiers.prediction("2x5")
    assert len(re.findall(r"\*\*[\d.]+\*\*", table)) == 3
    assert "2 epochs of batches of 5 seeds, fanouts 2." in table
    picture = ET.fromstring(tiers.curves())
    assert len(picture.findall(".//{*}polyline")) == 2 * len(tiers.COLOURS)


def test_the_committed_picture_is_that_of_the_results():
    for picture, draw in pages.PICTURES.items():
        assert picture.read_text(encoding="utf-8") == draw(), "python -m benchmarks.tables draws it anew"

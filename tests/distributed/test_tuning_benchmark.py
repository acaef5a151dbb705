"""benchmarks.distributed.tuning: what it says of a search, and a run where permitted."""

import json

import pytest
import torch
from benchmarks.common.rows import read_lines
from benchmarks.distributed import tuning
from benchmarks.distributed.links import why_not
from benchmarks.distributed.planted import partition_of, scattered
from benchmarks.distributed.tuning import derived

from graphbraid.distributed import Division, report_of
from graphbraid.fullgraph import Pipeline

SECONDS = {"1,1": [4.0, 9.0, 3.9], "2,1": [2.0, 2.0, 2.1], "1,2": [3.0, 3.0, 3.0]}


def test_what_was_found_stands_beside_the_fastest_and_beside_whole(tmp_path):
    row = {"chosen": [1, 2], "seconds": SECONDS}
    assert derived(row) == {
        "seconds": {"1,1": 4.0, "2,1": 2.0, "1,2": 3.0},
        "best": "2,1",
        "by_best": 1.5,
        "whole_by_chosen": pytest.approx(4 / 3),
    }
    tuning.record({"a graph": row}, tmp_path / "tables.json")
    assert json.loads((tmp_path / "tables.json").read_text()) == {"a graph": derived(row)["seconds"]}


def test_finalists_are_compared_round_by_round_not_by_the_least_of_many_times():
    """In each round 2,1 takes nine tenths of what was found, though rounds differ by more than that."""
    finals = {"1,1": [8.0, 4.0, 6.0], "2,1": [3.6, 1.8, 2.7], "1,2": [4.0, 2.0, 3.0]}
    found = derived({"chosen": [1, 2], "seconds": SECONDS | {"8,8": [0.1]}, "finals": finals})
    assert (found["best"], found["seconds"]["2,1"], found["seconds"]["8,8"]) == ("2,1", 2.7, 0.1)
    assert (found["by_best"], found["whole_by_chosen"]) == pytest.approx((1 / 0.9, 2.0))


def test_finalists_are_what_was_found_whole_rows_and_the_fastest():
    seconds = {f"{a},{b}": [1.0 + a * b] for a, b in tuning.SETTINGS} | {"8,8": [0.5], "4,2": [0.6]}
    found = tuning.finalists(seconds, Pipeline(chunks=8, back_chunks=8))
    assert found == [(8, 8), (1, 1), (4, 2)]


def test_half_of_a_scattered_graphs_edges_come_from_the_other_rank():
    graph = scattered(600)
    parts = partition_of(graph, 2)
    report = report_of(parts, Division(graph, parts).outlines)
    assert report.edge_cut_share == pytest.approx(0.5, abs=0.02)


@pytest.mark.usefixtures("warm_python")
@pytest.mark.slow
def test_ranks_behind_links_find_a_pipeline(tmp_path, monkeypatch, capsys):
    if why := why_not():
        pytest.skip(f"links cannot be shaped here: {why}")
    out = tmp_path / "out.jsonl"
    monkeypatch.setattr(tuning, "GRAPHS", tuning.GRAPHS[:1])
    threads = torch.get_num_threads()
    try:
        tuning.main(["--nodes", "2000", "--rounds", "1", "--rates", "1e8", "--out", str(out)])
    finally:
        torch.set_num_threads(threads)
    rows = read_lines(out)
    assert [row["graph"] for row in rows] == list(tuning.GRAPHS)
    for row in rows:
        # On a busy machine a message may take longer than a part of so few rows could save: nothing is tried.
        assert row["trials"] <= 15
        assert (row["trials"] > 0) == bool(row["knobs"])
        assert len(row["seconds"]) == len(tuning.SETTINGS)
        assert ",".join(map(str, row["chosen"])) in row["finals"]
    assert "by fastest" in capsys.readouterr().out


def test_where_links_cannot_be_shaped_the_benchmark_says_so(monkeypatch, capsys):
    monkeypatch.setattr(tuning, "why_not", lambda: "there is no tc")
    tuning.main([])
    assert "skipped: links cannot be shaped here: there is no tc" in capsys.readouterr().err

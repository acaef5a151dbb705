"""benchmarks.distributed.rounding: its distances, its table, and a run."""

import pytest
from benchmarks.common.rows import read_lines
from benchmarks.distributed import rounding
from benchmarks.tables import distributed as tables

ROW = {
    "row": "GAT",
    "commit": "0",
    "date": "2026-11-27",
    "machine": {"cpu": "a", "cores": 2},
    "losses": {rounding.FLOAT64: [2.0, 1.0, 1.0], "2 ranks": [2.0, 1.0, 1.5]},
}


def test_distances_are_the_largest_up_to_an_epoch(monkeypatch):
    assert rounding.distances(ROW, "2 ranks") == pytest.approx([0, 0.5, 0.5, 0.5])
    monkeypatch.setattr(tables, "read_rows", lambda _: [ROW])
    assert "| GAT | 2 ranks | 0.0e+00 | 5.0e-01 | 5.0e-01 | 5.0e-01 |" in tables.rounding()


@pytest.mark.long
def test_ranks_are_compared_with_one_in_float64(tmp_path, monkeypatch, capsys):
    """By one model: that each learns what one rank does, tests of the Trainer show."""
    out, name = tmp_path / "out.jsonl", "GraphSAGE, batch normalisation"
    monkeypatch.setattr(rounding, "MODELS", {name: rounding.MODELS[name]})
    rounding.main(["--ranks", "2", "--epochs", "2", "--out", str(out)])
    for row in read_lines(out):
        assert len(row["losses"]) == 2
        for run in row["losses"]:
            assert max(rounding.distances(row, run)) < 1e-5
    assert "2 ranks" in capsys.readouterr().out

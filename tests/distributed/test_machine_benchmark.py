"""benchmarks.distributed.machine: what it compares, its table, and a run of each way that is always there."""

import json
from pathlib import Path

import pytest
from benchmarks.common.rows import read_lines
from benchmarks.distributed import machine
from benchmarks.tables import distributed as tables

STAMP = {"commit": "0", "date": "2026-11-27", "machine": {"cpu": "a", "cores": 2}}


def test_the_table_has_each_way_beside_shared_memory(monkeypatch):
    rows = [
        STAMP | {"row": way, "seconds": {"sum, 4 B": [3.0 * times, times * 1e-6, 2e-6 * times]}}
        for way, times in (("memory", 1.0), ("gloo", 3.5))
    ]
    monkeypatch.setattr(tables, "read_rows", lambda _: rows)
    assert "| sum, 4 B | 2 (1.00) | 7 (3.50) |" in tables.ways()


def test_ways_must_learn_the_same():
    rows = {way: {"whole_loss": 1.0, "sampled_loss": loss} for way, loss in (("memory", 1.0), ("mpi", 1.1))}
    with pytest.raises(SystemExit, match=r"the ways differ: .*'mpi': 1\.1"):
        machine.check_same(rows)


@pytest.mark.slow
@pytest.mark.distributed
def test_two_ways_are_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine, "ROWS", {"rows": 16})
    out = tmp_path / "rows.jsonl"
    sizes = ["--whole-nodes", "400", "--sampled-nodes", "400", "--epochs", "1", "--repeats", "1"]
    machine.main([*sizes, "--out", str(out)])
    memory, gloo = read_lines(out)
    assert memory["name"] == "gloo+memory"
    assert gloo["name"] == "gloo"
    assert memory["seconds"].keys() == gloo["seconds"].keys()
    assert "whole graph, epoch" in capsys.readouterr().out
    assert json.loads(Path(out).read_text().splitlines()[0])["repeats"] == 1

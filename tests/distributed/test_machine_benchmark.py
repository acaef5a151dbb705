"""benchmarks.distributed.machine: what it compares, and a run of each way that is always there."""

import json
from pathlib import Path

import pytest
from benchmarks.common.rows import read_lines
from benchmarks.distributed import machine


def test_ways_must_learn_the_same():
    rows = {way: {"whole_loss": 1.0, "sampled_loss": loss} for way, loss in (("memory", 1.0), ("mpi", 1.1))}
    with pytest.raises(SystemExit, match=r"the ways differ: .*'mpi': 1\.1"):
        machine.check_same(rows)


@pytest.mark.long
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

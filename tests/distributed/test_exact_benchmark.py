"""benchmarks.distributed.exact: its table, and a run whose ways agree."""

import pytest
from benchmarks.common.rows import read_lines
from benchmarks.distributed import exact
from benchmarks.tables import distributed as tables

ROW = {
    "row": "3 layers",
    "commit": "0",
    "date": "2026-11-27",
    "machine": {"cpu": "a", "cores": 2},
    "ways": {"layer by layer": {"seconds": 0.5, "sent_bytes": 7e6}},
}


def test_the_table_has_a_line_for_each_way(monkeypatch):
    monkeypatch.setattr(tables, "read_rows", lambda _: [ROW])
    assert "| 3 layers | layer by layer | 0.5 | 7 |" in tables.exact()


@pytest.mark.slow
def test_ways_give_equal_outputs_and_layers_send_less(tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    exact.main(["--nodes", "4000", "--layers", "2", "--budget", str(8 << 20), "--out", str(out)])
    [row] = read_lines(out)
    by_level, by_batch = (row["ways"][way] for way in exact.WAYS)
    assert 0 < by_level["sent_bytes"] < by_batch["sent_bytes"]
    assert "layer by layer" in capsys.readouterr().out

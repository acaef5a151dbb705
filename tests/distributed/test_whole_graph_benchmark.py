"""benchmarks.distributed.whole_graph on a small graph: ranks learn what one process does, rows are kept."""

import pytest
from benchmarks.common.rows import read_lines
from benchmarks.distributed import whole_graph
from benchmarks.graphs import generated
from benchmarks.graphs.folder import save


@pytest.mark.slow
def test_ranks_and_one_process_are_measured(tmp_path, capsys):
    save(generated.make("dense", generated.SMOKE["dense"]), tmp_path / "tiny")
    out = tmp_path / "out.jsonl"
    options = [
        "--graphs",
        str(tmp_path),
        "--names",
        "tiny",
        "--epochs",
        "3",
        "--repeats",
        "1",
        "--out",
        str(out),
    ]
    whole_graph.main(options)
    (row,) = read_lines(out)
    assert row["cost"] > 0
    assert 0 < row["sent_bytes"] < row["boundary_bytes"]
    assert "times as long" in capsys.readouterr().out

"""benchmarks.distributed.exact: a run whose ways agree."""

import pytest
from benchmarks.common.rows import read_lines
from benchmarks.distributed import exact


@pytest.mark.slow
def test_ways_give_equal_outputs_and_layers_send_less(tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    exact.main(["--nodes", "4000", "--layers", "2", "--budget", str(8 << 20), "--out", str(out)])
    [row] = read_lines(out)
    by_level, by_batch = (row["ways"][way] for way in exact.WAYS)
    assert 0 < by_level["sent_bytes"] < by_batch["sent_bytes"]
    assert "layer by layer" in capsys.readouterr().out

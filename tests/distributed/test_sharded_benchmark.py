"""benchmarks.distributed.sharded: ranks within limits learn what one process does, also if one is killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.common.rows import read_lines
from benchmarks.distributed import sharded

pytestmark = pytest.mark.distributed


def test_losses_that_differ_by_more_than_rounding_end_the_benchmark() -> None:
    assert sharded.check_equal([1.0, 2.0], [1.0, 2.0 + 1e-6], "ranks") == pytest.approx(5e-7, rel=0.01)
    with pytest.raises(SystemExit, match="more than rounding"):
        sharded.check_equal([1.0], [1.001], "ranks")
    with pytest.raises(SystemExit, match="1 losses, and 2"):
        sharded.check_equal([1.0], [1.0, 1.0], "ranks")


def test_an_epoch_counts_when_its_checkpoint_is_there(tmp_path: Path) -> None:
    assert sharded._epochs_in(tmp_path) == 0
    (tmp_path / "metrics.csv").write_text("epoch,train_loss\n0,1.0\n", encoding="utf-8")
    assert sharded._epochs_in(tmp_path) == 0
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "best.pt").touch()
    assert sharded._epochs_in(tmp_path) == 1


@pytest.mark.long
def test_the_benchmark_runs_where_hosts_can_be_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    sizes = ["--nodes", "6000", "--features", "16", "--seeds", "4000", "--limit", "1.5e9", "--ranks", "3"]
    arguments = ["--folder", str(tmp_path), *sizes, "--parts", "3", "--out", str(out)]
    if reason := sharded.why_not():
        with pytest.raises(SystemExit, match="cannot be limited here"):
            sharded.main(arguments)
        assert reason
        return
    sharded.main(arguments)
    rows = {row["row"]: row for row in read_lines(out)}
    assert list(rows) == ["one process, no limit", "3 ranks", "2 ranks that went on"]
    assert max(rows["3 ranks"]["group_bytes"]) <= 1.5e9
    assert rows["2 ranks that went on"]["noticed_seconds"] < 30
    assert "GB of groups" in capsys.readouterr().out

"""benchmarks.tiers.whole on a tiny store: both runs learn the same."""

import pytest
from benchmarks.common import rows
from benchmarks.tiers import whole
from tests.extras import NO_KERNELS

from graphbraid import native

SIZES = ["--gigabytes", "0.004", "--width", "64", "--hidden", "4", "--epochs", "2", "--models", "gcn"]
RUN = {
    "losses": ["0x1p+0", "0x1p-1"],
    "weights": "ab",
    "epoch_seconds": [9.0, 4.0, 5.0],
    "read_bytes": [9 << 20, 2 << 20, 4 << 20],
    "peak_bytes": 5 << 20,
    "limit": "cgroup",
}
OPTIONS = whole.argparse.Namespace(
    gigabytes=0.001, width=64, degree=4, hidden=4, epochs=3, limit="1MiB", host="512KiB", folder=None
)


@pytest.mark.long
@pytest.mark.skipif(native.kernels() is None, reason=NO_KERNELS)
def test_both_runs_of_a_small_graph_learn_the_same(tmp_path, capsys):
    folder, out = tmp_path / "f", tmp_path / "out.jsonl"
    arguments = ["--folder", str(folder), "--limit", "64MiB", "--host", "1MiB", "--out", str(out)]
    whole.main([*arguments, *SIZES, "--remove"])
    [row] = rows.read_lines(out)
    assert row["row"] == "gcn, 0.004 GiB with 64MiB"
    assert row["streamed"]["losses"] == row["in_memory"]["losses"]
    assert row["disk"]["read_bytes"] > row["feature_bytes"]
    assert "equal to the bit" in capsys.readouterr().err
    assert not folder.exists()


def test_runs_that_differ_are_no_result(monkeypatch):
    monkeypatch.setattr(whole, "make_store", lambda *_, **__: "store")
    for wrong in ({}, {"losses": ["0x1p+0", "0x1p-2"]}, {"weights": "ac"}):
        given = {"gcn, streamed": RUN, "gcn, in memory": RUN | wrong, "the disk": {"bytes_per_second": 1.0}}
        monkeypatch.setattr(whole, "once", lambda name, *_, given=given: given[name])
        if wrong:
            with pytest.raises(SystemExit, match="gcn learns otherwise"):
                whole.measure("gcn", OPTIONS)
        else:
            assert whole.measure("gcn", OPTIONS)["streamed"] == RUN

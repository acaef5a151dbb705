"""benchmarks.tiers.whole on a tiny store: both runs learn the same, and its table shows what they took."""

import pytest
from benchmarks.common import rows
from benchmarks.tables import tiers_reads
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


@pytest.mark.slow
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


def test_the_table_leaves_the_first_epoch_out(tmp_path, monkeypatch):
    row = {"model": "gcn", "host": "512KiB", "disk": {"bytes_per_second": 2 << 20}, "feature_bytes": 8 << 20}
    row |= {"limit_bytes": 4 << 20, "streamed": RUN, "in_memory": RUN | {"epoch_seconds": [3.0, 1.0, 1.0]}}
    monkeypatch.setattr(tiers_reads, "read_rows", lambda _: rows.read_rows("tiers_whole", tmp_path))
    rows.write_rows("tiers_whole", {"gcn, 8 MiB": row}, repeats=2, out=tmp_path / "tiers_whole.jsonl")
    said = tiers_reads.whole()
    assert "| gcn, 8 MiB | on disk | 4.50 | 3.0 MiB | 682.7 KiB/s | 2.0 MiB/s | 5.0 MiB |" in said
    assert "|  | in memory | 1.00 |" in said
    assert "an epoch in 4.50 s, in memory 1.00 s" in whole.report(row)

"""benchmarks.distributed.whole_graph on a small graph: ranks learn what one process and PyG do."""

import pytest
from benchmarks.common.rows import read_lines
from benchmarks.distributed import whole_graph
from benchmarks.graphs import generated
from benchmarks.graphs.folder import save
from tests.extras import NO_PYG


@pytest.mark.long  # a whole benchmark: its parts have the other tests
def test_ranks_and_one_process_are_measured(tmp_path, capsys):
    pytest.importorskip("torch_geometric", reason=NO_PYG)
    save(generated.make("dense", generated.SMOKE["dense"]), tmp_path / "tiny")
    out = tmp_path / "out.jsonl"
    places = ["--graphs", str(tmp_path), "--names", "tiny", "--out", str(out)]
    whole_graph.main([*places, "--epochs", "3", "--repeats", "1", "--libraries", "pyg", "pyg-csr"])
    (row,) = read_lines(out)
    assert row["cost"] > 0
    assert 0 < row["sent_bytes"] < row["boundary_bytes"]
    assert set(row["losses"]) == {"1 ranks", "2 ranks", "pyg", "pyg-csr"}  # which are compared
    shown = capsys.readouterr().out
    assert "times as long" in shown
    assert "pyg-csr, ms" in shown


def test_other_losses_end_the_benchmark():
    losses = {"1 ranks": 2.0, "2 ranks": 2.001, "pyg": 1.999, "dgl": 9.0}
    whole_graph.check_same_loss("tiny", losses)
    with pytest.raises(SystemExit, match="tiny: the last losses differ"):
        whole_graph.check_same_loss("tiny", losses | {"pyg": 2.01})


def test_a_peer_is_beside_the_ranks_by_the_medians():
    row = {"ranks_seconds": [0.1, 0.2, 9.0], "peers_seconds": {"pyg": [3.0, 1.0, 2.0]}}
    assert whole_graph.beside(row) == {"pyg": (2.0, 10.0)}

"""benchmarks.distributed.partitioning on a small graph: all contenders, rows that are kept."""

import pytest
from benchmarks.common.rows import read_lines
from benchmarks.distributed import partitioning
from benchmarks.graphs import generated
from benchmarks.graphs.folder import load, save

pytest.importorskip("pymetis", reason='needs pymetis: pip install "graphbraid[metis]"')


@pytest.fixture
def graphs(tmp_path):
    save(generated.make("dense", generated.SMOKE["dense"]), tmp_path / "tiny")
    return tmp_path


@pytest.mark.long  # a whole benchmark: its parts have the other tests
def test_every_contender_divides_and_rows_are_kept(graphs, capsys):
    out = graphs / "out.jsonl"
    partitioning.main(["--graphs", str(graphs), "--names", "tiny", "--parts", "2", "4", "--out", str(out)])
    first, second = read_lines(out)
    assert (first["row"], second["row"]) == ("tiny, 2 parts", "tiny, 4 parts")
    for name in partitioning.CONTENDERS:
        assert 0 < first[name]["cut"] < second[name]["cut"] <= 1
        assert first[name]["edges"] >= 1
        assert first[name]["seconds"] > 0
    assert second["auto"]["edges"] <= 1.05
    assert "tiny, 2 parts" in capsys.readouterr().out


def test_a_contender_is_measured_in_this_process(graphs):
    csc = load(graphs / "tiny", features=False).csc
    found = partitioning.measure("metis-nodes", csc, 3, "1MiB")
    assert found["nodes"] <= 1.05
    assert 0 < found["cut"] < partitioning.measure("random", csc, 3, "1MiB")["cut"]

"""benchmarks.distributed.scaling: steps of other sizes, ends of ranges, what limits, and a run."""

import dataclasses

from benchmarks.common.rows import read_lines
from benchmarks.distributed import scaling
from benchmarks.tables import distributed as tables

from graphbraid.estimates.full_ranks import RankStep, RankWork
from graphbraid.estimates.ranks import RankEpoch

STEP = RankStep(
    works=(RankWork(2.0, by_edges=True), RankWork(1.0)),
    row_bytes=(256.0,),
    sum_bytes=1000,
    other_seconds=0.5,
    num_nodes=10,
    num_edges=100,
    held_bytes=40.0,
    constant_bytes=80,
)


def test_a_step_of_another_size_takes_longer_by_its_edges_or_by_its_nodes():
    found = scaling.resized(STEP, scaling.Sizes(50, 1000, 8, 4))
    assert [work.seconds for work in found.works] == [20.0, 5.0]
    assert (found.num_nodes, found.num_edges, found.constant_bytes) == (50, 1000, 400)
    assert dataclasses.replace(found, works=(), num_nodes=10, num_edges=100, constant_bytes=80) == (
        dataclasses.replace(STEP, works=())
    )
    assert [work.seconds for work in scaling.slowed(STEP, 1.5).works] == [3.0, 1.0]


def test_what_takes_most_limits_unless_memory_does():
    epoch = RankEpoch(num_ranks=2, memory_bytes=100, compute_seconds=1.0, moving_seconds=2.0)
    assert scaling.limit_of(epoch, 100) == "moving bytes"
    assert scaling.limit_of(epoch, 99) == "memory"


def test_ranges_are_between_a_good_partition_and_random_owners(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        scaling, "GRAPHS", {"papers100M": scaling.Sizes(1_000_000, 10_000_000, 16, 4)}
    )  # as many edges a node
    out = tmp_path / "rows.jsonl"
    scaling.main(["--graphs", "papers100M", "--stand-ins", "512", "1024", "--out", str(out)])
    (row,) = read_lines(out)
    assert 0 < row["least_cut"] < 1 <= row["growth"]
    assert list(row["ranks"]) == ["1", "8", "64", "256", "1024"]
    for count, found in row["ranks"].items():
        low, high = found["seconds"]
        assert 0 < low <= high
        few, most = found["sent_bytes"]
        assert few < most or count == "1"
    longest = [found["seconds"][1] for found in row["ranks"].values()]
    assert longest[2] < longest[0]
    assert "limited by" in capsys.readouterr().out
    monkeypatch.setattr(tables, "read_rows", lambda _: [row])
    assert "| papers100M | 1 | " in tables.scaling()

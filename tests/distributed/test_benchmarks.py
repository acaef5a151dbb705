"""The benchmarks of ranks: what they compare and refuse, and a run of each at a tiny size."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from benchmarks.common.rows import read_lines
from benchmarks.distributed import (
    kept_rows,
    machine,
    mini_batches,
    partitioning,
    probes,
    rounding,
    scaling,
    shaped,
    sharded,
    whole_graph,
)
from benchmarks.distributed.links import why_not
from benchmarks.distributed.modes import ModalTransport
from benchmarks.distributed.planted import partition_of, planted, skewed
from benchmarks.graphs import generated
from benchmarks.tables import distributed as tables
from tests.distributed.threads import run_threads

from graphbraid.distributed import Division, report_of
from graphbraid.estimates.full_ranks import RankStep, RankWork
from graphbraid.estimates.ranks import Cluster, RankEpoch, RanksForecast, ShareTimes, predict_sampled


def test_few_nodes_of_a_skewed_graph_are_the_sources_of_most_edges_and_as_many_cross_as_asked():
    graph = skewed(4000, 2, 0.3)
    often = torch.bincount(graph.csc.indices.long(), minlength=4000).sort(descending=True).values
    assert int(often[:500].sum()) > graph.num_edges * 0.45
    into = torch.repeat_interleave(torch.arange(4000), graph.csc.indptr.diff())
    crossing = ((graph.csc.indices // 2000) != (into // 2000)).double().mean()
    assert float(crossing) == pytest.approx(0.3, abs=0.01)


def test_epochs_that_no_rounds_make_are_refused(capsys):
    with pytest.raises(SystemExit):
        kept_rows.main(["--epochs", "3"])
    assert "--epochs must be a multiple of 2, not 3" in capsys.readouterr().err


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


def forecast(seconds):
    """Shares of two ranks that take half as long as a batch."""
    epochs = []
    for num_ranks in (1, 2):
        times = ShareTimes(
            num_ranks=num_ranks,
            num_batches=2.0,
            num_steps=2,
            step_seconds=seconds / num_ranks,
            cycle_seconds=seconds / num_ranks,
            buckets=(100,),
            tail_bytes=0,
            nodes=2,
            memory_bytes=1,
        )
        epochs.append(predict_sampled(times, Cluster()))
    return RanksForecast(name="a", num_nodes=1, num_edges=1, epochs=tuple(epochs), assumptions=())


def test_the_range_is_by_both_measurements_and_by_the_cost_of_a_byte():
    cluster = Cluster(latency_seconds=0.0, bandwidth_bytes=1e300, byte_processor_seconds=1e-3)
    found = mini_batches.predictions([forecast(1.0), forecast(2.0)], cluster, (0.0, 2e-3))
    assert found["predicted"]["alone"] == pytest.approx(3.0)  # two steps of 1 s and of 2 s
    assert found["predicted_range"]["alone"] == pytest.approx([2.0, 4.0])
    assert found["predicted"]["ranks"] == pytest.approx(1.5 + 2 * 0.1)  # 100 bytes at a millisecond
    assert found["predicted_range"]["ranks"] == pytest.approx([1.0, 2.0 + 2 * 0.2])


def test_latency_and_rate_of_sums_are_measured_between_ranks(monkeypatch):
    monkeypatch.setattr(probes, "PROBE_BYTES", 1 << 22)
    (found, other) = run_threads(2, probes.measured_sums)
    assert found == other and found[0] > 0


def test_a_contender_is_measured_in_this_process():
    pytest.importorskip("pymetis", reason='needs pymetis: pip install "graphbraid[metis]"')
    csc = generated.make("dense", generated.SMOKE["dense"]).csc
    found = partitioning.measure("metis-nodes", csc, 3, "1MiB")
    assert found["nodes"] <= 1.05
    assert 0 < found["cut"] < partitioning.measure("random", csc, 3, "1MiB")["cut"]


ROW = {
    "row": "GAT",
    "commit": "0",
    "date": "2026-11-27",
    "machine": {"cpu": "a", "cores": 2},
    "losses": {rounding.FLOAT64: [2.0, 1.0, 1.0], "2 ranks": [2.0, 1.0, 1.5]},
}


def test_distances_are_the_largest_up_to_an_epoch(monkeypatch):
    assert rounding.distances(ROW, "2 ranks") == pytest.approx([0, 0.5, 0.5, 0.5])
    monkeypatch.setattr(tables, "read_rows", lambda _: [ROW])
    assert "| GAT | 2 ranks | 0.0e+00 | 5.0e-01 | 5.0e-01 | 5.0e-01 |" in tables.rounding()


@pytest.mark.long
def test_ranks_are_compared_with_one_in_float64(tmp_path, monkeypatch, capsys):
    """By one model: that each learns what one rank does, tests of the Trainer show."""
    out, name = tmp_path / "out.jsonl", "GraphSAGE, batch normalisation"
    monkeypatch.setattr(rounding, "MODELS", {name: rounding.MODELS[name]})
    rounding.main(["--ranks", "2", "--epochs", "2", "--out", str(out)])
    for row in read_lines(out):
        assert len(row["losses"]) == 2
        for run in row["losses"]:
            assert max(rounding.distances(row, run)) < 1e-5
    assert "2 ranks" in capsys.readouterr().out


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


@pytest.mark.parametrize(("num_blocks", "visible"), [(2, 0.3), (4, 0.1), (3, 0.0)])
def test_the_halo_of_a_planted_graph_is_known(num_blocks, visible):
    graph = planted(1200, num_blocks, visible)
    parts = partition_of(graph, num_blocks)
    report = report_of(parts, Division(graph, parts).outlines)
    rows = round(visible * 1200 // num_blocks)
    assert {(part.halo_rows, part.sent_rows) for part in report.parts} == {((num_blocks - 1) * rows,) * 2}


def sums(comm, mode):
    """What an exchange and a sum give in a mode, and whether they are over when the call returns."""
    transport = ModalTransport(comm.transport)
    comm.transport = transport
    received, total = torch.zeros(2), torch.full((3,), comm.rank + 1.0)
    with transport.in_mode(mode):
        exchange = comm.all_to_all(torch.full((2,), comm.rank + 1.0), [1, 1], [1, 1], received)
        is_over = comm.rank == 0 or exchange.done()
        exchange.wait()
        comm.all_reduce(total).wait()
    transport.replay()
    comm.barrier()
    return received.tolist(), total.tolist(), is_over


@pytest.mark.parametrize("mode", ["overlapped", "blocking", "recorded"])
def test_what_is_sent_does_not_depend_on_the_mode(mode):
    for received, total, _ in run_threads(2, lambda comm: sums(comm, mode)):
        assert (received, total) == ([1.0, 2.0], [3.0, 3.0, 3.0])


def test_blocking_calls_are_over_and_nothing_is_sent_where_it_is_left_out():
    assert all(is_over for _, _, is_over in run_threads(2, lambda comm: sums(comm, "blocking")))
    left_out = run_threads(2, lambda comm: sums(comm, "nothing sent"))
    assert [received for received, _, _ in left_out] == [[0.0, 0.0]] * 2
    assert [total[0] for _, total, _ in left_out] == [1.0, 2.0]


@pytest.mark.long
def test_ranks_behind_shaped_links_are_measured(tmp_path, capsys):
    if why := why_not():
        pytest.skip(f"links cannot be shaped here: {why}")
    out = tmp_path / "out.jsonl"
    options = ["--nodes", "4000", "--epochs", "1", "--ranks", "2", "--rates", "4e8", "--out", str(out)]
    threads = torch.get_num_threads()
    try:
        shaped.main(options)
    finally:
        torch.set_num_threads(threads)
    (row,) = read_lines(out)
    assert sum(row["sent_bytes"]) == row["report_bytes"] > 0
    assert set(row["seconds"]) == set(shaped.MODES)
    assert row["bandwidth_bytes"] < 5.2e7
    low, high = row["predicted_range"]["overlapped"]
    assert low <= row["predicted"]["overlapped"] <= high
    assert "blocking by it" in capsys.readouterr().out


def test_where_links_cannot_be_shaped_the_benchmark_says_so(monkeypatch, capsys):
    monkeypatch.setattr(shaped, "why_not", lambda: "there is no tc")
    shaped.main([])
    assert "skipped: links cannot be shaped here: there is no tc" in capsys.readouterr().err


def test_what_a_core_does_for_its_bytes_is_added_to_what_it_computes():
    """20 ms for 10 MB, twice that where two ranks share a core; a ratio to it only where it was measured."""
    seconds = {"overlapped": 0.15, "blocking": 0.3, "nothing sent": 0.08, "nothing computed": 0.1}
    row = {"ranks": 4, "cores": 2, "seconds": seconds, "sent_bytes": [8_000_000, 10_000_000]}
    row |= {"report_bytes": 18_000_000, "predicted": {"overlapped": 0.12}, "byte_processor_seconds": 2e-9}
    found = shaped.derived(row)
    assert found["by bound"] == pytest.approx(1.5)
    assert found["by bound of cores"] == pytest.approx(0.15 / 0.12)
    del row["byte_processor_seconds"]
    assert math.isnan(shaped.derived(row)["by bound of cores"])


def test_what_a_byte_costs_is_measured_between_ranks(monkeypatch):
    monkeypatch.setattr(probes, "PROBE_BYTES", 1 << 16)
    (found, other) = run_threads(2, probes.moving_seconds)
    assert found == other
    assert len(found) == probes.WINDOWS and min(found) >= 0


def test_losses_that_differ_by_more_than_rounding_end_the_benchmark():
    assert sharded.check_equal([1.0, 2.0], [1.0, 2.0 + 1e-6], "ranks") == pytest.approx(5e-7, rel=0.01)
    with pytest.raises(SystemExit, match="more than rounding"):
        sharded.check_equal([1.0], [1.001], "ranks")
    with pytest.raises(SystemExit, match="1 losses, and 2"):
        sharded.check_equal([1.0], [1.0, 1.0], "ranks")


def test_an_epoch_counts_when_its_checkpoint_is_there(tmp_path):
    assert sharded._epochs_in(tmp_path) == 0
    (tmp_path / "metrics.csv").write_text("epoch,train_loss\n0,1.0\n", encoding="utf-8")
    assert sharded._epochs_in(tmp_path) == 0
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "best.pt").touch()
    assert sharded._epochs_in(tmp_path) == 1


@pytest.mark.long
def test_the_benchmark_runs_where_hosts_can_be_made(tmp_path, capsys):
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


def test_other_losses_end_the_benchmark():
    losses = {"1 ranks": 2.0, "2 ranks": 2.001, "pyg": 1.999, "dgl": 9.0}
    whole_graph.check_same_loss("tiny", losses)
    with pytest.raises(SystemExit, match="tiny: the last losses differ"):
        whole_graph.check_same_loss("tiny", losses | {"pyg": 2.01})


def test_a_peer_is_beside_the_ranks_by_the_medians():
    row = {"ranks_seconds": [0.1, 0.2, 9.0], "peers_seconds": {"pyg": [3.0, 1.0, 2.0]}}
    assert whole_graph.beside(row) == {"pyg": (2.0, 10.0)}

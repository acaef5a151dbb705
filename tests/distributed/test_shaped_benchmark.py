"""benchmarks.distributed.shaped: the planted graph, the modes of a transport, and a run where permitted."""

import math

import pytest
import torch
from benchmarks.common.rows import read_lines
from benchmarks.distributed import probes, shaped
from benchmarks.distributed.links import why_not
from benchmarks.distributed.modes import ModalTransport
from benchmarks.distributed.planted import partition_of, planted
from tests.distributed.threads import run_threads

from graphbraid.distributed import Division, report_of


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


@pytest.mark.slow
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

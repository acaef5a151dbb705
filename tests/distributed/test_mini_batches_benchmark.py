"""benchmarks.distributed.mini_batches: what it predicts of what it measured, and a run."""

import pytest
import torch
from benchmarks.common.rows import read_lines
from benchmarks.distributed import mini_batches, probes
from tests.distributed.threads import run_threads

from graphbraid.estimates.ranks import Cluster, RanksForecast, ShareTimes, predict_sampled


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


@pytest.mark.long  # a whole benchmark: its parts have the other tests
def test_ranks_of_one_machine_are_measured_and_predicted(tmp_path, capsys):
    out, threads = tmp_path / "out.jsonl", torch.get_num_threads()
    options = ["--nodes", "1200", "--epochs", "1", "--seconds", "0", "--rates", "--out", str(out)]
    try:
        mini_batches.main(options)
    finally:
        torch.set_num_threads(threads)
    (row,) = read_lines(out)
    assert (row["row"], row["cores"]) == ("2 ranks, one machine", 2)
    for name in ("alone", "ranks"):
        low, high = row["predicted_range"][name]
        assert 0 < low <= row["predicted"][name] <= high
        assert row["seconds"][name] > 0
    assert row["share"]["repeats"] > 1
    assert "read by" in capsys.readouterr().out

"""benchmarks.planning.lookahead on a tiny graph: what it measures, and that it checks the batches."""

import numpy as np
import pytest
import torch
from benchmarks.common.rows import read_lines
from benchmarks.planning import lookahead
from tests.sampling.graphs import power_law_csc

from graphbraid.collective.hardware.cpu import CpuBatching


@pytest.fixture
def graphs(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    csc = power_law_csc(400, 6000)
    draw = np.random.default_rng(0)
    arrays = {
        "indptr": csc.indptr.numpy(),
        "indices": csc.indices.numpy(),
        "x": draw.standard_normal((400, 32), dtype=np.float32),
        "y": draw.integers(0, 5, 400),
        "train_idx": np.arange(400),
    }
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)


def run(graphs, *options):
    common = ["--names", "tiny", "--fanouts", "4", "4", "--batch-size", "20", "--steps", "14"]
    out = ["--graphs", str(graphs), "--out", str(graphs / "out.jsonl")]
    return lookahead.main([*common, *out, *options])


@pytest.mark.slow
def test_shares_grow_with_the_window_and_bytes_shrink_by_what_is_shared(graphs):
    run(graphs, "--repeats", "1")
    [row] = read_lines(graphs / "out.jsonl")
    shares = list(row["share_of_earlier_batches"].values())
    assert 0 < shares[0] < shares[1] < shares[2] < shares[3] < 1
    assert row["copy_bytes"]["ahead"] < row["copy_bytes"]["plain"]
    assert row["executed"]["speedup"] > 0
    assert len(row["predicted"]) == len(lookahead.LINKS) * len(lookahead.WORKERS)
    run(graphs, "--repeats", "0")
    [again] = read_lines(graphs / "out.jsonl")
    assert "executed" not in again


@pytest.mark.slow
def test_a_batch_that_differs_ends_the_benchmark(graphs, monkeypatch):
    prepare = CpuBatching.__call__

    def broken(self, epoch, step):
        batch = prepare(self, epoch, step)
        if step == 3 and self.context.row_buffer is not None:
            batch.send_whole()
            batch.x = batch.x + 1
        return batch

    monkeypatch.setattr(CpuBatching, "__call__", broken)
    with pytest.raises(SystemExit, match="batches with look-ahead are not those without"):
        run(graphs, "--repeats", "1")

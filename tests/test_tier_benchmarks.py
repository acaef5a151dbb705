"""The benchmarks of tiers and of placement at tiny sizes: what they check, refuse and write."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.common.rows import read_lines
from benchmarks.graphs import generated
from benchmarks.graphs.folder import save
from benchmarks.peers.reordering import degree_order, digest
from benchmarks.planning import lookahead
from benchmarks.tables import pages
from benchmarks.tiers import prediction, reordering, topology, traffic, whole
from tests import warm
from tests.sampling.graphs import power_law_csc

from graphbraid import Graph
from graphbraid.collective.hardware.cpu import CpuBatching
from graphbraid.features import reorder

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with one graph of 300 nodes, called tiny."""
    folder = tmp_path_factory.mktemp("graphs")
    save(generated.make("dense", generated.SMOKE["dense"]), folder / "tiny")
    return folder


# ---- benchmarks.tiers.prediction


@pytest.fixture(scope="module")
def predicted(folder):
    """Its rows of the graph."""
    out, samplers = folder / "prediction.jsonl", ["--samplers", "3,2x10", "2x5"]
    graph = ["--graphs", str(folder), "--names", "tiny"]
    prediction.main([*graph, *samplers, "--epochs", "2", "--out", str(out)])
    return read_lines(out)


def test_looking_ahead_is_the_best_fixed_choice_and_belady_is_above_it(predicted):
    assert [row["row"] for row in predicted] == ["tiny, 3,2x10", "tiny, 2x5"]
    for row in predicted:
        assert row["served"]["lookahead"] == row["best"]
        for kind in prediction.SCORES:
            assert all(a <= b for a, b in zip(row["served"][kind], row["best"], strict=True))
            assert row["curves"][kind] == sorted(row["curves"][kind])
        assert all(a >= b for a, b in zip(row["belady"], row["best"], strict=True))
        assert row["auto"] in row["trial"]
    three_hops, two_hops = predicted
    assert two_hops["num_batches"] > three_hops["num_batches"] > 2


@pytest.mark.parametrize(
    ("name", "said"), [("lookahead", "looking ahead serves"), ("belady", "Belady answers")]
)
def test_a_figure_that_cannot_be_ends_the_benchmark(predicted, name, said):
    row = predicted[0]
    worse = [0.99 * share for share in row["best"]]
    served = row["served"] | ({"lookahead": worse} if name == "lookahead" else {})
    with pytest.raises(SystemExit, match=said):
        prediction.check(row | {"served": served, "belady": worse if name == "belady" else row["belady"]})


def test_the_committed_picture_is_that_of_the_results():
    for picture, draw in pages.PICTURES.items():
        assert picture.read_text(encoding="utf-8") == draw(), "python -m benchmarks.tables draws it anew"


# ---- benchmarks.tiers.traffic


@pytest.fixture(scope="module")
def travelled(folder):
    """Its row of the graph."""
    out, sampled = folder / "traffic.jsonl", ["--fanouts", "3", "2", "--batch-size", "10", "--width", "3"]
    traffic.main(["--graphs", str(folder), "--names", "tiny", *sampled, "--out", str(out)])
    [row] = read_lines(out)
    return row


def test_what_travels_is_what_the_score_foretells(travelled):
    foretold = [round(num_bytes) for num_bytes in travelled["foretold_bytes"]]
    assert travelled["copies_bytes"] == travelled["device_bytes"] == foretold
    assert foretold == sorted(foretold, reverse=True)
    assert foretold[0] == travelled["num_reads"] * 3 * 4
    assert foretold[-1] < 0.5 * foretold[0]
    assert all(ahead <= found for ahead, found in zip(travelled["look-ahead_bytes"], foretold, strict=True))


@pytest.mark.parametrize(
    ("way", "factor", "is_wrong"),
    [
        ("copies", 1.02, True),
        ("copies", 0.98, True),
        ("device", 1.02, True),
        ("look-ahead", 1.02, True),
        ("copies", 1.005, False),
        ("look-ahead", 0.5, False),
    ],
)
def test_bytes_that_cannot_be_end_the_benchmark(travelled, way, factor, is_wrong):
    changed = travelled | {f"{way}_bytes": [factor * num_bytes for num_bytes in travelled["foretold_bytes"]]}
    if is_wrong:
        with pytest.raises(SystemExit, match=f"tiny, 0% hot, {way}: .* where the score's share says"):
            traffic.check(changed)
    else:
        traffic.check(changed)


def test_rows_of_other_nodes_end_the_benchmark(monkeypatch):
    graph = generated.make("dense", generated.SMOKE["dense"])
    parsed = type("Options", (), {"fanouts": [3, 2], "batch_size": 10, "width": 2, "seed": 0})
    monkeypatch.setattr(traffic.torch, "equal", lambda *_: False)
    with pytest.raises(SystemExit, match="0% hot: batch 0 has rows of other nodes"):
        traffic.measure(graph, parsed)


# ---- benchmarks.tiers.reordering


def test_a_digest_tells_edges_and_not_their_order_within_a_list(tmp_path):
    csc = topology.load(topology.make(tmp_path, 5000))
    found = digest(csc.indptr, csc.indices, step=7)
    assert found == digest(csc.indptr, csc.indices)
    backwards = Graph(csc=csc).csc.indices.flip(0)
    last = csc.indptr[-1]
    assert digest(last - csc.indptr.flip(0), backwards) != found
    turned = reorder(Graph(csc=csc), torch.arange(csc.num_dst - 1, -1, -1)).graph.csc
    again = reorder(Graph(csc=turned), torch.arange(csc.num_dst - 1, -1, -1), sort_neighbors=True).graph.csc
    assert digest(turned.indptr, turned.indices) != found
    assert digest(again.indptr, again.indices) == found


def test_our_side_prints_a_line_with_the_digest_of_the_reordered_graph(tmp_path):
    folder = topology.make(tmp_path, 5000)
    done = warm.run(["-m", "benchmarks.tiers.reordering_ours", folder], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    csc = topology.load(folder)
    expected = reorder(Graph(csc=csc), degree_order(csc.indices, csc.num_dst)).graph.csc
    assert row["digest"] == digest(expected.indptr, expected.indices)
    assert row["num_edges"] == csc.num_edges
    assert row["topology_bytes"] == csc.nbytes


def test_graphs_that_differ_are_no_result():
    run = {"seconds": 1.0, "digest": 1, "num_edges": 3, "peak_bytes": 8, "topology_bytes": 4}
    mine, theirs = (reordering.Contender(name, []) for name in ("graphbraid", "dgl"))
    mine.runs = [run | {"copy_seconds": 0.1, "lookup_seconds": 0.5}]
    theirs.runs = [run | {"seconds": 20.0}]
    row = reordering.summary(mine, theirs)
    assert (row["ratio"], row["dgl"]["peak_of_topology"], row["floor_seconds"]) == (20.0, 2.0, 0.5)
    theirs.runs.append(run | {"digest": 2})
    with pytest.raises(SystemExit, match="differ"):
        reordering.summary(mine, theirs)


# ---- benchmarks.planning.lookahead


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


# ---- benchmarks.tiers.whole

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

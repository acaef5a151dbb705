"""The benchmarks of tiers and of placement at tiny sizes: what they check, refuse and write."""

import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.common import room
from benchmarks.common.journal import Journal
from benchmarks.common.peak import PeakMemory
from benchmarks.common.rows import read_lines
from benchmarks.graphs import generated
from benchmarks.graphs.folder import save
from benchmarks.peers.reordering import degree_order, digest
from benchmarks.planning import lookahead
from benchmarks.tables import pages
from benchmarks.tiers import gather, prediction, reordering, scale, scale_stage, topology, traffic, whole
from benchmarks.tiers.disk_figures import figures
from benchmarks.tiers.limited import MemoryLimit
from tests import warm
from tests.extras import PATIENCE
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


def test_a_disk_without_room_is_told_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(scale, "run_stage", None)
    with pytest.raises(
        SystemExit, match=r"a graph of 330,000,000 edges needs 3[0-9]\.[0-9] GiB in .*f, which has"
    ):
        monkeypatch.setattr(room.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=4 << 30))
        scale.main(["--folder", str(tmp_path / "f")])
    (tmp_path / "f" / "made").write_bytes(b"1234")
    monkeypatch.setattr(room.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=6))
    room.require_room(tmp_path / "f", 10, "a file that is half made")
    with pytest.raises(SystemExit, match=r"needs 11 B in .* 6 B free beside 4 B made before"):
        room.require_room(tmp_path / "f", 11, "it")


def test_fewer_nodes_are_evaluated():
    ids = torch.arange(100)
    graph = Graph.from_edge_index([[0], [1]], 100, splits={"train": ids[:10], "test": ids[10:]})
    few = scale_stage.with_fewer_tested(graph, 0.05)
    assert few.split("test").numel() == 5
    assert torch.isin(few.split("test"), ids[10:]).all()
    assert few.split("train").equal(ids[:10])
    assert scale_stage.with_fewer_tested(graph, 1.0).split("test").equal(ids[10:])


def test_a_journal_gives_what_the_same_command_gave(tmp_path):
    journal = Journal(tmp_path / "folder" / "journal.jsonl")
    assert journal.find("a", ["python", "-m", "a"]) is None
    journal.keep("a", ["python", "-m", "a"], {"seconds": 1})
    journal.keep("b", ["python", "-m", "b"], {"seconds": 2})
    assert journal.find("a", ["another/python", "-m", "a"]) == {"seconds": 1}
    assert journal.find("a", ["python", "-m", "a", "--more"]) is None
    journal.keep("a", ["python", "-m", "a", "--more"], {"seconds": 3}, voids=["b"])
    assert journal.find("a", ["python", "-m", "a"]) is None
    assert journal.find("a", ["python", "-m", "a", "--more"]) == {"seconds": 3}
    assert journal.find("b", ["python", "-m", "b"]) is None


def test_a_stage_voids_all_that_was_made_of_it():
    assert scale.followers("make") == set(scale.STAGES) - {"make"}
    assert scale.followers("train reordered") == {"evaluate"}
    assert scale.followers("evaluate") == set()


def test_losses_that_differ_are_no_result():
    rows = [{"stage": f"train {where}", "losses": [1.0, 0.5]} for where in ("reordered", "in memory")]
    scale.check_losses(rows)
    rows[1] = {"stage": "train in memory", "losses": [1.0, 0.25]}
    with pytest.raises(SystemExit, match="differ"):
        scale.check_losses(rows)


def test_peak_memory_counts_what_a_process_took_and_gave_back():
    code = "x = bytearray(b'1') * (64 << 20); print('full', flush=True); input(); del x; input()"
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    with process, PeakMemory(process) as peak:
        assert process.stdout.readline() == "full\n"
        until = time.monotonic() + PATIENCE
        while peak.own_bytes < 64 << 20:  # when it looks depends on the machine's load
            assert time.monotonic() < until
            time.sleep(0.01)
        process.communicate("\n\n", timeout=PATIENCE)
        assert process.returncode == 0
    assert 64 << 20 < peak.own_bytes <= peak.resident_bytes < 200 << 20


@pytest.mark.slow
def test_gathered_rows_stand_beside_a_loop_in_c(tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    arguments = ["--gigabytes", "0.004", "--row-bytes", "128", "512", "--repeats", "1"]
    gather.main([*arguments, "--folder", str(tmp_path), "--out", str(out)])
    rows = read_lines(out)
    assert [(row["row_bytes"], row["threads"]) for row in rows] == [(128, 1), (128, 2), (512, 1), (512, 2)]
    for row in rows:
        rates = row["bytes_per_second"]
        assert all(rate > 0 for rate in rates.values())
        assert row["of_limit"] == {name: rates[name] / rates["limit"] for name in ("kernel", "tiers", "map")}
    assert "of the limit" in capsys.readouterr().out


def test_a_contender_with_wrong_rows_ends_the_gathering():
    table, ids, out = torch.arange(12).view(4, 3), torch.tensor([2, 0]), torch.zeros(2, 3, dtype=torch.int64)
    gather.check({"right": lambda i, o: o.copy_(table[i])}, table, ids, out)
    with pytest.raises(SystemExit, match="wrong gave other rows"):
        gather.check({"wrong": lambda i, o: o.copy_(table[:2])}, table, ids, out)


def a_run(steps, seconds, **told):
    sums = [f"{step}" for step in range(steps)]
    return {"batch_seconds": [seconds] * steps, "checksums": sums, "read_bytes": 1} | told


def test_each_memmap_stands_beside_tiers_over_the_batches_of_both():
    """Where plain memmap gets through one batch only, the other one is compared over all of its own."""
    runs = {
        "memmap": [a_run(1, 90.0), a_run(2, 80.0)],
        "memmap-random": [a_run(4, 2.0), a_run(5, 2.0)],
        "tiers": [a_run(10, 0.5, disk_bytes=8), a_run(10, 0.5, disk_bytes=8)],
    }
    row = figures(runs, list(range(10, 20)), [])
    assert (row["steps"], row["rows"], row["plain"]["steps"], row["plain"]["rows"]) == (4, 46, 1, 10)
    assert row["seconds"] == {"memmap-random": [8.0, 8.0], "tiers": [2.0, 2.0]}
    assert row["plain"]["seconds"] == {"memmap": [90.0, 80.0], "tiers": [0.5, 0.5]}
    assert row["times_as_fast"] == {"memmap-random": 4.0, "memmap": 170.0}
    assert row["holds"]
    slower = runs | {"tiers": [a_run(10, 0.7, disk_bytes=8)]}
    assert not figures(slower, list(range(10, 20)), [])["holds"]
    with pytest.raises(SystemExit, match="memmap and tiers do not give the same rows"):
        figures(runs | {"memmap": [a_run(1, 1.0, checksums=["other"])]}, list(range(10)), [])


def fake_groups(folder, entries, file):
    """A folder that looks like control groups: each group has what a kernel would make."""
    group = folder / entries
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text("")
    if file == "memory.max":
        (group / file).write_text("max")
    return group


@pytest.mark.parametrize(
    ("entry", "place", "file"),
    [("4:memory:/a/b\n0::/\n", "memory/a/b", "memory.limit_in_bytes"), ("0::/a\n", "a", "memory.max")],
)
def test_a_limit_is_a_group_below_the_present_one(tmp_path, entry, place, file):
    above = fake_groups(tmp_path / "groups", place, file)
    own = tmp_path / "own"
    own.write_text(entry)
    limit = MemoryLimit(12345, root=tmp_path / "groups", own=own)
    group = above / f"graphbraid-{os.getpid()}"
    assert limit.is_in_force
    assert (group / file).read_text() == "12345"
    assert (group / "cgroup.procs").read_text() == str(os.getpid())
    for made in group.iterdir():  # a kernel's group is empty when it is removed
        made.unlink()
    limit.end()
    assert not limit.is_in_force
    assert not group.exists()
    assert (above / "cgroup.procs").read_text() == str(os.getpid())
    assert limit.reason == ""


def test_where_there_are_no_groups_it_says_why(tmp_path):
    own = tmp_path / "own"
    own.write_text("3:cpu:/\n")
    limit = MemoryLimit(1, root=tmp_path, own=own)
    assert not limit.is_in_force
    assert "no group that counts memory" in limit.reason
    limit.end()

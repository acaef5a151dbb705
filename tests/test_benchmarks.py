"""What benchmarks share: results as lines, tables made of them, graphs, peers that do the same work."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.common import rows as results
from benchmarks.graphs import generated, make, rmat
from benchmarks.graphs.folder import load, save
from benchmarks.sampling import timed, typed_graphs
from benchmarks.tables import pages
from tests import warm
from tests.extras import NO_PYG

from graphbraid.loader import NeighborLoader

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """A folder with one graph of 300 nodes, called tiny."""
    folder = tmp_path_factory.mktemp("graphs")
    save(generated.make("dense", generated.SMOKE["dense"]), folder / "tiny")
    return folder


def run(module, *arguments):
    """What a benchmark's process printed last, as JSON."""
    done = warm.run(["-m", f"benchmarks.{module}", *arguments], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_row_says_where_it_was_measured_and_replaces_its_namesake(tmp_path):
    out = tmp_path / "some.jsonl"
    results.write_rows("some", {"a": {"figure": 1}, "b": {"figure": 2}}, repeats=3, out=out)
    results.write_rows("some", {"a": {"figure": 3, "repeats": 7}}, repeats=3, out=out)
    first, second = results.read_rows("some", tmp_path)
    assert [(row["row"], row["figure"], row["repeats"]) for row in (first, second)] == [
        ("a", 3, 7),
        ("b", 2, 3),
    ]
    assert {"cpu", "cores", "kernels", "torch"} <= set(first["machine"])
    assert {"commit", "date"} <= set(first)
    assert len(out.read_text().splitlines()) == 2


def test_a_remark_on_how_it_was_measured_stays_with_a_row(tmp_path, monkeypatch):
    monkeypatch.setenv(results.REMARK, "beside other programs")
    path = results.write_rows("some", {"a": {}}, repeats=1, out=tmp_path / "some.jsonl")
    assert results.read_lines(path)[0]["remark"] == "beside other programs"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "peer", "heads"),
    [
        ("fullgraph.relational_ours", ("peers.relational", "pyg"), ()),
        ("fullgraph.transformer_ours", ("peers.transformer",), ("--heads", "2")),
    ],
)
def test_relational_contenders_have_one_loss(tmp_path, ours, peer, heads):
    pytest.importorskip("torch_geometric", reason=NO_PYG)
    folder = str(typed_graphs.make(tmp_path, "mag-like", tmp_path, 0.0003))
    options = (folder, "--features", "6", "--hidden", "8", *heads, "--epochs", "2")
    mine, theirs = run(ours, *options), run(*peer, *options)
    assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    assert heads or mine["floor_s"] > 0


def test_every_committed_row_is_stamped():
    names = {path.stem for path in results.RESULTS.glob("*.jsonl")}
    assert {"sampling", "epoch", "fullgraph", "accuracy"} <= names
    for name in names:
        for row in results.read_rows(name):
            assert {"row", "commit", "date", "machine", "repeats"} <= set(row), (name, row["row"])


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_the_tables_are_those_of_the_results(page):
    text = page.read_text()
    assert "<!-- table: " in text
    assert pages.made(text) == text, "python -m benchmarks.tables writes them anew"


def test_a_table_that_nobody_makes_is_refused():
    with pytest.raises(ValueError, match="there is no table 'nonsense'"):
        pages.made("<!-- table: nonsense -->\n<!-- end of table -->")


def test_random_graphs_are_compressed_columns_of_distinct_sources():
    spec = rmat.Rmat(num_nodes=50, num_drawn=400, num_features=6, num_classes=3, train_share=0.5, density=0.4)
    graph = rmat.make(spec)
    dense = np.zeros((50, 50), np.int64)
    for node in range(50):
        sources = graph["indices"][graph["indptr"][node] : graph["indptr"][node + 1]]
        assert (np.diff(sources) > 0).all()
        dense[node, sources] = 1
    assert (dense == dense.T).all()
    assert dense.trace() == 0
    assert set(np.unique(graph["x"])) == {0.0, 1.0}
    assert len(set(graph["train_idx"])) == 25
    again = rmat.make(spec)
    assert all(np.array_equal(graph[name], again[name]) for name in graph)


def test_graphs_are_made_by_name_once(tmp_path, monkeypatch):
    spec = rmat.Rmat(num_nodes=50, num_drawn=400, num_features=6, num_classes=3, train_share=0.5)
    monkeypatch.setitem(rmat.SPECS, "little", spec)
    assert load(make.make("little", tmp_path, None)).num_nodes == 50
    (tmp_path / "little" / "x.npy").write_bytes(b"left alone")
    make.make("little", tmp_path, None)
    assert (tmp_path / "little" / "x.npy").read_bytes() == b"left alone"
    with pytest.raises(ValueError, match="there is no graph 'none'"):
        make.make("none", tmp_path, tmp_path)
    assert make.missing_archives(["little", "none", "arxiv-like"], tmp_path, None) == ["none"]


def test_an_archive_becomes_a_folder_and_shuffled_has_the_same_degrees(tmp_path):
    draw = np.random.default_rng(0)
    y = np.where(np.arange(40) < 30, np.arange(40) % 3, -1)
    x = draw.random((40, 4), dtype=np.float32)
    np.savez(tmp_path / "a.npz", edge_index=draw.integers(0, 40, (2, 200)), num_nodes=40, x=x, y=y)
    plain, shuffled = (load(make.make(name, tmp_path, tmp_path)) for name in ("a", "a_shuffled"))
    assert len(plain.split("train")) == len(shuffled.split("train")) == 18
    assert sorted(plain.csc.degrees().tolist()) == sorted(shuffled.csc.degrees().tolist())
    assert not np.array_equal(plain.x.numpy(), shuffled.x.numpy())
    assert np.array_equal(np.sort(plain.x.numpy(), 0), np.sort(shuffled.x.numpy(), 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", ["gat", *(pytest.param(name, marks=pytest.mark.long) for name in ("gin", "gcn", "sage"))]
)
def test_pyg_s_both_ways_train_what_ours_trains(graphs, model):
    pytest.importorskip("torch_geometric", reason=NO_PYG)
    arguments = [graphs / "tiny", "--model", model, "--epochs", "3", "--heads", "2"]
    ours = run("fullgraph.ours", *arguments)
    for library in ("pyg", "pyg-csr"):
        theirs = run("peers.fullgraph", library, *arguments)
        assert theirs["loss"] == pytest.approx(ours["loss"], rel=2e-4)
        assert theirs["peak_rss_gb"] >= theirs["data_rss_gb"] > 0
        assert len(theirs["epochs_s"]) == 3


TINY = {
    "sampling.ours": ("{graph}", "--batches", "2", "--batch-size", "8"),
    "fullgraph.without_passes": ("--graphs", "{graphs}", "--names", "tiny", "--rounds", "1"),
    "fullgraph.ablation": ("{graph}", "--rounds", "1", "--variants", "all", "none"),
    "fullgraph.floor": ("--graphs", "{graphs}", "--names", "tiny", "--repeats", "1", "--epochs", "1"),
    "fullgraph.growth": ("--graphs", "{graphs}", "--millions", "0.001", "--epochs", "1"),
    "training.checks": ("--graphs", "{graphs}", "--names", "tiny", "--repeats", "1"),
    "memory.sampled": ("--nodes", "500", "--edges", "4000", "--features", "8"),
    "planning.schedule": (
        *("--cases", "3", "--cases-workers", "2", "--small-cases", "2", "--batches", "20"),
    ),
    "distributed.exact": ("--nodes", "4000", "--layers", "2", "--budget", str(8 << 20)),
    "distributed.kept_rows": ("--nodes", "3000", "--epochs", "2", "--rates"),
    "distributed.mini_batches": ("--nodes", "1200", "--epochs", "1", "--seconds", "0", "--rates"),
    "distributed.partitioning": ("--graphs", "{graphs}", "--names", "tiny", "--parts", "2", "4"),
    "distributed.whole_graph": (
        *("--graphs", "{graphs}", "--names", "tiny", "--epochs", "3", "--repeats", "1"),
        *("--libraries", "pyg", "pyg-csr"),
    ),
    "tiers.disk": (
        *("--folder", "{out}", "--gigabytes", "0.01", "--memory", "2MiB", "--width", "64", "--steps", "6"),
        *("--repeats", "1", "--batch-size", "50", "--fanouts", "4", "3", "--no-cgroup"),
    ),
    "tiers.scale": (
        *("--folder", "{out}", "--nodes", "3000", "--edges", "30000", "--width", "16", "--hidden", "8"),
        *("--train-share", "0.1", "--test-share", "0.9", "--host", "400KiB", "--budget", "256KiB"),
        *("--batch-size", "64"),
    ),
    "tiers.whole": (
        *("--folder", "{out}", "--limit", "64MiB", "--host", "1MiB", "--gigabytes", "0.004", "--width", "64"),
        *("--hidden", "4", "--epochs", "2", "--models", "gcn", "--remove"),
    ),
}
"""Entry points at tiny sizes; those with peers need their environment."""
PRINT_JSON = {"sampling.ours", "fullgraph.ablation"}
COLD = (
    "fullgraph.floor",
    "fullgraph.growth",
    "fullgraph.without",
    "training.checks",
    "memory",
    "distributed",
    "tiers",
)
"""Whole benchmarks, which start many processes: they compare contenders, and their parts have tests."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", [pytest.param(one, marks=[pytest.mark.long] if one.startswith(COLD) else []) for one in TINY]
)
def test_an_entry_point_runs_at_a_tiny_size(graphs, tmp_path, module):
    if module.startswith(("fullgraph", "training", "distributed.whole")):
        pytest.importorskip("torch_geometric", reason=NO_PYG)
    places = {"graph": graphs / "tiny", "graphs": graphs, "out": tmp_path / "made"}
    out = [] if module in PRINT_JSON else ["--out", str(tmp_path / "out.jsonl")]
    arguments = [argument.format(**places) for argument in TINY[module]]
    done = warm.run(["-m", f"benchmarks.{module}", *arguments, *out], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    if out:
        rows = results.read_lines(tmp_path / "out.jsonl")
        assert rows
        assert all({"row", "commit", "repeats"} <= set(row) for row in rows)
    else:
        assert json.loads(done.stdout.splitlines()[-1])["graph"] == "tiny"


@pytest.mark.slow
def test_requests_to_the_service_are_answered_while_weights_are_swapped(tmp_path):
    pytest.importorskip("fastapi", reason="needs fastapi, of the extra `service`")
    pytest.importorskip("uvicorn", reason="needs uvicorn, of the extra `service`")
    options = ("--seconds", "1.5", "--clients", "2", "--out", tmp_path / "serving.jsonl")
    done = warm.run(["-m", "benchmarks.serving.service", *options], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    rows = results.read_rows("serving", tmp_path)
    assert [row["clients"] for row in rows] == [2, 2]
    assert all(row["requests"] > 5 and row["swaps"] == 1 and row["p50_ms"] <= row["p99_ms"] for row in rows)


def test_the_generated_graph_goes_through_its_folder(tmp_path):
    path = typed_graphs.make(tmp_path, "mag-like", tmp_path, 0.001)
    graph, seed_type, seeds = typed_graphs.read(path)
    graph.validate()
    assert seed_type == "paper"
    assert torch.equal(seeds.sort().values, torch.arange(736))
    assert len(graph.edge_types) == 2 * len(typed_graphs.MAG_EDGES)
    assert graph.num_edges == 2 * sum(int(count * 0.001) for count in typed_graphs.MAG_EDGES.values())
    made = typed_graphs.mag_like(0.001).to_edge_indices()
    for edge_type, pairs in graph.to_edge_indices().items():
        assert torch.equal(pairs, made[edge_type])


def test_our_side_counts_what_it_samples(tmp_path):
    graph, seed_type, seeds = typed_graphs.read(typed_graphs.make(tmp_path, "mag-like", tmp_path, 0.001))
    loader = NeighborLoader(
        graph, [3, 2], (seed_type, seeds[:64]), batch_size=32, layout="blocks", return_edge_id=False, seed=0
    )
    _, nodes, edges = timed.epoch(loader)
    batches = list(loader.batches(0))
    assert nodes == sum(batch.num_nodes for batch in batches)
    assert edges == sum(
        csc.num_edges for batch in batches for layer in batch.blocks for csc in layer.values()
    )

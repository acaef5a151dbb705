"""Graphs changed by commands: renumbered under the user's ids, rows narrowed, split into parts."""

import re
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests import warm
from tests.features.tables import flip_a_byte
from tests.train.typed_communities import bibliography

from graphbraid import ScaledFeatures, datasets
from graphbraid.cli import signals
from graphbraid.datasets import open_store, save_store
from graphbraid.datasets.store import changed
from graphbraid.distributed import SavedPartition, split
from graphbraid.features import ORDERS, order_by, reorder, score
from graphbraid.sampling import SamplerConfig
from graphbraid.sampling.config import SeedSchedule

QUICK = ("--hidden", 8, "--batch-size", 32, "--fanouts", "5,5", "--epochs", 5, "--lr", 0.05, "--quiet")


def same_topology(store, graph, ids):
    """The store holds the graph, each node under ``ids``."""
    found = datasets.open_store(store)
    place = torch.empty(graph.num_nodes, dtype=torch.int64)
    place[ids] = torch.arange(graph.num_nodes)
    ours = sorted(map(tuple, found.to_edge_index().t().tolist()))
    theirs = sorted(map(tuple, place[graph.to_edge_index()].t().tolist()))
    return ours == theirs and torch.equal(found.x, graph.x[ids]) and torch.equal(found.y, graph.y[ids])


@pytest.mark.parametrize("by", ORDERS)
def test_a_store_is_reordered_and_keeps_the_ids(graphbraid, store, two_communities, tmp_path, by):
    done = graphbraid("reorder", "--data", store, "--by", by, "--out", tmp_path / "made", "--json")
    assert (done.json["order"], done.json["num_nodes"]) == (by, 200)
    ids = torch.from_numpy(datasets.open_names(tmp_path / "made").ids.values)
    assert torch.equal(ids, ORDERS[by](two_communities.csc))
    assert same_topology(tmp_path / "made", two_communities, ids)


def test_by_a_score_of_the_sampler(graphbraid, store, two_communities, tmp_path):
    options = ("--fanouts", "4,3", "--batch-size", 16, "--seed", 3)
    graphbraid("reorder", "--data", store, "--by", "presampled", "--out", tmp_path / "made", *options)
    schedule = SeedSchedule(seeds=two_communities.split("train"), batch_size=16, shuffle=True, seed=3)
    found = score(two_communities, "presampled", sampler=SamplerConfig(fanouts=(4, 3)), schedule=schedule)
    assert datasets.open_names(tmp_path / "made").ids.values.tolist() == order_by(found.values).tolist()


@pytest.mark.parametrize("option", [("--fanouts", "4,3"), ("--batch-size", 16), ("--seed", 3)])
def test_options_that_an_order_does_not_read_are_refused(graphbraid, store, tmp_path, option):
    done = graphbraid(
        "reorder", "--data", store, "--by", "degree", "--out", tmp_path / "made", *option, code=2
    )
    assert f"{option[0]} is of orders that follow a sampler, and --by degree does not" in done.stderr
    assert not (tmp_path / "made").exists()


def test_convert_orders_what_it_prepared(graphbraid, store, two_communities, tmp_path):
    done = graphbraid("convert", store, tmp_path / "made", "--symmetrize", "--order", "degree")
    assert "200 nodes" in done.stderr
    symmetric = two_communities.symmetrized()
    ids = torch.from_numpy(datasets.open_names(tmp_path / "made").ids.values)
    assert torch.equal(ids, reorder(symmetric, "degree").order)
    assert same_topology(tmp_path / "made", symmetric, ids)


def test_a_data_set_that_is_no_store_is_reordered_too(graphbraid, tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path / "cache"))
    graphbraid("reorder", "--data", "braid-10k", "--by", "rcm", "--out", tmp_path / "made", "--json")
    assert len(datasets.open_names(tmp_path / "made").ids) == 1000


@pytest.mark.slow
def test_predictions_come_under_the_users_ids(graphbraid, two_communities, tmp_path):
    names = datasets.NodeIds(np.array([f"node {i}" for i in range(200)], object))
    datasets.save_store(two_communities, tmp_path / "named", ids=names)
    for source, by in (("named", "communities"), ("once", "degree")):  # of a store that was reordered before
        out = tmp_path / ("once" if source == "named" else "twice")
        graphbraid("reorder", "--data", tmp_path / source, "--by", by, "--out", out)
    run = tmp_path / "run"
    graphbraid("train", "--data", tmp_path / "twice", "--out", run, *QUICK)
    graphbraid("predict", "--run", run, "--out", tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as file:
        found = dict(file)
    predicted = dict(zip(found["node"].tolist(), found["prediction"].tolist(), strict=True))
    right = [predicted[f"node {i}"] == int(two_communities.y[i]) for i in range(200)]
    assert len(predicted) == 200
    assert np.mean(right) > 0.85  # under ids mixed up it would be a half
    (tmp_path / "ids.txt").write_text("node 7\nnode 123\n")
    graphbraid("predict", "--run", run, "--nodes", tmp_path / "ids.txt", "--out", tmp_path / "q.npz")
    with np.load(tmp_path / "q.npz") as file:
        few = dict(file)
    assert few["node"].tolist() == ["node 7", "node 123"]
    assert few["prediction"].tolist() == [predicted["node 7"], predicted["node 123"]]


def test_a_store_that_is_there_stays_unless_it_is_to_be_replaced(graphbraid, store, tmp_path):
    arguments = ("reorder", "--data", store, "--by", "degree", "--out", store)
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    done = graphbraid(*arguments, code=4)
    assert "it exists already" in done.stderr
    assert {path.name: path.read_bytes() for path in store.iterdir()} == before
    graphbraid(*arguments, "--overwrite")
    assert datasets.open_names(store).ids is not None


def test_sigterm_while_it_writes_leaves_nothing(graphbraid, store, tmp_path, monkeypatch):
    sources, made = changed.Renumbering.sources, []

    def stopped(self, *arguments, **options):
        made.append(arguments)
        if len(made) == 3:
            raise signals.Stopped
        return sources(self, *arguments, **options)

    monkeypatch.setattr(changed, "part_bytes", lambda: 256)
    monkeypatch.setattr(changed.Renumbering, "sources", stopped)
    before = sorted(path.name for path in tmp_path.iterdir())
    graphbraid("reorder", "--data", store, "--by", "degree", "--out", tmp_path / "made", code=130)
    assert len(made) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == before


# ---- convert --features-dtype


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_a_store_is_narrowed_and_the_rounding_is_told(graphbraid, store, tmp_path, dtype):
    done = graphbraid("convert", store, tmp_path / "narrow", "--features-dtype", dtype)
    assert f"features as {dtype}: relative error of a row at most " in done.stderr
    found = open_store(tmp_path / "narrow").x
    if dtype == "int8":
        assert isinstance(found, ScaledFeatures)
    else:
        assert str(found.dtype) == f"torch.{dtype}"
    graphbraid("reorder", "--data", tmp_path / "narrow", "--by", "degree", "--out", tmp_path / "moved")
    assert type(open_store(tmp_path / "moved").x) is type(found)


def test_the_rounding_is_part_of_the_json(graphbraid, store, tmp_path):
    done = graphbraid("convert", store, tmp_path / "narrow", "--features-dtype", "int8", "--json")
    rounding = done.json["rounding"]
    assert rounding["dtype"] == done.json["features_dtype"] == "int8"
    assert 0 < rounding["mean"] <= rounding["largest"] < 0.05
    assert "rounding" not in graphbraid("convert", store, tmp_path / "plain", "--json").json


def test_a_narrow_store_trains_with_its_rows_on_disk(graphbraid, store, tmp_path):
    graphbraid("convert", store, tmp_path / "narrow", "--features-dtype", "int8")
    losses = []
    for number, options in enumerate(((), ("--host", "0"))):
        done = graphbraid(
            *("train", "--data", tmp_path / "narrow", "--out", tmp_path / str(number), "--epochs", 1),
            *("--hidden", 8, "--batch-size", 32, "--fanouts", "5,5", "--quiet", "--json", *options),
        )
        losses.append([row["train_loss"] for row in done.json["result"]["history"]])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_info_tells_the_dtype_and_checks_the_scales(graphbraid, store, tmp_path, dtype):
    graphbraid("convert", store, tmp_path / "narrow", "--features-dtype", dtype)
    assert f" features in {dtype}, " in graphbraid("info", tmp_path / "narrow").stdout
    assert graphbraid("info", tmp_path / "narrow", "--check", "--json").json["features_dtype"] == dtype
    assert graphbraid("info", store, "--json").json["features_dtype"] == "float32"
    if dtype == "int8":
        flip_a_byte(tmp_path / "narrow" / "x_scale.npy", 128 + 3)
        done = graphbraid("info", tmp_path / "narrow", "--check", code=3)
        assert "x_scale.npy has changed" in done.stderr


# ---- partition


@pytest.fixture
def divide(graphbraid, store, tmp_path):
    def call(*options, data=store, code=0):
        return graphbraid("partition", "--data", data, "--parts", 4, *options, tmp_path / "parts", code=code)

    return call


def test_parts_are_written_and_reported(divide, store, tmp_path):
    done = divide("--json")
    saved, graph = SavedPartition(tmp_path / "parts", open_store(store)), open_store(store)
    assert done.json["strategy"] == saved.partition().strategy
    assert done.json["edge_cut"] == saved.report.edge_cut
    assert [part["nodes"] for part in done.json["parts"]] == saved.partition().sizes().tolist()
    assert done.json["halo"][1][0] == int(split(graph, saved.partition())[1].halo_indptr[1])
    assert done.json["imbalance"]["edges"] <= 1.05
    assert done.json["attempts"][-1]["is_taken"]
    assert (tmp_path / "parts" / "partition.svg").read_text().startswith("<svg")
    assert sum(saved.part(part).num_edges for part in range(4)) == graph.num_edges


def test_the_report_in_words_says_why(divide):
    done = divide()
    assert "cuts " in done.stdout
    assert "halo rows; heaviest part by the mean: edges 1.0" in done.stdout
    assert "receives most from" in done.stdout
    assert "stored in" in done.stderr


def test_the_same_partition_is_used_again(divide, tmp_path):
    divide("--strategy", "streaming")
    written = (tmp_path / "parts" / "partition.json").stat().st_mtime_ns
    again = divide("--strategy", "streaming", "--json")
    assert again.json["is_reused"]
    assert (tmp_path / "parts" / "partition.json").stat().st_mtime_ns == written
    replaced = divide("--strategy", "random", "--overwrite", "--json")
    assert (replaced.json["is_reused"], replaced.json["strategy"]) == (False, "random")


def test_another_partition_graph_or_folder_is_refused(divide, two_communities, tmp_path):
    divide("--keep-edges")
    other = divide("--keep-edges", "--seed", 3, code=2)
    assert "made with seed=0; this call has 3" in other.stderr
    save_store(two_communities.symmetrized(), tmp_path / "symmetric")
    done = divide("--keep-edges", data=tmp_path / "symmetric", code=3)
    assert "was made for another graph: its num_edges was" in done.stderr
    file = tmp_path / "parts" / "part-00002" / "halo.npy"
    file.write_bytes(file.read_bytes()[:-1])
    damaged = divide("--keep-edges", code=3)
    assert "halo.npy is truncated" in damaged.stderr
    (tmp_path / "parts" / "partition.json").unlink()
    divide(code=4)


@pytest.mark.parametrize("lacks", ["memory", "disk", "the right to write"])
def test_what_saving_lacks_is_said_before_the_graph_is_divided(divide, tmp_path, monkeypatch, lacks):
    def divided(*_, **__):
        raise AssertionError("work is lost")

    monkeypatch.setattr("graphbraid.distributed.partition", divided)
    if lacks == "memory":
        monkeypatch.setattr("graphbraid.datasets.npy.free_memory_bytes", lambda: 1000)
        said = "into 4 parts takes about .* of memory; 1000 B are free"
    elif lacks == "disk":
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
        said = "storing the partition in .* needs .*; 1000 B are free"
    else:
        monkeypatch.setattr("os.access", lambda *_, **__: False)
        said = "you may not write there"
    assert re.search(said, " ".join(divide("--rows", "parts", code=4).stderr.split()))
    assert list(tmp_path.glob("*parts*")) == []


FULL_DISK = """
import resource, runpy

resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
runpy.run_module("graphbraid", run_name="__main__", alter_sys=True)
"""


def test_a_disk_that_fills_up_leaves_nothing_behind(store, tmp_path):
    options = ("--data", store, "--parts", 2, "--rows", "parts", tmp_path / "parts")
    done = warm.run(["-c", FULL_DISK, "partition", *options])
    assert done.returncode == 4, done.stderr
    assert "file" in done.stderr.lower()
    assert "Traceback" not in done.stderr
    assert list(tmp_path.glob("*parts*")) == []


def test_of_two_runs_at_once_one_makes_the_folder_and_the_other_says_so(graphbraid_warm, store, tmp_path):
    out = tmp_path / "parts"
    command = ("partition", "--data", store, "--parts", 2, "--rows", "parts", out)
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(graphbraid_warm, *command, code=None) for _ in range(2)]
    codes = sorted(run.result().exit_code for run in runs)
    assert codes in ([0, 4], [0, 0]), [run.result().stderr for run in runs]  # the later one may find it whole
    SavedPartition(out, open_store(store)).check()
    assert [path.name for path in tmp_path.glob("*parts*")] == ["parts"]


def test_a_model_is_trained_on_parts_with_their_rows_and_predicts_from_them(
    graphbraid, divide, store, tmp_path
):
    divide("--rows", "parts")
    parts, out = tmp_path / "parts", tmp_path / "run"
    train = ("train", "--parts", parts, "--epochs", 1, "--hidden", 8, "--out", out, "--quiet")
    graphbraid(*train)
    rows = tmp_path / "rows.csv"
    (tmp_path / "ids.txt").write_text("3\n4\n")
    graphbraid("predict", "--run", out, "--nodes", tmp_path / "ids.txt", "--out", rows)
    assert len(rows.read_text().splitlines()) == 3
    graphbraid(*train, "--remote", "1MiB", "--overwrite")
    graphbraid("predict", "--run", out, "--data", store, "--out", tmp_path / "whole.csv")
    refused = graphbraid(*train, "--symmetrize", "--overwrite", code=2)
    assert "symmetrize=True changes or reads the whole graph" in refused.stderr
    assert "--rows" in divide("--rows", "all", "--overwrite", code=2).stderr


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["parts", "whole"])
def test_a_model_by_relation_is_trained_on_parts_and_predicts_as_on_the_whole_graph(
    graphbraid, divide, tmp_path, rows
):
    save_store(bibliography(), tmp_path / "typed")
    divide("--rows", rows, data=tmp_path / "typed")
    train = ("--model", "rgcn", "--fanouts", "3,2", "--epochs", 1, "--hidden", 8, "--quiet")
    found = []
    for name, data in (("parts", tmp_path / "parts"), ("whole", tmp_path / "typed")):
        graphbraid("train", "--data", data, *train, "--out", tmp_path / f"run-{name}")
        written = tmp_path / f"{name}.csv"
        graphbraid("predict", "--run", tmp_path / f"run-{name}", "--out", written)
        found.append([line.split(",")[:2] for line in written.read_text().splitlines()])
    assert found[0] == found[1]
    assert len(found[0]) > 300

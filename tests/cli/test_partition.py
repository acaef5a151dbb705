"""graphbraid partition: a folder of parts and a report, used again where it is the same."""

import re
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from tests import warm
from tests.train.typed_communities import bibliography

from graphbraid.datasets import open_store, save_store
from graphbraid.distributed import SavedPartition, split


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

"""graphbraid partition: a folder of parts and a report, used again where it is the same."""

import pytest

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
    assert done.json["halo"][1][0] == split(graph, saved.partition())[1].received_from(0).stop
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


def test_a_model_is_trained_on_parts_with_their_rows_and_predicts_from_them(graphbraid, divide, tmp_path):
    divide("--rows", "parts")
    parts, out = tmp_path / "parts", tmp_path / "run"
    train = ("train", "--parts", parts, "--epochs", 1, "--hidden", 8, "--out", out, "--quiet")
    graphbraid(*train)
    rows = tmp_path / "rows.csv"
    (tmp_path / "ids.txt").write_text("3\n4\n")
    graphbraid("predict", "--run", out, "--nodes", tmp_path / "ids.txt", "--out", rows)
    assert len(rows.read_text().splitlines()) == 3
    refused = graphbraid(*train, "--symmetrize", "--overwrite", code=2)
    assert "symmetrize=True changes or reads the whole graph" in refused.stderr
    assert "--rows" in divide("--rows", "all", "--overwrite", code=2).stderr

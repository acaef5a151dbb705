"""graphbraid plan --ranks: epochs predicted for many ranks, a table or JSON, with what they rest on."""

import json

import pytest

from graphbraid.cli.scale import parse_ranks
from graphbraid.errors import ConfigError
from graphbraid.fullgraph.scale.published import PUBLISHED


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("text", "counts"),
    [("8", [1, 8]), ("2,4,6", [1, 2, 4, 6]), ("2..16", [1, 2, 4, 8, 16]), ("3..9", [1, 3, 4, 8, 9])],
)
def test_numbers_of_ranks_are_read(text, counts):
    assert parse_ranks(text) == counts


@pytest.mark.parametrize("text", ["", "0", "a", "4..2", "2..", "..4", "1,,2", "100000", "2..4..8", "1.5"])
def test_what_names_no_ranks_is_refused(text):
    with pytest.raises(ConfigError, match="--ranks takes numbers"):
        parse_ranks(text)


def test_epochs_are_predicted_for_this_graph_and_the_published_ones(graphbraid, store, tmp_path):
    (tmp_path / "cluster.json").write_text(
        json.dumps({"graphbraid": "cluster", "bandwidth_bytes": 1.25e8, "memory_bytes": 1 << 34})
    )
    options = ("plan", "--data", store, "--model", "gcn", "--hidden", 8, "--ranks", "2..8")
    done = graphbraid(*options, "--hardware", tmp_path / "cluster.json", "--json")
    assert done.exit_code == 0, done.stderr
    assert done.json["cluster"]["bandwidth_bytes"] == 1.25e8
    assert [graph["name"] for graph in done.json["graphs"]][1:] == [size.name for size in PUBLISHED]
    for graph in done.json["graphs"]:
        assert [p["num_ranks"] for p in graph["predictions"]] == [1, 2, 4, 8]
        assert graph["predictions"][0]["link_seconds"] == 0
        assert graph["assumptions"]
        for p in graph["predictions"]:
            low, high = p["range_seconds"]
            assert low <= p["seconds"] <= high


def test_the_table_says_what_it_rests_on(graphbraid, store, tmp_path):
    done = graphbraid("plan", "--data", store, "--model", "gcn", "--hidden", 8, "--ranks", "4")
    assert done.exit_code == 0, done.stderr
    for part in (
        "papers100M",
        "10 billion edges",
        "waiting",
        "speedup",
        "random owners",
        "1.25 GB/s",
        "alike",
        "parts tried",
        "half of the windows",
    ):
        assert part in done.stdout, part


def test_options_of_mini_batches_and_models_of_no_edges_are_refused(graphbraid, store):
    done = graphbraid("plan", "--data", store, "--ranks", "4", "--batch-size", 32, "--json")
    assert (done.exit_code, "--batch-size is not for" in done.json["error"]["message"]) == (2, True)
    done = graphbraid("plan", "--data", store, "--model", "mlp", "--ranks", "4", "--json")
    assert (done.exit_code, "reads no edges" in done.json["error"]["message"]) == (2, True)

"""graphbraid plan --ranks: epochs predicted for many ranks, a table or JSON, with what they rest on."""

import json

import pytest

from graphbraid.cli.commands.plan import parse_ranks
from graphbraid.errors import ConfigError
from graphbraid.estimates.ranks import forecast_sampled


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


def test_epochs_are_predicted_for_this_graph(graphbraid, store, tmp_path):
    (tmp_path / "cluster.json").write_text(
        json.dumps(
            {
                "graphbraid": "cluster",
                "bandwidth_bytes": 1.25e8,
                "memory_bytes": 1 << 34,
                "message_processor_seconds": 3e-5,
            }
        )
    )
    options = ("plan", "--data", store, "--model", "gcn", "--hidden", 8, "--ranks", "2..8")
    done = graphbraid(*options, "--hardware", tmp_path / "cluster.json", "--json")
    assert done.json["cluster"]["bandwidth_bytes"] == 1.25e8
    assert done.json["cluster"]["message_processor_seconds"] == 3e-5
    graph = done.json["graph"]
    assert [p["num_ranks"] for p in graph["predictions"]] == [1, 2, 4, 8]
    assert graph["predictions"][0]["link_seconds"] == 0
    assert graph["assumptions"]
    assert all(p["seconds"] >= p["compute_seconds"] > 0 for p in graph["predictions"])


@pytest.mark.parametrize(("options", "least"), [((), "1"), (("--spare", 0), "none of these")])
def test_a_ranks_memory_says_where_features_are_aggregated_once(options, least, graphbraid, store):
    """Given, or by the memory of a rank: the numbers of ranks do not tell it."""
    given = ("plan", "--data", store, "--model", "gcn", "--hidden", 8, "--ranks", "2", "--json", *options)
    found = graphbraid(*given).json["graph"]["assumptions"][-1]
    assert found.endswith(f"The least number of ranks on which they are computed once: {least}.")


@pytest.mark.slow
def test_the_table_says_what_it_rests_on(graphbraid, store, tmp_path):
    done = graphbraid("plan", "--data", store, "--model", "gcn", "--hidden", 8, "--ranks", "4")
    for part in (
        "waiting",
        "speedup",
        "random owners",
        "Each message that",
        "1.25 GB/s",
        "alike",
        "typical of TCP",
    ):
        assert part in done.stdout, part


@pytest.mark.slow
def test_rows_rounded_on_the_wire_are_half_the_bytes(graphbraid, store):
    options = ("plan", "--data", store, "--model", "gcn", "--hidden", 8, "--ranks", "4", "--json")
    plain, rounded = (
        graphbraid(*options, "--mode", "full", *more) for more in ((), ("--set", "wire=bfloat16"))
    )
    sent = [done.json["graph"]["predictions"][1]["sent_bytes"] for done in (plain, rounded)]
    assert sent[1] == sent[0] / 2 > 0


@pytest.mark.slow
def test_options_of_mini_batches_and_models_of_no_edges_are_refused(graphbraid, store):
    done = graphbraid("plan", "--data", store, "--ranks", "4", "--batch-size", 32, "--json", code=2)
    assert "--batch-size is not for" in done.json["error"]["message"]
    done = graphbraid("plan", "--data", store, "--model", "mlp", "--ranks", "4", "--json", code=2)
    assert "reads no edges" in done.json["error"]["message"]


OF_BATCHES = ("--model", "sage", "--hidden", 8, "--fanouts", "5,5", "--batch-size", 32, "--mode", "sampled")


@pytest.mark.slow
@pytest.mark.usefixtures("known_baseline")
def test_epochs_of_mini_batches_are_predicted_for_ranks_that_share_them(
    graphbraid, store, tmp_path, monkeypatch
):
    monkeypatch.setitem(forecast_sampled.__kwdefaults__, "seconds", 0.0)  # each step measured once will do
    (tmp_path / "cluster.json").write_text(
        json.dumps({"graphbraid": "cluster", "bandwidth_bytes": 1.25e8, "memory_bytes": 1 << 20})
    )
    options = (
        "plan",
        "--data",
        store,
        *OF_BATCHES,
        "--ranks",
        "2,32",
        "--hardware",
        tmp_path / "cluster.json",
    )
    done = graphbraid(*options, "--json")
    assert (done.json["mode"], done.json["cluster"]["bandwidth_bytes"]) == ("sampled", 1.25e8)
    graph = done.json["graph"]
    assert graph["epoch"] == {"num_seeds": 100, "batch_size": 32, "accumulate": 1}
    assert [p["num_ranks"] for p in graph["predictions"]] == [1, 2, 32]
    for p in graph["predictions"]:
        assert (p["sent_bytes"] == 0) == (p["num_ranks"] == 1)
    told = graphbraid(*options)
    for part in ("100 training nodes in batches of 32", "read by", "(too much)", "nothing is extrapolated"):
        assert part in " ".join(told.stdout.split()), part
    assert "validation, test and checkpoints" in told.stdout.lower().replace("\n", " ")


@pytest.mark.slow
def test_the_mode_of_a_file_counts_as_one_that_is_given(graphbraid, store, tmp_path):
    (tmp_path / "run.yaml").write_text("mode: sampled\nbatch_size: 16\nfanouts: [5, 5]\n")
    done = graphbraid(
        "plan", "--data", store, "--config", tmp_path / "run.yaml", "--ranks", "64", "--json", code=2
    )
    assert "64 ranks are more than a batch has seeds (batch_size=16)" in done.json["error"]["message"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--ranks", "4", "--mode", "sampled", "--device", "cpu"), "mini-batches, which --device is not for"),
        (("--ranks", "4", "--mode", "sampled", "--batches", 3), "which --batches is not for; leave it out"),
        (
            ("--ranks", "4", "--mode", "sampled", "--set", "wire=bfloat16"),
            "set mode='full', or leave wire out",
        ),
        (("--ranks", "4", "--mode", "sampled", "--set", "exchange=fixed"), "leave exchange out"),
        (("--ranks", "4", "--mode", "sampled", "--set", "plan=cpu"), "ranks are predicted on CPUs"),
        (("--ranks", "4", "--mode", "sampled", "--set", "task=link"), "this run has task='link'"),
    ],
)
def test_options_that_do_not_go_with_the_prediction_are_refused(options, says, graphbraid, store):
    done = graphbraid("plan", "--data", store, *options, "--json", code=2)
    assert says in done.json["error"]["message"]

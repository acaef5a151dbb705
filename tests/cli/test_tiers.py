"""``--host``: features in tiers, from training to resuming with another size and predicting."""

import pytest

QUICK = ("--hidden", 8, "--batch-size", 32, "--fanouts", "5,5", "--lr", 0.05, "--quiet", "--json")


def losses(outcome):
    assert outcome.exit_code == 0, outcome.stderr
    return [row["train_loss"] for row in outcome.json["result"]["history"]]


@pytest.mark.slow
def test_a_run_resumes_and_predicts_with_any_tiers(graphbraid, store, tmp_path):
    plain = graphbraid("train", "--data", store, "--out", tmp_path / "a", "--epochs", 3, *QUICK)
    tiered = ("train", "--data", store, "--out", tmp_path / "b", *QUICK)
    first = graphbraid(*tiered, "--epochs", 1, "--host", "0", "--hot", "0 B")
    again = graphbraid(*tiered, "--epochs", 3, "--host", "1 GiB", "--resume")
    assert losses(first) == losses(plain)[:1]
    assert losses(again) == losses(plain)
    assert again.json["result"]["test"] == plain.json["result"]["test"]
    for run in "ab":
        graphbraid("predict", "--run", tmp_path / run, "--out", tmp_path / f"{run}.csv", "--json")
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()

"""``graphbraid estimate``: the options of ``train``, its tables and its JSON, and files of machines."""

import inspect
import json
import re

import pytest

from graphbraid.cli.commands.train import estimate, train

SMALL = ("--hidden", 8, "--batch-size", 32, "--fanouts", "4,4", "--no-times")


pytestmark = pytest.mark.usefixtures("known_baseline")


def test_it_takes_the_options_of_train():
    taken = inspect.signature(estimate).parameters
    left_out = set(inspect.signature(train).parameters) - set(taken)
    assert left_out == {"resume", "overwrite", "trust_checkpoint", "trace", "quiet"}
    assert set(taken) - set(inspect.signature(train).parameters) == {"hardware", "save_hardware", "times"}


@pytest.mark.parametrize("option", [("--ranks", 4), ("--comm", "mpi"), ("--ranks", 1, "--comm", "torch")])
def test_several_ranks_are_refused_with_the_command_that_predicts_them(graphbraid, store, option):
    done = graphbraid("estimate", "--data", store, *SMALL, *option, "--json", code=2)
    flag = "--comm" if "--comm" in option else "--ranks"
    assert f"which {flag} is not for" in done.json["error"]["message"]
    assert "plan --ranks N" in done.json["error"]["message"]


def test_it_shows_both_modes_the_tiers_and_what_would_be_chosen(graphbraid, store):
    done = graphbraid("estimate", "--data", store, *SMALL)
    for said in ("mode sampled: fits", "mode full: fits", "software", "compiled step", "mode auto: full"):
        assert said in done.stdout
    assert "tiers auto: no tiers: all" in done.stdout
    assert "steps tried" not in done.stdout, "times were not asked for"


def test_json_holds_the_same(graphbraid, store):
    done = graphbraid("estimate", "--data", store, *SMALL, "--json")
    sampled, full = done.json["modes"]
    assert (sampled["mode"], full["mode"], done.json["mode"]) == ("sampled", "full", "full")
    parts = sum(need["nbytes"] for need in sampled["host"]["held"])
    assert sampled["host"]["nbytes"] > parts > 300 << 20
    assert done.json["tiers"]["host"] is None


@pytest.mark.slow
def test_times_are_of_steps_that_were_tried(graphbraid, store):
    done = graphbraid("estimate", "--data", store, *SMALL[:-1], "--json")
    sampled, full = (mode["seconds"] for mode in done.json["modes"])
    assert sampled["train"]["seconds"] > 0
    assert "steps tried" in sampled["train"]["how"]
    assert full["train"]["seconds"] >= full["floor"] > 0
    shown = graphbraid("estimate", "--data", store, *SMALL[:-1]).stdout
    assert len(re.findall(r" for \d+ epochs", shown)) == 2, "once for each mode"


@pytest.mark.slow
def test_a_machine_with_a_device_is_shown_what_rows_on_it_bring(graphbraid, store, tmp_path):
    file = tmp_path / "there.json"
    file.write_text(
        '{"graphbraid": "hardware", "memory_bytes": 1073741824, "device_memory_bytes": 1073741824}'
    )
    done = graphbraid("estimate", "--data", store, *SMALL, "--hardware", file, "--hot", "100KiB")
    assert "hot rows" in done.stdout


def test_options_come_from_a_file_too_and_mistakes_name_it(graphbraid, store, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(f"data: {store}\nfanouts: [3, 3]\nmodel: gcn\n")
    done = graphbraid("estimate", "--config", config, "--no-times")
    config.write_text("fanout: [3, 3]\n")
    done = graphbraid("estimate", "--config", config, code=2)
    assert "run.yaml:1" in done.stdout + done.stderr


def test_a_machine_is_written_and_read(graphbraid, store, tmp_path):
    file = tmp_path / "here.json"
    done = graphbraid("estimate", "--save-hardware", file)
    content = json.loads(file.read_text())
    assert content["graphbraid"] == "hardware"
    assert content["memory_bytes"] > 1 << 20
    small = tmp_path / "small.json"
    small.write_text('{"graphbraid": "hardware", "name": "a small one", "memory_bytes": 1048576}')
    done = graphbraid("estimate", "--data", store, *SMALL, "--hardware", small)
    assert "does not fit (there is no room: it needs memory" in done.stdout
    assert "tiers auto: all rows and lists from the files" in done.stdout


def test_a_budget_above_the_memory_does_not_fit(graphbraid, store, tmp_path):
    small = tmp_path / "small.json"
    small.write_text('{"graphbraid": "hardware", "memory_bytes": 1048576}')
    done = graphbraid("estimate", "--data", store, *SMALL, "--host", "all", "--hardware", small, "--json")
    assert not done.json["modes"][0]["fits"]


@pytest.mark.slow
def test_a_run_with_tiers_sized_by_themselves(graphbraid, store, tmp_path):
    quick = ("--hidden", 8, "--batch-size", 32, "--fanouts", "4,4", "--epochs", 1, "--json")
    done = graphbraid("train", "--data", store, "--out", tmp_path / "run", "--tiers", "auto", *quick)
    assert "no tiers: all" in done.stderr
    done = graphbraid(
        "train", "--data", store, "--out", tmp_path / "b", "--tiers", "auto", "--host", "1GiB", *quick, code=2
    )
    assert "leave one out" in done.stdout + done.stderr

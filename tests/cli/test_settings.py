"""Options: command line before run.yaml before a saved run before the defaults; errors say where."""

import pytest

from graphbraid.cli.run.saved_run import read_saved
from graphbraid.cli.run.settings import _ELSEWHERE, RunSettings, option_names, parse_assignments, resolve
from graphbraid.datasets import DEFAULT
from graphbraid.errors import ConfigError
from graphbraid.files.yaml_file import read_yaml
from graphbraid.train import TrainConfig


def yaml_file(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return read_yaml(path)


def test_defaults_are_those_of_the_library():
    run = resolve({})
    assert run.settings == RunSettings(data=DEFAULT)
    assert run.train == TrainConfig()
    assert {source for _, _, source in run.rows()} == {"default"}


def test_command_line_wins_over_file_over_saved_over_default(tmp_path):
    file = yaml_file(tmp_path, "lr: 0.02\nepochs: 7\n")
    run = resolve({"lr": 0.01, "seed": None}, file, saved={"lr": 0.5, "epochs": 3, "batch_size": 64})
    assert (run.train.lr, run.train.epochs, run.train.batch_size, run.train.seed) == (0.01, 7, 64, 0)
    sources = {name: source for name, _, source in run.rows()}
    assert sources["lr"] == "command line"
    assert sources["epochs"].endswith("run.yaml:2")
    assert sources["batch_size"] == "saved run"
    assert sources["seed"] == "default"


def test_what_a_run_saves_makes_the_same_run_again(tmp_path):
    file = yaml_file(
        tmp_path, "model: gat\nheads: 4\nfanouts: [5, 4, 3]\nclip: 1e-1\nclass_weights: balanced\n"
    )
    first = resolve({"out_dir": tmp_path / "run"}, file)
    again = resolve({}, saved=first.saved())
    assert again.settings == first.settings
    assert again.train == first.train.updated(out_dir=None)


def test_one_fanout_per_layer_where_only_one_of_them_is_given():
    assert resolve({"num_layers": 4}).train.fanouts == (15, 10, 5, 5)
    assert resolve({"num_layers": 1}).train.fanouts == (15,)
    assert resolve({"fanouts": (7, 7, 7)}).settings.num_layers == 3


def test_full_mode_shows_no_sampling_options():
    shown = {name for name, _, _ in resolve({"mode": "full"}).rows()}
    assert "epochs" in shown
    assert not shown & {"fanouts", "batch_size", "workers"}


def test_a_mistake_in_the_file_is_named_with_its_line(tmp_path):
    with pytest.raises(ConfigError, match=r"run\.yaml:1: fanouts must be a list of at least 1"):
        resolve({}, yaml_file(tmp_path, "fanouts: []\n"))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.yaml cannot be read: it is not UTF-8"):
        read_yaml(tmp_path / "binary.yaml")


def test_an_empty_file_gives_the_defaults(tmp_path):
    assert resolve({}, yaml_file(tmp_path, "# nothing yet\n")).train == TrainConfig()


def test_names_of_other_libraries_are_answered_with_those_here():
    with pytest.raises(ConfigError, match=r"there is no option 'learning_rate'; did you mean 'lr'\?"):
        resolve({"learning_rate": 1})
    names = option_names()
    assert not set(_ELSEWHERE) & set(names)
    assert set(_ELSEWHERE.values()) <= set(names)


def test_assignments_read_values_as_yaml_does():
    values = parse_assignments(
        ["clip=1.5", "metrics=[accuracy, f1]", "eval-every=2", "scheduler=", "monitor=a=b"]
    )
    assert values == {
        "clip": 1.5,
        "metrics": ["accuracy", "f1"],
        "eval_every": 2,
        "scheduler": None,
        "monitor": "a=b",
    }
    with pytest.raises(ConfigError, match=r"not valid YAML"):
        parse_assignments(["clip=[1"])


def test_fanouts_are_numbers_with_commas():
    assert resolve({"fanouts": "15,10,-1"}).train.fanouts == (15, 10, -1)
    assert resolve({"fanouts": "[15, 10]"}).settings.num_layers == 2


def test_option_names_are_unique_and_cover_both_classes():
    names = option_names()
    assert len(names) == len(set(names)), "RunSettings and TrainConfig share an option's name"
    assert {"data", "model", "lr", "fanouts"} <= set(names)


def test_a_run_of_python_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"train": {}, "info": {}}')
    with pytest.raises(ConfigError, match=r"not made by `graphbraid train`"):
        read_saved(tmp_path)

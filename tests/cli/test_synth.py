"""``graphbraid synth``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.extras import NO_KERNELS
from tests.fullgraph.graphs import CHANNELS, CLASSES, make_graph
from tests.synth.programs import LISTING, program
from typer.testing import CliRunner

from graphbraid import datasets, native
from graphbraid.cli.main import app


@pytest.fixture
def call(tmp_path: Path):
    """Run the command on a small store; returns its exit code, output and errors."""
    datasets.save_store(make_graph(train=30), tmp_path / "store")

    def run(text: str, *options: str):
        (tmp_path / "one.gnn").write_text(text, encoding="utf-8")
        words = ["synth", str(tmp_path / "one.gnn"), "--data", str(tmp_path / "store")]
        return CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out"), *options])

    return run


@pytest.mark.skipif(native.kernels() is None, reason=NO_KERNELS)
def test_a_program_becomes_a_folder(call, tmp_path: Path):
    done = call(LISTING, "--set", "totalEpoch=5", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == {
        "out": str(tmp_path / "out"),
        "target": "openmp",
        "layers": [CHANNELS, 32, CLASSES],
        "built": False,
    }
    assert 'one.gnn:6: the loop over "l" at line 6 is not closed' in done.stderr
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"main.cpp", "CMakeLists.txt", "README.md", "csrc", "runtime", "plan", "weights"}
    assert "kEpochs = 5;" in (tmp_path / "out" / "main.cpp").read_text()


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("functoin", (), 'one.gnn:1:1: unexpected "functoin": did you mean function?'),
        (program(), ("--target", "fpga"), "the target must be openmp; got 'fpga'"),
        (program(), ("--layers", "12,x"), "--layers takes numbers such as 128,32,40; got '12,x'"),
        (program(), ("--set", "totalEpoch"), "--set takes NAME=NUMBER; got 'totalEpoch'"),
        (program(), ("--set", "epochs=3"), 'the program has no setting "epochs"'),
    ],
)
@pytest.mark.whole
def test_wrong_options_are_refused(call, tmp_path: Path, text: str, options: tuple[str, ...], says: str):
    done = call(text, *options)
    assert done.exit_code == 2
    assert says in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_graph_that_does_not_fit_is_refused(call):
    done = call(program(), "--layers", "7,16,5")
    assert done.exit_code == 3
    assert "the first layer takes 7 columns of features; the graph has 12" in done.stderr


@pytest.mark.skipif(native.kernels() is None, reason=NO_KERNELS)
def test_what_the_target_lacks_is_refused(call, tmp_path: Path):
    done = call(program("GIN", "Sum"))
    assert done.exit_code == 2
    assert "one.gnn cannot be written for openmp: the task" in done.stderr
    assert not (tmp_path / "out").exists()

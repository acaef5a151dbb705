"""``graphbraid synth``."""

from pathlib import Path

import pytest
from tests.fullgraph.graphs import CHANNELS, CLASSES, make_graph
from tests.kernels import needs_kernels
from tests.synth.programs import LISTING, program
from typer.testing import CliRunner

from graphbraid import datasets
from graphbraid.cli.main import app
from graphbraid.distributed import partition, save_partition


@pytest.fixture
def call(graphbraid, tmp_path: Path):
    """Run the command on a small store."""
    datasets.save_store(make_graph(train=30), tmp_path / "store")

    def run(text: str, *options: str, code: int = 0):
        (tmp_path / "one.gnn").write_text(text, encoding="utf-8")
        words = ("synth", tmp_path / "one.gnn", "--data", tmp_path / "store", "--out", tmp_path / "out")
        return graphbraid(*words, *options, code=code)

    return run


def written_down(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would build and run a program, none of which runs."""
    commands: list[list[str]] = []
    monkeypatch.setattr("graphbraid.cli.commands.synth._called", commands.append)
    return commands


@needs_kernels
def test_a_program_becomes_a_folder(call, tmp_path):
    done = call(LISTING, "--set", "totalEpoch=5", "--json")
    assert done.json == {
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
        (program(), ("--target", "fpga"), "the target must be openmp, cuda or mpi; got 'fpga'"),
        (program(), ("--target", "mpi"), "--target mpi needs --ranks, or --partition with"),
        (program(), ("--ranks", "2"), "--ranks and --partition are of --target mpi; the target is openmp"),
        (
            program(),
            ("--target", "mpi", "--ranks", "0"),
            "--ranks must be a whole number in [1, 65536]; got 0",
        ),
        (
            program(),
            ("--target", "mpi", "--ranks", "2", "--input", "csr"),
            "--input is of --target openmp; the target is mpi",
        ),
        (program(), ("--input", "csr,bit"), "there is no input path 'bit'; there are dense, csr, bits"),
        (program(), ("--layers", "12,x"), "--layers takes numbers such as 128,32,40; got '12,x'"),
        (program(), ("--set", "totalEpoch"), "--set takes NAME=NUMBER; got 'totalEpoch'"),
    ],
)
@pytest.mark.whole
def test_wrong_options_are_refused(call, tmp_path, text, options, says):
    done = call(text, *options, code=2)
    assert says in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_graph_that_does_not_fit_is_refused(call):
    done = call(program(), "--layers", "7,16,5", code=3)
    assert "the first layer takes 7 columns of features; the graph has 12" in done.stderr


@pytest.mark.parametrize("data", ["braid-10k", "one.gnn"])
def test_what_is_no_store_yet_is_told_how_to_become_one(call, data, tmp_path):
    there = str(tmp_path / data) if data.endswith(".gnn") else data
    done = call(program(), "--data", there, code=3)
    assert "a program reads a store, and" in done.stderr
    assert "make one of it: graphbraid convert" in done.stderr


def test_a_split_that_the_store_lacks_names_the_commands_options(call, tmp_path):
    graph = make_graph(train=30)
    datasets.save_store(graph.replace(splits={"train": graph.split("train")}), tmp_path / "bare")
    data = ("--data", str(tmp_path / "bare"))
    done = call(program(after_epoch='gnn.evaluate("val");'), *data, code=3)
    assert "one.gnn asks for the split val, and the store has train" in done.stderr
    assert "graphbraid convert" in done.stderr and "--split" in done.stderr
    assert "splits={" not in done.stderr


@needs_kernels
def test_what_the_target_lacks_is_refused(call, tmp_path):
    own = (
        "function Own(Graph g, propNode<float> x, propNode<float> out) { forall (v in g.nodes()) { "
        "forall (u in g.neighbors(v)) { v.out += g.weight(u, v) * u.x; } } }\n"
    )
    done = call(own + program("Own").replace(', "Sum"', ""), "--target", "cuda", code=2)
    assert "one.gnn cannot be written for cuda: " in done.stderr
    assert "Own reads the weights of edges; the graph has none" in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()


@needs_kernels
@pytest.mark.parametrize("model", ["gcn", "sage", "gin", "gat"])
@pytest.mark.whole
def test_a_model_needs_no_program(model, tmp_path):
    datasets.save_store(make_graph(train=30), tmp_path / "store")
    words = ["synth", "--model", model, "--data", str(tmp_path / "store"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*words, "--layers", f"{CHANNELS},8,{CLASSES}"])
    assert done.exit_code == 0, done.stderr
    text = (tmp_path / "out" / "main.cpp").read_text()
    assert text.startswith(f"// {model.upper()}: full-graph training")
    assert "kEpochs = 200;" in text


@pytest.mark.slow
@needs_kernels
def test_ranks_are_divided_anew_or_by_a_partition(call, tmp_path, monkeypatch):
    commands = written_down(monkeypatch)
    done = call(program(), "--target", "mpi", "--ranks", "2", "--run", "--json")
    assert done.json["ranks"] == 2
    out = tmp_path / "out"
    assert commands[-1] == ["mpirun", "-n", "2", f"{out}/build/train", "--home", str(out)]
    graph, parts = datasets.open_store(tmp_path / "store"), tmp_path / "parts"
    save_partition(graph, partition(graph, 3), parts)
    words = ("--target", "mpi", "--partition", str(parts), "--out", str(tmp_path / "three"))
    call(program(), *words)
    assert len(list((tmp_path / "three" / "plan").iterdir())) == 3
    done = call(program(), *words[:-1], str(tmp_path / "four"), "--ranks", "4", code=2)
    assert "parts has 3 parts; leave out --ranks 4" in " ".join(done.stderr.split())
    other = graph.replace(csc=graph.csc.reversed())
    save_partition(other, partition(other, 3), tmp_path / "others")
    done = call(
        program(), *words[:2], "--partition", str(tmp_path / "others"), "--out", str(tmp_path / "x"), code=3
    )
    assert "was made for another graph" in done.stderr


@needs_kernels
def test_a_program_for_a_gpu(call, tmp_path):
    done = call(program(), "--target", "cuda", "--json")
    assert done.json["target"] == "cuda"
    text = (tmp_path / "out" / "main.cu").read_text()
    assert "//   - long rows: a row of more than 1,024 edges is summed in parts" in text


def test_a_program_or_a_model_is_needed_and_not_both(call, tmp_path):
    done = call(program(), "--model", "gcn", code=2)
    assert "one.gnn names its model; leave out --model" in done.stderr
    words = ["synth", "--data", str(tmp_path / "store"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "name a program's file" in done.stderr
    done = CliRunner().invoke(app, [*words, "--model", "gnn"])
    assert done.exit_code == 2
    assert "model must be one of 'gcn', 'sage', 'gin', 'gat', 'gatv2'; got 'gnn'" in done.stderr


@needs_kernels
@pytest.mark.parametrize(("option", "count"), [("--build", 2), ("--run", 3)])
@pytest.mark.whole
def test_it_builds_and_runs_by_the_readmes_commands(call, tmp_path, option, count, monkeypatch):
    """The commands are only written down here; tests/synth/test_walk.py runs them."""
    commands = written_down(monkeypatch)
    call(LISTING, option)
    folder = str(tmp_path / "out")
    built = ["cmake", "-S", folder, "-B", f"{folder}/build"], ["cmake", "--build", f"{folder}/build"]
    trained = [f"{folder}/build/train", "--data", str(tmp_path / "store"), "--home", folder]
    assert [command[:3] for command in commands[1:2]] == [built[1]]
    assert commands[0] == built[0]
    assert commands[2:] == [trained][: count - 2]


@pytest.mark.slow
@needs_kernels
def test_a_build_that_fails_is_told(call, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cmake").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "bin" / "cmake").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    done = call(LISTING, "--build", code=4)
    assert "cmake failed with code 7" in done.stderr
    monkeypatch.setenv("PATH", str(tmp_path))
    done = call(LISTING, "--build", "--out", str(tmp_path / "other"), code=4)
    assert "cannot run cmake: No such file" in done.stderr

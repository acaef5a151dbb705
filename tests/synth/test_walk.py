"""A new user's walk: a program becomes a folder, builds by its README alone, and says what is wrong."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import warm
from tests.fullgraph.graphs import CHANNELS, CLASSES, make_graph
from tests.kernels import needs_kernels
from tests.synth.building import QUICK_BUILD, Compiled, built, made, numbers_of, run, taking
from tests.synth.programs import LISTING

from graphbraid import datasets
from graphbraid.fullgraph import CompileOptions, Engine
from graphbraid.machine.hardware import Rates
from graphbraid.synth import from_program, load_weights, parse_program, save_weights

pytestmark = [pytest.mark.slow, needs_kernels]
TOOLS = ("cmake", "make", "gmake", "c++", "g++", "cc", "gcc", "as", "ld", "ar", "ranlib", "sh", "uname", "cp")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a store in it."""
    folder = tmp_path_factory.mktemp("walk")
    datasets.save_store(make_graph(train=30), folder / "store")
    return folder


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment in which there is a compiler and CMake, and no Python."""
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool, path="/usr/local/bin:/usr/bin:/bin"):
            (tmp_path / "bin" / tool).symlink_to(found)
    if not all((tmp_path / "bin" / tool).exists() for tool in ("cmake", "c++", "make", "sh")):
        pytest.skip("there is no compiler, make or CMake outside Python's environment")
    assert shutil.which("python3", path=str(tmp_path / "bin")) is None
    return {"PATH": str(tmp_path / "bin"), "CMAKE_BUILD_PARALLEL_LEVEL": "2"}


def quick_build(parts: Compiled, folder: Path) -> str:
    """Options of CMake that compile one file of each kind and take the rest as the tests have compiled it."""
    anew = {"training.cpp.o", "kernels_epilogue.cpp.o", "variants.cpp.o"}
    launcher = taking((made_of for made_of in parts.objects if made_of.name not in anew), folder)
    return f"{QUICK_BUILD} -DCMAKE_CXX_COMPILER_LAUNCHER={launcher}"


@pytest.mark.parametrize(
    "is_quick", [True, pytest.param(False, marks=pytest.mark.long)], ids=["quick", "as written"]
)
def test_listing_1_becomes_a_program_that_builds_and_runs_without_python(
    place, tmp_path, bare, is_quick, request
):
    build = quick_build(request.getfixturevalue("parts"), tmp_path) if is_quick else ""
    (tmp_path / "sage.gnn").write_text(LISTING, encoding="utf-8")
    words = ["-m", "graphbraid", "synth", "sage.gnn", "--data", place / "store", "--target", "openmp"]
    done = warm.run([*words, "--set", "totalEpoch=12", "--out", "build_me"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "elsewhere").mkdir()
    folder = Path(shutil.move(tmp_path / "build_me", tmp_path / "elsewhere" / "program"))
    commands = re.findall(r"^    (.+)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        filled = command.replace("STORE", str(place / "store")).replace("-B build ", f"-B build {build} ")
        done = subprocess.run(["sh", "-c", filled], cwd=folder, env=bare, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert len(numbers_of(done.stdout, r"epoch \d+ loss")) == 12
    # What it saved gives the same accuracy here, and what graphbraid saves gives it there.
    graph = datasets.open_store(place / "store")
    model = from_program(parse_program(LISTING), (CHANNELS, 32, CLASSES), {"totalEpoch": 12}).model
    load_weights(model, folder / "trained")
    is_right = Engine(model, graph, "train").predict().argmax(1) == graph.y
    for split in ("train", "val", "test"):
        share = is_right[graph.split(split)].double().mean().item()
        assert numbers_of(done.stdout, f"accuracy {split}") == pytest.approx([share], abs=1e-6)
    save_weights(model, tmp_path / "again")
    program = [str(folder / "build" / "train"), "--home", str(folder), "--data", str(place / "store")]
    again = subprocess.run(
        [*program, "--load", str(tmp_path / "again"), "--epochs", "0"],
        env=bare,
        capture_output=True,
        text=True,
    )
    assert again.returncode == 0, again.stderr
    assert numbers_of(again.stdout, "accuracy test") == numbers_of(done.stdout, "accuracy test")


@pytest.fixture(scope="module")
def folder(place: Path, parts: Compiled) -> Path:
    """A program, built. By measured rates it might read features from ``plan/`` and not from the store."""
    rates = CompileOptions(rates=Rates())
    return built(made("GCN", "Sum"), place / "store", parts, place / "out", options=rates)


def spoiled(file: Path, change: Callable[[bytearray], object]) -> None:
    content = bytearray(file.read_bytes())
    change(content)
    file.write_bytes(content)


@pytest.fixture
def copy(place: Path, folder: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Copies of the program and of its store, for a test to spoil."""
    shutil.copytree(folder, tmp_path / "program", ignore=shutil.ignore_patterns("csrc", "runtime"))
    shutil.copytree(place / "store", tmp_path / "store")
    return tmp_path / "program", tmp_path / "store"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "--data is missing"),
        (["--data"], "--data needs a value"),
        (["--data", "x", "--epoch", "3"], "there is no option --epoch"),
        (["--data", "x", "--epochs", "3.5"], "--epochs takes a number of at least 0, not 3.5"),
        (["--data", "x", "--epochs", "-1"], "--epochs takes a number of at least 0, not -1"),
        (["--data", "x", "--epochs", "99999999999999999999"], "--epochs takes a number of at least 0"),
    ],
)
def test_a_wrong_command_line_is_refused(folder, options, says):
    said = run(folder, *options, code=2)
    assert says in said
    assert "usage: train --data STORE" in said


def test_help_is_no_mistake(folder):
    assert run(folder, "--help").startswith("usage: train --data STORE")


def test_missing_folders_and_files_are_named(copy, tmp_path):
    folder, store = copy
    assert "there is no folder /nowhere: --data names the store" in run(folder, "--data", "/nowhere", code=1)
    said = run(folder, "--data", str(store), "--load", "/nowhere", code=1)
    assert "train: /nowhere/convs.0.bias.npy: No such file" in said
    said = run(folder, "--data", str(store), "--home", str(tmp_path), code=1)
    assert f"there is no folder {tmp_path}/plan: --home names the folder" in said
    (tmp_path / "file").write_text("")
    assert "file" in run(folder, "--data", str(store), "--save", str(tmp_path / "file" / "in"), code=1)
    (store / "indices.npy").unlink()
    assert "indices.npy: No such file" in run(folder, "--data", str(store), code=1)


def test_another_graph_of_the_same_sizes_is_refused(copy, tmp_path):
    graph = make_graph(train=30)
    graph = graph.replace(x=graph.x.flip(0))
    datasets.save_store(graph, tmp_path / "other")
    said = run(copy[0], "--data", str(tmp_path / "other"), code=1)
    assert "x.npy: its values are different; take the file that this program was written for" in said


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: content.__setitem__(-1, content[-1] ^ 1), "its values are different"),
        (lambda content: content.__delitem__(slice(-8, None)), "its end is missing"),
        (lambda content: content.append(0), "there are bytes behind its values"),
        (lambda content: content.__delitem__(slice(5, None)), "it is no .npy file"),
        (lambda content: content.__setitem__(slice(0, 6), b"nonpy!"), "it is no .npy file of version 1"),
    ],
    ids=["a bit", "the end", "a byte more", "nearly all", "the beginning"],
)
@pytest.mark.parametrize("where", ["plan", "store"])
def test_a_damaged_file_is_refused(copy, where, change, says):
    folder, store = copy
    (file,) = (folder / "plan").glob("split_val_rows*.npy") if where == "plan" else [store / "indices.npy"]
    spoiled(file, change)
    said = run(folder, "--data", str(store), code=1)
    assert f"train: {file}: {says}" in said


def test_weights_that_do_not_fit_are_refused(copy, tmp_path):
    folder, store = copy
    weights = tmp_path / "weights"
    save_weights(made("GCN", "Sum").model, weights)
    np.save(weights / "convs.0.bias.npy", np.zeros(17, np.float32))
    said = run(folder, "--data", str(store), "--load", str(weights), code=1)
    assert "convs.0.bias.npy: it must hold <f4 of shape (16,); it says {'descr': '<f4'" in said
    np.save(weights / "convs.0.bias.npy", np.zeros(16, np.float32))
    with (weights / "convs.0.bias.npy").open("ab") as file:
        file.write(bytes(4))
    said = run(folder, "--data", str(store), "--load", str(weights), code=1)
    assert "convs.0.bias.npy: there are bytes behind its values" in said
    np.save(weights / "convs.0.bias.npy", np.zeros(16))
    assert "it must hold <f4 of shape (16,)" in run(
        folder, "--data", str(store), "--load", str(weights), code=1
    )


def test_a_loss_that_is_not_finite_ends_training(copy, tmp_path):
    folder, store = copy
    model = made("GCN", "Sum").model
    with torch.no_grad():
        dict(model.named_parameters())["convs.1.bias"].fill_(float("nan"))
    save_weights(model, tmp_path / "weights")
    said = run(
        folder,
        *("--data", str(store), "--load", str(tmp_path / "weights"), "--save", str(tmp_path / "trained")),
        code=1,
    )
    assert "the loss of epoch 0 is nan" in said
    assert list((tmp_path / "trained").iterdir()) == []

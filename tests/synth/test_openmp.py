"""Synthesised OpenMP programs: they compile without a warning and train as the engine does."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.extras import NO_KERNELS
from tests.fullgraph.graphs import CHANNELS, CLASSES, make_graph
from tests.synth.programs import program

from graphbraid import datasets, native
from graphbraid.errors import DataError, ResourceError
from graphbraid.fullgraph import CompileOptions, NotLoweredError
from graphbraid.machine.rates import Rates
from graphbraid.synth import from_program, load_weights, parse_program, save_weights, train, write_openmp
from graphbraid.synth.emit.openmp import sources_of

pytestmark = pytest.mark.skipif(native.kernels() is None, reason=NO_KERNELS)
GOLDEN = Path(__file__).with_name("golden")
LAYERS = (CHANNELS, 16, CLASSES)
FLAGS = (
    *("-std=c++20", "-O1", "-fopenmp", "-Wall", "-Wextra", "-Werror", "-Wno-maybe-uninitialized"),
    *("-DGB_WITHOUT_AVX2", "-DGB_WITHOUT_AVX512"),
)
DROPOUT = "if (l < gnn.getLayers() - 1) { gnn.dropout(l, 0.5); }"
EVALUATE = 'if (epoch % 5 == 4) { gnn.evaluate("val"); }'
OPTIONS = CompileOptions(rates=Rates())


def made(model: str, aggregation: str, text: str = "", **options: str):
    chosen = {"after_layer": DROPOUT, "after_epoch": EVALUATE} | options
    function = parse_program(text or program(model, aggregation, **chosen))
    return from_program(function, LAYERS, {"totalEpoch": 20})


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("synth") / "store"
    datasets.save_store(make_graph(train=30), folder)
    return folder


@pytest.fixture(scope="module")
def objects(store: Path) -> list[Path]:
    """The runtime and the kernels, compiled once: every program has the same."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    folder = write_openmp(made("SAGE", "Max"), datasets.open_store(store), store.parent / "objects")
    compiled = []
    for source in (*folder.glob("runtime/*.cpp"), *folder.glob("csrc/*.cpp")):
        compiled.append(folder / f"{source.stem}.o")
        _compile(folder, "-c", str(source), "-o", str(compiled[-1]))
    return compiled


def _compile(folder: Path, *arguments: str) -> None:
    includes = [f"-I{folder / name}" for name in ("csrc", "runtime")]
    done = subprocess.run(["g++", *FLAGS, *includes, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _run(folder: Path, *options: str, code: int = 0) -> str:
    command = [str(folder / "train"), "--home", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def _built(synthesis, store: Path, objects: list[Path], name: str) -> Path:
    folder = write_openmp(synthesis, datasets.open_store(store), store.parent / name)
    _compile(folder, str(folder / "main.cpp"), *map(str, objects), "-o", str(folder / "train"))
    return folder


def _losses(said: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^epoch \d+ loss (\S+)", said, re.MULTILINE)]


@pytest.mark.parametrize(
    ("model", "aggregation"), [("GCN", "Sum"), ("SAGE", "Sum"), ("SAGE", "Mean"), ("SAGE", "Max")]
)
@pytest.mark.slow
def test_a_program_has_the_engines_losses(model: str, aggregation: str, store: Path, objects: list[Path]):
    synthesis, graph = made(model, aggregation), datasets.open_store(store)
    folder = _built(synthesis, store, objects, model + aggregation)
    said = _run(folder, "--data", str(store), "--save", str(folder / "trained"))
    trained = train(synthesis, graph)
    assert _losses(said) == pytest.approx(trained.losses, rel=1e-5)
    found = [float(value) for value in re.findall(r"^epoch \d+ val (\S+)", said, re.MULTILINE)]
    expected = [epoch["val"] for epoch in trained.accuracies if epoch]
    assert found == pytest.approx(expected, abs=1e-6)
    other = made(model, aggregation).model  # what the program saved, graphbraid loads
    load_weights(other, folder / "trained")
    for name, parameter in synthesis.model.named_parameters():
        torch.testing.assert_close(dict(other.named_parameters())[name], parameter, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_sparse_features_are_multiplied_as_such(store: Path, objects: list[Path], tmp_path: Path):
    datasets.save_store(make_graph(train=30, density=0.2), tmp_path / "sparse")
    graph, options = datasets.open_store(tmp_path / "sparse"), CompileOptions(rates=Rates(sparse_values=1e12))
    synthesis = made("SAGE", "Mean")
    assert synthesis.lower(graph, options).program.input_path == "sparse"
    folder = write_openmp(synthesis, graph, tmp_path / "out", options=options)
    _compile(folder, str(folder / "main.cpp"), *map(str, objects), "-o", str(folder / "train"))
    losses = _losses(_run(folder, "--data", str(tmp_path / "sparse")))
    assert losses == pytest.approx(train(synthesis, graph, rates=options.rates).losses, rel=1e-5)


@pytest.mark.parametrize("optimizer", ['"sgd", 0.1, 0.9, 0.01', '"adamw", 0.02, 0.8, 0.99, 0.1'])
@pytest.mark.slow
def test_optimizers_weights_and_an_early_stop(
    optimizer: str, store: Path, objects: list[Path], tmp_path: Path
):
    options = {"before": 'gnn.earlyStop("val", 2); gnn.seed(3);', "after_epoch": 'gnn.evaluate("val");'}
    synthesis, graph = made("GCN", "Sum", optimizer=optimizer, **options), datasets.open_store(store)
    folder = _built(synthesis, store, objects, f"early-{optimizer[1:4]}")
    with torch.no_grad():
        for parameter in synthesis.model.parameters():
            parameter.mul_(0.5)
    save_weights(synthesis.model, tmp_path / "given")  # what graphbraid saved, the program loads
    said = _run(folder, "--data", str(store), "--load", str(tmp_path / "given"))
    losses = train(synthesis, graph).losses
    assert _losses(said) == pytest.approx(losses, rel=1e-5)
    assert 3 <= len(losses) < 20


@pytest.mark.slow
def test_what_is_wrong_with_its_files_is_said(store: Path, objects: list[Path]):
    folder = _built(made("GCN", "Sum"), store, objects, "files")
    assert "usage: train --data STORE" in _run(folder, code=2)
    said = _run(folder, "--data", str(store), "--load", "/nowhere", code=1)
    assert "train: /nowhere/convs.0.bias.npy: No such file" in said
    (file,) = (folder / "plan").glob("split_val_rows*.npy")
    file.write_bytes(file.read_bytes()[:-8])
    assert "its end is missing" in _run(folder, "--data", str(store), code=1)


def test_the_same_input_gives_the_same_bytes_which_are_those_of_the_golden_file(store: Path):
    graph, texts = datasets.open_store(store), []
    for _ in range(2):
        made_of = sources_of(made("GCN", "Sum"), graph, OPTIONS)
        texts.append((made_of.main, made_of.cmake, made_of.readme))
    assert texts[0] == texts[1]
    for name, text in zip(("main.cpp", "CMakeLists.txt", "README.md"), texts[0], strict=True):
        assert text == (GOLDEN / name).read_text(encoding="utf-8"), f"tests/synth/golden/{name} differs"


def test_what_is_written_is_formatted():
    command = Path(sys.executable).with_name("clang-format")
    if not command.is_file():
        pytest.skip("there is no clang-format")
    runtime = Path(sources_of.__code__.co_filename).with_name("runtime")
    files = [GOLDEN / "main.cpp", *runtime.iterdir()]
    done = subprocess.run([command, "--dry-run", "-Werror", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("model", "reason"), [("GIN", r"PyTorch's \w+|the kernel \w+"), ("GAT", r"PyTorch's \w+|the kernel \w+")]
)
def test_a_model_that_the_target_lacks_is_refused_by_name(
    model: str, reason: str, store: Path, tmp_path: Path
):
    with pytest.raises(NotLoweredError, match=reason):
        write_openmp(made(model, "Sum"), datasets.open_store(store), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_evaluations_without_a_fixed_distance_are_refused(store: Path, tmp_path: Path):
    synthesis = made("GCN", "Sum", after_epoch='if (epoch == 3 || epoch == 4) { gnn.evaluate("val"); }')
    with pytest.raises(NotLoweredError, match="without a fixed distance"):
        write_openmp(synthesis, datasets.open_store(store), tmp_path / "out")


def test_recording_leaves_the_models_weights_and_torchs_state_alone(store: Path):
    synthesis = made("GCN", "Sum")
    before, state = [p.clone() for p in synthesis.model.parameters()], torch.get_rng_state()
    sources_of(synthesis, datasets.open_store(store))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, before, synthesis.model.parameters()))


def test_a_folder_that_is_there_stays(store: Path, tmp_path: Path):
    with pytest.raises(ResourceError, match="exists"):
        write_openmp(made("GCN", "Sum"), datasets.open_store(store), tmp_path)


def test_weights_that_do_not_fit_change_nothing(tmp_path: Path):
    model = made("GCN", "Sum").model
    save_weights(made("SAGE", "Sum").model, tmp_path / "other")
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(DataError, match="cannot read the weights"):
        load_weights(model, tmp_path / "other")
    assert all(map(torch.equal, before, model.parameters()))

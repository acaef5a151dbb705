"""Synthesised CUDA programs: nvcc compiles them; on the processor their kernels train as the engine does."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.features.tables import flip_a_byte
from tests.fullgraph.graphs import CHANNELS, CLASSES, make_graph
from tests.kernels import needs_kernels
from tests.synth.building import (
    EXAMPLES,
    MODELS,
    MORE,
    OF_MODEL,
    OPTIMIZERS,
    Together,
    Wanted,
    assert_golden,
    assert_left_alone,
    assert_trained_alike,
    attending,
    in_one,
    losses_of,
    made,
    more,
    of_example,
    run,
    store_of,
)
from tests.synth.on_host import CUDA, HostPrograms, nvcc
from tests.synth.test_own_layers import GRAPHS, MESSAGES, PLAIN, layer_of
from tests.synth.test_own_layers import made as of_messages

from graphbraid import datasets, nn
from graphbraid.errors import ResourceError
from graphbraid.fullgraph import CompileOptions
from graphbraid.machine.hardware import Rates
from graphbraid.synth import OptimizerRecipe, Recipe, Synthesis, from_model, train, write_cuda
from graphbraid.synth.emit.cuda import parts_of, sources_for_gpu

pytestmark = needs_kernels
GOLDEN = Path(__file__).with_name("golden") / "cuda"
OPTIONS = CompileOptions(rates=Rates())


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cuda") / "store"
    datasets.save_store(make_graph(train=30), folder)
    return folder


def wide() -> Synthesis:
    """Heads of more columns than a group sums at a time."""
    torch.manual_seed(0)
    # Some of its gradients are rounding noise, of which Adam makes whole steps.
    sgd = OptimizerRecipe(kind="sgd", learning_rate=0.05)
    model = nn.GATv2(CHANNELS, 2 * 133, CLASSES, heads=2, norm="layer")
    return from_model(model, Recipe(name="Wide", optimizer=sgd, epochs=3))


SHORT = {"long_row": 3}
"""Rows of more than three edges are long: most here are summed in parts."""
WITHOUT_PARTS = [("GCN", "Sum"), ("SAGE", "Max"), ("GAT", "Sum")]
"""A model of each kernel that sums long rows in parts, for programs in which no row is long."""
CASES = [*((*model, True) for model in MODELS), *((*model, False) for model in WITHOUT_PARTS)]
ZEROS = [
    ("sparse", {"density": 0.2}, Rates(sparse_values=1e12)),
    ("binary", {"density": 0.2, "binary": "ones"}, Rates(binary_values=1e14)),
    ("binary", {"density": 0.2, "binary": "row"}, Rates(binary_values=1e14)),
]
OWN = [name for name in MESSAGES if name not in PLAIN]
WANTED = {
    **{
        f"{one} {how} {is_short}": Wanted(
            partial(made, one, how, **OF_MODEL.get(one, {})), options=SHORT if is_short else {}
        )
        for one, how, is_short in CASES
    },
    "weighted": Wanted(
        partial(made, "GCN", "Sum"),
        make_graph(train=30, weighted=True),
        {"options": OPTIONS},
    ),
    **{
        f"zeros {options}": Wanted(
            partial(made, "SAGE", "Mean"),
            make_graph(train=30, **options),
            {"options": CompileOptions(rates=rates)},
        )
        for _, options, rates in ZEROS
    },
    **{layers: Wanted(partial(more, layers), options=SHORT) for layers in MORE},
    **{
        name: Wanted(
            lambda name=name: of_messages(layer_of(name)), GRAPHS["weight" in MESSAGES[name][0]], SHORT
        )
        for name in OWN
    },
    **{one: Wanted(partial(made, "GCN", "Sum", optimizer=one)) for one in OPTIMIZERS},
    "attending": Wanted(attending),
    "wide": Wanted(wide),
}


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> HostPrograms:
    return HostPrograms(tmp_path_factory)


@pytest.fixture(scope="module")
def programs(host: HostPrograms) -> Together:
    return host.together("cuda", WANTED)


@pytest.mark.parametrize(("model", "aggregation", "is_short"), CASES)
@pytest.mark.slow
def test_every_model_has_the_engines_losses_in_any_order_of_threads(
    model, aggregation, is_short, store, programs, tmp_path
):
    synthesis, graph = made(model, aggregation, **OF_MODEL.get(model, {})), datasets.open_store(store)
    folder = programs[f"{model} {aggregation} {is_short}"]
    text = (folder / "main.cu").read_text()
    assert ("long_rows(3, " in text) == is_short
    said = run(folder, "--data", str(store), "--save", str(tmp_path / "trained"))
    planned = re.search(r"Memory gpu\{(\d+)\};", text)
    assert planned is not None
    assert f"memory {planned[1]} bytes of the processor" in said
    backwards = run(folder, "--data", str(store), "--epochs", "6", GB_HOST_BACKWARDS="1")
    assert losses_of(backwards) == losses_of(said)[:6]  # to the bit: nothing is summed by atomics
    assert_trained_alike(said, tmp_path / "trained", synthesis, graph, made(model, aggregation).model)


@pytest.mark.slow
def test_weights_of_edges_go_with_a_transpose(programs):
    graph, folder, synthesis = WANTED["weighted"].graph, programs["weighted"], made("GCN", "Sum")
    losses = losses_of(run(folder, "--data", str(store_of(folder))))
    assert losses == pytest.approx(train(synthesis, graph, CompileOptions(rates=Rates())).losses, rel=1e-5)


@pytest.mark.parametrize(("path", "options", "rates"), ZEROS)
@pytest.mark.slow
def test_features_with_zeros_are_multiplied_as_such(path, options, rates, programs):
    folder, synthesis = programs[f"zeros {options}"], made("SAGE", "Mean")
    graph, lowering = datasets.open_store(store_of(folder)), CompileOptions(rates=rates)
    assert synthesis.lower(graph, lowering).program.input_path == path
    losses = losses_of(run(folder, "--data", str(store_of(folder))))
    assert losses == pytest.approx(train(synthesis, graph, CompileOptions(rates=rates)).losses, rel=1e-5)


@pytest.mark.parametrize("layers", MORE)
@pytest.mark.slow
def test_layers_with_more(layers, store, programs, tmp_path):
    synthesis, graph, folder = more(layers), datasets.open_store(store), programs[layers]
    said = run(folder, "--data", str(store), "--save", str(tmp_path / "trained"))
    backwards = run(folder, "--data", str(store), "--epochs", "6", GB_HOST_BACKWARDS="1")
    assert losses_of(backwards) == losses_of(said)[:6]
    assert_trained_alike(said, tmp_path / "trained", synthesis, graph, more(layers).model)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.slow
def test_own_layers(name, programs):
    synthesis, folder = of_messages(layer_of(name)), programs[name]
    store = store_of(folder)
    assert "struct Message0 {" in (folder / "main.cu").read_text()
    losses = losses_of(run(folder, "--data", str(store)))
    assert losses == losses_of(run(folder, "--data", str(store), GB_HOST_BACKWARDS="1"))
    assert losses == pytest.approx(train(synthesis, datasets.open_store(store)).losses, rel=1e-5)


@pytest.mark.slow
def test_heads_of_more_columns_than_a_group_sums_at_a_time(store, programs):
    losses = losses_of(run(programs["wide"], "--data", str(store)))
    assert losses == pytest.approx(train(wide(), datasets.open_store(store)).losses, rel=1e-5)


@pytest.mark.slow
def test_attention_with_dropout_of_its_own(store, programs):
    losses = losses_of(run(programs["attending"], "--data", str(store), "--epochs", "20"))
    expected = train(attending(), datasets.open_store(store)).losses[:20]
    assert losses == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.slow
def test_optimizers(optimizer, store, programs):
    synthesis, graph = made("GCN", "Sum", optimizer=optimizer), datasets.open_store(store)
    losses = losses_of(run(programs[optimizer], "--data", str(store)))
    assert losses == pytest.approx(train(synthesis, graph).losses, rel=1e-5)


@pytest.mark.slow
def test_too_little_memory_no_gpu_and_a_damaged_array_are_named(store, programs, tmp_path):
    folder = Path(shutil.copytree(programs["SAGE Max False"], tmp_path / "out"))
    said = run(folder, "--data", str(store), code=1, GB_HOST_GPU_BYTES="2000")
    assert re.search(r"train: this training takes 0.\d+ GB of the GPU's memory; of the processor", said)
    assert "0.000 GB of 0.000 GB are free" in said
    said = run(folder, "--data", str(store), code=1, GB_HOST_GPU_BYTES="0")
    assert "train: there is no GPU that CUDA can use: no CUDA-capable device is detected" in said
    file = sorted((folder / "plan").glob("*.npy"))[0]
    flip_a_byte(file, -1)
    assert f"train: {file}: its values are different" in run(folder, "--data", str(store), code=1)


@pytest.mark.slow
def test_nvcc_compiles_every_source_without_a_warning(store, tmp_path):
    """Kernels are compiled as one source, as most of the time goes into headers; g++ compiles each alone."""
    assert not any("__CUDA_ARCH__" in file.read_text(encoding="utf-8") for file in CUDA.iterdir())
    kernels = sorted(CUDA.glob("kernels_*.cu"))
    sources = [*(file for file in sorted(CUDA.glob("*.cu")) if file not in kernels), tmp_path / "kernels.cu"]
    sources[-1].write_text("".join(f'#include "{file.name}"\n' for file in kernels), encoding="utf-8")
    texts = {}
    each = {model + aggregation: made(model, aggregation) for model, aggregation in MODELS}
    each |= {"Own": of_example(EXAMPLES["own"])}
    each |= {name: of_messages(layer_of(name)) for name in ("gate", "minimum")}
    for name, synthesis in each.items():
        texts[name] = sources_for_gpu(synthesis, datasets.open_store(store), OPTIONS).main
    sources.append(tmp_path / "mains.cu")
    sources[-1].write_text(in_one(texts), encoding="utf-8")
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(nvcc, source, tmp_path / f"{source.stem}.o") for source in sources]
    for one in done:
        one.result()


def test_the_same_input_gives_the_same_bytes_which_are_those_of_the_golden_files(store):
    graph = datasets.open_store(store)
    assert_golden(lambda: sources_for_gpu(made("GCN", "Sum"), graph, OPTIONS), "main.cu", GOLDEN)


def test_a_folder_that_is_there_stays(store, tmp_path):
    graph = datasets.open_store(store)
    with pytest.raises(ResourceError, match="exists"):
        write_cuda(made("GCN", "Sum"), graph, tmp_path)


def test_recording_leaves_the_model_and_torchs_state_alone(store):
    graph = datasets.open_store(store)
    assert_left_alone(made("GIN", "Sum"), lambda synthesis: sources_for_gpu(synthesis, graph))


@pytest.mark.parametrize("edges", [1, 3, 7])
def test_parts_hold_each_edge_of_the_long_rows_once_in_order(edges):
    degrees = torch.tensor([0, edges, edges + 1, 2, 3 * edges, 0, 20])
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)))
    found = parts_of(indptr, edges)
    assert found is not None
    long_rows, all_parts = found
    assert long_rows[:, 0].tolist() == (degrees > edges).nonzero().squeeze(1).tolist()
    for row, first, last in long_rows.tolist():
        parts = all_parts[first:last]
        assert parts[:, 0].unique().tolist() == [row]
        read = torch.cat([torch.arange(begin, end) for _, begin, end in parts.tolist()])
        assert torch.equal(read, torch.arange(int(indptr[row]), int(indptr[row + 1])))
        assert int((parts[:, 2] - parts[:, 1]).max()) <= edges
    assert long_rows[-1, 2] == all_parts.shape[0]
    assert parts_of(indptr, 20 + 3 * edges) is None

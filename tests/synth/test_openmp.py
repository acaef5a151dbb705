"""Synthesised OpenMP programs: they compile without a warning and train as the engine does."""

import contextlib
import dataclasses
import re
import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.distributed.whole import owners
from tests.fullgraph.graphs import CHANNELS, CLASSES, NUM_NODES, make_graph
from tests.kernels import needs_kernels
from tests.modules import module_of
from tests.synth.building import (
    EXAMPLES,
    MODELS,
    MORE,
    OF_MODEL,
    OPTIMIZERS,
    RUNTIME,
    Together,
    Wanted,
    assert_golden,
    assert_left_alone,
    assert_trained_alike,
    attending,
    compile_each,
    graph_of,
    losses_of,
    made,
    more,
    numbers_of,
    of_example,
    openmp_programs,
    run,
    store_of,
    taken_along,
)
from tests.synth.test_own_layers import layer_of
from tests.synth.test_own_layers import made as of_messages

from graphbraid import datasets, nn
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.fullgraph import CompileOptions, NotLoweredError
from graphbraid.machine.hardware import Rates
from graphbraid.synth import from_model, load_weights, save_weights, train, write_openmp
from graphbraid.synth.emit.cuda import sources_for_gpu
from graphbraid.synth.emit.layout import WIDTH
from graphbraid.synth.emit.mpi import sources_of_ranks
from graphbraid.synth.emit.openmp import sources_of
from graphbraid.synth.training import make_optimizer
from graphbraid.synth.weights import weights_of

pytestmark = needs_kernels
GOLDEN = Path(__file__).with_name("golden")
OPTIONS = CompileOptions(rates=Rates())


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("synth") / "store"
    datasets.save_store(make_graph(train=30), folder)
    return folder


DRIFTING = {"after_layer": "", "after_epoch": "", "optimizer": '"adam", 0.1'}
EARLY = [("GCN", "Sum"), ("SAGE", "Max"), ("GAT", "Sum")]
ZEROS = [
    ("sparse", {"density": 0.2}, Rates(sparse_values=1e12)),
    ("binary", {"density": 0.2, "binary": "ones"}, Rates(binary_values=1e14)),
    ("binary", {"density": 0.2, "binary": "row"}, Rates(binary_values=1e14)),
    ("binary", {"density": 0.2, "binary": "row", "sparse": True}, Rates(binary_values=1e14)),
]
STOPPING = {"before": 'gnn.earlyStop("val", 2); gnn.seed(3);', "after_epoch": 'gnn.evaluate("val");'}
WANTED = {
    **{f"{one} {how}": Wanted(partial(made, one, how, **OF_MODEL.get(one, {}))) for one, how in MODELS},
    **{f"early {one}": Wanted(partial(made, one, how, after_layer="")) for one, how in EARLY},
    **{layers: Wanted(partial(more, layers)) for layers in MORE},
    **{
        f"zeros {options}": Wanted(
            partial(made, "SAGE", "Mean"),
            make_graph(train=30, **options),
            {"options": CompileOptions(rates=rates)},
        )
        for _, options, rates in ZEROS
    },
    **{one: Wanted(partial(made, "GCN", "Sum", optimizer=one, **STOPPING)) for one in OPTIMIZERS},
    "drifting": Wanted(partial(made, "GIN", "Sum", **DRIFTING)),
    "adam": Wanted(partial(made, "GIN", "Sum")),
    "attending": Wanted(attending),
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Together:
    return openmp_programs(tmp_path_factory, "openmp", WANTED)


@pytest.mark.parametrize(("model", "aggregation"), MODELS)
@pytest.mark.slow
def test_a_program_has_the_engines_losses(model, aggregation, store, programs, tmp_path):
    synthesis, graph = made(model, aggregation, **OF_MODEL.get(model, {})), datasets.open_store(store)
    folder = programs[f"{model} {aggregation}"]
    said = run(folder, "--data", str(store), "--save", str(tmp_path / "trained"))
    other = made(model, aggregation).model
    assert_trained_alike(said, tmp_path / "trained", synthesis, graph, other)
    assert numbers_of(said, "peak memory")[0] > 1e6


@pytest.mark.slow
def test_a_program_drifts_from_the_engine_as_the_engine_drifts_from_itself(store, programs):
    """At a high rate rounding grows with each epoch: a start that differs by a rounding shows how fast."""
    synthesis, graph = made("GIN", "Sum", **DRIFTING), datasets.open_store(store)
    said = losses_of(run(programs["drifting"], "--data", str(store)))
    ours, spread = train(synthesis, graph).losses, [1e-6] * len(said)
    for seed in range(4):
        near, draw = made("GIN", "Sum", **DRIFTING), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in near.model.parameters():
                weight.mul_(1 + 1.2e-7 * (2 * torch.rand(weight.shape, generator=draw) - 1))
        losses = train(near, graph).losses
        spread = [max(s, abs(a / b - 1)) for s, a, b in zip(spread, losses, ours, strict=True)]
    off = [abs(a / b - 1) for a, b in zip(said, ours, strict=True)]
    assert max(off[:3]) < 1e-6
    assert all(one <= 10 * most for one, most in zip(off, spread, strict=True)), (off, spread)


@pytest.mark.parametrize(
    ("model", "aggregation", "trains", "evaluates", "shared"),
    [
        ("GCN", "Sum", 3, 4, 0),
        ("SAGE", "Mean", 5, 6, 0),
        ("SAGE", "Max", 6, 6, 0),
        ("GIN", "Sum", 13, 12, 6),
        ("GAT", "Sum", 14, 14, 0),
        ("GATv2", "Sum", 8, 8, 0),
    ],
)
def test_an_evaluation_has_calls_of_its_own(model, aggregation, trains, evaluates, shared, store):
    """Only batch normalisation makes training compute all rows, and with them the same calls."""
    graph = datasets.open_store(store)
    main = sources_of(made(model, aggregation, after_layer=""), graph, OPTIONS).main
    forward, predict = (calls_of(main, name) for name in ("forward", "predict"))
    assert (len(forward), len(predict)) == (trains, evaluates)
    assert len(set(forward) & set(predict)) == shared
    assert len(set(forward)) == trains and len(set(predict)) == evaluates


def calls_of(main: str, function: str) -> list[str]:
    """The calls of a function of a program; a tensor is told by its shape alone."""
    (text,) = re.findall(rf"^  void {function}\(\) {{\n(.*?)^  }}$", main, re.MULTILINE | re.DOTALL)
    text = re.sub(r"\b(train|evaluate)\.\w+", "tensor", re.sub(r"//.*", "", text))
    return [re.sub(r"\s+", " ", each).strip() for each in text.split(";\n")[:-1]]


@pytest.mark.parametrize(("model", "aggregation"), EARLY)
@pytest.mark.slow
def test_early_losses_are_those_of_float64(model, aggregation, store, programs):
    """Rounding grows with the epochs and is another in each variant of the kernels."""
    synthesis, exact = (made(model, aggregation, after_layer="") for _ in range(2))
    graph = datasets.open_store(store)
    assert graph.x is not None
    found = losses_of(run(programs[f"early {model}"], "--data", str(store), "--epochs", "5"))
    exact.model.double().train()
    optimizer = make_optimizer(exact.recipe.optimizer, list(exact.model.parameters()))
    train_nodes, losses = graph.split("train"), []
    for _ in found:
        optimizer.zero_grad()
        out = exact.model(graph.x.double(), graph.csc)
        loss = torch.nn.functional.cross_entropy(out[train_nodes], graph.y[train_nodes])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert found == pytest.approx(losses, rel=2e-6)
    assert train(synthesis, graph).losses[:5] == pytest.approx(losses, rel=2e-6)


@pytest.mark.parametrize("layers", MORE)
@pytest.mark.slow
def test_models_that_no_program_describes_have_the_engines_losses(layers, store, programs, tmp_path):
    synthesis, graph = more(layers), datasets.open_store(store)
    said = run(programs[layers], "--data", str(store), "--save", str(tmp_path / "trained"))
    assert_trained_alike(said, tmp_path / "trained", synthesis, graph, more(layers).model)


@pytest.mark.parametrize(("path", "options", "rates"), ZEROS)
@pytest.mark.slow
def test_features_with_zeros_are_multiplied_as_such(path, options, rates, programs):
    folder, synthesis = programs[f"zeros {options}"], made("SAGE", "Mean")
    graph, lowering = datasets.open_store(store_of(folder)), CompileOptions(rates=rates)
    assert synthesis.lower(graph, lowering).program.input_path == path
    losses = losses_of(run(folder, "--data", str(store_of(folder))))
    assert losses == pytest.approx(train(synthesis, graph, CompileOptions(rates=rates)).losses, rel=1e-5)


@pytest.mark.slow
def test_batch_normalisation_and_adam(store, programs):
    losses = losses_of(run(programs["adam"], "--data", str(store)))
    assert losses == pytest.approx(train(made("GIN", "Sum"), datasets.open_store(store)).losses, rel=1e-5)


@pytest.mark.slow
def test_attention_with_dropout_of_its_own(store, programs):
    losses = losses_of(run(programs["attending"], "--data", str(store), "--epochs", "20"))
    expected = train(attending(), datasets.open_store(store)).losses[:20]
    assert losses == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.slow
def test_optimizers_weights_and_an_early_stop(optimizer, store, programs, tmp_path):
    synthesis, graph = made("GCN", "Sum", optimizer=optimizer, **STOPPING), datasets.open_store(store)
    folder = programs[optimizer]
    with torch.no_grad():
        for parameter in synthesis.model.parameters():
            parameter.mul_(0.5)
    save_weights(synthesis.model, tmp_path / "given")  # what graphbraid saved, the program loads
    said = run(folder, "--data", str(store), "--load", str(tmp_path / "given"))
    losses = train(synthesis, graph).losses
    assert losses_of(said) == pytest.approx(losses, rel=1e-5)
    assert 3 <= len(losses) < 20


def test_the_same_input_gives_the_same_bytes_which_are_those_of_the_golden_file(store):
    graph = datasets.open_store(store)
    assert_golden(lambda: sources_of(made("GCN", "Sum"), graph, OPTIONS), "main.cpp", GOLDEN)


@pytest.mark.long
def test_every_source_compiles_alone_with_all_variants_as_users_compile_it(tmp_path):
    """The other tests compile the portable variant, not optimised, behind headers that are compiled once."""
    sources = taken_along(tmp_path)
    as_written = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-UGB_WITHOUT_AVX2", "-UGB_WITHOUT_AVX512")
    compile_each(sources, [tmp_path / f"{source.name}.o" for source in sources], *as_written)


@pytest.mark.slow
def test_what_is_written_is_formatted(store, clang_format, tmp_path):
    graph = datasets.open_store(store)
    files = [GOLDEN / "main.cpp", GOLDEN / "mpi" / "main.cpp", GOLDEN / "cuda" / "main.cu"]
    rooms = (RUNTIME, RUNTIME.parent / "runtime_mpi", RUNTIME.parent / "runtime_cuda")
    sources = [file for room in rooms for file in room.iterdir()]
    layers = (*(made(*model) for model in MODELS[1:]), *map(more, MORE))
    partition = owners([node % 3 for node in range(NUM_NODES)], 3)
    written = [sources_of(synthesis, graph, OPTIONS) for synthesis in layers]
    written += [sources_of_ranks(made(model, "Sum"), graph, partition, OPTIONS) for model in ("GIN", "GAT")]
    written += [sources_for_gpu(made(model, "Sum"), graph, OPTIONS) for model in ("GIN", "GAT")]
    written.append(sources_of(made("SAGE", "Mean"), graph, OPTIONS, inputs=("dense", "csr")))
    for name, text in EXAMPLES.items():
        example, its_graph = of_example(text, name), graph_of(name)
        written.append(sources_of(example, its_graph, OPTIONS))
        written.append(sources_of_ranks(example, its_graph, partition, OPTIONS))
        written.append(sources_for_gpu(example, its_graph, OPTIONS))
    for number, program in enumerate(written):
        files.append(tmp_path / f"{number}.cpp")
        files[-1].write_text(program.main, encoding="utf-8")
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert "clang-format" not in text
        assert max(map(len, text.splitlines())) <= WIDTH
    style = f"--style=file:{Path(__file__).parents[2] / '.clang-format'}"
    done = subprocess.run(
        [clang_format, style, "--dry-run", "-Werror", *files, *sources], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (nn.GraphSAGE(CHANNELS, 16, CLASSES, normalize=True), OPTIONS, r"runs PyTorch's \w+"),
        (nn.GCN(CHANNELS, 16, CLASSES), CompileOptions(storage=torch.bfloat16), r"rows of torch\.bfloat16"),
    ],
    ids=["rows of length 1", "rows in bfloat16"],
)
@pytest.mark.whole
def test_what_the_target_lacks_is_refused_by_name(model, options, reason, store, tmp_path):
    with pytest.raises(NotLoweredError, match=reason):
        write_openmp(from_model(model), datasets.open_store(store), tmp_path / "out", options=options)
    assert not (tmp_path / "out").exists()


def test_evaluation_has_no_arrays_that_only_backward_needs(store):
    text = sources_of(made("SAGE", "Max"), datasets.open_store(store), OPTIONS).main
    training, evaluation = text.split("The outputs of all nodes, without dropout.")
    assert (training.count("spmm_max({"), evaluation.count("spmm_max({")) == (2, 2)
    assert (training.count(".found = "), evaluation.count(".found = ")) == (1, 0)  # features have no gradient
    assert len(re.findall(r"const Tensor v\d+_winners ", text)) == 1
    text = sources_of(of_messages(layer_of("maximum")), datasets.open_store(store), OPTIONS).main
    training, evaluation = text.split("The outputs of all nodes, without dropout.")
    assert (training.count("_shares.int32s()"), evaluation.count("_shares.int32s()")) == (4, 0)


def test_weights_of_one_name_in_cpp_are_refused(store, tmp_path):
    model = module_of(
        lambda self, x, edge_index: self.a["b"](x, edge_index) + self.a_b(x, edge_index),
        a=torch.nn.ModuleDict({"b": nn.GCNConv(CHANNELS, CLASSES)}),
        a_b=nn.GCNConv(CHANNELS, CLASSES),
    )
    with pytest.raises(NotLoweredError, match=r"weights 'a\.b\.bias' and 'a_b\.bias', which have one name"):
        write_openmp(from_model(model), datasets.open_store(store), tmp_path / "out")


@pytest.mark.parametrize("model", ["GCN", "GIN"])
@pytest.mark.whole
def test_recording_leaves_the_model_and_torchs_state_alone(model, store):
    graph = datasets.open_store(store)
    assert_left_alone(made(model, "Sum"), lambda synthesis: sources_of(synthesis, graph))


def test_a_folder_that_is_there_stays(store, tmp_path):
    with pytest.raises(ResourceError, match="exists"):
        write_openmp(made("GCN", "Sum"), datasets.open_store(store), tmp_path)


def test_no_name_becomes_code_or_a_path(store, tmp_path):
    evil = "x\nint main() { return 1; }"
    synthesis, graph = made("GCN", "Sum"), datasets.open_store(store)
    with pytest.raises(ConfigError, match="letters, digits and _"):
        dataclasses.replace(synthesis.recipe, name=evil)
    with pytest.raises(ConfigError, match="letters, digits and _"):
        dataclasses.replace(synthesis.recipe, evaluated=("train", 'a"b'))
    with pytest.raises(ConfigError, match="rename it without line breaks"):
        sources_of(synthesis, dataclasses.replace(graph, name=evil))
    for name in (str(tmp_path / "elsewhere"), 'a"b', "a\nb", "a/b"):
        model = torch.nn.Module()
        model.register_parameter(name, torch.nn.Parameter(torch.zeros(2)))
        with pytest.raises(DataError, match="weights need names of"):
            save_weights(model, tmp_path / "weights")
    assert list(tmp_path.iterdir()) == []


def test_weights_that_do_not_fit_change_nothing(tmp_path):
    model = made("GCN", "Sum").model
    save_weights(made("SAGE", "Sum").model, tmp_path / "other")
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(DataError, match="there is no file"):
        load_weights(model, tmp_path / "other")
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("position", [60, 100, 119, 120, 121])
def test_a_damaged_header_of_weights_is_named(tmp_path, position):
    """NumPy reads headers as Python: what is none of it fails in more than one way."""
    model = made("GCN", "Sum").model
    save_weights(model, tmp_path / "weights")
    file = sorted((tmp_path / "weights").glob("*bias.npy"))[0]
    for bit in range(8):
        data = bytearray(file.read_bytes())
        data[position] ^= 1 << bit
        file.write_bytes(data)
        with contextlib.suppress(DataError):  # where the header still says the same
            load_weights(model, tmp_path / "weights")
        data[position] ^= 1 << bit
        file.write_bytes(data)


def test_running_statistics_are_weights(tmp_path):
    model, other = made("GIN", "Sum").model, made("GIN", "Sum").model
    for buffer in model.buffers():
        buffer.add_(3)
    save_weights(model, tmp_path / "weights")
    load_weights(other, tmp_path / "weights")
    found = weights_of(other)
    assert "convs.0.nn.1.num_batches_tracked" in found
    for name, weight in weights_of(model).items():
        assert torch.equal(found[name], weight), name

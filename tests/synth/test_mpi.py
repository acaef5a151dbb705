"""Synthesised programs of several ranks: what is written, everywhere; how it trains, where there is MPI."""

import os
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.distributed.whole import owners
from tests.extras import PATIENCE
from tests.features.tables import flip_a_byte
from tests.fullgraph.graphs import CHANNELS, CLASSES, NUM_NODES, make_graph
from tests.kernels import needs_kernels
from tests.synth.building import (
    MODELS,
    MORE,
    OF_MODEL,
    Compiled,
    Together,
    Wanted,
    assert_golden,
    assert_left_alone,
    assert_trained_alike,
    losses_of,
    made,
    more,
    numbers_of,
)
from tests.synth.ranks import (
    GOLDEN,
    built_for_ranks,
    command_of,
    environment,
    parts_of_programs,
    processes_of,
    rank_programs,
    run_ranks,
    tool,
)

from graphbraid import nn
from graphbraid.distributed import Partition
from graphbraid.errors import ConfigError, ResourceError
from graphbraid.fullgraph import CompileOptions, NotLoweredError
from graphbraid.machine.hardware import Rates
from graphbraid.synth import from_model, train, write_mpi
from graphbraid.synth.emit.mpi import sources_of_ranks

pytestmark = needs_kernels
OPTIONS = CompileOptions(rates=Rates())
GRAPH = make_graph(train=30)


def divided(num_parts: int) -> Partition:
    """Nodes that belong to any part."""
    draw = torch.Generator().manual_seed(num_parts)
    return owners(torch.randint(0, num_parts, (NUM_NODES,), generator=draw), num_parts)


SIZES = (1, 2, 4)
RUNS = [
    # Layers and the number of ranks are written apart: each of them is here once or twice, the rest is long.
    pytest.param(*model, size, marks=[pytest.mark.long] * ((number - place) % len(SIZES) != 0))
    for number, model in enumerate(MODELS)
    for place, size in enumerate(SIZES)
]
OF_LAYERS = list(zip(MORE, (2, 4, 2), strict=True))
IDLE = {
    "the first owns all": ("SAGE", "Mean", [0] * NUM_NODES),
    "the last owns none": ("SAGE", "Max", [0] * (NUM_NODES // 2) + [1] * (NUM_NODES // 2)),
    "the second owns none": ("GAT", "Sum", [2 * int(node > NUM_NODES // 3) for node in range(NUM_NODES)]),
    "one has all training nodes": (
        *("SAGE", "Mean"),
        [2 * int(node in GRAPH.splits["train"].tolist()) for node in range(NUM_NODES)],
    ),
}
ZEROS = [
    ("sparse", {"density": 0.2}, Rates(sparse_values=1e12)),
    ("binary", {"density": 0.2, "binary": "row"}, Rates(binary_values=1e14)),
]
WANTED = {
    **{
        f"{one} {how} {size}": Wanted(
            partial(made, one, how, **OF_MODEL.get(one, {})),
            options={"partition": divided(size)},
            is_alone=bool(run.marks),
        )
        for run in RUNS
        for one, how, size in [run.values]
    },
    **{one: Wanted(partial(more, one), options={"partition": divided(size)}) for one, size in OF_LAYERS},
    **{
        name: Wanted(partial(made, one, how), options={"partition": owners(part_of, 3)})
        for name, (one, how, part_of) in IDLE.items()
    },
    **{
        path: Wanted(
            partial(made, "SAGE", "Mean"),
            make_graph(train=30, **options),
            {"partition": divided(2), "options": CompileOptions(rates=rates)},
        )
        for path, options, rates in ZEROS
    },
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> Compiled:
    tool("mpirun")
    return parts_of_programs(tmp_path_factory)


@pytest.fixture(scope="module")
def programs(parts: Compiled, tmp_path_factory) -> Together:
    return rank_programs(tmp_path_factory, "ranks", WANTED)


@pytest.mark.parametrize(("model", "aggregation", "num_ranks"), RUNS)
@pytest.mark.slow
def test_ranks_have_the_engines_losses(model, aggregation, num_ranks, programs, tmp_path):
    synthesis = made(model, aggregation, **OF_MODEL.get(model, {}))
    folder = programs[f"{model} {aggregation} {num_ranks}"]
    said = run_ranks(folder, num_ranks, "--save", str(tmp_path / "trained"))
    other = made(model, aggregation).model
    assert_trained_alike(said, tmp_path / "trained", synthesis, GRAPH, other)
    gradients = 4 * num_ranks * sum(parameter.numel() for parameter in other.parameters())
    (sent,) = numbers_of(said, "bytes sent per epoch")  # rows of hidden layers beside the gradients
    assert sent > gradients if num_ranks > 1 else sent == 0


@pytest.mark.parametrize(("layers", "num_ranks"), OF_LAYERS)
@pytest.mark.slow
def test_models_that_no_program_describes_have_the_engines_losses(layers, num_ranks, programs, tmp_path):
    said = run_ranks(programs[layers], num_ranks, "--save", str(tmp_path / "trained"))
    assert_trained_alike(said, tmp_path / "trained", more(layers), GRAPH, more(layers).model)


@pytest.mark.parametrize("who", IDLE)
@pytest.mark.slow
def test_ranks_may_have_nothing_to_do(who, programs):
    losses = losses_of(run_ranks(programs[who], 3))
    assert losses == pytest.approx(train(made(*IDLE[who][:2]), GRAPH).losses, rel=1e-5)


@pytest.mark.parametrize(("path", "options", "rates"), ZEROS)
@pytest.mark.slow
def test_features_with_zeros_are_multiplied_as_such(path, options, rates, programs):
    graph, lowering = make_graph(train=30, **options), CompileOptions(rates=rates)
    synthesis = made("SAGE", "Mean")
    assert synthesis.lower(graph, lowering).program.input_path == path
    losses = losses_of(run_ranks(programs[path], 2))
    assert losses == pytest.approx(train(synthesis, graph, CompileOptions(rates=rates)).losses, rel=1e-5)


@pytest.fixture(scope="module")
def folder(parts: Compiled, tmp_path_factory) -> Path:
    """A program of two ranks, built."""
    place = tmp_path_factory.mktemp("two")
    return built_for_ranks(made("GCN", "Sum"), GRAPH, divided(2), parts, place / "out")


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_job(folder):
    command = command_of(folder, 2, "--epochs", "100000000")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as job:
        try:
            assert job.stdout is not None
            assert "seconds to load" in job.stdout.readline()
            ranks = processes_of(folder)
            assert len(ranks) == 2
            os.kill(ranks[1], signal.SIGKILL)
            job.communicate(timeout=PATIENCE)
        finally:
            job.kill()
    assert job.returncode != 0
    until = time.monotonic() + PATIENCE
    while processes_of(folder):
        assert time.monotonic() < until, "a rank goes on alone"
        time.sleep(0.05)


@pytest.mark.slow
def test_another_number_of_ranks_is_refused(folder):
    for num_ranks in (1, 3):
        said = run_ranks(folder, num_ranks, code=2)
        assert f"train: it was written for 2 ranks and started on {num_ranks}" in said
        assert "usage: mpirun -n 2 train [--home FOLDER]" in said
    assert "there is no option --data" in run_ranks(folder, 2, "--data", "x", code=2)


@pytest.mark.slow
def test_another_partitions_folder_is_refused(folder, tmp_path):
    write_mpi(made("GCN", "Sum"), GRAPH, tmp_path / "other", divided(2), options=OPTIONS)
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "plan" / "rank-0").rename(copy / "plan" / "rank-2")
    (copy / "plan" / "rank-1").rename(copy / "plan" / "rank-0")
    (copy / "plan" / "rank-2").rename(copy / "plan" / "rank-1")
    said = run_ranks(copy, 2, code=1)
    assert "plan/rank-0/numbers.npy: its values are different; take the file that this program was" in said


@pytest.mark.slow
def test_a_damaged_or_missing_array_of_one_rank_is_named(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    file = sorted((copy / "plan" / "rank-1").glob("rows*.npy"))[0]
    flip_a_byte(file, -1)
    assert f"train: rank 1: {file}: its values are different" in run_ranks(copy, 2, code=1)
    file.unlink()
    assert f"train: rank 1: {file}: No such file" in run_ranks(copy, 2, code=1)
    shutil.rmtree(copy / "plan")
    assert f"there is no folder {copy}/plan" in run_ranks(copy, 2, code=1)


# ---- what needs no MPI


@pytest.mark.slow
def test_the_same_input_gives_the_same_bytes_which_are_those_of_the_golden_files():
    assert_golden(
        lambda: sources_of_ranks(made("GCN", "Sum"), GRAPH, divided(2), OPTIONS), "main.cpp", GOLDEN
    )


def test_each_rank_has_a_folder_of_its_own_rows(tmp_path):
    partition = divided(4)
    write_mpi(made("GCN", "Sum"), GRAPH, tmp_path / "out", partition, options=OPTIONS)
    folders = sorted((tmp_path / "out" / "plan").iterdir())
    assert [folder.name for folder in folders] == [f"rank-{rank}" for rank in range(4)]
    names = [sorted(file.name for file in folder.iterdir()) for folder in folders]
    assert names.count(names[0]) == 4
    labels = [np.load(next(folder.glob("split_test_labels*.npy"))) for folder in folders]
    test = GRAPH.splits["test"]
    for rank, of_rank in enumerate(labels):
        own = test[partition.part_of[test] == rank]
        assert np.array_equal(of_rank, GRAPH.y[own].numpy())


@pytest.mark.slow
def test_a_model_is_written_for_one_two_and_four_ranks():
    for num_ranks in (1, 2, 4):
        text = sources_of_ranks(made("GAT", "Sum"), GRAPH, divided(num_ranks), OPTIONS).main
        assert f"constexpr int kRanks = {num_ranks};" in text
        assert ("sizes[0]" in text) == (num_ranks > 1)  # alone, nothing differs
        assert ".begin(" in text


def test_what_cannot_be_written_is_refused_by_name(tmp_path):
    model = nn.GraphSAGE(CHANNELS, 16, CLASSES, normalize=True)
    with pytest.raises(NotLoweredError, match=r"runs PyTorch's \w+"):
        write_mpi(from_model(model), GRAPH, tmp_path / "out", divided(2))
    with pytest.raises(ConfigError, match="the partition is of 3 nodes, and the graph has 80"):
        write_mpi(made("GCN", "Sum"), GRAPH, tmp_path / "out", owners([0, 1, 0], 2))
    assert not (tmp_path / "out").exists()
    with pytest.raises(ResourceError, match="exists"):
        write_mpi(made("GCN", "Sum"), GRAPH, tmp_path, divided(2))


def test_recording_leaves_the_model_and_torchs_state_alone():
    assert_left_alone(made("GIN", "Sum"), lambda synthesis: sources_of_ranks(synthesis, GRAPH, divided(2)))

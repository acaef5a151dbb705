"""Input paths of synthesised programs: which are written, and what the program makes of them."""

import re

import pytest
import torch
from tests.fullgraph.graphs import CHANNELS, CLASSES, NUM_NODES, make_graph
from tests.kernels import needs_kernels
from tests.synth.building import built, losses_of, made, run

from graphbraid import Graph, SparseFeatures, datasets, nn
from graphbraid.errors import ConfigError
from graphbraid.fullgraph import CompileOptions, NotLoweredError
from graphbraid.machine.hardware import Rates
from graphbraid.synth import Synthesis, from_model, train
from graphbraid.synth.emit.openmp import inputs_of, sources_of, trial_of

pytestmark = needs_kernels
OPTIONS = CompileOptions(rates=Rates())
ALL = ("dense", "csr", "bits")
ZEROS = make_graph(train=30, density=0.2, binary="row")
"""Features of a fifth that are not zero, with one number in each row."""


def wide(num_columns: int, density: float, *, ones: bool = False, sparse: bool = True) -> Graph:
    """A graph with so many columns of features."""
    draw = torch.Generator().manual_seed(5)
    there = torch.rand(NUM_NODES, num_columns, generator=draw) < density
    x = there * (1.0 if ones else torch.randn(there.shape, generator=draw))
    return make_graph(train=30).replace(x=SparseFeatures.from_dense(x) if sparse else x)


def names_of(graph: Graph, asked: tuple[str, ...] | None = None, synthesis: Synthesis | None = None):
    """The paths that a program of GCN, or another, is written with."""
    assert graph.x is not None
    synthesis = synthesis or from_model(nn.GCN(graph.x.shape[1], 16, CLASSES))
    return inputs_of(synthesis.program(graph), synthesis.lower(graph, OPTIONS), asked).names


@pytest.mark.parametrize(
    ("graph", "names"),
    [
        (wide(5414, 0.0001), ("csr",)),  # as nell's
        (wide(2000, 0.004, ones=True), ("csr",)),  # as coauthor_physics's, but for fewer columns
        (wide(767, 0.03, ones=True, sparse=False), ("bits", "csr", "dense")),
        (wide(767, 0.03, sparse=False), ("csr", "dense")),
        (wide(767, 0.35, sparse=False), ("dense", "csr")),  # as amazon_computers's
        (wide(128, 1.0, sparse=False), ("dense",)),
        (make_graph(train=30), ("dense",)),
    ],
    ids=["nell", "physics", "bags of words", "few numbers", "some numbers", "dense", "narrow"],
)
def test_what_could_be_the_fastest_is_written(graph, names):
    assert set(names_of(graph)) == set(names)


def test_a_product_that_costs_less_than_aggregating_once_spares_is_written():
    """Rates of a machine whose products are so fast that the dense path's seconds are below none."""
    options = CompileOptions(
        rates=Rates(multiply_flops=1e15, stream_bytes=1e15, row_bytes=1e8, cached_row_bytes=1e8)
    )
    synthesis = from_model(nn.GCN(CHANNELS, 16, CLASSES))
    graph = make_graph(train=30, density=0.2)
    found = inputs_of(synthesis.program(graph), synthesis.lower(graph, options), None)
    assert "dense" in found.names


def test_paths_that_are_asked_for_are_checked():
    sage = from_model(nn.GraphSAGE(CHANNELS, 16, CLASSES, aggr="max"))
    assert names_of(ZEROS, ("csr", "dense")) == ("csr", "dense")
    assert names_of(ZEROS, ("dense",), sage) == ("dense",)
    with pytest.raises(NotLoweredError, match="other than a linear map reads the features"):
        names_of(ZEROS, ("dense", "csr"), sage)
    with pytest.raises(NotLoweredError, match="a node's features other than zero are not all one number"):
        names_of(make_graph(train=30, density=0.2), ALL)
    with pytest.raises(ConfigError, match="there is no input path 'coo'; there are dense, csr, bits"):
        names_of(ZEROS, ("coo",))
    for asked in ((), ("csr", "csr")):
        with pytest.raises(ConfigError, match="some of dense, csr, bits, each once"):
            names_of(ZEROS, asked)


def test_the_rows_to_try_are_the_features_own():
    synthesis = made("GCN", "Sum")
    lowered = {
        name: synthesis.lower(ZEROS, OPTIONS, input_path=path)
        for name, path in (("dense", "dense"), ("csr", "sparse"))
    }
    assert "computed once" in str(lowered["dense"].program)
    trial = trial_of(synthesis.program(ZEROS), lowered)
    indptr, indices, values = (array.tensor for array in trial.rows)
    found = torch.zeros(NUM_NODES, CHANNELS)
    found[torch.repeat_interleave(indptr.diff()), indices.long()] = values
    assert torch.equal(found, ZEROS.x)
    costs = lowered["csr"].costs
    assert trial.shape == (costs.rows[0], CHANNELS, 16)
    assert trial.dense_rows == costs.rows[1] < costs.rows[0]  # of the aggregated features
    assert trial.spared == costs.edges[0] * 16  # the first aggregation, of hidden rows


@pytest.mark.slow
def test_arrays_that_paths_have_in_common_are_written_once():
    written = sources_of(made("SAGE", "Mean"), ZEROS, OPTIONS, inputs=ALL)
    arrays = [array for name, array in written.plan.items() if not name.startswith("trial")]
    contents = [(array.dtype, tuple(array.shape), array.numpy().tobytes()) for array in arrays]
    assert len(set(contents)) == len(contents)
    assert any(name.startswith("bits/") for name in written.plan)
    assert written.main == sources_of(made("SAGE", "Mean"), ZEROS, OPTIONS, inputs=ALL).main


@pytest.mark.parametrize("model", ["GCN", "SAGE"])
@pytest.mark.slow
def test_each_path_has_the_engines_losses(model, parts, tmp_path):
    store = datasets.save_store(ZEROS, tmp_path / "store")
    synthesis = made(model, "Sum")
    folder = built(synthesis, store, parts, tmp_path / "out", options=OPTIONS, inputs=ALL)
    data = ("--data", str(store))
    said = {name: run(folder, *data, "--input", name) for name in ALL} | {"": run(folder, *data)}
    losses = train(synthesis, ZEROS, CompileOptions(rates=Rates())).losses
    for name in ALL:
        assert f"input path {name}: as --input asks" in said[name]
        assert losses_of(said[name]) == pytest.approx(losses, rel=1e-5), name
    assert losses_of(said[""]) == pytest.approx(losses, rel=1e-5)
    (chosen,) = re.findall(r"^input path (\w+): .* features are not zero; tried", said[""], re.MULTILINE)
    tried = {name: float(ms) for ms, name in re.findall(r"(\S+) ms as (\w+)", said[""])}
    assert set(tried) == set(ALL)
    assert chosen == min(tried, key=lambda name: tried[name])
    assert "--input takes dense or csr or bits" in run(folder, *data, "--input", "coo", code=2)


@pytest.mark.slow
def test_a_program_of_one_path_says_why(parts, tmp_path):
    store = datasets.save_store(wide(300, 0.01), tmp_path / "store")
    synthesis = from_model(nn.GCN(300, 16, CLASSES))
    folder = built(synthesis, store, parts, tmp_path / "out", options=OPTIONS)
    data = ("--data", str(store), "--epochs", "2")
    assert "input path csr: the others take at least 8 times as long" in run(folder, *data)
    assert "--input takes csr, which this program was written with, not dense" in run(
        folder, *data, "--input", "dense", code=2
    )

"""The first of compile's two steps: a record of what was decided, which prints, and which a runner runs."""

import dataclasses

import pytest
import torch
from tests.extras import NO_PYG
from tests.fullgraph.fake_device import FakeDevice
from tests.fullgraph.graphs import CHANNELS, CLASSES, NUM_NODES, make_graph
from tests.fullgraph.test_engine import MODELS

import graphbraid
from graphbraid.errors import ConfigError
from graphbraid.fullgraph import ALL, CompileOptions, Engine, NotLoweredError, lower
from graphbraid.fullgraph.program import Messages, ReadRows
from graphbraid.fullgraph.reading.read import read_model
from graphbraid.fullgraph.runner import Runner
from graphbraid.machine.hardware import Rates

OPTIONS = CompileOptions(rates=Rates())


def model_of(name="gcn"):
    torch.manual_seed(0)
    return MODELS[name](dropout=0.0)


@pytest.mark.parametrize("name", ["gcn", "sage", "gat"])
def test_what_is_lowered_runs_as_the_engine_does(name):
    graph, model = make_graph(), model_of(name)
    lowered = lower(model, graph, options=OPTIONS)
    engine = Engine(model, graph, graph.split("train"), CompileOptions(rates=Rates()))
    assert lowered.program == engine.program
    assert torch.equal(Runner(lowered)(), engine())


def test_a_program_is_lowered_as_the_model_it_was_read_from():
    graph, model = make_graph(), model_of()
    program = read_model(model, CHANNELS)
    assert lower(program, graph, options=OPTIONS).program == lower(model, graph, options=OPTIONS).program


def test_rows_that_only_destinations_read_are_computed_for_them_alone():
    """A layer maps queries and roots of all rows, and pruned levels hold fewer destinations than sources."""
    layers = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)
    torch.manual_seed(0)
    sizes = (CHANNELS, 8), (8, CLASSES)
    convs = [(layers.TransformerConv(a, b), "x, edge_index -> x") for a, b in sizes]
    model, graph = layers.Sequential("x, edge_index", convs), make_graph()
    lowered = lower(model, graph, options=OPTIONS)
    program = lowered.program
    levels = [lowered.num_rows(level) for level in range(program.num_levels)]
    assert levels[0] > levels[1] > levels[2]
    messages = [op for op in program.ops if isinstance(op, Messages)]
    assert len(messages) == len(sizes)
    for op in messages:
        for _, role, place in op.reads:
            assert program.level(op.inputs[place]) == program.level(op.out) - (role is ReadRows.SOURCE)
    edge_index = torch.stack((graph.csc.indices.long(), graph.csc.destinations().long()))
    expected = model(graph.x, edge_index)[graph.split("train")]
    found = Engine(model, graph, graph.split("train"), OPTIONS)()
    torch.testing.assert_close(found, expected)
    parameters = [*model.parameters()]
    grads, wanted = (torch.autograd.grad(out.sin().sum(), parameters) for out in (found, expected))
    torch.testing.assert_close(grads, wanted, rtol=1e-4, atol=1e-5)


def test_lowering_neither_runs_nor_changes_anything():
    graph, model = make_graph(), model_of()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    lowered = lower(model, graph, options=OPTIONS)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(dataclasses.FrozenInstanceError):
        lowered.rows = None


def test_it_prints_rates_decisions_program_and_levels():
    graph = make_graph()
    lowered = lower(model_of(), graph, options=OPTIONS)
    lines = str(lowered).splitlines()
    nodes = graph.split("train").numel()
    assert (
        lines[0] == f"Lowered for the outputs of {nodes} of {NUM_NODES} nodes on cpu, rows stored in float32"
    )
    assert "150 GFLOP/s" in lines[1]
    for decision in lowered.program.decisions:
        assert any(line.startswith(f"  {'+' if decision.taken else '-'} {decision.name}: ") for line in lines)
    for op in lowered.program.ops:
        assert any(line.startswith(f"  {op.out} (") for line in lines)
    first = lines.index(next(line for line in lines if line.startswith("Levels")))
    for level, line in enumerate(lines[first + 1 :]):
        assert line.startswith(f"  {level}: {lowered.num_rows(level)} nodes")
        if level < len(lowered.blocks):
            assert line.endswith(f", {lowered.blocks[level].csc.num_edges} edges to the next")
    assert len(lines) - first - 1 == lowered.program.num_levels


def test_it_says_how_the_levels_nodes_stand():
    graph, model = make_graph(), model_of()
    assert "in the graph's order" in str(
        lower(model, graph, options=CompileOptions(rates=Rates(), passes=frozenset()))
    )
    pruned = lower(model, make_graph(train=3), options=OPTIONS)
    assert pruned.row_of is None
    assert "those of the last level first" in str(pruned)


def test_what_explain_says_of_the_program_is_what_the_record_says():
    graph, model = make_graph(), model_of()
    engine = graphbraid.compile(model, graph)
    shared = str(engine.lowered).splitlines()[2:]
    until = next(i for i, line in enumerate(shared) if line.startswith("Levels"))
    assert engine.explain().splitlines()[:until] == shared[:until]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"passes": frozenset({"prun"})}, "no lowering pass is called 'prun'; there are fuse"),
        ({"storage": torch.float16}, "storage must be torch.float32 or torch.bfloat16; got torch.float16"),
        ({"storage": torch.bfloat16, "device": FakeDevice()}, "storage='bfloat16' needs the CPU"),
        ({"spare_bytes": "many"}, "spare_bytes must be int or None; got 'many'"),
    ],
)
def test_unsound_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        CompileOptions(**options)


def test_a_model_without_a_lowered_form_is_refused_with_the_reason():
    class Odd(torch.nn.Module):
        def forward(self, x, edge_index):
            return x[edge_index[0]]

    with pytest.raises(NotLoweredError):
        lower(Odd(), make_graph(), options=OPTIONS)


def test_all_passes_are_the_default():
    assert CompileOptions().passes == ALL

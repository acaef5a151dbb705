"""Graph breaks as operations: calls that PyTorch runs between lowered operations of a planned step."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphbraid import Graph
from graphbraid.fullgraph import lower
from graphbraid.fullgraph.lowering.lower_program import Lowered
from graphbraid.fullgraph.program import (
    Break,
    Epilogue,
    FromCall,
    FromGraph,
    FromInput,
    GraphValues,
    Program,
    WrittenCall,
    same_program,
)
from graphbraid.fullgraph.reading.read import read_model
from graphbraid.fullgraph.runner import Runner

pyg_nn = pytest.importorskip("torch_geometric.nn")

_NODES = torch.tensor([3, 1, 7])


class _Net(nn.Module):
    """Two layers, with a gate between them that no reader is asked about."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = pyg_nn.GCNConv(12, 8), pyg_nn.GCNConv(8, 3)
        self.gate = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)

    def gated(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.first(x, edge_index).relu()
        return self.second(F.normalize(h * self.gate, dim=1), edge_index)


def _graph() -> Graph:
    torch.manual_seed(1)
    return Graph.from_edge_index(torch.randint(0, 50, (2, 300)), num_nodes=50, x=torch.randn(50, 12))


def _edges(graph: Graph) -> Tensor:
    return torch.stack([graph.csc.indices.long(), graph.csc.destinations().long()])


def _with_break(model: _Net, *calls: WrittenCall, couples: bool, **fields: object) -> Program:
    """Return the model's program with a break behind its ReLU."""
    program = read_model(model, 12)
    relu = next(op.out for op in program.ops if isinstance(op, Epilogue) and op.act == "relu")
    made = Break(out="b", inputs=(relu,), calls=calls, width_out=8, couples_rows=couples, **fields)
    ops = []
    for op in program.ops:
        ops.append(op.renamed({relu: "b"}) if relu in op.inputs else op)
        ops += [made] if op.out == relu else []
    return replace(program, ops=tuple(ops))


def _gate(model: _Net) -> tuple[WrittenCall, WrittenCall]:
    times = WrittenCall(target="mul", args=(FromInput(0), model.gate), kwargs={}, name="mul")
    unit = WrittenCall(target=F.normalize, args=(FromCall(0),), kwargs={"dim": 1}, name="normalize")
    return times, unit


def _lowered(program: Program, graph: Graph) -> Lowered:
    return lower(program, graph, _NODES)


@pytest.mark.parametrize("couples", [True, False])
def test_a_break_gives_the_outputs_and_gradients_of_its_calls(couples):
    model, graph = _Net(), _graph()
    lowered = _lowered(_with_break(model, *_gate(model), couples=couples), graph)
    assert lowered.num_rows(1) == (50 if couples else 15)  # what couples rows forbids pruning before it
    runner = Runner(lowered)
    for _ in range(2):
        out = runner()
        expected = model.gated(graph.x, _edges(graph))[_NODES]
        torch.testing.assert_close(out, expected)
        found = torch.autograd.grad(out.square().sum(), list(model.parameters()))
        wanted = torch.autograd.grad(expected.square().sum(), list(model.parameters()))
        torch.testing.assert_close(found, wanted)


def test_a_repeated_forward_pass_draws_the_same_numbers():
    """A backward pass of an earlier call repeats its forward pass, and must meet the same dropout."""
    model, graph = _Net(), _graph()
    drop = WrittenCall(target=F.dropout, args=(FromInput(0), 0.5), kwargs={}, name="dropout")
    runner = Runner(_lowered(_with_break(model, drop, couples=False), graph))
    parameter = model.first.lin.weight
    state = torch.get_rng_state()
    alone = torch.autograd.grad(runner().square().sum(), parameter)
    torch.set_rng_state(state)
    first, _ = runner(), runner()
    state = torch.get_rng_state()
    torch.testing.assert_close(torch.autograd.grad(first.square().sum(), parameter), alone)
    assert torch.equal(torch.get_rng_state(), state)  # repeating the pass drew nothing further


def test_a_parameter_that_no_call_uses_gets_no_gradient():
    model, graph = _Net(), _graph()
    layer = nn.Bilinear(8, 8, 8)
    only = WrittenCall(target=lambda x, _: x * 2, args=(FromInput(0), layer.bias), kwargs={}, name="twice")
    runner = Runner(_lowered(_with_break(model, only, couples=False), graph))
    runner().sum().backward()
    assert layer.bias.grad is None
    assert model.first.lin.weight.grad is not None


def test_a_break_reads_the_graph_that_it_is_given():
    model, graph = _Net(), _graph()
    conv = pyg_nn.SGConv(8, 8)
    call = WrittenCall(target=conv, args=(FromInput(0), FromGraph("edges")), kwargs={}, name="conv")
    given = GraphValues(edges=_edges(graph))
    program = _with_break(model, call, couples=True, given=given)
    op = next(op for op in program.ops if isinstance(op, Break))
    assert op.reads == {"edges"}
    x = torch.randn(5, 8)
    few = torch.tensor([[0, 1], [1, 2]])
    torch.testing.assert_close(op.run([x], {"edges": few}), conv(x, few))
    torch.testing.assert_close(op.run([torch.ones(50, 8)]), conv(torch.ones(50, 8), given["edges"]))
    copied = copy.deepcopy(op)
    assert copied.given is given  # edges are not copied
    assert copied.modules()[0] is not conv
    assert same_program(program, replace(program))
    assert not same_program(program, replace(program, ops=(*program.ops[:4], copied, *program.ops[5:])))

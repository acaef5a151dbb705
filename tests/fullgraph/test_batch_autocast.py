"""Models compiled for mini-batches under autocast, beside the models themselves and double precision."""

import copy

import pytest
import torch
from tests.beside_pyg import pyg
from tests.fullgraph.matrix.cases_messages import MESSAGES
from tests.fullgraph.matrix.compare import LOWERED, in_double
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES, data_of
from tests.fullgraph.test_batches import KEEPS, LOWERED_CASES, MODELS, AsWritten, run, sampled
from tests.fullgraph.test_typed_batches import MODELS as TYPED
from tests.fullgraph.test_typed_batches import SEEDS
from tests.fullgraph.test_typed_batches import in_double as doubled
from tests.fullgraph.typed_cases import HETERO, untidy
from tests.modules import module_of
from tests.suites import every
from torch import nn
from torch.utils._pytree import tree_map

import graphbraid
from graphbraid.errors import ConfigError
from graphbraid.loader import NeighborLoader

HALF = torch.bfloat16


def in_half(model, batch):
    """Outputs, gradients and buffers under autocast; the backward pass runs outside."""
    with torch.autocast("cpu", HALF):
        out = model(batch)
    weights = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    model.zero_grad()
    if out.requires_grad:
        (out * weights.to(out.dtype)).sum().backward()
    grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}
    return out.detach(), grads, dict(model.named_buffers())


def far(one, exact):
    """How far values are from the exact ones, all together."""
    return float((one.double() - exact).norm())


def is_as_exact(model, batch, exact_batch, whole=None):
    """Whether the engine's outputs, gradients and buffers are as near to double precision as the model's own.

    Args:
        model: the model.
        batch: what the engine is called with.
        exact_batch: the same with features in double precision.
        whole: what the model as it is written is called with; None for ``batch``.
    """
    exact = run(AsWritten(copy.deepcopy(model).double()), exact_batch)
    engine = graphbraid.compile(copy.deepcopy(model))
    ours = in_half(engine, batch)
    theirs = in_half(AsWritten(copy.deepcopy(model)), batch if whole is None else whole)
    assert engine.why is None, engine.explain()
    assert "bfloat16" in engine.explain()
    assert ours[0].dtype == theirs[0].dtype
    fits = []
    named = (
        [found if isinstance(found, dict) else {"": found} for found in run] for run in (ours, theirs, exact)
    )
    for one, other, right in zip(*named, strict=True):
        largest = max((float(true.norm()) for true in right.values() if true.is_floating_point()), default=0)
        for name, true in right.items():
            assert one[name].dtype == other[name].dtype
            if not true.is_floating_point():
                assert torch.equal(one[name], other[name])
                continue
            most = 2 * far(other[name], true) + 0.02 * float(true.norm()) + 1e-3 * largest
            fits.append(far(one[name], true) <= most)
    return all(fits)


def assert_as_exact(make, batch, exact_batch, whole=None):
    """One of several draws of weights is: another may have a number beside a kink, as ReLU's at zero."""
    for seed in (5, 6, 7):
        torch.manual_seed(seed)
        if is_as_exact(make(), batch, exact_batch, whole):
            return
    raise AssertionError("the engine is less exact than the model")


# Autocast goes by operation, of which every third model has each several times.
@pytest.mark.parametrize("case", every(8, LOWERED_CASES, some=3), ids=lambda case: case.id)
@pytest.mark.filterwarnings("ignore:.*runs as it is written", "ignore:.*as they are written")
def test_the_models_of_the_matrix_are_as_exact_as_themselves(case):
    data = case.prepare(data_of("untidy"))
    if data.get("edge_index") is None or KEEPS in case.name:
        return  # run as written
    batch, model = sampled(data, as_pyg=True), case.make()
    engine = graphbraid.compile(model)
    with torch.autocast("cpu", HALF):
        engine(copy.copy(batch))
    if engine.why is not None:  # given the whole batch, or weights of another dtype
        assert engine.why.part in ("autocast", "edge_attr"), engine.explain()
        return
    assert_as_exact(case.make, batch, in_double(copy.copy(batch)))


@pytest.mark.parametrize(
    "case", [case for case in MESSAGES if case.expected == LOWERED], ids=lambda c: c.name
)
def test_messages_are_as_exact_as_themselves(case):
    batch = sampled(case.prepare(data_of("untidy")), as_pyg=True, return_edge_id=True)
    assert_as_exact(case.make, batch, in_double(copy.copy(batch)))


@pytest.mark.parametrize("name", every(4, TYPED))
@pytest.mark.filterwarnings("ignore:There exist node types")
def test_models_of_several_node_types_are_as_exact_as_themselves(name):
    graph = untidy(only_sources=name in HETERO)
    with NeighborLoader(graph.to_pyg(), [2, 2], input_nodes=("a", SEEDS), batch_size=3, seed=1) as loader:
        batch = next(iter(loader))
    exact = doubled(copy.copy(batch))

    def make():
        model = TYPED[name](graph)
        with torch.no_grad():
            model.eval()(batch.x_dict, batch.edge_index_dict)  # makes the parameters
        return model.train()

    assert_as_exact(make, batch, exact)


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_of_blocks_runs_in_bfloat16(name):
    batch, model = sampled(data_of("untidy"), layout="blocks"), MODELS[name](2)
    engine, plain = (graphbraid.compile(copy.deepcopy(model), strict=True) for _ in range(2))
    ours, exact = in_half(engine, batch), run(plain, batch)
    assert "bfloat16" in engine.explain()
    assert far(ours[0], exact[0].double()) <= 0.02 * float(exact[0].norm())


@pytest.mark.parametrize(("num_nodes", "num_edges"), [(20, 3), (20, 0), (3, 12)])
def test_the_first_batch_may_have_few_edges_or_nodes(num_nodes, num_edges):
    torch.manual_seed(0)
    edges, weight = torch.randint(num_nodes, (2, num_edges)), torch.rand(num_edges)
    x, model = torch.randn(num_nodes, CHANNELS), pyg.GCNConv(CHANNELS, CLASSES)
    attends, features = pyg.GATConv(CHANNELS, CLASSES, edge_dim=2), torch.rand(num_edges, 2)
    with torch.autocast("cpu", HALF):
        for each, values in ((model, weight), (attends, features)):
            out = graphbraid.compile(each, strict=True)(x, edges, values)
            torch.testing.assert_close(out, each(x, edges, values), rtol=0.05, atol=0.05)


def test_other_autocasts_run_as_written():
    batch, model = sampled(data_of("untidy")), MODELS["SAGE"](2)
    engine = graphbraid.compile(model)
    with pytest.warns(UserWarning, match="autocast"), torch.autocast("cpu", dtype=torch.float16):
        out = engine(batch)
        torch.testing.assert_close(out, model(batch.x, batch.edge_index)[: batch.batch_size])
    doubles = graphbraid.compile(MODELS["SAGE"](2).double(), strict=True)
    exact = doubles(in_double(sampled(data_of("untidy"))))
    with torch.autocast("cpu", HALF), pytest.raises(ConfigError, match="autocast"):
        doubles(in_double(sampled(data_of("untidy"))))
    assert exact.dtype == torch.float64


class Careful(nn.Module):
    """Leaves autocast for its last product."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = pyg.SAGEConv(CHANNELS, 8), nn.Linear(8, CLASSES)

    def forward(self, x, edge_index):
        x = self.conv(x, edge_index).relu()
        with torch.autocast("cpu", enabled=False):
            return self.last(x.float())


def rows_of_two_dtypes(self, x, edge_index):
    return self.conv(x, edge_index), x * 2


def part_as_written(self, x, edge_index):
    return torch.fft.fft(self.conv(x, edge_index).float()).real


@pytest.mark.parametrize(
    "make",
    [
        Careful,
        lambda: module_of(rows_of_two_dtypes, conv=pyg.SAGEConv(CHANNELS, CLASSES)),
        lambda: module_of(part_as_written, conv=pyg.SAGEConv(CHANNELS, CLASSES)),
    ],
)
@pytest.mark.filterwarnings("ignore:.*as it is written", "ignore:.*as they are written")
def test_what_autocast_does_not_lower_alone_runs_as_written(make):
    batch, model = sampled(data_of("untidy"), as_pyg=True), make()
    engine = graphbraid.compile(model)
    with torch.autocast("cpu", HALF):
        out, expected = engine(batch), model(batch.x, batch.edge_index)
    assert "autocast" in str(engine.why)
    torch.testing.assert_close(out, tree_map(lambda rows: rows[: batch.batch_size], expected), rtol=0, atol=0)
    engine(batch)
    assert engine.why is None


def test_a_program_in_bfloat16_leaves_no_trace():
    """Its trial changes no random state, buffer or argument; autocast keeps no weight without gradients."""
    torch.manual_seed(0)
    model = pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES, norm="batch_norm", dropout=0.5)
    batch = sampled(data_of("untidy"), as_pyg=True)
    x, head = batch.x.clone(), model.convs[1].lin_l
    engine, state = graphbraid.compile(model, strict=True), torch.get_rng_state()
    with torch.autocast("cpu", HALF):
        engine(batch)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        engine(batch)  # draws as many numbers without a trial
        assert torch.equal(torch.get_rng_state(), after)
        assert int(model.norms[0].module.num_batches_tracked) == 2
        torch.nn.functional.linear(torch.ones(2, 8), head.weight).sum().backward()
    assert head.weight.grad is not None
    assert torch.equal(batch.x, x)


@pytest.mark.parametrize("half", [False, True])
def test_a_gradient_scaler_scales_and_skips_as_without_compilation(half):
    """Steps whose scaled gradients are finite are taken; the last, whose are not, is left out."""
    torch.manual_seed(0)
    plain, batch = pyg.GAT(CHANNELS, 8, 2, CLASSES, heads=2), sampled(data_of("untidy"), as_pyg=True)
    model = copy.deepcopy(plain)
    engine = graphbraid.compile(model, strict=True)
    runs = [(model, engine), (plain, AsWritten(plain))]
    found = []
    for trained, run_of in runs:
        optimizer = torch.optim.SGD(trained.parameters(), 0.1)
        scaler, scales = torch.amp.GradScaler("cpu", init_scale=2.0**100, growth_interval=2), []
        for factor in (1.0, 1.0, 1.0, 1e20):
            optimizer.zero_grad()
            before = [p.detach().clone() for p in trained.parameters()]
            with torch.autocast("cpu", HALF, enabled=half):
                out = run_of(batch)
            scaler.scale(factor * out.float().square().mean()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            taken = not all(map(torch.equal, before, trained.parameters()))
            assert taken == (factor == 1)
        found.append(scales)
    assert found[0] == found[1] == [2.0**100, 2.0**101, 2.0**101, 2.0**100]
    for one, other in zip(*(trained.parameters() for trained, _ in runs), strict=True):
        torch.testing.assert_close(one, other, rtol=0.02 if half else 1e-5, atol=1e-3 if half else 1e-6)


def test_calls_with_and_without_autocast_alternate():
    model, batch = pyg.GCN(CHANNELS, 8, 2, CLASSES), sampled(data_of("untidy"))
    engine = graphbraid.compile(model, strict=True)
    plain = engine(batch)
    with torch.autocast("cpu", HALF):
        half = engine(batch)
        with torch.no_grad():
            assert torch.equal(engine(batch), half)
        half.float().sum().backward()  # inside
        assert "A step on this batch" in engine.explain(batch)
    assert torch.equal(engine(batch), plain)
    assert not torch.equal(half, plain)
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}

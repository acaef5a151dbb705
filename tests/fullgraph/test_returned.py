"""Models that return several matrices of node rows, in tuples and dicts, beside the models themselves."""

import copy
from collections import OrderedDict, namedtuple
from typing import NamedTuple

import pytest
import torch
from tests.extras import NO_PYG
from tests.modules import module_of
from torch import Tensor
from torch.utils import _pytree as tree

pytest.importorskip("torch_geometric", reason=NO_PYG)
from tests.fullgraph.matrix.case import GCN
from tests.fullgraph.matrix.compare import engine_of, in_double
from tests.fullgraph.matrix.graphs import NODES, data_of
from tests.fullgraph.matrix.models import calls
from tests.fullgraph.test_batches import sampled

import graphbraid
from graphbraid import Graph
from graphbraid.errors import DataError
from graphbraid.fullgraph import NotLoweredError, Uncompiled, lower

quiet = pytest.mark.filterwarnings("ignore::graphbraid.errors.RunsAsWrittenWarning")


class Named(NamedTuple):
    """A tuple with names."""

    logits: Tensor
    hidden: Tensor


def a_tuple(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    return self.head(self.second(h, edge_index)), h


def with_the_features(self, x, edge_index):
    h = self.second(self.first(x, edge_index).relu(), edge_index)
    return [x, self.head(h)]


def nested(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    z = self.second(h, edge_index)
    return {"out": (self.head(z), None, 3), "hidden": [h, {"z": z, "again": h}], "name": "model"}


def named(self, x, edge_index):
    h = self.second(self.first(x, edge_index).relu(), edge_index)
    return Named(self.head(h), h)


def one_in_a_dict(self, x, edge_index):
    return {"out": self.head(self.second(self.first(x, edge_index).relu(), edge_index))}


def after_a_break(self, x, edge_index):
    h = self.first(x, edge_index).sin()
    return self.head(self.second(h, edge_index)), h.cosh()


def by_mode(self, x, edge_index):
    h = self.second(self.first(x, edge_index).relu(), edge_index)
    return (self.head(h), h) if self.training else self.head(h)


MODELS = [a_tuple, with_the_features, nested, named, one_in_a_dict, after_a_break, by_mode]
by_name = {"argvalues": MODELS, "ids": lambda run: run.__name__}


def made(run):
    torch.manual_seed(5)
    return calls(run)(GCN)


def assert_same(ours, theirs, rows, **close):
    """The same structure, whose tensors are the other's rows."""
    assert tree.tree_structure(ours) == tree.tree_structure(theirs)
    for one, other in zip(tree.tree_leaves(ours), tree.tree_leaves(theirs), strict=True):
        if isinstance(other, Tensor):
            torch.testing.assert_close(one, other[rows], **close)
        else:
            assert one == other


def gradients(model, returned, rows=slice(None)):
    model.zero_grad()
    outs = [one[rows] for one in tree.tree_leaves(returned) if isinstance(one, Tensor)]
    weights = torch.Generator().manual_seed(1)
    sum((out * torch.randn(out.shape, generator=weights).to(out)).sum() for out in outs).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@quiet
@pytest.mark.parametrize("run", **by_name)
def test_the_whole_graph_gives_the_training_nodes_rows_in_the_models_structure(run):
    data, model = data_of("untidy"), made(run)
    twin = copy.deepcopy(model).double()
    engine = engine_of(model, data)
    assert not isinstance(engine, Uncompiled), engine.explain()
    wide = in_double(data)
    for _ in range(2):
        theirs = twin(wide.x, wide.edge_index)
        ours = engine()
        close = {"rtol": 2e-4, "atol": 2e-5, "check_dtype": False}
        assert_same(ours, theirs, data.train_mask, **close)
        torch.testing.assert_close(gradients(model, ours), gradients(twin, theirs, data.train_mask), **close)
    assert_same(engine.predict(), twin.eval()(wide.x, wide.edge_index), slice(None), **close)


@quiet
@pytest.mark.parametrize("run", **by_name)
def test_a_batch_gives_its_seeds_rows_in_the_models_structure(run):
    batch, model = in_double(sampled(data_of("untidy"), as_pyg=True)), made(run).double()
    twin, engine = copy.deepcopy(model), graphbraid.compile(model)
    close = {"rtol": 1e-8, "atol": 1e-9}
    theirs, ours = twin(batch.x, batch.edge_index), engine(batch)
    assert engine.why is None, engine.explain()
    assert_same(ours, theirs, slice(batch.batch_size), **close)
    torch.testing.assert_close(
        gradients(model, ours), gradients(twin, theirs, slice(batch.batch_size)), **close
    )
    engine.eval()
    twin.eval()
    assert_same(engine(batch), twin(batch.x, batch.edge_index), slice(batch.batch_size), **close)
    assert_same(engine(batch.x, batch.edge_index), twin(batch.x, batch.edge_index), slice(None), **close)


@quiet
@pytest.mark.parametrize("run", [a_tuple, nested], ids=lambda run: run.__name__)
def test_a_returned_matrix_may_be_written_over_and_viewed(run):
    data, model = data_of("untidy"), made(run)
    for returned in (engine_of(model, data)(), graphbraid.compile(model)(sampled(data))):
        outs = [one for one in tree.tree_leaves(returned) if isinstance(one, Tensor)]
        first = outs[1].clone()
        outs[0].mul_(2).view(-1).add_(1)
        torch.testing.assert_close(outs[1], first)
        outs[0].sum().backward()


def test_second_derivatives_are_those_of_the_model_itself():
    data, model = data_of("untidy"), made(a_tuple)
    twin = copy.deepcopy(model)
    engine = engine_of(model, data)
    found = []
    for one, outs in ((model, engine()), (twin, twin(data.x, data.edge_index))):
        rows = slice(None) if one is model else data.train_mask
        loss = sum(out[rows].square().sum() for out in outs)
        parameters = [*one.first.parameters()]
        grads = torch.autograd.grad(loss, parameters, create_graph=True)
        found.append(torch.autograd.grad(sum(grad.square().sum() for grad in grads), parameters))
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


class Output(OrderedDict):
    """A dict whose values are attributes, too."""

    def __getattr__(self, name):
        return self[name]


Two = namedtuple("Two", "one other")


def a_class_of_its_own(self, x, edge_index):
    return Output(logits=self.head(self.second(self.first(x, edge_index), edge_index)))


def plain(out):
    return out.values() if isinstance(out, dict) else out


def beside_edges(self, x, edge_index):
    return Two(self.head(self.second(self.first(x, edge_index), edge_index)), edge_index)


def beside_a_mean(self, x, edge_index):
    h = self.second(self.first(x, edge_index), edge_index)
    return self.head(h), h.mean(0)


def nothing(self, x, edge_index):
    return None, 3


@quiet
@pytest.mark.parametrize(
    "run", [a_class_of_its_own, beside_edges, beside_a_mean, nothing], ids=lambda run: run.__name__
)
def test_what_else_a_model_returns_runs_as_it_is_written(run):
    data, model = data_of("untidy"), made(run)
    engine, batches = engine_of(model, data), graphbraid.compile(model)
    assert isinstance(engine, Uncompiled)
    expected = model(data.x, data.edge_index)
    for out in (engine.predict(), batches(data.x, data.edge_index)):
        assert type(out) is type(expected)
        assert_same([*plain(out)], [*plain(expected)], slice(None))
    assert (batches.why is None) == (run is beside_a_mean)  # on mini-batches, breaks return any result


def test_where_one_result_is_needed_several_are_refused():
    data, graph = data_of("untidy"), Graph.from_pyg(data_of("untidy"))
    with pytest.raises(NotLoweredError, match="several matrices"):
        lower(made(a_tuple), graph, data.train_mask)
    graph = graph.replace(splits={"train": torch.arange(NODES // 2)})
    for mode in ("full", "sampled"):
        with pytest.raises(DataError, match="must return a tensor"):
            graphbraid.Trainer(made(a_tuple), graph, mode=mode, epochs=1, fanouts=(2, 2)).fit()


def test_the_same_matrix_twice_has_the_sum_of_both_gradients():
    batch = sampled(data_of("untidy"), as_pyg=True)
    model = module_of(lambda self, x, edge_index: (self.conv(x, edge_index),) * 2, conv=GCN(6, 4))
    engine = graphbraid.compile(model, strict=True)
    one, other = engine(batch)
    assert one is other
    (one + 2 * other).sum().backward()
    ours, model.conv.bias.grad = model.conv.bias.grad, None
    (3 * model(batch.x, batch.edge_index)[0][: batch.batch_size]).sum().backward()
    torch.testing.assert_close(ours, model.conv.bias.grad)

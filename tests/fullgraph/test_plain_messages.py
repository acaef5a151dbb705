"""Gathers and scatters in a plain forward: read as messages, or left as written where they are none."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.extras import NO_PYG
from torch import nn

pytest.importorskip("torch_geometric", reason=NO_PYG)
from tests.fullgraph.matrix.compare import LEFT_ALONE, LOWERED, assert_alike, engine_of, in_double, verdict
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES, NODES, data_of
from torch_geometric.utils import add_self_loops, degree, remove_self_loops, scatter, segment, softmax

import graphbraid
from graphbraid.fullgraph import program as ir
from graphbraid.loader import NeighborLoader


class Model(nn.Module):
    """A forward of a test's own between two linear maps."""

    def __init__(self, run):
        super().__init__()
        self.first, self.last = nn.Linear(CHANNELS, 8), nn.Linear(8, CLASSES)
        self.edge, self.norm = nn.Linear(16, 8), nn.BatchNorm1d(8)
        self.score, self.own = nn.Linear(8, 1), nn.Linear(8, 8)
        self.places = torch.arange(NODES).flip(0)
        self.run = run

    def forward(self, x, edge_index):
        return self.last(self.run(self, self.first(x), edge_index))


def _added(x, dst, messages):
    return torch.zeros_like(x).index_add(0, dst, messages)


def _named(beginning):
    """The forwards whose names begin so, by the rest of their names."""
    found = {name: one for name, one in globals().items() if name.startswith(beginning)}
    return {name.removeprefix(beginning).replace("_", " "): one for name, one in found.items()}


def _copied(model, x, edges):
    src, dst = edges
    return _added(x, dst, x[src])


def read_in_place(model, x, edges):
    out = torch.zeros(x.size(0), x.size(1), dtype=x.dtype)
    out.index_add_(0, edges[1], x.index_select(0, edges[0]))
    return out + x


def read_expanded(model, x, edges):
    src, dst = edges.unbind(0)
    messages = torch.sigmoid(x[src]) * x[dst]
    index = dst[:, None].expand(-1, x.shape[1])
    return x.new_full(x.shape, 0).scatter_add_(0, index, messages)


def read_divided(model, x, edges):
    src, dst = edges
    return _added(x, dst, x[src]) / degree(dst, x.size(0), x.dtype).clamp(min=1).view(-1, 1)


def read_minimum(model, x, edges):
    src, dst = edges
    messages = x[src] - x[dst]
    index = dst.unsqueeze(-1).expand_as(messages)
    return torch.zeros_like(x).scatter_reduce(0, index, messages, "amin", include_self=False)


def read_attention(model, x, edges):
    src, dst = edges
    scores = F.leaky_relu(model.score(x[src] * x[dst]), 0.2).squeeze(-1)
    weights = softmax(scores, dst, num_nodes=x.size(0))
    return _added(x, dst, x[src] * weights.unsqueeze(-1))


def read_vectors(model, x, edges):
    src, dst = edges
    e = torch.exp(model.score(x[src] - x[dst]).squeeze(-1))
    total = torch.zeros(x.size(0), dtype=x.dtype).index_add_(0, dst, e)
    return _added(x, dst, (e / (1 + total[dst])).unsqueeze(-1) * x[src])


def read_heads(model, x, edges):
    src, dst = edges
    heads = x.view(-1, 2, 4)
    messages = heads[src] * torch.tanh(heads[dst])
    return torch.zeros_like(heads).index_add(0, dst, messages).view(-1, 8)


def read_looped(model, x, edges):
    edges, _ = add_self_loops(edges, num_nodes=x.size(0))
    src, dst = edges
    norm = degree(dst, x.size(0), x.dtype).pow(-0.5)
    return _added(x, dst, (norm[src] * norm[dst]).view(-1, 1) * x[src])


def read_masked_degrees(model, x, edges):
    src, dst = edges
    norm = degree(dst, x.size(0), x.dtype).pow(-0.5)
    norm.masked_fill_(norm == float("inf"), 0)
    return _added(x, dst, (norm[src] * norm[dst]).view(-1, 1) * x[src])


def read_ends_apart(model, x, edges):
    loops = torch.arange(x.size(0))
    src, dst = torch.cat([edges[0], loops]), torch.cat([edges[1], loops])
    return _added(x, dst, x[src])


def read_two_scatters(model, x, edges):
    src, dst = edges
    messages = torch.tanh(x[src] + x[dst])
    total = torch.zeros_like(x).index_add_(0, dst, messages)
    return total + scatter(messages, dst, dim=0, dim_size=x.size(0), reduce="max")


def read_twice(model, x, edges):
    for _ in range(2):
        x = x + _copied(model, F.relu(x), edges)
    return x


def read_set_degrees(model, x, edges):
    src, dst = edges
    degrees = x.new_zeros(x.size(0))
    degrees.scatter_add_(0, dst, torch.ones_like(dst, dtype=x.dtype))
    degrees[degrees == 0] = 1
    norm = degrees.pow(-0.5)
    norm[norm == float("inf")] = 0
    return _added(x, dst, (norm[src] * norm[dst]).view(-1, 1) * x[src])


def read_counted(model, x, edges):
    src, dst = edges
    norm = torch.bincount(dst, minlength=x.size(0)).to(x.dtype).clamp_(min=1).rsqrt().unsqueeze(-1)
    return _added(x, dst, (x * norm)[src]) * norm


def read_divided_in_place(model, x, edges):
    src, dst = edges
    out = x.new_zeros(x.shape).index_add_(0, dst, torch.index_select(x, 0, src))
    out /= _degrees(x, edges).clamp(min=1)
    return out


def read_divided_later(model, x, edges):
    src, dst = edges
    out = x.new_zeros(x.shape)
    out.scatter_add_(0, dst.unsqueeze(-1).expand(-1, x.size(-1)), x[src])
    out /= _degrees(x, edges).clamp_(min=1)
    return out


def read_zeros_like_messages(model, x, edges):
    messages = x[edges[0]] - x[edges[1]]
    return messages.new_zeros(x.size(0), messages.size(1)).index_add_(0, edges[1], messages)


def read_onto_a_copy(model, x, edges):
    out = x.clone()
    out.index_add_(0, edges[1], x[edges[0]])
    return out + x


def read_onto_a_changed_copy(model, x, edges):
    out = x.clone()
    out.mul_(2)
    out.index_add_(0, edges[1], x[edges[0]])
    x = x.mul_(3)
    return out + x


def read_onto_a_sum(model, x, edges):
    out = torch.zeros_like(x)
    out.index_add_(0, edges[1], x[edges[0]])
    out.index_add_(0, edges[1], x[edges[0]] * x[edges[1]])
    return out


def read_read_before(model, x, edges):
    out = torch.zeros_like(x)
    before = out + 1
    out.index_add_(0, edges[1], x[edges[0]])
    return out * before


def read_converted(model, x, edges):
    zeros = torch.zeros(x.size(0), x.size(1)).to(x.dtype)
    return zeros.index_add(0, edges[1], x[edges[0]].to(x.dtype).type_as(x).contiguous())


def read_edge_states(model, x, edges):
    src, dst = edges
    states = x[src] * x[dst]
    for _ in range(2):
        states = states + torch.tanh(model.own(x[src] + states))
        x = x + scatter(states, dst, dim=0, dim_size=x.size(0), reduce="mean")
    return x


def read_mapped_on_loops(model, x, edges):
    src, dst = add_self_loops(edges, num_nodes=x.size(0))[0]
    return _added(x, dst, model.own(torch.tanh(x[src] * x[dst])))


def read_of_two_masks(model, x, edges):
    src, dst = edges
    kept = (src != dst) & (dst > 3)
    src, dst = edges[:, kept]
    weights = ((src < dst) | (dst > 12)).to(x.dtype) + 1
    return _added(x, dst, x[src] * weights.unsqueeze(-1))


def read_sorted(model, x, edges):
    dst, order = edges[1].sort(stable=True)
    src = edges[0][order]
    norm = degree(dst, x.size(0), x.dtype).clamp(min=1).rsqrt()
    return _added(x, dst, (norm[src] * norm[dst]).view(-1, 1) * x[src])


def _degrees(x, edges):
    return degree(edges[1], x.size(0), x.dtype).view(-1, 1)


def read_maximum_of_masked(model, x, edges):
    src, dst = edges
    messages = (x[src] - x[dst]).masked_fill(x[src] < 0.1, float("-inf"))
    out = torch.full_like(x, float("-inf")).scatter_reduce(0, _by(dst, messages), messages, "amax")
    return torch.where(torch.isinf(out), torch.zeros_like(out), out)


def read_minimum_from_infinity(model, x, edges):
    out = x.new_full((x.size(0), x.size(1)), float("inf"))
    out.scatter_reduce_(0, _by(edges[1], x[edges[0]]), x[edges[0]], "amin", include_self=False)
    return out.masked_fill(out == float("inf"), 0.0)


def read_rectified_maximum(model, x, edges):
    out = torch.full(x.shape, -float("inf")).to(x.dtype)
    return out.scatter_reduce(0, _by(edges[1], x[edges[0]]), x[edges[0]], "amax").relu()


def read_safe_softmax(model, x, edges):
    src, dst = edges
    scores = model.score(x[src] * x[dst]).squeeze(-1)
    top = torch.full((x.size(0),), -float("inf"), dtype=x.dtype)
    top = top.scatter_reduce(0, dst, scores.detach(), "amax", include_self=False)
    e = torch.exp(scores - top[dst])
    total = torch.zeros(x.size(0), dtype=x.dtype).index_add_(0, dst, e)
    return _added(x, dst, (e / total[dst]).unsqueeze(-1) * x[src])


def read_segments(model, x, edges):
    dst, order = edges[1].sort(stable=True)
    counts = torch.bincount(dst, minlength=x.size(0))
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    messages = torch.tanh(x[edges[0][order]])
    return segment(messages, starts, "mean") + segment(messages, ptr=starts)


def read_reduced_segments(model, x, edges):
    dst, order = edges[1].sort(stable=True)
    counts = torch.bincount(dst, minlength=x.size(0))
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    messages = torch.tanh(x[edges[0][order]])
    mean = torch.segment_reduce(messages, "mean", lengths=counts, initial=0.0)
    return mean + torch.segment_reduce(messages, "sum", offsets=starts)


def read_sum_from_infinity(model, x, edges):
    out = torch.full_like(x, -float("inf")).index_add(0, edges[1], x[edges[0]])
    return out.masked_fill(torch.isinf(out), 0.0)


READ = {
    "copied": _copied,
    "without loops": lambda m, x, e: _copied(m, x, remove_self_loops(e)[0]),
    "network": lambda m, x, e: _added(x, e[1], F.relu(m.edge(torch.cat([x[e[1]], x[e[0]]], dim=1)))),
    "onto others": lambda m, x, e: x.index_add(0, e[1], x[e[0]]),
    "mean": lambda m, x, e: scatter(x[e[0]], e[1], dim=0, dim_size=x.size(0), reduce="mean"),
    "maximum": lambda m, x, e: scatter(x[e[0]] * x[e[1]], e[1], 0, x.size(0), reduce="max"),
    **_named("read_"),
}


def odd_too_few_rows(model, x, edges):
    made = scatter(x[edges[0]], edges[1], dim=0, reduce="sum")
    return torch.cat([made, x.new_zeros(x.size(0) - made.size(0), 8)])


def odd_with_itself(model, x, edges):
    messages = x[edges[0]]
    index = edges[1].unsqueeze(-1).expand_as(messages)
    return torch.zeros_like(x).scatter_reduce(0, index, messages, "amax")


def odd_overwritten_rows(model, x, edges):
    h = x + 1
    messages = h[edges[0]]
    h.mul_(2)
    return _added(x, edges[1], messages) + h


def odd_overwritten_messages(model, x, edges):
    messages = x[edges[0]] + 1
    messages[messages > 0] = 0
    return _added(x, edges[1], messages)


def odd_over_all(model, x, edges):
    scores = model.score(x[edges[0]])
    return _added(x, edges[1], torch.exp(scores - scores.max()) * x[edges[0]])


def odd_assigned(model, x, edges):
    out = torch.zeros_like(x)
    out[edges[1]] = torch.zeros_like(x)[edges[0]]
    return out + x


def odd_last_of_each(model, x, edges):
    messages = x[edges[0]]
    return torch.zeros_like(x).scatter(0, edges[1].unsqueeze(-1).expand_as(messages), messages)


def hides_rows_in_zeros(model, x, edges):
    src, dst = edges
    out = torch.zeros(x.size(0), x.size(1), dtype=x.dtype)
    out.index_add_(0, dst, x[src] - x[src].max())
    out /= _degrees(x, edges) + 1
    out *= 2
    return out + _added(x, dst, x[src])


def hides_rows_set_in_zeros(model, x, edges):
    out = torch.zeros(x.size(0), x.size(1), dtype=x.dtype)
    out[3:] = x[3:]
    out /= _degrees(x, edges) + 1
    return out + _added(x, edges[1], x[edges[0]])


def hides_seen_through_a_view(model, x, edges):
    degrees = degree(edges[1], x.size(0), x.dtype)
    column = degrees.view(-1, 1)
    degrees[degrees > 2] = 2
    return _added(x, edges[1], x[edges[0]] * column[edges[0]])


def odd_bounded_maximum(model, x, edges):
    out = torch.full_like(x, -float("inf"))
    return out.scatter_reduce(0, _by(edges[1], x[edges[0]]), x[edges[0]], "amax").clamp(min=-1)


def _maximum_from_another_end(model, x, edges):
    top = torch.full_like(x, -float("inf")).scatter_reduce(0, _by(edges[1], x[edges[0]]), x[edges[0]], "amax")
    return torch.sigmoid(x + torch.zeros_like(x).index_add(0, edges[1], torch.exp(top[edges[0]])))


def odd_segments_of_any_edges(model, x, edges):
    starts = torch.nn.functional.pad(torch.bincount(edges[1], minlength=x.size(0)).cumsum(0), (1, 0))
    return segment(x[edges[0]], starts)


def odd_maximum_of_segments(model, x, edges):
    dst, order = edges[1].sort(stable=True)
    starts = torch.nn.functional.pad(torch.bincount(dst, minlength=x.size(0)).cumsum(0), (1, 0))
    return segment(x[edges[0][order]], starts, "max")


def odd_maximum_by_lengths(model, x, edges):
    dst, order = edges[1].sort(stable=True)
    counts = torch.bincount(dst, minlength=x.size(0))
    return torch.segment_reduce(x[edges[0][order]], "max", lengths=counts).clamp(min=0)


ODD = {
    "permuted": lambda m, x, e: _added(x, e[1], x[m.places[e[0]]]),
    "shifted": lambda m, x, e: _added(x, e[1], x[(e[0] + 1) % x.size(0)]),
    "from the end": lambda m, x, e: _added(x, e[1], x[e[0] - x.size(0)]),
    "in another order": lambda m, x, e: _added(x, e[1], x[e[0].flip(0)]),
    "too many rows": lambda m, x, e: scatter(x[e[0]], e[1], dim=0, dim_size=x.size(0) + 1)[1:],
    "halved": lambda m, x, e: _copied(m, x, e // 2),
    "some": lambda m, x, e: _copied(m, x, e[:, :20]),
    "both ways": lambda m, x, e: _copied(m, x, torch.cat([e, e.flip(0)], dim=1)),
    "flipped": lambda m, x, e: _added(x, e[0], torch.sigmoid(x[e[1]]) * x[e[0]]),
    "by sources": lambda m, x, e: _added(
        x, e[1], softmax(m.score(x[e[0]]), e[0], num_nodes=x.size(0)) * x[e[0]]
    ),
    "scaled": lambda m, x, e: torch.zeros_like(x).index_add(0, e[1], x[e[0]], alpha=0.5),
    "one column": lambda m, x, e: (
        x + torch.zeros_like(x).scatter_add(0, e[1].unsqueeze(-1), x[e[0]].detach())
    ),
    "normalised": lambda m, x, e: _added(x, e[1], m.norm(x[e[0]])),
    **_named("odd_"),
}


def _cases(names, quick):
    """Each of them; all but some are slow."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


SEVERAL = dict.fromkeys(("safe softmax", "segments", "onto a sum", "edge states", "two scatters", "twice"), 2)
"""Numbers of scatters, where there are more than one."""


WHOLE = {"rectified maximum", "safe softmax", "segments", "set degrees"}
WHOLE |= {"divided in place", "divided later", "onto a changed copy"}
"""Forwards without a part that runs as written."""


def _lowered_messages(engine):
    ops = getattr(getattr(engine, "program", None), "ops", ())
    return [op for op in ops if isinstance(op, ir.Messages | ir.Aggregate | ir.Maximum)]


def _pair(name):
    torch.manual_seed(3)
    model = Model(FORWARDS[name])
    return model, copy.deepcopy(model)


def _assert_same_numbers(engine, twin, x, edges):
    """Outputs, and gradients of the same parameters."""
    ours, theirs = engine(x, edges), twin(x, edges)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
    for out, of in ((ours, engine), (theirs, twin)):
        of.zero_grad()
        out.square().sum().backward()
    for a, b in zip(engine.parameters(), twin.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", _cases([*READ, "without gradient"], {"expanded", "vectors"}))
def test_gathers_and_scatters_are_lowered_and_equal_what_is_written(name):
    data, (model, twin) = data_of("untidy"), _pair(name)
    engine = engine_of(model, data)
    assert verdict(engine) != LEFT_ALONE, engine.explain()
    assert len(_lowered_messages(engine)) >= SEVERAL.get(name, 1), engine.explain()
    assert name not in WHOLE or verdict(engine) == LOWERED, engine.explain()
    assert_alike(model, twin, data, engine, steps=2)


class OfFeatures(nn.Module):
    """A maximum of scores that are computed of the features themselves."""

    def __init__(self):
        super().__init__()
        self.source, self.target, self.last = (
            nn.Linear(CHANNELS, 1),
            nn.Linear(CHANNELS, 1),
            nn.Linear(1, CLASSES),
        )

    def forward(self, x, edge_index):
        src, dst = edge_index
        scores = F.leaky_relu(self.source(x)[src] + self.target(x)[dst])
        return self.last(scatter(scores, dst, dim=0, dim_size=x.size(0), reduce="max"))


def test_a_maximum_may_read_the_features_themselves():
    data, model = data_of("untidy"), OfFeatures()
    twin, engine = copy.deepcopy(model), engine_of(model, data)
    assert verdict(engine) == LOWERED, engine.explain()
    assert_alike(model, twin, data, engine, steps=1)


def test_what_nodes_without_messages_get_is_not_seen_by_other_nodes():
    data, (model, twin) = data_of("untidy"), _pair("maximum from another end")
    engine = engine_of(model, data)
    torch.testing.assert_close(engine(), twin(data.x, data.edge_index)[data.train_mask], rtol=2e-4, atol=2e-5)
    assert "it gives nodes without messages -inf, and later calls may show it" in engine.explain()


def test_a_reason_names_the_scatter_and_not_the_gather_before_it():
    engine = engine_of(_pair("with itself")[0], data_of("untidy"))
    assert "scatter_reduce: it is not the max over the edges of each node" in engine.explain()
    assert "[scatter]" in engine.explain()


class Weighted(Model):
    """Degrees of weights, whose nodes without edges get 0."""

    def forward(self, x, edge_index, edge_weight):
        (src, dst), x = edge_index, self.first(x)
        degrees = torch.zeros(x.size(0), dtype=x.dtype).scatter_add_(0, dst, edge_weight)
        norm = degrees.pow(-0.5)
        norm[torch.isinf(norm)] = 0
        return self.last(_added(x, dst, (norm[src] * edge_weight * norm[dst]).unsqueeze(-1) * x[src]))


def test_degrees_of_weights_are_computed_of_positive_weights():
    data = data_of("untidy")
    model, twin = (Weighted(None) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    engine = engine_of(model, data)
    assert verdict(engine) == LOWERED, engine.explain()
    assert_alike(model, twin, data, engine, steps=2)


@pytest.mark.parametrize("name", _cases(ODD, {"overwritten rows", "too many rows"}))
@pytest.mark.filterwarnings("ignore::graphbraid.errors.RunsAsWrittenWarning")
def test_what_is_no_message_runs_as_written(name):
    data, (model, twin) = data_of("untidy"), _pair(name)
    engine = engine_of(model, data)
    assert not _lowered_messages(engine), engine.explain()
    assert_alike(model, twin, data, engine, steps=2)


@pytest.mark.parametrize("name", _cases([*READ, *ODD], {"looped", "shifted"}))
@pytest.mark.filterwarnings("ignore::graphbraid.errors.RunsAsWrittenWarning")
def test_on_batches_they_equal_what_is_written(name):
    data, (model, twin) = in_double(data_of("untidy")), _pair(name)
    model, twin = model.double(), twin.double()
    engine = graphbraid.compile(model)
    for edges in (data.edge_index, data.edge_index[:, ::2].contiguous()):
        _assert_same_numbers(engine, twin, data.x, edges)
    if name in READ:
        assert engine.why is None, engine.explain()


@pytest.mark.parametrize(
    "name", _cases(["mean", "set degrees", "maximum", "attention", "onto others"], {"mean"})
)
def test_layout_blocks_runs_a_layer_on_its_own_block(name):
    seeds, data = torch.tensor([7, 0, 23, 3, 11]), in_double(data_of("untidy"))
    with NeighborLoader(data, [3], input_nodes=seeds, batch_size=5, seed=3, layout="blocks") as loader:
        batch = next(iter(loader))
    model, twin = (one.double() for one in _pair(name))
    [block] = batch.blocks
    edges = torch.stack([block.indices.long(), block.destinations().long()])
    ours, theirs = graphbraid.compile(model, strict=True)(batch), twin(batch.x, edges)[:5]
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)
    for out in (ours, theirs):
        out.square().sum().backward()
    torch.testing.assert_close(model.first.weight.grad, twin.first.weight.grad, rtol=1e-8, atol=1e-9)


# ---- what the numbers of a model hide: zeros and signs while it is read, and what is written over later


def _by(dst, messages):
    return dst.unsqueeze(-1).expand_as(messages)


def hides_positive_with_itself(model, x, edges):
    messages = torch.sigmoid(x[edges[0]]) * (1 + model.score.bias)
    return torch.zeros_like(x).scatter_reduce(0, _by(edges[1], messages), messages, "amax")


def hides_onto_a_small_number(model, x, edges):
    total = torch.full_like(x, 1e-6).index_add_(0, edges[1], torch.exp(x[edges[0]]))
    return torch.log(total)


def hides_by_place(model, x, edges):
    late = (torch.arange(edges.size(1)) > 50).to(x.dtype)
    return _added(x, edges[1], x[edges[0]] * late.unsqueeze(-1))


def hides_zeros_divided_by_more(model, x, edges):
    messages = x[edges[0]] * model.score.bias
    return x + _added(x, edges[1], messages) / (_degrees(x, edges) + 1)


def hides_divisor_written_over(model, x, edges):
    degrees = _degrees(x, edges).clamp(min=1)
    out = _copied(model, x, edges)
    degrees.view(-1).add_(1)
    return out / degrees


def hides_weights_written_over(model, x, edges):
    weights = _degrees(x, edges)[edges[0]]
    messages = x[edges[0]] + weights
    weights.mul_(0.5)
    return _added(x, edges[1], messages)


def hides_rows_written_over(model, x, edges):
    rows, degrees = x + 1, _degrees(x, edges).clamp(min=1)
    out = _copied(model, rows, edges)
    rows.mul_(2)
    return out / degrees + rows


def _by_places(places):
    """Messages that are 0 from some edge on, beyond those of a trial."""
    return lambda m, x, e: _added(x, e[1], x[e[0]] * (places(e[0]) * 0.01 < 0.9).to(x.dtype).unsqueeze(-1))


PLACES = {
    "arange": lambda src: torch.arange(src.size(0)),
    "cumsum": lambda src: torch.ones_like(src).cumsum(0),
    "nonzero": lambda src: torch.nonzero(src >= 0).view(-1),
    "ranks": lambda src: src.argsort(stable=True).argsort(),
    "rolled": lambda src: src.roll(5) * 5,
}
HIDDEN = {
    "divided by edges": lambda m, x, e: _added(x, e[1], x[e[0]] / e.size(1)) / _degrees(x, e).max(),
    "zeros scaled": lambda m, x, e: (
        x + torch.zeros_like(x).index_add(0, e[1], x[e[0]] * m.score.bias, alpha=0.5)
    ),
    "onto a parameter": lambda m, x, e: (torch.zeros_like(x) + m.score.bias).index_add(0, e[1], x[e[0]]),
    "onto rows times zero": lambda m, x, e: (x * m.score.bias).index_add(0, e[1], x[e[0]]),
    "divided by at most": lambda m, x, e: _copied(m, x, e) / _degrees(x, e).clamp(1, 20),
    "divided by a bit more": lambda m, x, e: _copied(m, x, e) / (_degrees(x, e) + 1e-6),
    **{f"by {name}": _by_places(places) for name, places in PLACES.items()},
    **_named("hides_"),
}
ALONE = {
    "without gradient": lambda m, x, e: _added(x, e[1], x[e[0]].detach() * x[e[1]]),
    "maximum from another end": _maximum_from_another_end,
}
FORWARDS = READ | ODD | HIDDEN | ALONE


@pytest.mark.parametrize("name", _cases(["attention", "looped", "expanded"], {"looped"}))
def test_inference_mode_comes_first_and_training_after_it(name):
    data, (model, twin) = data_of("untidy"), _pair(name)
    engine = graphbraid.compile(model)
    for mode in (torch.inference_mode, torch.enable_grad, torch.inference_mode):
        with mode():
            ours, theirs = engine(data.x, data.edge_index), twin(data.x, data.edge_index)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        if ours.requires_grad:
            for out in (ours, theirs):
                out.square().mean().backward()
    torch.testing.assert_close(model.first.weight.grad, twin.first.weight.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", _cases(["maximum", "minimum", "network", "attention"], {"minimum"}))
@pytest.mark.parametrize("num_edges", [0, None])
def test_a_nan_reaches_the_rows_that_it_reaches_as_written(name, num_edges):
    data, (model, twin) = data_of("untidy"), _pair(name)
    engine, x, edges = graphbraid.compile(model), data.x.clone(), data.edge_index[:, :num_edges]
    x[3, 1] = torch.nan
    ours, theirs = engine(x, edges), twin(x, edges)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert theirs.isnan().any() or num_edges == 0


@pytest.mark.parametrize("name", _cases(HIDDEN, {"zeros scaled", "onto a parameter", "by arange"}))
@pytest.mark.filterwarnings("ignore::graphbraid.errors.RunsAsWrittenWarning")
def test_what_numbers_hide_when_a_model_is_read_is_as_written_later(name):
    data, (model, twin) = in_double(data_of("untidy")), _pair(name)
    model, twin = model.double(), twin.double()
    hub = torch.stack([torch.arange(NODES - 4), torch.full((NODES - 4,), 3)])
    edges = torch.cat([data.edge_index, hub, hub], 1)  # more edges to one node than a divisor's bound
    engine = graphbraid.compile(model)
    for value in (0.0, -3.0):
        for one in (model, twin):
            nn.init.constant_(one.score.bias, value)
        _assert_same_numbers(engine, twin, data.x, edges)

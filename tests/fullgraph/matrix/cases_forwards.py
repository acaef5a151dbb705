"""Ways to write a forward."""

from itertools import cycle

import torch
import torch.nn.functional as F
from tests.fullgraph.matrix.case import BASES, GCN, SAGE, Case, left, partly
from tests.fullgraph.matrix.graphs import CLASSES
from tests.fullgraph.matrix.models import HIDDEN, calls, relu_stack
from torch import nn


def residual(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    return self.head(self.second(h, edge_index) + h)


def residual_of_input(self, x, edge_index):
    return self.head(self.first(x, edge_index) + self.skip(x))


def residual_of_two(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    g = self.second(h, edge_index)
    return self.head(g + h + self.skip(x))


def skip_first(self, x, edge_index):
    return self.head(self.skip(x) + self.second(self.first(x, edge_index).relu(), edge_index))


def norm_first(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(h + self.second(self.norm(h).relu(), edge_index))


def twice(self, x, edge_index):
    h = self.second(self.first(x, edge_index).relu(), edge_index)
    return self.head(self.second(h.relu(), edge_index))


def shared_input(self, x, edge_index):
    return self.head(self.first(x, edge_index) + self.first(x, edge_index).relu())


def by_keyword(self, x, edge_index):
    h = self.first(x=x, edge_index=edge_index).relu()
    return self.head(input=self.second(edge_index=edge_index, x=h))


def relu_in_place_read_again(self, x, edge_index):
    h = self.first(x, edge_index)
    g = F.relu(h, inplace=True)
    return self.head(self.second(g, edge_index) + h)


def relu_read_again(self, x, edge_index):
    h = self.first(x, edge_index)
    h.relu_()
    return self.head(self.second(h, edge_index))


def module_in_place_read_again(self, x, edge_index):
    h = self.skip(x)
    g = self.over(h)
    return self.head(self.second(h, edge_index) + g)


def plus_equals_read_again(self, x, edge_index):
    h = self.first(x, edge_index)
    g = h
    g += self.skip(x)
    return self.head(self.second(h, edge_index) + g)


def alias_through_identity(self, x, edge_index):
    h = self.first(x, edge_index)
    g = self.same(h)
    g.relu_()
    return self.head(h + self.second(g, edge_index))


def by_mode(self, x, edge_index):
    h = self.first(x, edge_index)
    h = h.relu() if self.training else F.elu(h)
    return self.head(self.second(h, edge_index))


def by_mode_with_a_skip(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    if not self.training:
        h = h + self.skip(x)
    return self.head(self.second(h, edge_index))


def by_flag(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(h if self.flag else self.second(h.relu(), edge_index))


def no_edges(self, x, edge_index):
    return self.head(self.skip(x).relu())


def unused_part(self, x, edge_index):
    h = self.first(x, edge_index)
    self.second(h, edge_index)
    return self.head(h.relu())


def with_an_assertion(self, x, edge_index):
    assert edge_index is not None
    return relu_stack(self, x, edge_index)


def scaled(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(torch.add(h, self.skip(x), alpha=0.5))


def scaled_method(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(h.add(self.skip(x), alpha=2))


def asks_for_classes(self, x, edge_index):
    assert isinstance(x, torch.Tensor)
    h = self.first(x, edge_index) if torch.is_tensor(edge_index) else self.skip(x)
    return self.head(h.relu() if isinstance(h, torch.Tensor) else h)


def is_plain(value):
    return type(value) is torch.Tensor


def asks_for_types(self, x, edge_index):
    assert isinstance(type(self), type)
    h = self.first(x, edge_index) if is_plain(edge_index) else self.skip(x)
    factor = 2.0 if type(self.head.weight) is torch.nn.Parameter else 1.0
    return self.head(h.relu() if type(h) in (torch.Tensor,) else h) * factor


def asks_for_sizes(self, x, edge_index):
    zeros = torch.zeros(x.shape[0], edge_index.numel())
    return self.head(self.first(x, edge_index)) + zeros.sum()


def asks_for_ranks(self, x, edge_index):
    assert x.dim() == 2
    h = self.first(x, edge_index)
    h = h.unsqueeze(-1) if h.ndim == 1 else h
    return self.head(h.relu() if min(h.size(0), x.size(0)) == h.size(0) else h)


def asks_for_the_rank_of_heads(self, x, edge_index):
    h = self.first(x, edge_index).view(-1, 2, HIDDEN // 2)
    return self.head(h.flatten(1) if h.dim() == 3 else h)


def asks_for_attributes(self, x, edge_index):
    h = self.skip(x) if hasattr(edge_index, "coo") else self.first(x, edge_index)
    return self.head(h.relu() if hasattr(h, "numel") else h) * getattr(x, "factor", 1.0)


_FORWARDS = (
    residual,
    residual_of_input,
    residual_of_two,
    skip_first,
    norm_first,
    twice,
    shared_input,
    by_keyword,
    relu_in_place_read_again,
    relu_read_again,
)
_MORE_FORWARDS = (
    scaled,
    scaled_method,
    plus_equals_read_again,
    by_mode,
    by_mode_with_a_skip,
    by_flag,
    no_edges,
    unused_part,
    with_an_assertion,
    asks_for_classes,
    asks_for_types,
    asks_for_ranks,
    asks_for_attributes,
)


def flipped(self, x, edge_index):
    return self.head(self.first(x, edge_index.flip(0)))


def other_edges(self, x, edge_index):
    return self.head(self.first(x, edge_index[:, ::2]))


def by_value(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(h if float(h.detach().sum()) > 0 else -h)


def by_shape(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(h if x.shape[0] > 10 else -h)


def without_gradients(self, x, edge_index):
    with torch.no_grad():
        h = self.first(x, edge_index)
    return self.head(self.second(h, edge_index))


def of_a_copy(self, x, edge_index):
    return self.head(self.first(F.relu(x.clone()), edge_index))


def writes_over_a_copy(self, x, edge_index):
    copied = x.clone()
    copied[:, 0] = 1
    return self.head(self.first(F.relu(copied), edge_index))


def counts(self, x, edge_index):
    self.calls = getattr(self, "calls", 0) + 1
    return relu_stack(self, x, edge_index)


def appends(self, x, edge_index):
    self.seen.append(1)
    return relu_stack(self, x, edge_index)


def draws(self, x, edge_index):
    h = self.first(x, edge_index)
    torch.rand(())
    return self.head(h)


def a_parameter(self, x, edge_index):
    return self.head(self.first(x, edge_index)) + self.shift


def through_numpy(self, x, edge_index):
    return relu_stack(self, x * len(x) / len(x), edge_index)


_LEFT_FORWARDS = {
    asks_for_the_rank_of_heads: "goes by sizes of",
    by_value: "cannot be traced",
    by_shape: "cannot be traced|no operation",
    without_gradients: "without gradients",
    counts: "changes 'calls'",
    draws: "draws random numbers",
    through_numpy: "",
}

FORWARDS = [
    *(
        Case("forwards", f"{run.__name__}, {base}", lambda r=run, b=base: calls(r)(BASES[b]))
        for run in _FORWARDS
        for base in BASES
    ),
    *(
        Case("forwards", run.__name__, lambda r=run, b=base: calls(r)(b))
        for run, base in zip(_MORE_FORWARDS, cycle(BASES.values()))
    ),
    Case(
        "forwards",
        "ReLU in place, read again",
        lambda: calls(module_in_place_read_again)(GCN, over=nn.ReLU(inplace=True)),
    ),
    Case(
        "forwards",
        "ELU in place, read again",
        lambda: calls(module_in_place_read_again)(SAGE, over=nn.ELU(inplace=True)),
    ),
    Case(
        "forwards",
        "written over through an Identity",
        lambda: calls(alias_through_identity)(GCN, same=nn.Identity()),
    ),
    Case(
        "forwards",
        "written over through a resting Dropout",
        lambda: calls(alias_through_identity)(GCN, same=nn.Dropout(0.0)),
    ),
    *(
        left("forwards", run.__name__, lambda r=run: calls(r)(GCN), reason)
        for run, reason in _LEFT_FORWARDS.items()
    ),
    *(
        partly("forwards", run.__name__, lambda r=run: calls(r)(GCN), "on its own edges, lowered")
        for run in (flipped, other_edges)
    ),
    partly("forwards", "asks for sizes of rows", lambda: calls(asks_for_sizes)(GCN)),
    Case("forwards", "a copy of x", lambda: calls(of_a_copy)(GCN)),
    partly("forwards", "writes over a copy of x", lambda: calls(writes_over_a_copy)(GCN)),
    left("forwards", "appends to a list", lambda: calls(appends)(GCN, seen=[]), "changes 'seen'"),
    Case(
        "forwards",
        "a parameter of its own",
        lambda: calls(a_parameter)(GCN, shift=nn.Parameter(torch.ones(CLASSES))),
    ),
]

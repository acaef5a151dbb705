"""Calls that are said to work row by row do so, and what reads other rows is found in every form."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from graphbraid.fullgraph.reading.row_dependence import Dependence, RowWatch, is_of_torch

ROWS, COLUMNS = 13, 6
TABLE = torch.rand(20, 4, dtype=torch.float64)
WEIGHT = torch.rand(5, COLUMNS, dtype=torch.float64)


def _module(make):
    torch.manual_seed(0)
    return make.double().eval()


BILINEAR = _module(nn.Bilinear(COLUMNS, COLUMNS, 3))
CELL = _module(nn.GRUCell(COLUMNS, COLUMNS))
ATTENTION = _module(nn.MultiheadAttention(COLUMNS, 1))


def _overwritten(x):
    out = x * 1
    out[:, :2] = out[:, 2:4].clone()
    return out.mul_(2)


def _written_beside(x):
    """A view of a constant that gets rows."""
    out = torch.zeros(COLUMNS, ROWS, dtype=x.dtype).t()
    turned = out.t()
    out.copy_(x)
    return x + turned.sum()


def _overwritten_by_others(x):
    out = x * 1
    out[:1] += x[1:2]
    return out


BY_ROW = {
    "arithmetic": lambda x: (2 * x + 1) / (x.abs() + 1) - x**2,
    "a row of constants": lambda x: x * WEIGHT[0] + WEIGHT[:1],
    "where": lambda x: torch.where(x > 0.5, x, -x),
    "softmax": lambda x: x.softmax(-1),
    "a product": lambda x: x @ WEIGHT.t(),
    "linear": lambda x: F.linear(x, WEIGHT, WEIGHT[:, 0]),
    "heads": lambda x: F.linear(x.view(-1, 2, 3), WEIGHT[:, :3], WEIGHT[:, 0]).relu().flatten(1),
    "products of each row": lambda x: x.view(-1, 2, 3) @ x.view(-1, 3, 2),
    "columns": lambda x: torch.cat([x[:, 1:3], x[:, [0, 5]], x[:, :, None].squeeze(-1)], dim=1),
    "a stack": lambda x: torch.stack([x, 2 * x], dim=-1).max(dim=-1).values,
    "the norm": lambda x: F.normalize(x) * x.norm(dim=1, keepdim=True),
    "layer norm": lambda x: F.layer_norm(x, (COLUMNS,)),
    "sorted columns": lambda x: x.sort(dim=1).values.cumsum(1).flip(1),
    "rows of a table": lambda x: TABLE[(x[:, 0] * 10).long()],
    "a number of each row": lambda x: x.gather(1, (x[:, :2] > 0.5).long()),
    "an embedding": lambda x: F.embedding((x * 10).long(), TABLE).sum(1),
    "what was just made, written over": _overwritten,
    "a layer of zeros": lambda x: torch.zeros_like(x) + x.new_ones(x.shape[0], 1),
    "GELU": _module(nn.GELU()),
    "a network": _module(nn.Sequential(nn.Linear(COLUMNS, 4), nn.PReLU(), nn.LayerNorm(4), nn.Softplus())),
    "a bilinear map": lambda x: BILINEAR(x, x),
    "a GRU's cell": lambda x: CELL(x, 2 * x),
}
OTHERS = {
    "the mean": lambda x: x - x.mean(0),
    "the sum of all": lambda x: x / x.sum(),
    "the first row": lambda x: x - x[:1],
    "another order": lambda x: x.flip(0),
    "rolled": lambda x: x.roll(1, 0),
    "the columns of others": lambda x: x.t().reshape(ROWS, COLUMNS),
    "another shape": lambda x: x.reshape(COLUMNS, ROWS).cumsum(0).reshape(ROWS, COLUMNS),
    "a product of rows": lambda x: (x @ x.t()) @ x,
    "softmax over rows": lambda x: x.softmax(0),
    "a vector along the columns": lambda x: x.view(ROWS, COLUMNS)[:, :1] + x[:, 0],
    "sorted rows": lambda x: x.sort(dim=0).values,
    "rows by number": lambda x: x[torch.arange(ROWS).flip(0)],
    "numbers of rows": lambda x: x * torch.arange(ROWS, dtype=x.dtype)[:, None],
    "the first of more rows": lambda x: x.view(2 * ROWS, 3).gather(1, (x[:, :1] * 3).long()),
    "a mask": lambda x: x[x[:, 0] > -1],
    "a view that is written to": _written_beside,
    "rows written over by others": _overwritten_by_others,
    "a number of another row": lambda x: x * float(x.detach()[0, 0]),
    "a sparse matrix": lambda x: x.to_sparse().t().to_dense().t().cumsum(0),
    "batch norm": _module(nn.BatchNorm1d(COLUMNS)).train(),
    "attention among rows": lambda x: ATTENTION(x, x, x)[0],
}


def _runs(call, x):
    watch = RowWatch(ROWS, [x])
    with watch:
        out = call(x)
    return out.detach(), watch.kind_of(out)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", [*BY_ROW, *OTHERS])
def test_what_is_said_to_work_row_by_row_does(name, requires_grad):
    call = BY_ROW.get(name) or OTHERS[name]
    x = torch.rand(ROWS, COLUMNS, dtype=torch.float64)
    before, kind = _runs(call, x.clone().requires_grad_(requires_grad))
    assert kind is (Dependence.ALIGNED if name in BY_ROW else Dependence.COUPLED)
    if kind is not Dependence.ALIGNED:
        return
    for row in (0, 7):
        x[row] += 0.3
        after, _ = _runs(call, x.clone())
        changed = (after != before).flatten(1).any(1).nonzero().flatten().tolist()
        assert set(changed) <= {row}
        before = after


def test_what_reads_no_rows_is_a_constant():
    x = torch.rand(ROWS, COLUMNS)
    watch = RowWatch(ROWS, [x])
    with watch:
        out = TABLE.t() @ TABLE
    assert watch.kind_of(out) is Dependence.NONE


def test_dropout_draws_and_leaves_rows_apart():
    x = torch.rand(ROWS, COLUMNS)
    watch = RowWatch(ROWS, [x])
    with watch:
        out = F.dropout(x, 0.5)
    assert watch.draws
    assert watch.kind_of(out) is Dependence.ALIGNED


def test_a_subclass_or_a_module_inside_that_is_the_users_own_is_not_of_torch():
    class Own(nn.Linear):
        pass

    assert is_of_torch(nn.Sequential(nn.Linear(2, 2)))
    assert not is_of_torch(nn.Sequential(Own(2, 2)))
    assert not is_of_torch(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))

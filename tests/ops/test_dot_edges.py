"""Dot-product attention with a linear map of edge features: kernels, twins, and messages of steps."""

from functools import reduce

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import needs_kernels
from tests.ops.graphs import CORNERS, assert_same_bits_with_any_threads, skewed, values
from tests.ops.test_gine import drawn

from graphbraid import native
from graphbraid.errors import DataError
from graphbraid.ops import message_kernel, reference
from graphbraid.ops.kernels import backend
from graphbraid.ops.message_kernel import aggregate_steps
from graphbraid.ops.message_steps import DotProducts, MessageOp, MessageStep, dot_products

SHAPES = [(1, 1), (1, 40), (3, 5), (4, 16), (8, 8), (1, 64), (17, 3), (2, 257)]


def mapped(features, weight):
    """Rows of edges: the last row of a weight without its feature is a bias."""
    rows = features @ weight[: features.shape[1]]
    return rows + weight[features.shape[1] :].sum(0)


def attended(csc, key, value, query, features, weight, heads, scale):
    """The attention edge by edge."""
    src, dst = csc.indices.long(), csc.destinations().long()
    of_edges = mapped(features, weight)
    keys, values_ = ((rows[src] + of_edges).unflatten(1, (heads, -1)) for rows in (key, value))
    logits = (keys * query[dst].unflatten(1, (heads, -1))).sum(2) * scale
    at = dst[:, None].expand_as(logits)
    top = logits.new_full((csc.num_dst, heads), -torch.inf).scatter_reduce(0, at, logits, "amax")
    power = (logits - top[dst]).exp()
    alpha = power / power.new_zeros(csc.num_dst, heads).index_add(0, dst, power)[dst]
    rows = (values_ * alpha[:, :, None]).flatten(1)
    return rows.new_zeros(csc.num_dst, rows.shape[1]).index_add(0, dst, rows)


def inputs(csc, heads, channels, num_features, *, bias=False, dtype=torch.float32, seed=0):
    """Values, keys and queries; features of edges and their map."""
    width, counts = heads * channels, (csc.num_src, csc.num_src, csc.num_dst)
    rows = [values(count, width, dtype=dtype, seed=seed + i) for i, count in enumerate(counts)]
    features = values(csc.num_edges, num_features, dtype=dtype, seed=seed + 3)
    return rows, [features, values(num_features + bias, width, dtype=dtype, seed=seed + 4)]


def run(module, csc, rows, edges, heads, *, keeps=False, adds=False, learns=True):
    """What the kernels write: result, sums, and gradients, that of the map last."""
    of_rows = {"dtype": rows[0].dtype}
    out, mixed = (
        torch.full((csc.num_dst, n), torch.nan, **of_rows) for n in (rows[0].shape[1], heads * len(edges[1]))
    )
    top, log = torch.full((2, csc.num_dst, heads), torch.nan, **of_rows)
    of_edges = dict(zip(("edge_features", "edge_weight", "mixed"), (*edges, mixed), strict=True))
    module.dot_forward(csc.indptr, csc.indices, *rows, 0.7, out, top, log, **of_edges)
    grad = values(csc.num_dst, rows[0].shape[1], dtype=rows[0].dtype, seed=9)
    grads = [torch.full_like(t, 1.0 if adds else torch.nan) for t in rows]
    of_map = torch.full_like(edges[1], torch.nan)
    reverse, perm = csc.transpose()
    ways = csc.indptr, csc.indices, reverse.indptr, reverse.indices
    more = {"grad_logit": torch.empty(csc.num_edges, heads, **of_rows)} if keeps else {}
    more |= {"grad_edge_weight": of_map} if learns else {}
    results = out, top, log, grad, *grads, adds
    module.dot_backward(*ways, *rows, 0.7, *results, perm=perm, **of_edges, **more)
    return [out, mixed, *grads, *([of_map] if learns else [])]


def exact(csc, rows, edges, heads):
    """The result and the gradients of values, keys, queries and the map, in float64."""
    leaves = [one.double().requires_grad_() for one in (*rows, edges[1])]
    value, key, query, weight = leaves
    out = attended(csc, key, value, query, edges[0].double(), weight, heads, 0.7)
    return [out, *torch.autograd.grad(out, leaves, values(*out.shape, seed=9).double())]


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("has_kernels", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_attention_edge_by_edge(corner, has_kernels, dtype):
    csc, module = CORNERS[corner](), native.kernels() if has_kernels else reference
    rows, edges = inputs(csc, 3, 5, 4, bias=True, dtype=dtype)
    out, _, *grads = run(module or reference, csc, rows, edges, 3)
    for ours, theirs in zip([out, *grads], exact(csc, rows, edges, 3), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


def assert_equals_twin(module, csc, heads, channels, num_features, *, bias, keeps, adds):
    rows, edges = inputs(csc, heads, channels, num_features, bias=bias)
    found = run(module, csc, rows, edges, heads, keeps=keeps, adds=adds)
    wide = [[one.double() for one in some] for some in (rows, edges)]
    for ours, theirs in zip(found, run(reference, csc, *wide, heads, adds=adds), strict=True):
        scale = max(1.0, float(theirs.abs().max()) if theirs.numel() else 0.0)
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.parametrize(("heads", "channels"), SHAPES)
@pytest.mark.parametrize("num_features", [1, 4, 33])
def test_kernels_equal_their_twins_at_every_shape(compiled, heads, channels, num_features):
    for flag in (True, False):
        how = {"bias": flag, "keeps": flag, "adds": not flag}
        assert_equals_twin(compiled, skewed(), heads, channels, num_features, **how)


@needs_kernels
@given(
    case=drawn(),
    heads=st.integers(1, 9),
    num_features=st.integers(1, 9),
    bias=st.booleans(),
    keeps=st.booleans(),
    adds=st.booleans(),
)
def test_any_block_equals_the_twin(case, heads, num_features, bias, keeps, adds):
    csc, width, _ = case
    how = {"bias": bias, "keeps": keeps, "adds": adds}
    assert_equals_twin(backend(torch.zeros(1)), csc, heads, 1 + width % 64, num_features, **how)


@needs_kernels
@pytest.mark.parametrize(("heads", "channels"), SHAPES)
def test_bits_depend_neither_on_threads_nor_on_kept_numbers(heads, channels):
    csc = skewed(3000, 2500)
    rows, edges = inputs(csc, heads, channels, 4, bias=True)
    found = [
        assert_same_bits_with_any_threads(
            lambda keeps=keeps: run(backend(rows[0]), csc, rows, edges, heads, keeps=keeps)
        )
        for keeps in (True, False)
    ]
    assert all(map(torch.equal, *found))


def test_a_map_that_learns_nothing_leaves_the_other_gradients_alone():
    csc = skewed()
    rows, edges = inputs(csc, 2, 8, 3)
    found = [run(backend(rows[0]), csc, rows, edges, 2, learns=learns) for learns in (True, False)]
    assert all(map(torch.equal, found[0], found[1]))


@needs_kernels
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mixed": None}, "edge_features, edge_weight and mixed go together"),
        ({"edge_weight": torch.zeros(5, 8)}, "edge_weight must have a row for each feature"),
        ({"edge_weight": torch.zeros(3, 7)}, "shape"),
        ({"edge_features": torch.zeros(4, 3)}, "shape"),
        ({"mixed": torch.zeros(40, 5)}, "shape"),
    ],
)
def test_features_that_do_not_fit_are_refused(change, message):
    csc = skewed()
    rows, (features, weight) = inputs(csc, 2, 4, 3)
    given_ = {"edge_features": features, "edge_weight": weight, "mixed": torch.zeros(csc.num_dst, 6)}
    out, (top, log) = torch.zeros(csc.num_dst, 8), torch.zeros(2, csc.num_dst, 2)
    with pytest.raises(ValueError, match=message):
        native.kernels().dot_forward(csc.indptr, csc.indices, *rows, 1.0, out, top, log, **(given_ | change))


# ---- as a message of steps


def steps_of_attention(num_features, *, matrix=0, bias=None, value_map=True, order=None):
    """Attention whose keys, and values, have a map of the edges' numbers added; the matrix is a parameter."""
    op, steps = MessageOp, []

    def add(*step, **more):
        steps.append(MessageStep(*step, **more))
        return len(steps) - 1

    terms = [] if bias is None else [add(op.PARAMETER, *bias)]
    for number in order or range(num_features):
        terms.append(add(op.MULTIPLY, add(op.EDGE_NUMBER, number), add(op.PARAMETER, matrix, number + 1)))
    of_edge = reduce(lambda one, other: add(op.ADD, one, other), terms)
    key = add(op.ADD, add(op.SOURCE, 0), of_edge)
    product = add(op.SUM_COLUMNS, add(op.MULTIPLY, add(op.DESTINATION, 0), key))
    alpha = add(op.SOFTMAX, add(op.MULTIPLY, product, add(op.NUMBER, number=0.7)))
    value = add(op.SOURCE, 1)
    add(op.MULTIPLY, add(op.ADD, value, of_edge) if value_map else value, alpha)
    return steps


@pytest.mark.parametrize("bias", [None, (1, 0), (0, 4)])
@pytest.mark.parametrize("has_kernels", [True, False])
@pytest.mark.parametrize("learned", ["all", "the map", "rows"])
def test_a_message_of_steps_runs_as_attention(monkeypatch, bias, has_kernels, learned):
    if not has_kernels:
        monkeypatch.setattr(message_kernel, "backend", lambda _: reference)
    csc, heads = skewed(), 2
    (value, key, query), (features, _) = inputs(csc, heads, 5, 4)
    matrix, vector = values(10, 4 if bias != (0, 4) else 5, seed=6), values(1, 10, seed=7)[0]
    parameters = [matrix, vector] if bias == (1, 0) else [matrix]
    steps = steps_of_attention(3, bias=bias if bias != (0, 4) else (0, 5))
    of = dot_products(steps)
    assert of is not None
    assert (of.query, of.key, of.value, of.scale) == (0, 0, 1, 0.7)
    assert of.num_features == 3
    assert len(of.edge_map) == 3 + (bias is not None)
    rows = [key, value, query]
    for one in (rows if learned != "the map" else []) + (parameters if learned != "rows" else []):
        one.requires_grad_()
    leaves = [one for one in (*rows, *parameters) if one.requires_grad]
    how = {"sources": (key, value), "destinations": (query,), "edges": (features,), "parameters": parameters}
    out = aggregate_steps(csc, steps, **how, width=10, heads=heads)
    wide = {id(one): one.detach().double().requires_grad_(one.requires_grad) for one in (*rows, *parameters)}
    weight = wide[id(matrix)][:, :3].t()
    if bias is not None:
        row = wide[id(vector)] if bias == (1, 0) else wide[id(matrix)][:, 4]
        weight = torch.cat((weight, row[None]))
    given_ = [wide[id(one)] for one in (key, value, query)]
    expected = attended(csc, *given_, features[:, :3].double(), weight, heads, 0.7)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
    found = torch.autograd.grad(out.sin().sum(), leaves)
    wanted = torch.autograd.grad(expected.sin().sum(), [wide[id(one)] for one in leaves])
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


def test_only_the_same_map_of_the_first_numbers_on_both_sides_is_part_of_an_attention():
    whole = DotProducts(0, 0, 1, 0.7, edge_map=((0, 1), (0, 2)), num_features=2)
    assert dot_products(steps_of_attention(2)) == whole
    assert dot_products(steps_of_attention(2, order=[1, 0])) == whole
    for steps in (
        steps_of_attention(2, value_map=False),
        steps_of_attention(2, order=[1, 2]),  # the first number is not read
        steps_of_attention(2, order=[0, 0]),
        steps_of_attention(0, bias=(0, 0)),  # a bias alone
    ):
        assert dot_products(steps) is None


def test_steps_that_read_numbers_which_edges_lack_are_refused():
    csc = skewed()
    (value, key, query), (features, _) = inputs(csc, 2, 5, 2)
    how = {"sources": (key, value), "destinations": (query,), "edges": (features,)}
    with pytest.raises(DataError, match="steps read 3 numbers of edges, which have 2"):
        aggregate_steps(csc, steps_of_attention(3), **how, parameters=[values(10, 4)], width=10, heads=2)

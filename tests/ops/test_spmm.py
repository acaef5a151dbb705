"""Aggregation: every compiled variant against its twin, gradients against plain autograd."""

import pytest
import torch
from tests.ops.graphs import (
    CORNERS,
    DTYPES,
    WIDTHS,
    assert_same_bits_with_any_threads,
    close,
    skewed,
    square,
    values,
)

from graphbraid.graph.csc import Csc
from graphbraid.ops import Aggregation, aggregate, reference, spmm
from graphbraid.ops.spmm import TIES

COEFFICIENTS = {
    "plain": {},
    "mean": {"mean": True},
    "weight": {"weight": True},
    "scales": {"src_scale": True, "dst_scale": True},
    "loops": {"loop_scale": 1.5, "skip_loops": True, "src_scale": True, "loop": True},
    "all": {
        "weight": True,
        "src_scale": True,
        "dst_scale": True,
        "loop_scale": -0.5,
        "mean": True,
        "addend": True,
    },
}


def arguments(csc, x, wanted):
    """Arguments of the kernel before ``out``."""
    dtype = reference.sum_dtype(x.dtype)
    sizes = {"weight": csc.num_edges, "src_scale": csc.num_src, "dst_scale": csc.num_dst}
    num_loops = min(csc.num_src, csc.num_dst) if wanted.get("loop_scale") else 0
    sizes["loop"] = num_loops
    factors = [
        values(n, dtype=dtype, seed=i) if wanted.get(name) else None
        for i, (name, n) in enumerate(sizes.items())
    ]
    addend = values(csc.num_dst // 2, x.shape[1], dtype=x.dtype) if wanted.get("addend") else None
    return [
        csc.indptr,
        csc.indices,
        x,
        *factors,
        wanted.get("loop_scale", 0.0),
        num_loops,
        wanted.get("skip_loops", False),
        wanted.get("mean", False),
        addend,
    ]


def assert_kernel_equals_twin(native, csc, x, wanted):
    args = arguments(csc, x, wanted)
    out, expected = (x.new_full((csc.num_dst, x.shape[1]), torch.nan) for _ in range(2))
    native.spmm(*args, out)
    reference.spmm(*args, expected)
    close(out, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_feat", WIDTHS)  # one to several register tiles, with and without a tail
def test_kernel_equals_twin_at_every_width(compiled, num_feat, dtype):
    csc = skewed()
    for wanted in (COEFFICIENTS["plain"], COEFFICIENTS["all"]):
        assert_kernel_equals_twin(compiled, csc, values(csc.num_src, num_feat, dtype=dtype), wanted)


@pytest.mark.parametrize("width", range(1, 300, 13))
def test_kernel_equals_twin_at_every_split_into_tiles(compiled, width):
    csc = skewed()
    assert_kernel_equals_twin(compiled, csc, values(csc.num_src, width), {})


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("wanted", COEFFICIENTS)
def test_kernel_equals_twin_on_corner_graphs(compiled, corner, wanted):
    csc = CORNERS[corner]()
    for width in (5, 19):  # one vector of AVX-512, and several
        assert_kernel_equals_twin(compiled, csc, values(csc.num_src, width), COEFFICIENTS[wanted])


@pytest.mark.parametrize("width", [1, 7, 16, 17])
def test_a_nan_reaches_the_rows_it_has_an_edge_to_and_no_others(compiled, width):
    csc = skewed()
    x, out = values(csc.num_src, width), torch.empty(csc.num_dst, width)
    x[csc.indices[csc.indptr[2:-1:9]].long()] = torch.nan  # where rows begin, behind other rows
    compiled.spmm(*arguments(csc, x, {}), out)
    reached = [
        bool(x[csc.indices[csc.indptr[v] : csc.indptr[v + 1]].long()].isnan().any())
        for v in range(csc.num_dst)
    ]
    assert out.isnan().any(1).tolist() == reached
    assert 0 < sum(reached) < int((csc.degrees() > 0).sum())


def hub_graph(num_edges=50_000):
    """A row long enough to be summed in several segments, between short ones."""
    indptr = torch.tensor([0, 3, 3 + num_edges, 5 + num_edges])
    indices = torch.randint(0, 5, (int(indptr[-1]),), generator=torch.Generator().manual_seed(0)).to(
        torch.int32
    )
    return Csc(indptr, indices, 5)


@pytest.mark.parametrize("width", [1, 40, 300])
def test_hub_summed_in_segments_equals_the_exact_sum(compiled, width):
    csc, x = hub_graph(), values(5, width)
    out, exact = x.new_empty(3, width), torch.empty(3, width, dtype=torch.float64)
    compiled.spmm(*arguments(csc, x, {}), out)
    reference.spmm(*arguments(csc, x.double(), {}), exact)
    # One chain of 50,000 additions would be off by 1e-4.
    torch.testing.assert_close(out.double(), exact, rtol=3e-5, atol=1e-2)


def test_rows_of_input_and_output_may_be_strided(compiled):
    csc = skewed()
    wide, out = values(csc.num_src, 50), torch.zeros(csc.num_dst, 60)
    args = arguments(csc, wide[:, 10:43], {})
    compiled.spmm(*args, out[:, 5:38])
    expected = torch.zeros(csc.num_dst, 60)
    reference.spmm(*args, expected[:, 5:38])
    close(out, expected)  # also that nothing beside the columns was touched


def test_half_precision_rows_may_be_summed_into_float32(compiled):
    csc = skewed()
    x = values(csc.num_src, 33, dtype=torch.bfloat16)
    out, expected = torch.empty(2, csc.num_dst, 33)
    compiled.spmm(*arguments(csc, x, {}), out)
    reference.spmm(*arguments(csc, x, {}), expected)
    close(out, expected)


def naive(csc, x, reduce, weight=None):
    """The definition, one destination at a time; differentiable."""
    rows = []
    for v in range(csc.num_dst):
        edges = slice(int(csc.indptr[v]), int(csc.indptr[v + 1]))
        messages = x[csc.indices[edges].long()]
        if weight is not None:
            messages = messages * weight[edges, None]
        if messages.shape[0] == 0:
            rows.append(x.new_zeros(x.shape[1]))
        else:
            rows.append(messages.amax(0) if reduce == "max" else getattr(messages, reduce)(0))
    return torch.stack(rows)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("weighted", [False, True])
def test_value_and_gradients_equal_the_definition(reduce, weighted):
    csc = skewed()
    x = values(60, 21, dtype=torch.float64, grad=True)
    weight = values(csc.num_edges, dtype=torch.float64, grad=True) if weighted else None
    inputs = [t for t in (x, weight) if t is not None]
    grad = values(csc.num_dst, 21, dtype=torch.float64, seed=5)
    out, expected = spmm(csc, x, reduce, weight=weight), naive(csc, x, reduce, weight)
    torch.testing.assert_close(out, expected)
    for a, b in zip(
        torch.autograd.grad(out, inputs, grad), torch.autograd.grad(expected, inputs, grad), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_gradcheck(reduce):
    csc = skewed(8, 11)
    x = values(11, 3, dtype=torch.float64, grad=True)
    weight = values(csc.num_edges, dtype=torch.float64, grad=True)
    assert torch.autograd.gradcheck(lambda x, w: spmm(csc, x, reduce, weight=w), (x, weight))


@pytest.mark.parametrize("wide", [False, True])
def test_gradcheck_of_a_full_aggregation(wide):
    csc = square(9)
    how = Aggregation(
        csc=csc,
        mean=True,
        src_scale=values(9, dtype=torch.float64),
        dst_scale=values(9, dtype=torch.float64, seed=2),
        loop=values(9, dtype=torch.float64, seed=3),
        loop_scale=0.7,
        skip_loops=True,
    )
    x = values(9, 4, dtype=torch.float64, grad=True)
    weight = values(csc.num_edges, dtype=torch.float64, grad=True)
    addend = values(5, 4, dtype=torch.float64, grad=True)

    def run(x, weight, addend):
        return aggregate(how, x, weight=weight, addend=addend, wide=wide)

    assert torch.autograd.gradcheck(run, (x, weight, addend))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_bits_do_not_depend_on_the_number_of_threads(reduce):
    csc = skewed(3000, 2000, seed=3)
    x = values(2000, 37, grad=True)
    weight = values(csc.num_edges, grad=True)

    def run():
        out = spmm(csc, x, reduce, weight=weight)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), (x, weight))]

    assert_same_bits_with_any_threads(run)


def test_bits_of_a_hub_do_not_depend_on_the_number_of_threads():
    csc, x = hub_graph(), values(5, 33, grad=True)

    def run():
        out = spmm(csc, x)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), x)]

    assert_same_bits_with_any_threads(run)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("ties", range(3), ids=TIES)
def test_max_kernels_equal_their_twins(compiled, width, dtype, ties):
    csc = skewed()
    x = values(60, width, dtype=dtype).round(decimals=1 if dtype.itemsize > 2 else 0)  # many ties
    x[::7] = -0.0
    for weight in (None, values(csc.num_edges, dtype=reference.sum_dtype(dtype)).round(decimals=1)):
        out, expected = x.new_empty(2, csc.num_dst, width)
        found, wanted = torch.empty(2, csc.num_dst, width, dtype=torch.int32)
        compiled.spmm_max(csc.indptr, csc.indices, x, weight, ties, out, found)
        reference.spmm_max(csc.indptr, csc.indices, x, weight, ties, expected, wanted)
        close(out, expected)
        assert torch.equal(found, wanted)
        for module in (compiled, reference):  # evaluation does not ask for what only backward needs
            again = torch.full_like(out, 7)
            module.spmm_max(csc.indptr, csc.indices, x, weight, ties, again, None)
            assert torch.equal(again, out if module is compiled else expected)
        if weight is not None and ties and dtype.itemsize == 2:  # the operator compares these in float32
            continue
        transposed, perm = csc.transpose()
        grad = values(csc.num_dst, width, dtype=dtype, seed=4)
        ordered = None if weight is None else weight[perm]
        back, wanted = x.new_empty(2, csc.num_src, width)
        for module, to in ((compiled, back), (reference, wanted)):
            edges = (transposed.indptr, transposed.indices)
            if ties:
                share = (grad / found.clamp(min=1)).to(dtype)
                module.spmm_max_shared_backward(*edges, share, ordered, out, x, to)
            else:
                module.spmm_max_backward(*edges, perm, csc.indptr, grad, ordered, found, to)
        close(back, wanted)


@pytest.mark.parametrize("ties", ["shared", "shared with zero"])
@pytest.mark.parametrize("value", ["ties", "zeros", "negative"])
def test_shares_are_those_of_scatter_reduce_but_for_its_initial_zero(compiled, ties, value):
    csc = skewed()  # with rows without edges
    x = values(60, 5, dtype=torch.float64).round()
    x = {"ties": x, "zeros": x.clamp(max=0), "negative": -x.abs() - 1}[value]
    x[::3] *= -1 if value == "zeros" else 1  # zeros of both signs
    out, found = x.new_empty(csc.num_dst, 5), torch.empty(csc.num_dst, 5, dtype=torch.int32)
    compiled.spmm_max(csc.indptr, csc.indices, x, None, TIES.index(ties), out, found)
    grad = values(csc.num_dst, 5, dtype=torch.float64, seed=2)
    reverse, _ = csc.transpose()
    back = torch.empty_like(x)
    share = grad / found.clamp(min=1)
    compiled.spmm_max_shared_backward(reverse.indptr, reverse.indices, share, None, out, x, back)
    leaf = x.clone().requires_grad_()
    places = csc.destinations().long()[:, None].expand(-1, 5)
    initial = torch.full_like(out, 0.0 if ties == "shared with zero" else -7.5)  # which is nobody's
    theirs = initial.scatter_reduce(0, places, leaf[csc.indices.long()], "amax", include_self=False)
    (expected,) = torch.autograd.grad(theirs, leaf, grad)
    close(back, expected)


def test_equal_messages_share_the_gradient():
    csc = Csc(torch.tensor([0, 3, 5]), torch.tensor([2, 0, 1, 0, 3], dtype=torch.int32), 4)
    x = torch.tensor([[5.0], [5.0], [5.0], [1.0]], requires_grad=True)
    spmm(csc, x, "max").sum().backward()
    torch.testing.assert_close(x.grad.flatten(), torch.tensor([4 / 3, 1 / 3, 1 / 3, 0.0]))


def test_equal_messages_of_zero_share_all_of_it():
    csc = Csc(torch.tensor([0, 2]), torch.tensor([0, 1], dtype=torch.int32), 2)
    x = torch.tensor([[0.0], [-0.0]], requires_grad=True)
    spmm(csc, x, "max").sum().backward()
    assert x.grad.flatten().tolist() == [0.5, 0.5]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weights_under_max_learn_from_what_they_won(dtype):
    csc, width = skewed(), 3
    weight = values(csc.num_edges, dtype=reference.sum_dtype(dtype)).round(decimals=1).requires_grad_()
    x = values(60, width, dtype=dtype).round().requires_grad_()
    out = spmm(csc, x, "max", weight=weight)
    grad = values(csc.num_dst, width, dtype=dtype, seed=3)
    found = torch.autograd.grad(out, (x, weight), grad)
    places = csc.destinations().long()[:, None].expand(-1, width)
    messages = weight.double()[:, None] * x.double()[csc.indices.long()]
    apart = torch.full((csc.num_dst, width), -7.77, dtype=torch.float64)
    theirs = apart.scatter_reduce(0, places, messages, "amax", include_self=False)
    close(out, torch.where(theirs == -7.77, 0.0, theirs).to(dtype))
    if dtype in (torch.float32, torch.float64):
        expected = torch.autograd.grad(theirs, (x, weight), grad.double())
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_maximum_that_is_no_number_gives_no_finite_gradient():
    csc = Csc(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 0], dtype=torch.int32), 2)
    x = torch.tensor([[1.0, 1.0], [torch.nan, 2.0]], requires_grad=True)
    spmm(csc, x, "max").sum().backward()
    assert not x.grad[:, 0].isfinite().any()  # as with scatter_reduce
    assert x.grad[:, 1].tolist() == [1.0, 1.0]


def test_a_nan_wins_the_maximum_and_infinities_count():
    csc = Csc(torch.tensor([0, 3, 4]), torch.tensor([0, 1, 2, 3], dtype=torch.int32), 4)
    x = torch.tensor([[1.0, 1.0], [torch.nan, 2.0], [3.0, torch.inf], [-torch.inf, -torch.inf]])
    out = spmm(csc, x, "max")
    assert out[0, 0].isnan()
    assert out[0, 1] == torch.inf
    assert (out[1] == -torch.inf).all()


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_rows_without_edges_are_zero(reduce):
    csc = skewed()
    out = spmm(csc, values(60, 5), reduce)
    assert (out[0] == 0).all()
    assert (out[-1] == 0).all()


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("learns", [False, True])
def test_weights_that_backward_reads_may_not_be_written_over(reduce, learns):
    csc, x = skewed(), values(60, 5).requires_grad_()
    weight = torch.rand(csc.num_edges).requires_grad_(learns)
    out = spmm(csc, x, reduce, weight=weight)
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()

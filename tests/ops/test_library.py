"""Library operators: torch's own checks of schema, fake, autograd and compilation, and what a call costs."""

import importlib
import inspect
import sys
import typing

import pytest
import torch
from tests.extras import NO_TRITON
from tests.graph.typed_cases import bibliography
from tests.kernels import needs_kernels
from tests.ops.native_signatures import arguments_of, array_arguments
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from graphbraid import native, nn, ops
from graphbraid.errors import ConfigError
from graphbraid.graph import SparseFeatures, scans
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.nn import rgcn
from graphbraid.ops import reference
from graphbraid.ops.attention import dot_attention
from graphbraid.ops.distances import distances
from graphbraid.ops.library import NAMES
from graphbraid.ops.reference.rows import Kind
from graphbraid.ops.relations import relation_columns, relation_sums, weighted_columns
from graphbraid.ops.spmm import TIES

CSC = coo_to_csc(*torch.randint(0, 12, (2, 50), generator=torch.Generator().manual_seed(0)), 12, 12)[0]
WEIGHTED = Csc(CSC.indptr, CSC.indices, 12, torch.linspace(0.1, 1, 50), torch.full((12,), 5.0))
EDGES, KINDS = torch.stack([CSC.indices, CSC.destinations()]).long(), torch.arange(50) % 3
SPARSE = SparseFeatures.from_dense(torch.eye(12, 8))


def rows(*shape):
    return torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape).requires_grad_()


def relations():
    graph = bibliography()
    conv = nn.RGCNConv(4, 4, 4)
    cscs = [graph.relation(one) for one in graph.edge_types]
    types = list(graph.node_types)
    ends = [(types.index(one[0]), types.index(one[2])) for one in graph.edge_types]
    sizes = [graph.nodes_of(name).num_nodes for name in types]
    return conv.relations(cscs, [s for s, _ in ends], [d for _, d in ends], sizes), sizes


def columns():
    of, sizes = relations()
    return relation_columns(of, [rows(size, 4) for size in sizes])


def sums():
    of, sizes = relations()
    hs = [rows(size, 4 * len(of.of_source(number))) for number, size in enumerate(sizes)]
    return relation_sums(of, hs, [rows(size, 4) for size in sizes])


WEIGHTED_SUM = ops.Aggregation(csc=CSC, mean=True, dst_scale=torch.rand(12), loop_scale=0.5, skip_loops=True)
CALLS = {
    "spmm": lambda: ops.aggregate(WEIGHTED_SUM, rows(12, 4), weight=rows(50), addend=rows(9, 4)),
    "spmm_max": lambda: ops.spmm(CSC, rows(12, 4), "max", weight=rows(50)),
    "gine": lambda: ops.gine(CSC, rows(12, 4), rows(50, 4), loop_scale=1.5),
    "sddmm": lambda: ops.sddmm(CSC, rows(12, 4), rows(12, 4)),
    "distances": lambda: distances(rows(12, 4), rows(9, 4), "moduli"),
    "edge_softmax": lambda: ops.edge_softmax(CSC, rows(50, 2)),
    "gat_attention": lambda: ops.gat_attention(CSC, rows(12, 6), rows(12, 2), rows(12, 2), dropout=0.4),
    "gatv2_attention": lambda: ops.gatv2_attention(CSC, rows(12, 6), rows(12, 6), rows(2, 3)),
    "dot_attention": lambda: dot_attention(CSC, rows(12, 6), rows(12, 6), rows(12, 6), 2),
    "sparse_linear": lambda: ops.sparse_linear(SPARSE, rows(3, 8)),
    "aggregate_linear": lambda: ops.aggregate_linear(WEIGHTED_SUM, rows(12, 4), rows(3, 4), rows(3, 4)),
    "layer_norm": lambda: ops.layer_norm(rows(12, 4), rows(4), rows(4)),
    "batch_norm": lambda: ops.batch_norm(rows(12, 4), torch.zeros(4), torch.ones(4), rows(4), training=True),
    "bias_act_dropout": lambda: ops.bias_act_dropout(rows(12, 4) + 0, rows(4), "elu", 0.3, inplace=True),
    "weighted_columns": lambda: weighted_columns(CSC, rows(12, 4), rows(50, 3), own=True),
    "relation_columns": columns,
    "relation_sums": sums,
    "csc_of_edges": lambda: nn.GCNConv(4, 4)(rows(12, 4), EDGES, torch.ones(50)),
    "gcn_factors": lambda: nn.GCNConv(4, 4)(rows(12, 4), WEIGHTED),
    "csc_of_typed_edges": lambda: nn.BasisRGCNConv(4, 4, 3, 2)(rows(12, 4), EDGES, KINDS),
    "edges_alike": lambda: nn.BasisRGCNConv(4, 4, 3, 2)(rows(12, 4), EDGES, KINDS),
    "csc_of_relations": lambda: rgcn.relations_of(EDGES, KINDS, 12, 3),
}
"""A public call that reaches each library operator while torch traces."""


@pytest.fixture
def traced(monkeypatch):
    """Let every dispatch mode count as a tracer, such as one that only looks on."""
    as_it_is = scans.tracing
    for name, module in list(sys.modules.items()):
        if name.startswith("graphbraid") and getattr(module, "tracing", None) is as_it_is:
            monkeypatch.setattr(module, "tracing", lambda: torch._C._len_torch_dispatch_stack() > 0)


def as_leaf(tensor):
    return tensor.detach().requires_grad_(tensor.requires_grad)


class Seen(TorchDispatchMode):
    """Keeps the arguments of the first call of each library operator."""

    def __init__(self):
        super().__init__()
        self.calls = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "graphbraid":
            self.calls.setdefault(func._opname, (func, args))
        return func(*args, **(kwargs or {}))


def test_each_library_operator_is_called_here():
    assert {name.removesuffix("_backward") for name in NAMES} == set(CALLS)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.usefixtures("traced")
def test_torch_finds_no_fault_in_an_operator(name):
    """Schema, fake, autograd and, for static and dynamic shapes, what the compiler makes of it."""
    with Seen() as seen:
        made = CALLS[name]()
        outs = [out for out in (made if isinstance(made, tuple) else (made,)) if isinstance(out, Tensor)]
        torch.autograd.backward([out.sum() for out in outs if out.requires_grad])
    operator, arguments = seen.calls[name]
    torch.library.opcheck(operator, pytree.tree_map_only(Tensor, as_leaf, arguments))
    if f"{name}_backward" in NAMES:
        operator, arguments = seen.calls[f"{name}_backward"]
        torch.library.opcheck(operator, pytree.tree_map_only(Tensor, Tensor.detach, arguments))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.usefixtures("traced")
def test_a_library_operator_gives_what_the_autograd_function_gives(name):
    torch.manual_seed(0)
    wanted = CALLS[name]()
    torch.manual_seed(0)
    with Seen() as seen:
        found = CALLS[name]()
    assert name in seen.calls
    if name == "csc_of_relations":
        wanted, found = ([csc.indices for csc in cscs] for cscs in (wanted, found))
    elif isinstance(wanted, Tensor):
        wanted, found = [wanted], [found]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", [name for name in CALLS if f"{name}_backward" in NAMES])
@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True")
def test_second_derivatives_are_refused_where_the_incoming_gradients_are_constants(name):
    made = CALLS[name]()
    with pytest.raises(ConfigError, match="no second derivatives, and create_graph=True asks for them"):
        sum(out.sum() for out in (made if isinstance(made, tuple) else (made,))).backward(create_graph=True)


def test_a_plain_call_meets_no_library_operator(monkeypatch):
    """Which would cost it several times what the autograd function does (decision 0005)."""
    monkeypatch.setattr("graphbraid.ops.library._flat", lambda *_: pytest.fail("took arguments apart"))
    for call in CALLS.values():
        call()
        with Seen() as seen:  # a mode that is no tracer
            call()
        assert not seen.calls


def test_an_adjacency_whose_arrays_changed_is_checked_and_transposed_anew():
    indptr, indices = CSC.indptr.clone(), CSC.indices.clone()

    def call():
        return torch.ops.graphbraid.spmm_max(rows(12, 4), None, indptr, indices, 12, TIES.index("shared"))

    call().sum().backward()
    indices[0] = (indices[0] + 1) % 12
    x = rows(12, 4)
    torch.testing.assert_close(
        call(), ops.spmm(Csc(indptr.clone(), indices.clone(), 12), x, "max"), rtol=0, atol=0
    )
    indices[0] = 10**9
    with pytest.raises(ValueError, match="indices must be source nodes"):
        call()


TWINS = [name for name, value in vars(reference).items() if inspect.isfunction(value)]
NOT_COMPILED = {"gather_tiered", "pipelined_sum", "sum_dtype"}
"""Twins of kernels that run on devices alone; and what says in which dtype all of them sum."""


@pytest.mark.parametrize("name", [name for name in TWINS if name not in NOT_COMPILED])
@needs_kernels
def test_a_compiled_entry_takes_what_its_twin_takes(name):
    twin, entry = getattr(reference, name), getattr(native.kernels(), name)
    parameters = inspect.signature(twin).parameters
    defaults = [one.default is not one.empty for one in parameters.values()]
    assert [(argument, " = " in kind) for argument, kind in arguments_of(entry)] == [
        *zip(parameters, defaults, strict=True)
    ]
    kinds = {name: kind_of(hint) for name, hint in typing.get_type_hints(twin, include_extras=True).items()}
    arrays = {argument.name: argument for argument in array_arguments(entry)}
    assert {name for name, kind in kinds.items() if kind} == set(arrays)
    for argument, array in arrays.items():
        dtypes = {getattr(torch, dtype) for dtype in array.dtypes}
        assert (array.dimensions, dtypes) == (kinds[argument].dimensions, {*kinds[argument].dtypes}), argument


def kind_of(hint):
    """The kind in an annotation that is one, or one or None."""
    for one in (hint, *typing.get_args(hint)):
        found = [kind for kind in getattr(one, "__metadata__", ()) if isinstance(kind, Kind)]
        if found:
            return found[0]
    return None


def test_triton_launchers_take_what_their_twins_take():
    pytest.importorskip("triton", reason=NO_TRITON)
    kernels = importlib.import_module("graphbraid.ops.triton")
    launchers = {name for name, value in vars(kernels).items() if inspect.isfunction(value)}
    assert len(launchers) > 25
    assert launchers <= set(TWINS)
    for name in launchers:
        own, twin = (inspect.signature(getattr(module, name)).parameters for module in (kernels, reference))
        assert [(p.name, p.default) for p in own.values()] == [(p.name, p.default) for p in twin.values()]

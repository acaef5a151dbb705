"""The calls that reach every compiled kernel: each draws its inputs, then runs forward and backward.

The sampler's draws and the block model's are compared bit by bit in the tests, on sizes of their own.
"""

from collections.abc import Callable

import torch
from tests.fuzz.kernel_inputs import Inputs
from tests.ops.bits import packed
from torch import Tensor

from graphbraid import ops
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.loader import NeighborLoader
from graphbraid.nn.gcn import gcn_norm
from graphbraid.ops.attention import both_ways, dot_attention
from graphbraid.ops.binary import bit_gram, bit_product
from graphbraid.ops.distances import distances
from graphbraid.ops.epilogue import ACTIVATION_CODES
from graphbraid.ops.gather import places_of, spread_rows
from graphbraid.ops.gram_rounds import GramRounds, rounds_of
from graphbraid.ops.kernels import ROW_DTYPES, backend
from graphbraid.ops.library import RowEpilogue
from graphbraid.ops.linear import tall_gram, tall_product, transpose
from graphbraid.ops.message_kernel import FusedMessages, aggregate_steps
from graphbraid.ops.message_steps import MessageOp, MessageStep
from graphbraid.ops.messages import REDUCTIONS, EdgeGradients, EdgeRows
from graphbraid.ops.reference import DISTANCES

Results = dict[str, Tensor | None]
Call = Callable[[], Results]
CALLS: dict[str, Callable[[Inputs], Call]] = {}


def _call(make: Callable[[Inputs], Call]) -> Callable[[Inputs], Call]:
    CALLS[make.__name__.strip("_")] = make
    return make


def _both_ways(inputs: Inputs, run: Callable[[], Tensor], **leaves: Tensor | None) -> Call:
    """The result of ``run``, and the gradients of ``leaves`` for a random one of the result."""

    def call() -> Results:
        out = run()
        given = {name: leaf for name, leaf in leaves.items() if leaf is not None and leaf.requires_grad}
        if not out.requires_grad:
            return {"result": out}
        grad = inputs.normal(*out.shape, dtype=out.dtype)
        found = torch.autograd.grad(out, list(given.values()), grad, allow_unused=True)
        return {"result": out} | {f"gradient of {n}": g for n, g in zip(given, found, strict=True)}

    return call


def _sums(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


@_call
def spmm(i: Inputs) -> Call:
    csc, dtype = i.csc(), i.dtype()
    x, reduce = i.rows(csc.num_src, i.width(), dtype), i.one_of("", ("sum", "mean", "max"))
    weight = i.normal(csc.num_edges, dtype=_sums(dtype)).requires_grad_() if i.maybe("weights") else None
    return _both_ways(i, lambda: ops.spmm(csc, x, reduce, weight=weight), x=x, weight=weight)


def _aggregation(i: Inputs, csc: Csc) -> ops.Aggregation:
    sizes = {"weight": csc.num_edges, "src_scale": csc.num_src, "dst_scale": csc.num_dst}
    factors = {name: i.normal(size) for name, size in sizes.items() if i.maybe(name, 0.4)}
    loop_scale = i.one_of("loops times", (0.0, 1.0, -0.5))
    if loop_scale and i.maybe("loop factors"):
        factors["loop"] = i.normal(min(csc.num_src, csc.num_dst))
    skip = i.maybe("no stored loops", 0.3)
    return ops.Aggregation(csc=csc, mean=i.maybe("mean"), loop_scale=loop_scale, skip_loops=skip, **factors)


@_call
def aggregate(i: Inputs) -> Call:
    csc, dtype, width, wide = i.csc(), i.dtype(), i.width(), i.maybe("wide")
    how, x = _aggregation(i, csc), i.rows(csc.num_src, width, dtype)
    addend = None
    if i.maybe("an addend", 0.4):
        addend = i.rows(csc.num_dst // 2, width, _sums(dtype) if wide else dtype)
    return _both_ways(i, lambda: ops.aggregate(how, x, addend=addend, wide=wide), x=x, addend=addend)


def _epilogue(i: Inputs, width: int, dtype: torch.dtype) -> RowEpilogue:
    act = i.one_of("then", sorted(ACTIVATION_CODES))
    bias = i.normal(width, dtype=_sums(dtype)) if i.maybe("bias") else None
    p = i.one_of("dropping", (0.0, 0.3))
    return RowEpilogue(bias, ACTIVATION_CODES[act], 0.01, p, 1234567, None)


@_call
def aggregate_and_more(i: Inputs) -> Call:
    csc, dtype, width = i.csc(), i.dtype(), i.width()
    how, x, after = _aggregation(i, csc), i.rows(csc.num_src, width, dtype), _epilogue(i, width, dtype)
    grad = i.rows(csc.num_dst, width, dtype).detach()
    return lambda: {"result": how.forward(x, after=after), "transposed": how.backward(grad)}


@_call
def maximum(i: Inputs) -> Call:
    """The maximum, its gradient to the first of equals, as the whole graph's engine may ask, and to all."""
    csc, dtype, width, ties = i.csc(), i.dtype(), i.width(), i.one_of("ties", (0, 1, 2))
    is_weighted = i.maybe("weights", 0.3)
    dtype = _sums(dtype) if is_weighted else dtype  # where messages are rounded, equals are lost
    x, grad = i.normal(csc.num_src, width, dtype=dtype), i.normal(csc.num_dst, width, dtype=dtype)
    if i.maybe("equals", 0.4):
        x = x.round()
    weight = i.normal(csc.num_edges, dtype=dtype) if is_weighted else None

    def call() -> Results:
        to = backend(x)
        out, found = torch.empty_like(grad), torch.empty(grad.shape, dtype=torch.int32)
        shares = torch.empty_like(x)
        if not out.numel() or not x.numel():
            return {}
        to.spmm_max(csc.indptr, csc.indices, x, weight, ties, out, found)
        reverse, perm = csc.transpose()
        turned = None if weight is None else weight[perm]
        edges = (reverse.indptr, reverse.indices)
        if ties == 0:
            to.spmm_max_backward(*edges, perm, csc.indptr, grad, turned, found, shares)
        else:
            to.spmm_max_shared_backward(*edges, grad, turned, out, x, shares)
        return {"largest": out, "found": found, "gradient": shares}

    return call


@_call
def aggregate_linear(i: Inputs) -> Call:
    csc, dtype, width, out = i.csc(), i.dtype(), i.width("in"), i.width("out")
    how = _aggregation(i, csc)
    x = i.rows(csc.num_src, width, dtype)
    weight = i.rows(out, width, dtype)
    root = i.rows(out, width, dtype) if i.maybe("root") and csc.num_dst <= csc.num_src else None
    i.terms *= max(width, 1)
    run = lambda: ops.aggregate_linear(how, x, weight, root)  # noqa: E731
    return _both_ways(i, run, x=x, weight=weight, root=root)


@_call
def aggregate_linear_of_sparse(i: Inputs) -> Call:
    csc, width, out = i.csc(), i.width("in"), i.width("out")
    how, x, weight = _aggregation(i, csc), i.sparse(csc.num_src, width), i.rows(out, width, torch.float32)
    i.terms *= max(width, 1)
    return _both_ways(i, lambda: ops.aggregate_linear(how, x, weight), weight=weight)


@_call
def dense_linear(i: Inputs) -> Call:
    dtype, width, out = i.dtype(), i.width("in"), i.width("out")
    x, weight = i.rows(i.count(), width, dtype), i.rows(out, width, dtype)
    bias = i.normal(out, dtype=dtype).requires_grad_() if i.maybe("bias") else None
    return _both_ways(i, lambda: ops.dense_linear(x, weight, bias), x=x, weight=weight, bias=bias)


@_call
def products(i: Inputs) -> Call:
    count, depth, width = i.count(), i.width("depth"), i.width()
    a, b, c = (
        i.rows(*shape, torch.float32).detach() for shape in ((count, depth), (depth, width), (count, width))
    )
    ids = i.below(count, count) if count and i.maybe("chosen rows", 0.3) else None
    after = _epilogue(i, width, torch.float32)
    return lambda: {"product": tall_product(a, b, ids=ids, after=after), "gram": tall_gram(a, c, ids=ids)}


@_call
def transposed(i: Inputs) -> Call:
    count, width = i.count(), i.width()
    rows = i.rows(count, width, torch.float32).detach()
    return lambda: {"transposed": transpose(rows, out=torch.empty(width, count))}


@_call
def gram_in_rounds(i: Inputs) -> Call:
    count = i.count()
    a, b = (i.rows(count, i.width(name), torch.float32).detach() for name in ("height", "width"))
    most = i.one_of("rows of a round", (1, 20, 1000))

    def call() -> Results:
        gram = GramRounds(a, b.shape[1])
        for part in rounds_of(len(a), most):
            gram.add(part, b[part.ids()])
        return {"gram": gram.out}

    return call


@_call
def bit_products(i: Inputs) -> Call:
    count, depth, width = i.count(), i.width("depth"), i.width()
    x = (i.normal(count, depth) > 0.5).float()
    factors = i.normal(count) if i.maybe("factors") else None
    b, a = i.normal(depth, width), i.normal(count, width)
    into, add, after = i.normal(count, width), i.maybe("added"), _epilogue(i, width, torch.float32)
    bits, rows = packed(x), packed(x.t())
    return lambda: {
        "product": bit_product(bits, b, out=into.clone(), factors=factors, add=add, after=after),
        "gram": bit_gram(a, rows, out=torch.empty(width, depth), factors=factors),
    }


@_call
def sparse_linear(i: Inputs) -> Call:
    width, out = i.width("in"), i.width("out")
    x, weight = i.sparse(i.count(), width), i.rows(out, width, torch.float32)
    return _both_ways(i, lambda: ops.sparse_linear(x, weight), weight=weight)


@_call
def sparse_features(i: Inputs) -> Call:
    x, p = i.sparse(i.count(), i.width()), i.one_of("dropping", (0.0, 0.4))

    def call() -> Results:
        dropped: SparseFeatures = ops.sparse_dropout(x, p, training=True)
        return {"values": dropped.values, "indices": dropped.indices, "dense": x.to_dense()}

    return call


@_call
def bias_act_dropout(i: Inputs) -> Call:
    dtype, width = i.dtype(), i.width()
    x = i.rows(i.count(), width, dtype)
    bias = i.normal(width, dtype=dtype).requires_grad_() if i.maybe("bias") else None
    act, p = i.one_of("", sorted(ACTIVATION_CODES)), i.one_of("dropping", (0.0, 0.5))
    return _both_ways(i, lambda: ops.bias_act_dropout(x, bias, act, p), x=x, bias=bias)


@_call
def gather_rows(i: Inputs) -> Call:
    dtype, count = i.one_of("", (*ROW_DTYPES, torch.int64, torch.uint8)), i.count()
    x = i.normal(count, i.width()).mul(40).to(dtype)
    ids = i.below(count, i.count("ids") if count else 0)
    return lambda: {"result": ops.gather_rows(x, ids)}


@_call
def gather_as_float(i: Inputs) -> Call:
    x = i.rows(i.count(), i.width(), i.one_of("", (torch.float16, torch.bfloat16)))
    ids = i.below(len(x), i.count("ids") if len(x) else 0)
    return lambda: {"result": ops.gather_rows(x, ids, dtype=torch.float32)}


@_call
def gather_scaled(i: Inputs) -> Call:
    x = i.normal(i.count(), i.width()).mul(40).to(torch.int8)
    ids, scale = i.below(len(x), i.count("ids") if len(x) else 0), i.normal(len(x))
    return lambda: {"result": ops.gather_rows(x, ids, scale=scale)}


@_call
def _spread_rows(i: Inputs) -> Call:
    count, num_out = i.count(), i.count("outputs")
    rows = i.normal(count, i.width())
    chosen = i.normal(num_out).argsort()[:count]
    places = places_of(chosen, num_out)

    def call() -> Results:
        out = torch.full((num_out, rows.shape[1]), torch.nan)
        spread_rows(rows, places, out)
        return {"result": out}

    return call


@_call
def _drop_values(i: Inputs) -> Call:
    csc = i.csc()
    given, places = i.normal(csc.num_edges), i.normal(csc.num_edges).argsort()
    nodes = i.below(1 << 40, csc.num_dst)

    def call() -> Results:
        by_row, by_column = torch.full((2, csc.num_edges), torch.nan)
        where = places, 0.4, 11, by_row, by_column, nodes
        backend(given).drop_values(csc.indptr, csc.indices, given, *where)
        return {"by row": by_row, "by column": by_column}

    return call


@_call
def edge_softmax(i: Inputs) -> Call:
    csc, dtype = i.csc(), i.dtype()
    logits = i.rows(csc.num_edges, i.one_of("heads", (1, 2, 3, 8, 17)), dtype)
    return _both_ways(i, lambda: ops.edge_softmax(csc, logits), logits=logits)


@_call
def gat_attention(i: Inputs) -> Call:
    csc, dtype, heads = i.csc(), i.dtype(), i.one_of("heads", (1, 2, 3, 8))
    channels = i.one_of("channels", (1, 3, 8, 16, 33))
    i.cancels(dtype, channels)
    x = i.rows(csc.num_src, heads * channels, dtype)
    src, dst = i.rows(csc.num_src, heads, torch.float32), i.rows(csc.num_dst, heads, torch.float32)
    loops, p = i.maybe("self-loops"), i.one_of("dropping", (0.0, 0.4))
    run = lambda: ops.gat_attention(csc, x, src, dst, self_loops=loops, dropout=p)  # noqa: E731
    return _both_ways(i, run, x=x, src=src, dst=dst)


@_call
def gatv2_attention(i: Inputs) -> Call:
    csc, dtype, heads = i.csc(), i.dtype(), i.one_of("heads", (1, 2, 3, 8))
    channels = i.one_of("channels", (1, 3, 8, 16, 33))
    i.cancels(dtype, channels)
    x_src, x_dst = (i.rows(n, heads * channels, dtype) for n in (csc.num_src, csc.num_dst))
    att = i.normal(heads, channels, dtype=_sums(dtype)).requires_grad_()
    loops, p = i.maybe("self-loops"), i.one_of("dropping", (0.0, 0.4))
    run = lambda: ops.gatv2_attention(csc, x_src, x_dst, att, self_loops=loops, dropout=p)  # noqa: E731
    return _both_ways(i, run, x_src=x_src, x_dst=x_dst, att=att)


@_call
def gatv2_of_edge_features(i: Inputs) -> Call:
    """GATv2 with features of edges, as the whole graph's engine asks for it."""
    csc, dtype, heads = i.csc(), i.dtype(), i.one_of("heads", (1, 2, 3, 8))
    channels, features = i.one_of("channels", (1, 3, 8, 16, 33)), i.one_of("features", (1, 3, 4, 9))
    i.cancels(dtype, channels)
    i.terms *= 1 + features
    width, sums = heads * channels, _sums(dtype)
    x = [i.rows(n, width, dtype).detach().contiguous() for n in (csc.num_src, csc.num_dst)]
    inputs = [*x, i.normal(heads, channels, dtype=sums)]
    num_loops = min(csc.num_src, csc.num_dst) if i.maybe("self-loops") else 0
    how = (0.2, num_loops, i.one_of("dropping", (0.0, 0.4)), 1234567)
    of_edges = {
        "edge_features": i.normal(csc.num_edges, features, dtype=sums),
        "loop_features": i.normal(num_loops, features, dtype=sums),
        "edge_weight": i.normal(features, width, dtype=sums),
    }
    grad = i.normal(csc.num_dst, width, dtype=dtype)

    def call() -> Results:
        to = backend(x[0])
        out, lse = torch.empty_like(x[1]), torch.empty(csc.num_dst, heads, dtype=sums)
        to.gatv2_forward(csc.indptr, csc.indices, *inputs, *how, out, lse, **of_edges)
        grads = [torch.empty_like(t) for t in (*inputs, of_edges["edge_weight"])]
        ways = both_ways(csc)
        after = (out, lse, grad, *grads[:3])
        to.gatv2_backward(*ways, *inputs, *how, *after, **of_edges, grad_edge_weight=grads[3])
        names = ("sources", "destinations", "att", "map")
        return {"result": out} | {f"gradient of {n}": g for n, g in zip(names, grads, strict=True)}

    return call


@_call
def attention_of_dot_products(i: Inputs) -> Call:
    csc, dtype = i.csc(), i.one_of("", (torch.float32, torch.float64))
    heads, channels = i.one_of("heads", (1, 2, 3, 4, 8, 17)), i.one_of("channels", (1, 3, 8, 16, 33))
    i.cancels(dtype, channels)
    query, key, value = (i.rows(n, heads * channels, dtype) for n in (csc.num_dst, csc.num_src, csc.num_src))
    run = lambda: dot_attention(csc, query, key, value, heads)  # noqa: E731
    return _both_ways(i, run, query=query, key=key, value=value)


@_call
def attention_to_features_of_edges(i: Inputs) -> Call:
    """Dot products of rows to which a linear map of edges' numbers is added."""
    csc, op, heads = i.csc(), MessageOp, i.one_of("heads", (1, 2, 3, 4, 8, 17))
    width = heads * i.one_of("channels", (1, 3, 8, 16, 33))
    i.cancels(torch.float32, width)
    key, query, weight = i.normal(csc.num_src, width), i.normal(csc.num_dst, width), i.normal(width, 2)
    steps = [(op.EDGE_NUMBER, 0, 0), (op.PARAMETER, 0, 1), (op.MULTIPLY, 0, 1)]
    steps += [(op.EDGE_NUMBER, 1, 0), (op.PARAMETER, 0, 2), (op.MULTIPLY, 3, 4), (op.ADD, 2, 5)]
    steps += [(op.SOURCE, 0, 0), (op.ADD, 7, 6), (op.DESTINATION, 0, 0), (op.MULTIPLY, 8, 9)]
    steps += [(op.SUM_COLUMNS, 10, 0), (op.SOFTMAX, 11, 0), (op.MULTIPLY, 8, 12)]
    given = {"edges": (i.normal(csc.num_edges, 2),), "width": width, "heads": heads}
    leaves = {"key": key, "query": query, "weight": weight}
    for one in leaves.values():
        one.requires_grad_()
    given |= {"sources": (key,), "destinations": (query,), "parameters": (weight,)}
    return _both_ways(
        i, lambda: aggregate_steps(csc, [MessageStep(*s, 0.0) for s in steps], **given), **leaves
    )


@_call
def sddmm(i: Inputs) -> Call:
    csc, dtype, width = i.csc(), i.dtype(), i.width()
    dst, src = i.rows(csc.num_dst, width, dtype), i.rows(csc.num_src, width, dtype)
    return _both_ways(i, lambda: ops.sddmm(csc, dst, src), dst=dst, src=src)


@_call
def distances_of_rows(i: Inputs) -> Call:
    dtype, kind, width = i.one_of("", ROW_DTYPES), i.one_of("kind", DISTANCES), 2 * i.width()
    query, rows = i.rows(i.count("queries"), width, dtype), i.rows(i.count(), width, dtype)
    if dtype in (torch.bfloat16, torch.float16):
        i.coarsest = dtype
    return _both_ways(i, lambda: distances(query, rows, kind), query=query, rows=rows)


@_call
def gine(i: Inputs) -> Call:
    csc, dtype, width, loop_scale = i.csc(), i.dtype(), i.width(), i.one_of("loops times", (0.0, 1.0, 1.5))
    x, rows = i.rows(csc.num_src, width, dtype), i.rows(csc.num_edges, width, dtype)
    return _both_ways(i, lambda: ops.gine(csc, x, rows, loop_scale=loop_scale), x=x, edges=rows)


@_call
def aggregate_messages(i: Inputs) -> Call:
    """A user's message on blocks of edges."""
    csc, width, dtype = i.csc(), i.width(), i.one_of("", (torch.float32, torch.float64))
    x, y = i.rows(csc.num_src, width, dtype), i.rows(csc.num_dst, width, dtype)
    rows, reduction = i.rows(csc.num_edges, width, dtype), i.one_of("", REDUCTIONS)

    def run() -> Tensor:
        def message(x_j: Tensor, y_i: Tensor, edge: Tensor) -> Tensor:
            return torch.sigmoid(y_i) * x_j + edge

        how = {"sources": [x], "destinations": [y], "edges": [rows], "reduction": reduction}
        return ops.aggregate_messages(csc, message, **how)

    return _both_ways(i, run, x=x, y=y, edges=rows)


@_call
def message_steps(i: Inputs) -> Call:
    """A message of steps in one kernel, forward and backward."""
    csc, width, op = i.csc(), max(i.width(), 1), MessageOp
    x, y, factor = i.normal(csc.num_src, width), i.normal(csc.num_dst, width), i.normal(width)
    steps = [(op.SOURCE, 0, 0), (op.DESTINATION, 0, 0), (op.PARAMETER, 0, 0)]
    steps += [(op.ADD, 0, 1), (op.TANH, 3, 0), (op.MULTIPLY, 4, 2), (op.MULTIPLY, 5, 0)]
    made = [MessageStep(*step, 0.0) for step in steps]
    how = FusedMessages(csc, made, i.one_of("", ("sum", "mean")), width, parameters=[factor])
    rows, grad = EdgeRows(sources=(x,), destinations=(y,)), i.normal(csc.num_dst, width)

    def call() -> Results:
        out, found = torch.empty(csc.num_dst, width), [torch.zeros_like(t) for t in (x, y, factor)]
        how.forward(rows, out)
        into = EdgeGradients(sources=(found[0],), destinations=(found[1],), parameters=(found[2],))
        how.backward(rows, grad, into)
        return dict(zip(("result", "of x", "of y", "of factor"), (out, *found), strict=True))

    return call


@_call
def layer_norm(i: Inputs) -> Call:
    dtype, width = i.dtype(), i.width()
    x = i.rows(i.count(), width, dtype)
    weight, bias = (
        i.normal(width, dtype=dtype).requires_grad_() if i.maybe(name) else None
        for name in ("weight", "bias")
    )
    return _both_ways(i, lambda: ops.layer_norm(x, weight, bias), x=x, weight=weight, bias=bias)


@_call
def cross_entropy(i: Inputs) -> Call:
    count, width = max(i.count(), 1), max(i.width(), 1)
    logits = i.rows(count, width, i.dtype())
    weight = i.normal(width, dtype=logits.dtype).abs() + 0.1 if i.maybe("weight") else None
    labels = i.below(width, count).where(i.below(3, count) > 0, -100)
    labels[0] = 0  # a row that counts: the mean of none is NaN by both
    return _both_ways(i, lambda: ops.cross_entropy(logits, labels, weight), logits=logits)


@_call
def batch_norm(i: Inputs) -> Call:
    dtype, width, training = i.dtype(), i.width(), i.maybe("training", 0.7)
    x = i.rows(i.count(), width, dtype)
    weight, bias = (
        i.normal(width, dtype=dtype).requires_grad_() if i.maybe(name) else None
        for name in ("weight", "bias")
    )
    mean, var = i.normal(width), i.normal(width).abs() + 0.5
    training = training and x.shape[0] > 1  # one row has no variance
    inner = _both_ways(
        i,
        lambda: ops.batch_norm(x, mean, var, weight, bias, training=training),
        x=x,
        weight=weight,
        bias=bias,
    )
    return lambda: inner() | {"running mean": mean, "running variance": var}


@_call
def gcn_scale(i: Inputs) -> Call:
    csc, loops, improved = i.csc(), i.maybe("self-loops"), i.maybe("improved")

    def call() -> Results:
        drawn = Csc(csc.indptr, csc.indices, csc.num_src)  # a Csc keeps its factors
        how = gcn_norm(drawn, add_self_loops=loops, improved=improved)
        return {
            "sources": how.src_scale,
            "destinations": how.dst_scale,
            "skips": torch.tensor(how.skip_loops),
        }

    return call


@_call
def topology(i: Inputs) -> Call:
    csc = i.csc(weighted=True)
    weight = csc.weight

    def call() -> Results:
        transposed, perm = csc.transpose()
        ordered, place = csc.sort_rows()
        again, order = coo_to_csc(csc.indices, csc.destinations(), csc.num_src, csc.num_dst)
        rising, _ = coo_to_csc(ordered.indices, ordered.destinations(), csc.num_src, csc.num_dst)
        parts = {"transposed": transposed, "sorted": ordered, "again": again, "rising": rising}
        parts["reversed"] = csc.reversed()
        found: Results = {"permutation": perm, "place": place, "order": order, "weight": weight}
        for name, part in parts.items():
            found |= {f"{name} indptr": part.indptr, f"{name} indices": part.indices}
        return found

    return call


@_call
def edges(i: Inputs) -> Call:
    csc = i.csc(square=True, weighted=True)
    combine = i.one_of("weights by", ("sum", "mean", "max", "first"))
    keep = i.maybe("ids kept")

    def call() -> Results:
        graph = Graph(csc=csc)
        made = {
            "with loops": graph.with_self_loops(weight=2.0, keep_edge_id=keep),
            "without loops": graph.without_self_loops(keep_edge_id=keep),
            "merged": graph.without_duplicates(weights=combine, keep_edge_id=keep),
            "both ways": graph.symmetrized(keep_edge_id=keep),
        }
        found: Results = {}
        for name, part in made.items():
            found |= {f"{name} indptr": part.csc.indptr, f"{name} indices": part.csc.indices}
            found |= {f"{name} weights": part.csc.weight, f"{name} ids": part.edge_id}
        return found

    return call


@_call
def batches(i: Inputs) -> Call:
    csc = i.csc(square=True, weighted=True)
    width = i.one_of("width", (0, 1, 8, 33))
    graph = Graph(csc=csc, x=i.normal(csc.num_dst, width)) if width else Graph(csc=csc)
    options = {
        "batch_size": i.one_of("seeds", (1, 7, 64)),
        "replace": i.maybe("replace"),
        "layout": i.one_of("", ("subgraph", "blocks")),
        "shuffle": i.maybe("shuffled"),
        "num_workers": i.one_of("threads", (1, 3)),
        "seed": i.numbers.randrange(2**40),
    }
    if csc.weight is not None and i.maybe("by weight"):
        options["weight_attr"] = "edge_weight"
    least = 0 if options["replace"] else -1
    fanouts = [i.one_of("fanout", (least, 1, 2, 5, 30)) for _ in range(i.one_of("hops", (1, 2, 3)))]

    def call() -> Results:
        found: Results = {}
        if not csc.num_dst:
            return found
        with NeighborLoader(graph, fanouts, **options) as loader:
            for step, batch in enumerate(loader.batches(1)):
                found |= {f"{step} nodes": batch.n_id, f"{step} seeds": batch.input_id}
                found |= {f"{step} rows": batch.x} if width else {}
                for hop, block in enumerate(batch.blocks):
                    found |= {f"{step} indptr {hop}": block.indptr, f"{step} indices {hop}": block.indices}
                    found |= {f"{step} weights {hop}": block.weight}
        return found

    return call

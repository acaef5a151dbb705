"""CallWriter: the recorded kernels as lines of C++, with their arguments in the form of runtime/kernels.h."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.fullgraph import NotLoweredError
from graphbraid.fullgraph.step.operations.row_exchange import RowExchange
from graphbraid.ops.dropout import RowEpilogue
from graphbraid.synth.emit.memory import Memory
from graphbraid.synth.emit.recorded import RecordedTask


@dataclass(frozen=True, slots=True)
class Written:
    """A call as lines of C++."""

    kernel: str
    """Its name in the record."""
    lines: list[str]


class CallWriter:
    """Writes the calls of one step; masks of dropout get their seeds in the order of their first use."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.seeds: list[int] = []
        self.kernels: set[str] = set()
        """Names of the kernels that were written."""
        self.exchanges = Exchanges()
        """The exchanges between ranks that were written."""

    def written(self, task: RecordedTask) -> list[Written]:
        """Return the calls of a task as statements.

        Raises:
            NotLoweredError: a kernel that the target does not have.
        """
        found: list[Written] = []
        for name, arguments in task.calls:
            write = self.writer_of(name)
            if write is None:
                what = (
                    f"the task {task.name!r} needs the kernel {name}, which synthesised programs do not have"
                )
                raise NotLoweredError("synthesis", what, "layers of GCN, SAGE, GIN or GAT")
            self.kernels.add(name)
            found.append(Written(name, write(self, task.at, *arguments)))
        return found

    def writer_of(self, name: str) -> Callable[..., list[str]] | None:
        """Return what writes the calls of a kernel; None if the target does not have it."""
        return _WRITERS.get(name)

    # ---- parts of arguments

    def seed(self, p: float, seed: Any) -> str:
        """Return a mask's seed."""
        if p == 0:
            return "0"
        if int(seed) not in self.seeds:
            self.seeds.append(int(seed))
        return f"seeds[{self.seeds.index(int(seed))}]"

    def epilogue(self, at: int, how: RowEpilogue) -> str:
        """Return an epilogue."""
        bias, ids = self.memory.pointer(how.bias, at, "bias"), self.memory.pointer(how.ids, at, "nodes")
        numbers = f"{how.act}, {how.slope!r}, {how.p!r}, {self.seed(how.p, how.seed)}"
        return f"row_epilogue({bias}, {numbers}, {ids})"

    def edges(self, indptr: Tensor, indices: Tensor) -> str:
        """Return the edges into some rows."""
        wide = cpp_bool(indices.itemsize == 8)
        ends, ids = self.memory.array(indptr, "indptr"), self.memory.array(indices, "indices")
        counts = f"{indptr.numel() - 1}, {indices.numel()}"
        return f"Edges{{{ends}.int64s(), {ids}.values(), {wide}, {counts}}}"

    def after(self, at: int, how: RowEpilogue | None) -> tuple[list[str], str]:
        """Return the statement that makes an epilogue, and a pointer to it."""
        if how is None:
            return [], "nullptr"
        return [f"const gb::Epilogue after = {self.epilogue(at, how)};"], "&after"


def cpp_bool(value: bool) -> str:
    """Return a truth value in C++."""
    return "true" if value else "false"


def write_spmm(w: CallWriter, at: int, indptr: Tensor, indices: Tensor, x: Tensor, *rest: Any) -> list[str]:
    """Write an aggregation."""
    weight, src, dst, loop, loop_scale, num_loops, skip_loops, mean, addend, out, after = rest
    names = ("weight", "src_scale", "dst_scale", "loop")
    given = zip((weight, src, dst, loop), names, strict=True)
    factors = ", ".join(w.memory.pointer(factor, at, name) for factor, name in given)
    made, pointer = w.after(at, after)
    numbers = f"{loop_scale!r}, {num_loops}, {cpp_bool(skip_loops)}, {cpp_bool(mean)}"
    m = w.memory
    call = (
        f"spmm({w.edges(indptr, indices)}, {m.matrix(x, at)}, Factors{{{factors}}}, {numbers}, "
        f"{m.matrix(addend, at)}, {m.matrix(out, at)}, {pointer});"
    )
    return [*made, call]


def _tall_product(w: CallWriter, at: int, a: Tensor, b: Tensor, out: Tensor, *rest: Any) -> list[str]:
    add, ids, after = rest
    m, (made, pointer) = w.memory, w.after(at, after)
    matrices = f"{m.matrix(a, at)}, {m.matrix(b, at)}, {m.matrix(out, at)}"
    return [*made, f"tall_product({matrices}, {cpp_bool(add)}, {m.pointer(ids, at, 'nodes')}, {pointer});"]


def _tall_gram(w: CallWriter, at: int, a: Tensor, b: Tensor, *rest: Any) -> list[str]:
    out, ids = rest
    m = w.memory
    m.make(out, "gram")
    matrices = f"{m.matrix(a, at)}, {m.matrix(b, at)}, {m.matrix(out, at)}"
    return [f"tall_gram({matrices}, {m.pointer(ids, at, 'nodes')});"]


def _bit_product(w: CallWriter, at: int, bits: Tensor, *rest: Any) -> list[str]:
    factors, b, out, add, after = rest
    m, (made, pointer) = w.memory, w.after(at, after)
    read = f"{m.pointer(bits, at, 'bits')}, {m.pointer(factors, at, 'factors')}, {m.matrix(b, at)}"
    return [*made, f"bit_product({read}, {m.matrix(out, at)}, {cpp_bool(add)}, {pointer});"]


def _bit_gram(w: CallWriter, at: int, a: Tensor, bits: Tensor, *rest: Any) -> list[str]:
    factors, out = rest
    m = w.memory
    m.make(out, "gram")
    read = f"{m.matrix(a, at)}, {m.pointer(bits, at, 'bits')}, {m.pointer(factors, at, 'factors')}"
    return [f"bit_gram({read}, {m.matrix(out, at)});"]


def _epilogue(w: CallWriter, at: int, x: Tensor, *rest: Any) -> list[str]:
    bias, act, slope, p, seed, out, ids = rest
    how = w.epilogue(at, RowEpilogue(bias, act, slope, p, seed, ids))
    return [f"epilogue({w.memory.matrix(x, at)}, {how}, {w.memory.matrix(out, at)});"]


def _epilogue_backward(w: CallWriter, at: int, grad: Tensor, out: Tensor, *rest: Any) -> list[str]:
    act, slope, p, seed, grad_x, grad_bias, ids = rest
    m, how = w.memory, w.epilogue(at, RowEpilogue(None, act, slope, p, seed, ids))
    matrices = f"{m.matrix(grad, at)}, {m.matrix(out, at)}, {how}, {m.matrix(grad_x, at)}"
    return [f"epilogue_backward({matrices}, {m.pointer(grad_bias, at, 'gradient')});"]


def _spmm_max(w: CallWriter, at: int, indptr: Tensor, indices: Tensor, x: Tensor, *rest: Any) -> list[str]:
    _, ties, out, found = rest
    m = w.memory
    rows = f"{m.matrix(x, at)}, {ties}, {m.matrix(out, at)}"
    return [f"spmm_max({w.edges(indptr, indices)}, {rows}, {m.pointer(found, at, 'winners')});"]


def _spmm_max_back(
    w: CallWriter, at: int, indptr: Tensor, indices: Tensor, share: Tensor, *rest: Any
) -> list[str]:
    matrices = ", ".join(w.memory.matrix(given, at) for given in (share, *rest[1:]))
    return [f"spmm_max_shared_backward({w.edges(indptr, indices)}, {matrices});"]


def _zero(w: CallWriter, at: int, out: Tensor) -> list[str]:
    return [f"set_zero({w.memory.matrix(out, at)});"]


def _add(w: CallWriter, at: int, out: Tensor, x: Tensor) -> list[str]:
    return [f"add({w.memory.matrix(x, at)}, {w.memory.matrix(out, at)});"]


def _copy(w: CallWriter, at: int, out: Tensor, x: Tensor, *_: Any) -> list[str]:
    read = w.memory.matrix(x, at) if x.is_floating_point() else w.memory.pointer(x, at, "numbers")
    return [f"copy({read}, {w.memory.matrix(out, at)});"]


def _scale(w: CallWriter, at: int, x: Tensor, *rest: Any) -> list[str]:
    factor, out, add = rest
    m = w.memory
    given = f"{m.matrix(x, at)}, {m.pointer(factor, at, 'factor')}, {m.matrix(out, at)}, {cpp_bool(add)}"
    return [f"scale({given});"]


def _factor_gradient(w: CallWriter, at: int, grad: Tensor, x: Tensor, *rest: Any) -> list[str]:
    _, out = rest
    m = w.memory
    return [f"factor_gradient({m.matrix(grad, at)}, {m.matrix(x, at)}, {m.pointer(out, at, 'gradient')});"]


def _div(w: CallWriter, at: int, x: Tensor, divisor: Tensor, out: Tensor) -> list[str]:
    return [f"divide({', '.join(w.memory.matrix(given, at) for given in (x, divisor, out))});"]


# ---- attention of GAT and GATv2


def gat_forward(w: CallWriter, at: int, indptr: Tensor, indices: Tensor, *rest: Any) -> list[str]:
    """Write the forward kernel."""
    src, src_logit, dst_logit, slope, num_loops, p, seed, *written, first_keys, edge_logit = rest
    _refuse_edge_features(edge_logit)
    rows = _matrices(w, at, src, src_logit, dst_logit)
    how = _how(w, at, (slope, num_loops, p, seed), first_keys)
    return [f"gat_forward({w.edges(indptr, indices)}, {rows}, {how}, {_matrices(w, at, *written)});"]


def gat_backward(w: CallWriter, at: int, indptr: Tensor, indices: Tensor, *rest: Any) -> list[str]:
    """Write the kernel of the gradients."""
    t_indptr, t_indices, perm, src, src_logit, dst_logit, slope, num_loops, p, seed, *rest_ = rest
    *matrices, first_keys, edge_logit, _ = rest_
    _refuse_edge_features(edge_logit)
    ids = w.memory.pointer(perm, at, "edges")
    edges = f"{w.edges(indptr, indices)}, {w.edges(t_indptr, t_indices)}, {ids}"
    rows = _matrices(w, at, src, src_logit, dst_logit)
    how = _how(w, at, (slope, num_loops, p, seed), first_keys)
    return [f"gat_backward({edges}, {rows}, {how}, {_matrices(w, at, *matrices)});"]


def gatv2_forward(w: CallWriter, at: int, indptr: Tensor, indices: Tensor, *rest: Any) -> list[str]:
    """Write the forward kernel of attention that needs the rows of both ends."""
    src, dst, att, slope, num_loops, p, seed, out, lse, named = rest
    _refuse_edge_features(named.get("edge_features"))
    how = _how(w, at, (slope, num_loops, p, seed), named["first_keys"])
    rows, written = _matrices(w, at, src, dst, att), _matrices(w, at, out, lse)
    return [f"gatv2_forward({w.edges(indptr, indices)}, {rows}, {how}, {written});"]


def gatv2_backward(w: CallWriter, at: int, indptr: Tensor, indices: Tensor, *rest: Any) -> list[str]:
    """Write the kernel of its gradients."""
    t_indptr, t_indices, perm, src, dst, att, slope, num_loops, p, seed, *matrices, named = rest
    _refuse_edge_features(named.get("edge_features"))
    ids = w.memory.pointer(perm, at, "edges")
    edges = f"{w.edges(indptr, indices)}, {w.edges(t_indptr, t_indices)}, {ids}"
    how = _how(w, at, (slope, num_loops, p, seed), named["first_keys"])
    rows, written = _matrices(w, at, src, dst, att), _matrices(w, at, *matrices)
    return [f"gatv2_backward({edges}, {rows}, {how}, {written});"]


def spread_heads(w: CallWriter, at: int, vector: Tensor, out: Tensor) -> list[str]:
    """Write a vector of each head to its own rows and column."""
    w.memory.make(out, "heads")
    _, heads, channels = vector.shape
    numbers = w.memory.pointer(vector, at, "vector")
    return [f"spread_heads({numbers}, {heads}, {channels}, {w.memory.matrix(out, at)});"]


def own_heads(w: CallWriter, at: int, gram: Tensor, out: Tensor) -> list[str]:
    """Write the columns of each row's own head."""
    w.memory.make(out, "heads")
    return [f"own_heads({w.memory.matrix(gram, at)}, {w.memory.pointer(out, at, 'gradient')});"]


def mean_of_heads(w: CallWriter, at: int, by_head: Tensor, out: Tensor) -> list[str]:
    """Write the mean over heads."""
    return [f"mean_of_heads({_matrices(w, at, by_head, out)});"]


def repeat_heads(w: CallWriter, at: int, rows: Tensor, factor: float, out: Tensor) -> list[str]:
    """Write rows to every head's columns."""
    matrix = w.memory.matrix
    return [f"repeat_heads({matrix(rows, at)}, static_cast<float>({factor!r}), {matrix(out, at)});"]


def _matrices(w: CallWriter, at: int, *tensors: Tensor | None) -> str:
    return ", ".join(w.memory.matrix(tensor, at) for tensor in tensors)


def _how(w: CallWriter, at: int, numbers: tuple[Any, ...], keys: Tensor | None) -> str:
    slope, num_loops, p, seed = numbers
    drawn = w.seed(p, seed)
    return f"Attention{{{slope!r}, {num_loops}, {p!r}, {drawn}, {w.memory.pointer(keys, at, 'keys')}}}"


def _refuse_edge_features(logits: Tensor | None) -> None:
    if logits is not None:
        raise NotLoweredError("synthesis", "attention reads edge features", "a model without them")


# ---- batch and layer normalisation


def batch_statistics(w: CallWriter, at: int, x: Tensor, *rest: Any) -> list[str]:
    """Write the statistics: of the rows, which move the running ones, or the running ones themselves."""
    running_mean, running_var, training, momentum, eps, counted, moments, mean, rstd, from_rows = rest
    m = w.memory
    if running_mean is None or momentum is None:
        what = "batch normalisation without running statistics, or with their plain average"
        raise NotLoweredError("synthesis", what, "track_running_stats=True and a momentum")
    made = []
    for tensor, role in ((mean, "mean"), (rstd, "rstd")):
        m.make(tensor, role)
        made.append(m.pointer(tensor, at, role))
    running = f"{m.pointer(running_mean, at, 'mean')}, {m.pointer(running_var, at, 'variance')}"
    if not from_rows:
        return [f"running_statistics({running}, {x.shape[1]}, {eps!r}, {', '.join(made)});"]
    count = [f"++{m.counter(counted)};"] if training and counted is not None else []
    ranks = "" if moments is None else "ranks, "
    call = f"batch_statistics({ranks}{m.matrix(x, at)}, {running}, {momentum!r}, {eps!r}, {', '.join(made)});"
    return [*count, call]


def batch_norm(w: CallWriter, at: int, x: Tensor, *rest: Any) -> list[str]:
    """Write the normalisation of rows."""
    *vectors, out = rest
    matrix = w.memory.matrix
    return [f"batch_norm({matrix(x, at)}, {_pointers(w, at, *vectors)}, {matrix(out, at)});"]


def batch_norm_backward(w: CallWriter, at: int, grad: Tensor, x: Tensor, *rest: Any) -> list[str]:
    """Write the gradients."""
    *vectors, from_rows, grad_x, grad_weight, grad_bias = rest
    m, is_of_rows = w.memory, "true" if from_rows else "false"
    read = f"{m.matrix(grad, at)}, {m.matrix(x, at)}, {_pointers(w, at, *vectors)}, {is_of_rows}"
    written = f"{m.matrix(grad_x, at)}, {_pointers(w, at, grad_weight, grad_bias)}"
    return [f"batch_norm_backward({read}, {written});"]


def layer_norm(w: CallWriter, at: int, x: Tensor, *rest: Any) -> list[str]:
    """Write the normalisation of each row, which keeps its mean and reciprocal deviation for backward."""
    weight, bias, eps, out, *statistics = rest
    m = w.memory
    factors, kept = _pointers(w, at, weight, bias), _pointers(w, at, *statistics)
    return [f"layer_norm({m.matrix(x, at)}, {factors}, {eps!r}, {m.matrix(out, at)}, {kept});"]


def layer_norm_backward(w: CallWriter, at: int, grad: Tensor, x: Tensor, *rest: Any) -> list[str]:
    """Write the gradients."""
    weight, mean, rstd, grad_x, grad_weight, grad_bias = rest
    m = w.memory
    read = f"{m.matrix(grad, at)}, {m.matrix(x, at)}, {_pointers(w, at, weight, mean, rstd)}"
    written = f"{m.matrix(grad_x, at)}, {_pointers(w, at, grad_weight, grad_bias)}"
    return [f"layer_norm_backward({read}, {written});"]


def couple(w: CallWriter, at: int, _: Any, grad_x: Tensor, x: Tensor, *rest: Any) -> list[str]:
    """Write what completes the gradient of rows that several ranks normalise together."""
    statistics, weight, sums, scratch = rest
    matrices = ", ".join(w.memory.matrix(rows, at) for rows in (grad_x, x, scratch))
    return [f"couple(ranks, {matrices}, {_pointers(w, at, *statistics, weight, *sums)});"]


def _pointers(w: CallWriter, at: int, *vectors: Tensor | None) -> str:
    return ", ".join(w.memory.pointer(vector, at, "vector") for vector in vectors)


# ---- rows that travel between ranks


@dataclass(frozen=True, eq=False, slots=True)
class WrittenExchange:
    """An exchange between ranks as a program makes it once."""

    name: str
    arguments: str
    """Own rows to send, then how many of them go to each rank and how many rows come from each."""
    travel: RowExchange
    """What was recorded, alive so that no other gets its place in memory."""


class Exchanges:
    """The exchanges of a step, in the order of their first use."""

    def __init__(self) -> None:
        self.made: list[WrittenExchange] = []
        self._by_id: dict[int, WrittenExchange] = {}

    def name(self, w: CallWriter, travel: RowExchange) -> str:
        """Return the name of an exchange."""
        if id(travel) not in self._by_id:
            route, m = travel.route, w.memory
            arrays = (
                m.array(route.send, "send"),
                m.array(torch.tensor(route.send_rows), "send_rows"),
                m.array(torch.tensor(route.receive_rows), "receive_rows"),
            )
            pointers = ", ".join(f"{array}.int64s()" for array in arrays)
            name = f"{m.arena}_exchange{len(self.made)}"
            self.made.append(WrittenExchange(name, f"{pointers}, {route.num_sent}", travel))
            self._by_id[id(travel)] = self.made[-1]
        return self._by_id[id(travel)].name


def begin(w: CallWriter, at: int, travel: RowExchange, *rows: Tensor) -> list[str]:
    """Write the departure of own rows to the ranks that read them."""
    matrices = ", ".join(w.memory.matrix(matrix, at) for matrix in rows)
    return [f"{w.exchanges.name(w, travel)}.begin({matrices});"]


def begin_back(w: CallWriter, at: int, travel: RowExchange, *rows: Tensor) -> list[str]:
    """Write the departure of the halo's gradients to their owners."""
    matrices = ", ".join(w.memory.matrix(matrix, at) for matrix in rows)
    return [f"{w.exchanges.name(w, travel)}.begin_back({matrices});"]


def wait(w: CallWriter, _: int, travel: RowExchange) -> list[str]:
    """Write the wait for what was begun."""
    return [f"{w.exchanges.name(w, travel)}.wait();"]


_WRITERS: dict[str, Callable[..., list[str]]] = {
    "spmm": write_spmm,
    "tall_product": _tall_product,
    "tall_gram": _tall_gram,
    "bit_product": _bit_product,
    "bit_gram": _bit_gram,
    "epilogue": _epilogue,
    "epilogue_backward": _epilogue_backward,
    "spmm_max": _spmm_max,
    "spmm_max_shared_backward": _spmm_max_back,
    "zero_": _zero,
    "add_": _add,
    "copy_": _copy,
    "div": _div,
    "scale": _scale,
    "factor_gradient": _factor_gradient,
    "gat_forward": gat_forward,
    "gat_backward": gat_backward,
    "gatv2_forward": gatv2_forward,
    "gatv2_backward": gatv2_backward,
    "spread_heads": spread_heads,
    "own_heads": own_heads,
    "mean_of_heads": mean_of_heads,
    "repeat_heads": repeat_heads,
    "batch_statistics": batch_statistics,
    "batch_norm": batch_norm,
    "batch_norm_backward": batch_norm_backward,
    "layer_norm": layer_norm,
    "layer_norm_backward": layer_norm_backward,
    "couple": couple,
    "begin": begin,
    "begin_back": begin_back,
    "wait": wait,
}
"""The writers by the name of the call."""

"""CallWriter: the recorded kernels as statements of C++, their arguments by name as in runtime/kernels.h."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from graphbraid.fullgraph import NotLoweredError
from graphbraid.fullgraph.step.operations.row_exchange import RowExchange
from graphbraid.graph.csc import Csc
from graphbraid.ops import reference
from graphbraid.ops.dropout import RowEpilogue
from graphbraid.synth.emit.layout import CppStatement, Fields
from graphbraid.synth.emit.memory import Memory
from graphbraid.synth.emit.recorded import RecordedTask

_ACTIVATIONS = ("kNone", "kRelu", "kLeakyRelu", "kElu")
_USUAL_SLOPE = 0.01


@dataclass(frozen=True, slots=True)
class Written:
    """A call as statements of C++."""

    kernel: str
    """Its name in the record."""
    statements: list[CppStatement]
    condition: str = ""
    """When it is made, if not always: on some of several ranks."""


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
                raise NotLoweredError("synthesis", what, "layers of GCN, SAGE, GIN, GAT or GATv2")
            self.kernels.add(name)
            made = write(self, task.at, *arguments)
            found.append(Written(name, made if isinstance(made, list) else [made]))
        return found

    def writer_of(self, name: str) -> Callable[..., CppStatement | list[CppStatement]] | None:
        """Return what writes the calls of a kernel; None if the target does not have it."""
        return _WRITERS.get(name)

    # ---- parts of arguments

    def matrices(self, at: int, **given: Tensor | None) -> dict[str, str | None]:
        """Return matrices by the names of their fields."""
        return {name: self.memory.matrix(tensor, at) for name, tensor in given.items()}

    def vectors(self, at: int, role: str = "vector", **given: Tensor | None) -> dict[str, str | None]:
        """Return vectors, or other arrays without gaps, by the names of their fields."""
        return {name: self.memory.pointer(tensor, at, role) for name, tensor in given.items()}

    def seed(self, seed: Any) -> str:
        """Return a mask's seed."""
        if int(seed) not in self.seeds:
            self.seeds.append(int(seed))
        return f"seeds[{self.seeds.index(int(seed))}]"

    def epilogue(self, at: int, how: RowEpilogue | None) -> Fields:
        """Return an epilogue."""
        if how is None:
            return {}
        slope = None if how.slope == _USUAL_SLOPE else how.slope
        fields = fields_of(**self.vectors(at, bias=how.bias))
        if how.act:
            fields |= fields_of(act=f"Act::{_ACTIVATIONS[how.act]}", slope=slope)
        return fields | self._mask(at, how.p, how.seed, ids=how.ids)

    def attention(self, at: int, numbers: tuple[Any, ...], keys: Tensor | None) -> Fields:
        """Return how attention is computed."""
        slope, num_loops, p, seed = numbers
        return fields_of(slope=slope, num_loops=num_loops) | self._mask(at, p, seed, first_keys=keys)

    def _mask(self, at: int, p: float, seed: Any, **ids: Tensor | None) -> Fields:
        return fields_of(p=p, seed=self.seed(seed), **self.vectors(at, "nodes", **ids)) if p else {}

    def edges(self, indptr: Tensor, indices: Tensor) -> Fields:
        """Return the edges into some rows."""
        ends, ids = self.memory.array(indptr, "indptr"), self.memory.array(indices, "indices")
        return fields_of(
            indptr=f"{ends}.int64s()",
            indices=f"{ids}.values()",
            wide=indices.itemsize == 8,
            num_rows=indptr.numel() - 1,
            num_edges=indices.numel(),
        )


def fields_of(**given: str | float | bool | Fields | None) -> Fields:
    """Return the fields of a structure: those that are neither None, False nor empty."""
    found: Fields = {}
    for name, value in given.items():
        if isinstance(value, str | dict):
            if value:
                found[name] = value
        elif value is not None and value is not False:
            found[name] = "true" if value is True else repr(value)
    return found


def call(function: str, **given: str | float | bool | Fields | None) -> CppStatement:
    """Return a call with a structure of these fields."""
    return CppStatement(f"{function}(", fields_of(**given))


def factors_of(w: CallWriter, at: int, weight: Tensor | None, *given: Tensor | None) -> Fields:
    """Return the factors of an aggregation."""
    src, dst, loop = given
    named = {"weight": weight, "src_scale": src, "dst_scale": dst, "loop": loop}
    pairs = ((name, w.memory.pointer(factor, at, name)) for name, factor in named.items())
    return {name: shown for name, shown in pairs if shown is not None}


def loops_of(scale: float, count: int, skip: bool) -> Fields:
    """Return the implicit self-loops of an aggregation."""
    loops = fields_of(loop_scale=scale, num_loops=count) if scale else {}
    return loops | fields_of(skip_loops=bool(skip))


def write_spmm(
    w: CallWriter, at: int, indptr: Tensor, indices: Tensor, x: Tensor, *rest: Any
) -> CppStatement:
    """Write an aggregation."""
    weight, src, dst, loop, loop_scale, num_loops, skip_loops, mean, addend, out, after = rest
    return call(
        "spmm",
        edges=w.edges(indptr, indices),
        **w.matrices(at, x=x),
        factors=factors_of(w, at, weight, src, dst, loop),
        **loops_of(loop_scale, num_loops, skip_loops),
        mean=bool(mean),
        **w.matrices(at, addend=addend, out=out),
        after=w.epilogue(at, after),
    )


def _epilogue(w: CallWriter, at: int, x: Tensor, *rest: Any) -> CppStatement:
    bias, act, slope, p, seed, out, ids = rest
    how = w.epilogue(at, RowEpilogue(bias, act, slope, p, seed, ids))
    return call("epilogue", **w.matrices(at, x=x), how=how, **w.matrices(at, out=out))


def _epilogue_backward(w: CallWriter, at: int, grad: Tensor, out: Tensor, *rest: Any) -> CppStatement:
    act, slope, p, seed, grad_x, grad_bias, ids = rest
    how = w.epilogue(at, RowEpilogue(None, act, slope, p, seed, ids))
    return call(
        "epilogue_backward",
        **w.matrices(at, grad=grad, result=out),
        how=how,
        **w.matrices(at, grad_x=grad_x),
        **w.vectors(at, "gradient", grad_bias=grad_bias),
    )


def _zero(w: CallWriter, at: int, out: Tensor) -> CppStatement:
    w.memory.make(out, "rows")
    return CppStatement(f"set_zero({w.memory.matrix(out, at)})")


def _add(w: CallWriter, at: int, out: Tensor, x: Tensor) -> CppStatement:
    return call("add", **w.matrices(at, x=x, out=out))


def _copy(w: CallWriter, at: int, out: Tensor, x: Tensor, *_: Any) -> CppStatement:
    if x.is_floating_point():
        return call("copy", **w.matrices(at, x=x, out=out))
    return call("copy_counts", **w.vectors(at, "numbers", x=x), **w.matrices(at, out=out))


# ---- messages made of steps

_MESSAGE_ARGUMENTS = tuple(signature(reference.reduce_messages).parameters)
_MESSAGE_ROWS = (*("x", "x2", "x3", "x4"), *("y", *(f"y{number}" for number in range(2, 11))))
_MESSAGE_RESULTS = ("out", "out2", "out3", "out4")


def message_arguments(given: Sequence[Any]) -> SimpleNamespace:
    """Return the arguments of messages by their names."""
    return SimpleNamespace(**dict(zip(_MESSAGE_ARGUMENTS, given, strict=True)))


def _reduce_messages(w: CallWriter, at: int, *given: Any) -> CppStatement:
    a = message_arguments(given)
    of_steps = fields_of(
        heads=None if a.heads == 1 else a.heads,
        **w.vectors(at, "steps", steps=a.steps),
        **w.vectors(at, "numbers", numbers=a.numbers),
        num_steps=len(a.steps),
        **w.vectors(at, "results", results=a.results),
        num_results=len(a.results),
    )
    return call("reduce_messages", **message_fields(w, at, a), **of_steps)


def message_fields(w: CallWriter, at: int, a: SimpleNamespace) -> Fields:
    """Return what messages read and write, without their steps and results.

    Raises:
        NotLoweredError: they read edge features or parameters.
    """
    if a.edges is not None or a.to_parameters is not None or len(a.parameters):
        raise NotLoweredError("synthesis", "messages read edge features or parameters", "rows and weights")
    rows, out = ({name: getattr(a, name) for name in names} for names in (_MESSAGE_ROWS, _MESSAGE_RESULTS))
    for tensor in out.values():
        if tensor is not None:
            w.memory.make(tensor, "rows")
    return fields_of(
        edges=w.edges(a.indptr, a.indices),
        **w.vectors(at, "edges", perm=a.perm),
        by_source=bool(a.by_source),
        width=a.parameters.shape[1],
        **w.matrices(at, **rows),
        **w.vectors(at, "weight", weight=a.weight),
        adds=bool(a.adds),
        **w.matrices(at, **out),
        **w.vectors(at, "count", count=a.count),
    )


def _divide_by_degrees(w: CallWriter, at: int, csc: Csc, x: Tensor, out: Tensor) -> CppStatement:
    w.memory.make(out, "rows")
    return call("divide_by_degrees", edges=w.edges(csc.indptr, csc.indices), **w.matrices(at, x=x, out=out))


def _divide_by_counts(w: CallWriter, at: int, x: Tensor, count: Tensor, out: Tensor) -> CppStatement:
    w.memory.make(out, "rows")
    counts = w.vectors(at, "count", count=count)
    return call("divide_by_counts", **w.matrices(at, x=x), **counts, **w.matrices(at, out=out))


# ---- attention of GAT and GATv2

_ATTENTION = {
    "gat_forward": "x=src src_logit dst_logit how out lse above share",
    "gatv2_forward": "x=src own=dst vectors=att how out lse",
    "gat_backward": "x=src src_logit dst_logit how out lse grad grad_x=grad_src grad_src_logit grad_dst_logit"
    " above share",
    "gatv2_backward": "x=src own=dst vectors=att how out lse grad grad_x=grad_src grad_own=grad_dst"
    " grad_vectors=grad_att",
}
"""The matrices of each kernel behind its edges: field, and recorded argument where its name is another."""


def _attention(kernel: str) -> Callable[..., CppStatement]:
    """Return what writes the calls of a kernel of attention."""
    names = tuple(signature(getattr(reference, kernel)).parameters)

    def write(w: CallWriter, at: int, *given: Any) -> CppStatement:
        named = given[-1] if isinstance(given[-1], dict) else {}
        plain = given[:-1] if named else given
        a = SimpleNamespace(**(dict.fromkeys(names) | dict(zip(names, plain, strict=False)) | named))
        if getattr(a, "edge_logit", None) is not None or getattr(a, "edge_features", None) is not None:
            raise NotLoweredError("synthesis", "attention reads edge features", "a model without them")
        fields: dict[str, Any] = {"edges": w.edges(a.indptr, a.indices)}
        if "perm" in names:
            fields |= {"by_source": w.edges(a.t_indptr, a.t_indices), **w.vectors(at, "edges", perm=a.perm)}
        for part in _ATTENTION[kernel].split():
            field, _, name = part.partition("=")
            if field == "how":
                fields["how"] = w.attention(at, (a.slope, a.num_loops, a.p, a.seed), a.first_keys)
            else:
                fields |= w.matrices(at, **{field: getattr(a, name or field)})
        return call(kernel, **fields)

    return write


def _spread_heads(w: CallWriter, at: int, vector: Tensor, out: Tensor) -> CppStatement:
    w.memory.make(out, "heads")
    _, heads, channels = vector.shape
    return call(
        "spread_heads", **w.vectors(at, x=vector), heads=heads, channels=channels, **w.matrices(at, out=out)
    )


# ---- batch and layer normalisation


def _batch_statistics(w: CallWriter, at: int, x: Tensor, *rest: Any) -> list[CppStatement]:
    """Write the statistics: of the rows, which move the running ones, or the running ones themselves."""
    running_mean, running_var, training, momentum, eps, counted, moments, mean, rstd, from_rows = rest
    m = w.memory
    if running_mean is None or momentum is None:
        what = "batch normalisation without running statistics, or with their plain average"
        raise NotLoweredError("synthesis", what, "track_running_stats=True and a momentum")
    running = w.vectors(at, running_mean=running_mean, running_variance=running_var)
    for tensor, role in ((mean, "mean"), (rstd, "rstd")):
        m.make(tensor, role)
    made = w.vectors(at, mean=mean, rstd=rstd)
    if not from_rows:
        return [call("running_statistics", **running, width=x.shape[1], eps=eps, **made)]
    count = [CppStatement(f"++{m.counter(counted)}")] if training and counted is not None else []
    function = "batch_statistics" if moments is None else "ranks.batch_statistics"
    return [*count, call(function, **w.matrices(at, x=x), **running, share=momentum, eps=eps, **made)]


def _couple(w: CallWriter, at: int, _: Any, grad_x: Tensor, x: Tensor, *rest: Any) -> CppStatement:
    """Write what completes the gradient of rows that several ranks normalise together."""
    (mean, rstd), weight, (grad_weight, grad_bias), scratch = rest
    return call(
        "ranks.couple",
        **w.matrices(at, grad_x=grad_x, x=x, scratch=scratch),
        **w.vectors(at, mean=mean, rstd=rstd, weight=weight),
        **w.vectors(at, grad_weight=grad_weight, grad_bias=grad_bias),
    )


# ---- rows that travel between ranks


@dataclass(frozen=True, eq=False, slots=True)
class WrittenExchange:
    """An exchange between ranks as a program makes it once."""

    name: str
    fields: Fields
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
            arrays = {
                "rows": m.array(route.send, "send"),
                "send_rows": m.array(torch.tensor(route.send_rows), "send_rows"),
                "receive_rows": m.array(torch.tensor(route.receive_rows), "receive_rows"),
            }
            fields: Fields = {name: f"{array}.int64s()" for name, array in arrays.items()}
            name = f"{m.arena}_exchange{len(self.made)}"
            self.made.append(WrittenExchange(name, fields | fields_of(num_sent=route.num_sent), travel))
            self._by_id[id(travel)] = self.made[-1]
        return self._by_id[id(travel)].name


def _begin(w: CallWriter, at: int, travel: RowExchange, own: Tensor, *rest: Tensor) -> CppStatement:
    """Write the departure of own rows to the ranks that read them."""
    packed, halo = rest
    matrices = w.matrices(at, own=own, packed=packed, halo=halo)
    return call(f"{w.exchanges.name(w, travel)}.begin", **matrices)


def _begin_back(w: CallWriter, at: int, travel: RowExchange, halo: Tensor, returned: Tensor) -> CppStatement:
    """Write the departure of the halo's gradients to their owners."""
    return call(f"{w.exchanges.name(w, travel)}.begin_back", **w.matrices(at, halo=halo, returned=returned))


def _wait(w: CallWriter, _: int, travel: RowExchange) -> CppStatement:
    """Write the wait for what was begun."""
    return CppStatement(f"{w.exchanges.name(w, travel)}.wait()")


_FORMS = (
    "tall_product(a:rows b:rows out:rows add:flag ids:nodes after:epilogue)",
    "tall_gram(a:rows b:rows out:gram ids:nodes)",
    "bit_product(bits:bits factors:factors b:rows out:rows add:flag after:epilogue)",
    "bit_gram(a:rows bits:bits factors:factors out:gram)",
    "spmm_max(edges:edges x:rows - ties:number out:rows found:winners)",
    "spmm_max_shared_backward(edges:edges share:rows - largest:rows x:rows out:rows)",
    "scale(x:rows factor:factor out:rows add:flag)",
    "factor_gradient(grad:rows x:rows - out:gradient)",
    "own_heads(x:rows out:heads)",
    "mean_of_heads(x:rows out:rows)",
    "repeat_heads(x:rows factor:number out:rows)",
    "batch_norm(x:rows mean:vector rstd:vector weight:vector bias:vector out:rows)",
    "batch_norm_backward(grad:rows x:rows mean:vector rstd:vector weight:vector from_rows:flag grad_x:rows"
    " grad_weight:vector grad_bias:vector)",
    "layer_norm(x:rows weight:vector bias:vector eps:number out:rows mean:vector rstd:vector)",
    "layer_norm_backward(grad:rows x:rows weight:vector mean:vector rstd:vector grad_x:rows"
    " grad_weight:vector grad_bias:vector)",
)
"""Kernels whose structure has the recorded arguments in their order: name and kind of each field.

``rows`` are matrices; ``gram`` and ``heads`` may be made anew by the call; ``edges`` are two arguments; an
argument ``-`` is left out. Any other kind is the role of an array.
"""


def _by_form(form: str) -> Callable[..., CppStatement]:
    """Return what writes the calls of a kernel by its form."""
    function, _, parts = form.removesuffix(")").partition("(")

    def write(w: CallWriter, at: int, *given: Any) -> CppStatement:
        arguments, fields = iter(given), dict[str, Any]()
        for part in parts.split():
            name, _, kind = part.partition(":")
            value = next(arguments)
            if kind in {"gram", "heads"}:
                w.memory.make(value, kind)
            if kind in {"rows", "gram"}:
                fields[name] = w.memory.matrix(value, at)
            elif kind == "edges":
                fields[name] = w.edges(value, next(arguments))
            elif kind == "epilogue":
                fields[name] = w.epilogue(at, value)
            elif kind in {"flag", "number"}:
                fields[name] = bool(value) if kind == "flag" else value
            elif kind:
                fields[name] = w.memory.pointer(value, at, kind)
        return call(function, **fields)

    return write


_WRITERS: dict[str, Callable[..., CppStatement | list[CppStatement]]] = {
    **{form.split("(")[0]: _by_form(form) for form in _FORMS},
    "div": _by_form("divide(x:rows divisor:rows out:rows)"),
    "spmm": write_spmm,
    "epilogue": _epilogue,
    "epilogue_backward": _epilogue_backward,
    "zero_": _zero,
    "add_": _add,
    "copy_": _copy,
    "addcmul_": _by_form("add_product(out:rows x:rows y:rows)"),
    "reduce_messages": _reduce_messages,
    "divide_by_degrees": _divide_by_degrees,
    "divide_by_counts": _divide_by_counts,
    **{kernel: _attention(kernel) for kernel in _ATTENTION},
    "spread_heads": _spread_heads,
    "batch_statistics": _batch_statistics,
    "couple": _couple,
    "begin": _begin,
    "begin_back": _begin_back,
    "wait": _wait,
}
"""The writers by the name of the call."""

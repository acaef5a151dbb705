"""CallWriter: writes recorded calls of kernels in C++, with the names of arguments in runtime/kernels.h."""

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
from graphbraid.ops import reference
from graphbraid.ops.library import RowEpilogue
from graphbraid.synth.emit.layout import CppStatement, Fields
from graphbraid.synth.emit.memory import Memory
from graphbraid.synth.emit.recorded import RecordedTask

_ACTIVATIONS = ("kNone", "kRelu", "kLeakyRelu", "kElu")
_TIES = ("kFirst", "kShared", "kSharedWithZero")
_USUAL_SLOPE = 0.01
_FACTORS = ("weight", "src_scale", "dst_scale", "loop")
_MADE = {"result": "rows", "gram": "gram", "heads": "heads", "spread": "heads"}
"""Kinds of results that may need new memory -> the role of this memory."""


@dataclass(frozen=True, slots=True)
class Written:
    """A call as statements of C++."""

    kernel: str
    """Its name in the record."""
    statements: list[CppStatement]
    condition: str = ""
    """C++ condition, if only some ranks make the call; else empty."""


class CallWriter:
    """Writes the calls of one step. Masks of dropout get their seeds in the order of their first use."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.seeds: list[int] = []
        self.kernels: set[str] = set()
        """Names of the kernels that were written."""
        self.exchanges: dict[RowExchange, tuple[str, Fields]] = {}
        """Exchanges between ranks -> name in the program, and fields of the structure that makes it."""

    def written(self, task: RecordedTask) -> list[Written]:
        """Return the calls of a task as statements; NotLoweredError if the target lacks a kernel."""
        found: list[Written] = []
        for kernel, given in task.calls:
            writer = self.writer_of(kernel)
            if writer is None:
                what = f"the task {task.name!r} needs the kernel {kernel}"
                what += ", which synthesised programs do not have"
                raise NotLoweredError("synthesis", what, "layers of GCN, SAGE, GIN, GAT or GATv2")
            self.kernels.add(kernel)
            a = arguments_of(kernel, given)
            made = self.call(writer, task.at, a) if isinstance(writer, str) else writer(self, task.at, a)
            found.append(Written(kernel, made if isinstance(made, list) else [made]))
        return found

    def writer_of(self, kernel: str) -> Form | None:
        """Return the way to write a kernel's calls; None if the target lacks the kernel."""
        return _WRITERS.get(kernel)

    def call(self, form: str, at: int, a: SimpleNamespace) -> CppStatement:
        """Return a call of a function that takes one structure.

        Example: ``scale(x factor:factor add:flag)`` has the matrix ``x``, the array ``factor`` and the flag
        ``add`` as fields of its structure.

        Args:
            form: the function, and in brackets a word ``field=argument:kind`` for each field. Without ``=``
                the argument is called as the field. Without ``:`` it is a matrix.
            at: position of the task.
            a: the recorded arguments by their names.
        """
        function, _, words = form.removesuffix(")").partition("(")
        fields: dict[str, Any] = {}
        for word in words.split():
            named, _, kind = word.partition(":")
            field, _, argument = named.partition("=")
            fields[field] = self._field(at, a, argument or field, kind or "rows")
        if hasattr(a, "travel"):
            function = f"{self._exchange(a.travel)}.{function}"
        return CppStatement(f"{function}(", fields_of(**fields)) if fields else CppStatement(f"{function}()")

    def _field(  # noqa: PLR0911 - one for each kind
        self, at: int, a: SimpleNamespace, name: str, kind: str
    ) -> Any:
        """Return a field of one of the kinds below. Any other kind is the role of an array."""
        value, memory = getattr(a, name, None), self.memory
        if kind in _MADE and value is not None:
            memory.make(value, _MADE[kind])
        match kind:
            case "rows" | "result" | "gram" | "spread":
                return memory.matrix(value, at)
            case "flag":
                return bool(value)
            case "number":
                return value
            case "ties":
                return f"Ties::{_TIES[value or 0]}"
            case "edges_in":
                return self.edges(a.indptr, a.indices)
            case "edges_out":
                return self.edges(a.t_indptr, a.t_indices)
            case "scales":
                return fields_of(**{each: memory.pointer(getattr(a, each), at, each) for each in _FACTORS})
            case "after":
                return self._epilogue(at, value)
            case "epilogue":
                bias = getattr(a, "bias", None)
                return self._epilogue(at, RowEpilogue(bias, a.act, a.slope, a.p, a.seed, a.ids))
            case "attention":
                if any(getattr(a, each, None) is not None for each in ("edge_logit", "edge_features")):
                    what = "attention reads edge features"
                    raise NotLoweredError("synthesis", what, "a model without them")
                mask = self._mask(at, a.p, a.seed, first_keys=a.first_keys)
                return fields_of(slope=a.slope, num_loops=a.num_loops) | mask
        return memory.pointer(value, at, kind)

    def _epilogue(self, at: int, how: RowEpilogue | None) -> Fields:
        if how is None:
            return {}
        slope = None if how.slope == _USUAL_SLOPE else how.slope
        fields = fields_of(bias=self.memory.pointer(how.bias, at, "vector"))
        if how.act:
            fields |= fields_of(act=f"Act::{_ACTIVATIONS[how.act]}", slope=slope)
        return fields | self._mask(at, how.p, how.seed, ids=how.ids)

    def _mask(self, at: int, p: float, seed: Any, **ids: Tensor | None) -> Fields:
        if not p:
            return {}
        if int(seed) not in self.seeds:
            self.seeds.append(int(seed))
        nodes = {name: self.memory.pointer(tensor, at, "nodes") for name, tensor in ids.items()}
        return fields_of(p=p, seed=f"seeds[{self.seeds.index(int(seed))}]", **nodes)

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

    def _exchange(self, travel: RowExchange) -> str:
        """Return the name of an exchange. Its fields are the rows to send and each rank's numbers of rows."""
        if travel not in self.exchanges:
            route, memory = travel.route, self.memory
            arrays = {
                "rows": memory.array(route.send, "send"),
                "send_rows": memory.array(torch.tensor(route.send_rows), "send_rows"),
                "receive_rows": memory.array(torch.tensor(route.receive_rows), "receive_rows"),
            }
            fields: Fields = {name: f"{array}.int64s()" for name, array in arrays.items()}
            name = f"{memory.arena}_exchange{len(self.exchanges)}"
            self.exchanges[travel] = name, fields | fields_of(num_sent=route.num_sent)
        return self.exchanges[travel][0]


Form = str | Callable[[Any, int, SimpleNamespace], CppStatement | list[CppStatement]]
"""The way to write a kernel's calls: a form, see :meth:`CallWriter.call`, or a function."""


def fields_of(**given: str | float | bool | Fields | None) -> Fields:
    """Return the fields of a structure, without those that are None, False or empty."""
    found: Fields = {}
    for name, value in given.items():
        if isinstance(value, str | dict):
            if value:
                found[name] = value
        elif value is not None and value is not False:
            found[name] = "true" if value is True else repr(value)
    return found


_ARGUMENTS = {
    "zero_": "out",
    "add_": "out x",
    "addcmul_": "out x y",
    "copy_": "out x",
    "div": "x divisor out",
    "scale": "x factor out add",
    "factor_gradient": "grad x products out",
    "own_heads": "x out",
    "spread_heads": "vector out",
    "mean_of_heads": "x out",
    "repeat_heads": "x factor out",
    "divide_by_degrees": "csc x out",
    "divide_by_counts": "x count out",
    "batch_statistics": "x running_mean running_variance training momentum eps counted moments mean rstd"
    " from_rows",
    "couple": "norm grad_x x statistics weight sums scratch",
    "begin": "travel own packed halo",
    "begin_back": "travel halo returned",
    "wait": "travel",
}
"""Names of a call's arguments in order. Other kernels have the names of their twin in ops.reference."""


def arguments_of(kernel: str, given: Sequence[Any]) -> SimpleNamespace:
    """Return the arguments of a recorded call by their names. An argument that is not given is None."""
    known = _ARGUMENTS.get(kernel)
    names = signature(getattr(reference, kernel)).parameters if known is None else known.split()
    named = given[-1] if given and isinstance(given[-1], dict) else {}
    plain = zip(names, given[: len(given) - bool(named)], strict=False)
    return SimpleNamespace(**(dict.fromkeys(names) | dict(plain) | named))


def _spmm(w: CallWriter, at: int, a: SimpleNamespace) -> CppStatement:
    if not a.loop_scale:  # no self-loops
        a.loop_scale = a.num_loops = None
    loops = "loop_scale:number num_loops:number skip_loops:flag"
    form = f"spmm(edges:edges_in x factors:scales {loops} mean:flag addend out after:after)"
    return w.call(form, at, a)


def _zero(w: CallWriter, at: int, a: SimpleNamespace) -> CppStatement:
    w.memory.make(a.out, "rows")
    return CppStatement(f"set_zero({w.memory.matrix(a.out, at)})")


def _copy(w: CallWriter, at: int, a: SimpleNamespace) -> CppStatement:
    return w.call("copy(x out)" if a.x.is_floating_point() else "copy_counts(x:numbers out)", at, a)


def _transpose(w: CallWriter, at: int, a: SimpleNamespace) -> CppStatement:
    return _copy(w, at, SimpleNamespace(x=a.a.t(), out=a.out))


def write_messages(
    w: CallWriter, at: int, a: SimpleNamespace, function: str = "reduce_messages", more: str = ""
) -> CppStatement:
    """Write messages; ``more`` is the form of the function's further fields."""
    if a.edges is not None or a.to_parameters is not None or len(a.parameters):
        raise NotLoweredError("synthesis", "messages read edge features or parameters", "rows and weights")
    a.width = a.parameters.shape[1]
    rows = "edges:edges_in perm:edges by_source:flag width:number x x2 x3 x4 y y2 y3 y4 y5 y6 y7 y8 y9 y10"
    out = "weight:weight adds:flag out:result out2:result out3:result out4:result count:count"
    return w.call(f"{function}({rows} {out} {more})", at, a)


def _reduce_messages(w: CallWriter, at: int, a: SimpleNamespace) -> CppStatement:
    a.heads = None if a.heads == 1 else a.heads
    a.num_steps, a.num_results = len(a.steps), len(a.results)
    more = "heads:number steps:steps numbers:numbers num_steps:number results:results num_results:number"
    return write_messages(w, at, a, more=more)


def _divide_by_degrees(w: CallWriter, at: int, a: SimpleNamespace) -> CppStatement:
    a.indptr, a.indices = a.csc.indptr, a.csc.indices
    return w.call("divide_by_degrees(edges:edges_in x out:result)", at, a)


def _spread_heads(w: CallWriter, at: int, a: SimpleNamespace) -> CppStatement:
    _, a.heads, a.channels = a.vector.shape
    return w.call("spread_heads(x=vector:vector heads:number channels:number out:spread)", at, a)


def _batch_statistics(w: CallWriter, at: int, a: SimpleNamespace) -> list[CppStatement]:
    """Write the statistics of the rows, which update the running ones; in evaluation, the running ones."""
    if a.running_mean is None or a.momentum is None:
        what = "batch normalisation without running statistics, or with their plain average"
        raise NotLoweredError("synthesis", what, "track_running_stats=True and a momentum")
    for tensor, role in ((a.mean, "mean"), (a.rstd, "rstd")):
        w.memory.make(tensor, role)
    running, made = "running_mean:vector running_variance:vector", "mean:vector rstd:vector"
    if not a.from_rows:
        a.width = a.x.shape[1]
        return [w.call(f"running_statistics({running} width:number eps:number {made})", at, a)]
    counts = a.training and a.counted is not None
    count = [CppStatement(f"++{w.memory.counter(a.counted)}")] if counts else []
    function = "batch_statistics" if a.moments is None else "ranks.batch_statistics"
    return [*count, w.call(f"{function}(x {running} share=momentum:number eps:number {made})", at, a)]


def _couple(w: CallWriter, at: int, a: SimpleNamespace) -> CppStatement:
    """Write the call that completes the gradient of rows that several ranks normalise together."""
    (a.mean, a.rstd), (a.grad_weight, a.grad_bias) = a.statistics, a.sums
    vectors = "mean:vector rstd:vector weight:vector grad_weight:vector grad_bias:vector"
    return w.call(f"ranks.couple(grad_x x scratch {vectors})", at, a)


_FORMS = (
    "tall_product(a b out add:flag ids:nodes after:after)",
    "tall_gram(a b out:gram ids:nodes)",
    "bit_product(bits:bits factors:factors b out add:flag after:after)",
    "bit_gram(a bits:bits factors:factors out:gram)",
    "spmm_max(edges:edges_in x ties:ties out found:winners)",
    "spmm_max_shared_backward(edges:edges_in share largest x out)",
    "epilogue(x how:epilogue out)",
    "epilogue_backward(grad result=out how:epilogue grad_x grad_bias:gradient)",
    "scale(x factor:factor out add:flag)",
    "factor_gradient(grad x out:gradient)",
    "own_heads(x out:heads)",
    "mean_of_heads(x out)",
    "repeat_heads(x factor:number out)",
    "batch_norm(x mean:vector rstd:vector weight:vector bias:vector out)",
    "batch_norm_backward(grad x mean:vector rstd:vector weight:vector from_rows:flag grad_x"
    " grad_weight:vector grad_bias:vector)",
    "layer_norm(x weight:vector bias:vector eps:number out mean:vector rstd:vector)",
    "layer_norm_backward(grad x weight:vector mean:vector rstd:vector grad_x grad_weight:vector"
    " grad_bias:vector)",
    "divide_by_counts(x count:count out:result)",
    "begin(own packed halo)",
    "begin_back(halo returned)",
    "wait()",
    "gat_forward(edges:edges_in x=src src_logit dst_logit how:attention out lse above share)",
    "gatv2_forward(edges:edges_in x=src own=dst vectors=att how:attention out lse)",
    "gat_backward(edges:edges_in by_source:edges_out perm:edges x=src src_logit dst_logit how:attention out"
    " lse grad grad_x=grad_src grad_src_logit grad_dst_logit above share)",
    "gatv2_backward(edges:edges_in by_source:edges_out perm:edges x=src own=dst vectors=att how:attention out"
    " lse grad grad_x=grad_src grad_own=grad_dst grad_vectors=grad_att)",
)
"""Forms of the kernels whose C++ function has the kernel's name."""
_WRITERS: dict[str, Form] = {
    **{form.split("(")[0]: form for form in _FORMS},
    "zero_": _zero,
    "add_": "add(x out)",
    "addcmul_": "add_product(out x y)",
    "copy_": _copy,
    "transpose": _transpose,
    "div": "divide(x divisor out)",
    "spmm": _spmm,
    "reduce_messages": _reduce_messages,
    "divide_by_degrees": _divide_by_degrees,
    "spread_heads": _spread_heads,
    "batch_statistics": _batch_statistics,
    "couple": _couple,
}
"""Names of recorded calls -> the way to write them."""

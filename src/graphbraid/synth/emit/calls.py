"""CallWriter: the recorded kernels as lines of C++, with their arguments in the form of runtime/kernels.h."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from graphbraid.fullgraph import NotLoweredError
from graphbraid.ops.dropout import RowEpilogue
from graphbraid.synth.emit import attention, norm, travel
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
        self.exchanges = travel.Exchanges()
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
    **attention.WRITERS,
    **norm.WRITERS,
    **travel.WRITERS,
}


__all__ = ["CallWriter", "Written", "cpp_bool", "write_spmm"]

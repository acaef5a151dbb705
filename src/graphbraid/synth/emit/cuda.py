"""The CUDA target: a folder of CUDA C++ that trains on a GPU by the tasks of the full-graph engine.

The edges of long rows are divided among blocks. The scratch memory of all kernels is counted here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphbraid.fullgraph import CompileOptions, NotLoweredError
from graphbraid.graph import Graph
from graphbraid.ops.message_steps import MessageOp
from graphbraid.signatures import typed
from graphbraid.synth.emit.calls import CallWriter, Form, Written, arguments_of, write_messages
from graphbraid.synth.emit.folder import Sources, cuda_sources, rendered, write_folder
from graphbraid.synth.emit.layout import CppStatement, Fields
from graphbraid.synth.emit.memory import ArrayFile, Memory
from graphbraid.synth.emit.recorded import RecordedTask, address_of
from graphbraid.synth.emit.writer import TemplateWriter, whole
from graphbraid.synth.synthesis import Synthesis

LONG_ROW = 1024
"""A row with more edges is summed in parts of at most this many edges."""
_MOST_PARTS = 512
"""Most parts of the rows when columns are summed, as in ``runtime_cuda/column_sums.cuh``."""
_CHUNK_FLOATS = 1 << 24
"""Numbers that are gathered at a time, as in ``runtime_cuda/kernels_dense.cu``."""
_KINDS = ("kSum", "kMax", "kMin")
_MATRICES = {MessageOp.SOURCE: ("source", "x"), MessageOp.DESTINATION: ("destination", "y")}
_WITH_NUMBER = (MessageOp.LEAKY_RELU, MessageOp.LEAKY_RELU_GRADIENT)


def parts_of(indptr: Tensor, edges: int) -> tuple[Tensor, Tensor] | None:
    """Divide rows with more than ``edges`` edges into parts of at most ``edges``.

    Returns:
        As in ``LongRows`` of ``runtime/matrix.h``: ``(num_rows, 3)`` int64, a row, and begin and end of its
        parts; ``(num_parts, 3)`` int64, a row, and begin and end of the part's edges. None if no row is long.
    """
    degrees = indptr.diff()
    rows = (degrees > edges).nonzero().squeeze(1)
    if not rows.numel():
        return None
    counts = (degrees[rows] + edges - 1) // edges
    ends = counts.cumsum(0)
    number = torch.repeat_interleave(torch.arange(rows.numel()), counts)
    # ends - counts is the position of each row's first part: less it, a part's position is that in its row.
    row, part = rows[number], torch.arange(number.numel()) - (ends - counts)[number]
    begin = indptr[row] + part * edges
    end = torch.minimum(begin + edges, indptr[row + 1])
    return torch.stack((rows, ends - counts, ends), 1), torch.stack((row, begin, end), 1)


class GpuNeeds:
    """The needs of all calls of a program: scratch memory, long rows, and types of messages, each once."""

    def __init__(self) -> None:
        self.workspace = 0
        """Largest number of floats of scratch memory that a kernel needs."""
        self._long: dict[tuple[int, int], tuple[Tensor, Tensor] | None] = {}
        self._names: dict[str, str] = {}

    def long_rows(self, indptr: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the long rows of some edges, found once for each; see :func:`parts_of`."""
        key = (address_of(indptr), indptr.numel())
        if key not in self._long:
            self._long[key] = parts_of(indptr, LONG_ROW)
        return self._long[key]

    @property
    def message_lines(self) -> list[list[str]]:
        """The lines of each type of messages."""
        return [body.replace("MESSAGE", name).splitlines() for body, name in self._names.items()]

    def message(self, steps: Tensor, numbers: Tensor, results: Tensor) -> str:
        """Return the name of a message's type; NotLoweredError if it has heads, a softmax or parameters.

        Args:
            steps: ``(num_steps, 4)`` int64: a :class:`.MessageOp`, its two steps, and whether it is narrow.
            numbers: ``(num_steps,)`` float32.
            results: ``(num_results, 3)`` int64: kind, step and place.
        """
        rows = [(MessageOp(op), first, second) for op, first, second, _ in steps.tolist()]
        wanted = results.tolist()
        if bool(steps[:, 3].any()) or any(kind >= len(_KINDS) for kind, _, _ in wanted):
            what = "messages with heads, a softmax or parameters, which programs for a GPU do not have"
            raise NotLoweredError("synthesis", what, "the target openmp or mpi")
        assert [place for _, _, place in wanted] == list(range(len(wanted)))
        body = [
            f"    const float s{i} = {_code(*row, number)};"
            for i, (row, number) in enumerate(zip(rows, numbers.numpy(), strict=True))
        ]
        body += [f"    result[{place}] = s{step};" for _, step, place in wanted]
        reads = any("edge." in line for line in body)
        kinds = ", ".join(f"MessageResult::{_KINDS[kind]}" for kind, _, _ in wanted)
        lines = [
            "struct MESSAGE {",
            f"  using Kinds = MessageResults<{kinds}>;",
            "  __device__ static void compute("
            f"{'' if reads else '[[maybe_unused]] '}const MessageEdge& edge, float* result) {{",
            *body,
            "  }",
            "};",
        ]
        return self._names.setdefault("\n".join(lines), f"Message{len(self._names)}")


def _code(op: MessageOp, first: int, second: int, number: np.float32) -> str:
    if op in _MATRICES:
        side, letter = _MATRICES[op]
        return f"edge.{side}(&Messages::{letter}{first + 1 if first else ''})"
    if op is MessageOp.WEIGHT:
        return "edge.weight()"
    if op is MessageOp.NUMBER:
        return _number(number)
    given = [f"s{first}", *([f"s{second}"] if op <= MessageOp.WHERE else [])]
    given += [_number(number)] if op in _WITH_NUMBER else []
    return f"steps::{op.name.lower()}({', '.join(given)})"


def _number(value: np.float32) -> str:
    if not np.isfinite(value):
        return "NAN" if np.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
    return f"{value}f"


class GpuCallWriter(CallWriter):
    """Writes the calls of one step.

    It adds to ``needs``, those of the whole program.
    """

    def __init__(self, memory: Memory, needs: GpuNeeds) -> None:
        super().__init__(memory)
        self.needs = needs

    def written(self, task: RecordedTask) -> list[Written]:
        """Return the calls of a task as statements; see :meth:`.CallWriter.written`."""
        for kernel, given in task.calls:
            if kernel in _WORKSPACES:
                floats = _WORKSPACES[kernel](self, arguments_of(kernel, given))
                self.needs.workspace = max(self.needs.workspace, int(floats))
        return super().written(task)

    def writer_of(self, kernel: str) -> Form | None:
        """Return the way to write a kernel's calls; None if the target lacks the kernel."""
        return _write_messages if kernel == "reduce_messages" else super().writer_of(kernel)

    def edges(self, indptr: Tensor, indices: Tensor) -> Fields:
        """Return the edges into some rows."""
        plain, long = super().edges(indptr, indices), self.needs.long_rows(indptr)
        if long is None:
            return plain
        rows, parts = self.memory.array(long[0], "long_rows"), self.memory.array(long[1], "parts")
        return plain | {"long_rows": f"long_rows({LONG_ROW}, {rows}, {parts})"}

    def num_parts(self, indptr: Tensor) -> int:
        """Return the number of parts of long rows."""
        long = self.needs.long_rows(indptr)
        return 0 if long is None else long[1].shape[0]


def _write_messages(w: GpuCallWriter, at: int, a: SimpleNamespace) -> CppStatement:
    """Write messages. Their steps and results become a C++ type of the program."""
    return write_messages(w, at, a, f"reduce_messages<{w.needs.message(a.steps, a.numbers, a.results)}>")


def _gathered(ids: Tensor | None, rows: int, columns: int) -> int:
    """Return the floats of the rows that a product with ``ids`` gathers at a time."""
    return 0 if ids is None else min(rows, max(1, _CHUNK_FLOATS // columns)) * columns


_WORKSPACES: dict[str, Callable[[GpuCallWriter, SimpleNamespace], int]] = {
    "spmm": lambda w, a: w.num_parts(a.indptr) * a.out.shape[1],
    "spmm_max": lambda w, a: 2 * w.num_parts(a.indptr) * a.out.shape[1],
    "spmm_max_shared_backward": lambda w, a: w.num_parts(a.indptr) * a.out.shape[1],
    "tall_product": lambda _, a: _gathered(a.ids, a.out.shape[0], a.a.shape[1]),
    "tall_gram": lambda _, a: _gathered(a.ids, a.a.shape[0], a.b.shape[1]),
    "bit_product": lambda _, a: 0 if a.b.stride(1) == 1 else a.b.numel(),
    "epilogue_backward": lambda _, a: 0 if a.grad_bias is None else _MOST_PARTS * a.grad.shape[1],
    "batch_statistics": lambda _, a: (_MOST_PARTS + 2) * a.x.shape[1],
    **dict.fromkeys(
        ("batch_norm_backward", "layer_norm_backward", "factor_gradient"),
        lambda _, a: (_MOST_PARTS + 2) * a.grad.shape[1],
    ),
    "gat_backward": lambda _, a: a.dst_logit.numel(),
    "gatv2_backward": lambda _, a: _MOST_PARTS * a.src.shape[1] + a.lse.numel(),
    "reduce_messages": lambda w, a: 2 * w.num_parts(a.indptr) * len(a.results) * a.parameters.shape[1],
}
"""Kernels -> floats of scratch memory for a call's arguments, as in ``runtime_cuda/``."""


_ALIGN, _WEIGHT_FLOATS = 256, 64
"""Alignment of a part of the GPU's memory in bytes, and of a weight in floats."""


@typed
def write_cuda(
    synthesis: Synthesis,
    graph: Graph,
    folder: str | os.PathLike[str],
    *,
    options: CompileOptions | None = None,
) -> Path:
    """Write a program in CUDA C++ that trains a model on a graph, on one GPU.

    Args:
        synthesis: the model, whose weights the program begins from, and its recipe.
        graph: the graph, opened from the store that the program will be run with.
        folder: the folder to make, with its own ``README.md``.
        options: how to lower. If None, as :func:`graphbraid.compile` does: by the rates of this machine's
            processor.

    Returns:
        The folder.

    Raises:
        NotLoweredError: the target lacks something that the model needs; the message names it.
        DataError: the graph does not fit the model or the recipe.
        ResourceError: the folder exists or cannot be written.
    """
    return write_folder(folder, synthesis.model, lambda: sources_for_gpu(synthesis, graph, options))


def sources_for_gpu(synthesis: Synthesis, graph: Graph, options: CompileOptions | None = None) -> Sources:
    """Plan, record and write down a program without making a file."""
    lowered, needs = synthesis.lower(graph, options), GpuNeeds()
    share = whole(lowered, synthesis.program(graph, training=False))
    calls = partial(GpuCallWriter, needs=needs)
    writer = TemplateWriter(synthesis, share, calls)
    context, files = writer.context(), writer.arrays.files
    memory = _memory(context, files, _workspace(needs, context))
    parts = ", ".join(f"{name} {nbytes:,}" for name, nbytes in memory.items())
    about = (
        f"  - long rows: a row of more than {LONG_ROW:,} edges is summed in parts",
        f"  - memory: {sum(memory.values()):,} bytes: {parts}",
    )
    context |= {
        "graph": graph.name,
        "gpu": {
            "nbytes": sum(memory.values()),
            "workspace": memory["workspace"],
            "messages": needs.message_lines,
        },
        "decisions": [*str(lowered).splitlines(), "GPU", *about],
        "arrays": files,
    }
    plan = {array.file: array.tensor for array in files if not array.in_store}
    return rendered(context, cuda_sources(writer.kernels), plan)


def _workspace(needs: GpuNeeds, context: dict[str, Any]) -> int:
    """Return the largest number of bytes of scratch memory that a kernel, loss or accuracy needs."""
    counts: list[int] = [
        context["columns"] * int(of["nodes"]["count"]) for of in (context["loss"], *context["splits"])
    ]
    # The values are added up to a double behind them: an even number of floats, and two for the double.
    return 4 * max(needs.workspace, *(count + count % 2 + 2 for count in counts))


def _memory(context: dict[str, Any], files: Sequence[ArrayFile], workspace: int) -> dict[str, int]:
    """Return the bytes of GPU memory that the program allocates by use, counted as in ``runtime_cuda``."""
    floats = dict.fromkeys((True, False), 0)  # of weights that learn, and of others
    for weight in context["parameters"]:
        floats[weight["learns"]] += _aligned(weight["floats"], _WEIGHT_FLOATS)
    made = [count for step in context["steps"] for _, count in step["made"]]
    sizes = {
        "arrays": [array.tensor.numel() * array.tensor.element_size() for array in files],
        # 4 bytes a float; a weight that learns has its value, its gradient and the optimizer's two averages
        "weights": [4 * (4 * floats[True] + floats[False])],
        "arena": [context["nbytes"]],
        "between tasks": [4 * count for count in made],
        "workspace": [workspace],
    }
    return {name: sum(_aligned(size, _ALIGN) for size in of_name) for name, of_name in sizes.items()}


def _aligned(size: int, step: int) -> int:
    return -(-size // step) * step

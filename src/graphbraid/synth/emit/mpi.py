"""The MPI target: the programs of several ranks become one. It reads its rank's numbers when it starts.

Ranks run the same calls with different numbers of rows, places in their arenas, and arrays. So their programs
have the same text except for numbers and names of arrays. A number that differs becomes an entry of
``sizes``. Arrays at the same place of the text get one name; each rank reads the array from its own folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphbraid.distributed import Partition
from graphbraid.fullgraph import CompileOptions, NotLoweredError
from graphbraid.graph import Graph
from graphbraid.signatures import typed
from graphbraid.synth.emit.calls import Written
from graphbraid.synth.emit.folder import Sources, openmp_sources, rendered, write_folder
from graphbraid.synth.emit.layout import CppStatement
from graphbraid.synth.emit.memory import ArrayFile, digest_of
from graphbraid.synth.emit.writer import PassText, TaskText, TemplateWriter, share_of
from graphbraid.synth.synthesis import Synthesis

_TOKEN = re.compile(r"plan\.\w+|\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+|\w+|\W")
_AT_PLACE = re.compile(r"^(?:train|evaluate)\.\w+(?=\()")
_MAY_LACK = "spmm"
"""The kernel that a rank leaves out if it would write no rows."""


@dataclass(frozen=True, eq=False, slots=True)
class RankArray:
    """An array that each rank has in its own folder."""

    name: str
    reader: str
    shape: tuple[str, ...]
    digest: str
    tensors: tuple[Tensor, ...]


class Merging:
    """The program of all ranks."""

    def __init__(self, files: Sequence[Sequence[ArrayFile]]) -> None:
        self._files = [{file.name: file for file in of_rank} for of_rank in files]
        self.sizes: dict[tuple[int, ...], int] = {}
        """Sizes of all ranks -> number of the entry."""
        self._arrays: dict[tuple[str | None, ...], RankArray] = {}

    @property
    def arrays(self) -> list[RankArray]:
        """The arrays, in the order of their first use."""
        return list(self._arrays.values())

    def numbers(self, rank: int) -> Tensor:
        """Return a rank's sizes and then the digests of its arrays, ``(num_sizes + num_arrays,)`` int64."""
        digests = np.array([digest_of(array.tensors[rank]) for array in self.arrays], np.uint64)
        sizes = np.array([of_ranks[rank] for of_ranks in self.sizes], np.int64)
        return torch.from_numpy(np.concatenate((sizes, digests.view(np.int64))))

    def merged(  # noqa: PLR0911 - one for each kind of value
        self, values: Sequence[Any], where: str = "the program"
    ) -> Any:
        """Merge a value of the template: return one for all ranks from those of each rank.

        Raises:
            NotLoweredError: the ranks differ in more than numbers and arrays.
        """
        first = next((value for value in values if value is not None), None)
        if isinstance(first, str):
            return self._text(values, where)
        if isinstance(first, int) and not isinstance(first, bool):
            return self._number(values)
        if isinstance(first, PassText):
            tasks = [self._task(each) for each in zip(*(of_rank.tasks for of_rank in values), strict=True)]
            return replace(first, tasks=tasks)
        if isinstance(first, CppStatement):
            begin = self._text(_each(values, attrgetter("begin")), where)
            return replace(first, begin=begin, fields=self.merged(_each(values, attrgetter("fields")), where))
        if isinstance(first, dict):
            there = [value for value in values if value is not None]
            if wrong := next((of_rank for of_rank in there if of_rank.keys() != first.keys()), None):
                raise _differ(where, ", ".join(first), ", ".join(wrong))
            parts = {key: _each(values, itemgetter(key)) for key in first}
            return {
                key: _comment(each) if key == "what" else self.merged(each, f"{where}, {key}")
                for key, each in parts.items()
            }
        if isinstance(first, list | tuple):
            lists = [[None] * len(first) if value is None else value for value in values]
            if wrong := next((of_rank for of_rank in lists if len(of_rank) != len(first)), None):
                raise _differ(where, f"{len(first)} entries", f"{len(wrong)}")
            return type(first)(self.merged(each, where) for each in zip(*lists, strict=True))
        return first  # records that ranks have in common

    def _task(self, tasks: Sequence[TaskText]) -> TaskText:
        where = f"the task {tasks[0].comment!r}"
        wanted = max((task.calls for task in tasks), key=len)
        aligned = [_aligned(wanted, task.calls, where) for task in tasks]
        calls = []
        for number, call in enumerate(wanted):
            found = [of_rank[number] for of_rank in aligned]
            statements = self.merged(_each(found, attrgetter("statements")), where)
            condition = ""
            if None in found:
                condition = f"{self._number([int(one is not None) for one in found])} != 0"
            calls.append(Written(call.kernel, statements, condition))
        return TaskText(_comment([task.comment for task in tasks]), calls, tasks[0].complete)

    def _text(self, texts: Sequence[str | None], where: str) -> str:
        """Merge texts. A rank that does not make the call has None."""
        # A place at the beginning of its buffer is written without .behind(0); it gets one if others need it.
        if any(text is not None and ".behind(" in text for text in texts):
            texts = _each(texts, lambda text: _AT_PLACE.sub(r"\g<0>.behind(0)", text))
        tokens = _each(texts, _TOKEN.findall)
        wanted = next(of_rank for of_rank in tokens if of_rank is not None)
        if any(of_rank is not None and len(of_rank) != len(wanted) for of_rank in tokens):
            raise _differ(where, *[text for text in texts if text is not None][:2])
        found = []
        for number, token in enumerate(wanted):
            each = _each(tokens, itemgetter(number))
            there = [one for one in each if one is not None]
            if token.startswith("plan."):
                found.append(self._array_token(each, where))
            elif len(set(there)) == 1:
                found.append(token)
            elif all(one.isdigit() for one in there):
                found.append(self._number([int(one or 0) for one in each]))
            else:
                raise _differ(where, *[text for text in texts if text is not None][:2])
        return "".join(found)

    def _number(self, numbers: Sequence[int]) -> Any:
        if len(set(numbers)) == 1:
            return numbers[0]
        return f"sizes[{self.sizes.setdefault(tuple(numbers), len(self.sizes))}]"

    def _array_token(self, tokens: Sequence[str | None], where: str) -> str:
        names = _each(tokens, lambda token: token.removeprefix("plan."))
        key = tuple(names)
        if key not in self._arrays:
            pairs = zip(names, self._files, strict=True)
            files = [None if name is None else of_rank[name] for name, of_rank in pairs]
            number, first = len(self._arrays), next(file for file in files if file is not None)
            tensors = _of_one_shape(_each(files, lambda file: file.tensor.detach()))
            if len({tensor.ndim for tensor in tensors}) > 1:
                raise _differ(where, *(f"an array {tuple(tensor.shape)}" for tensor in tensors[:2]))
            lengths = zip(*(tensor.shape for tensor in tensors), strict=True)
            self._arrays[key] = RankArray(
                name=re.sub(r"\d+$", "", first.name) + str(number),
                reader=first.reader,
                shape=tuple(str(self._number(each)) for each in lengths),
                digest=f"digests[{number}]",
                tensors=tensors,
            )
        return f"plan.{self._arrays[key].name}"


def _each(values: Sequence[Any], part: Callable[[Any], Any]) -> list[Any]:
    return [None if value is None else part(value) for value in values]


def _of_one_shape(tensors: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Return the ranks' tensors. A missing or empty one becomes a tensor of 0 rows of the others' shape.

    An empty tensor may have a wrong shape: tensors are found by address, and empty ones may share an address.
    """
    there = [tensor for tensor in tensors if tensor is not None]
    like = next((tensor for tensor in there if tensor.numel()), there[0])
    nothing = like.new_empty(0, *like.shape[1:])
    return tuple(nothing if tensor is None or not tensor.numel() else tensor for tensor in tensors)


def _aligned(wanted: Sequence[Written], calls: Sequence[Written], where: str) -> list[Written | None]:
    """Align a rank's calls with those of the rank with the most. A call that it lacks is None."""
    left, found = list(calls), list[Written | None]()
    for call in wanted:
        is_there = bool(left) and left[0].kernel == call.kernel
        if not is_there and call.kernel != _MAY_LACK:
            raise _differ(where, call.kernel, "no such call")
        found.append(left.pop(0) if is_there else None)
    # With several such calls in the task, the one that is missing cannot be told.
    if left or (None in found and sum(call.kernel == _MAY_LACK for call in wanted) > 1):
        raise _differ(where, f"{len(wanted)} calls", f"{len(calls)}")
    return found


def _comment(texts: Sequence[str]) -> str:
    """Return a comment in which each number that differs from rank to rank is an n."""
    tokens = [_TOKEN.findall(text) for text in texts]
    if len({len(of_rank) for of_rank in tokens}) > 1:
        return texts[0]
    return "".join(each[0] if len(set(each)) == 1 else "n" for each in zip(*tokens, strict=True))


def _differ(where: str, one: str, other: str) -> NotLoweredError:
    what = f"ranks differ in {where}: {one} on one, {other} on another"
    return NotLoweredError("synthesis", what, "a partition that gives each rank rows to compute")


@typed
def write_mpi(
    synthesis: Synthesis,
    graph: Graph,
    folder: str | os.PathLike[str],
    partition: Partition,
    *,
    options: CompileOptions | None = None,
) -> Path:
    """Write a program in C++ with MPI, and OpenMP inside, that trains a model on a divided graph.

    Args:
        synthesis: the model, whose weights the program begins from, and its recipe.
        graph: the graph.
        folder: the folder to make, with its own ``README.md`` and a folder of arrays for each rank.
        partition: the owner of each node. The program runs on as many ranks as there are parts.
        options: how to lower. If None, as :func:`graphbraid.compile` does.

    Returns:
        The folder.

    Raises:
        NotLoweredError: the target lacks something that the model needs, or an operation cannot be divided
            among ranks. The message names it.
        ConfigError: the partition has another number of nodes.
        DataError: the graph does not fit the model or the recipe.
        ResourceError: the folder exists or cannot be written.
    """
    return write_folder(
        folder, synthesis.model, lambda: sources_of_ranks(synthesis, graph, partition, options)
    )


def sources_of_ranks(
    synthesis: Synthesis, graph: Graph, partition: Partition, options: CompileOptions | None = None
) -> Sources:
    """Plan, record and write down the program of all ranks without making a file."""
    lowered, num_ranks = synthesis.lower(graph, options), partition.num_parts
    read = synthesis.program(graph, training=False)
    contexts, files, kernels, decisions = [], [], set[str](), str(lowered).splitlines()
    decisions.append(f"Divided among {num_ranks} ranks by {partition.strategy}")
    for rank in range(num_ranks):
        share = share_of(lowered, read, partition, rank)
        writer = TemplateWriter(synthesis, share)
        contexts.append(writer.context())
        files.append(writer.arrays.files)
        kernels |= writer.kernels
        levels = range(len(share.lowered.blocks) + 1)
        rows = " -> ".join(f"{share.lowered.num_rows(level):,}" for level in levels)
        nodes = f"{share.lowered.nodes.numel():,} training nodes"
        decisions.append(f"  rank {rank}: {nodes}; rows per level {rows}")
    merging = Merging(files)
    context: dict[str, Any] = merging.merged(contexts)
    numbers = [merging.numbers(rank) for rank in range(num_ranks)]
    context |= {
        "graph": graph.name,
        "ranks": num_ranks,
        "decisions": decisions,
        "arrays": merging.arrays,
        "num_sizes": len(merging.sizes),
        "numbers": [f"0x{digest_of(of_rank):016x}," for of_rank in numbers],
    }
    plan = {f"rank-{rank}/numbers.npy": of_rank for rank, of_rank in enumerate(numbers)}
    for array in merging.arrays:
        plan |= {f"rank-{rank}/{array.name}.npy": values for rank, values in enumerate(array.tensors)}
    more = ("exchange.cpp", "ranks.cpp", *(["ranks_norm.cpp"] if "batch_norm" in kernels else []))
    return rendered(context, [*openmp_sources(kernels), *more], plan)

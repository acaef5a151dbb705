"""Memory: where a recorded tensor lives in the program: arena, weight, gradient, array or scratch."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor

from graphbraid.fullgraph import NotLoweredError
from graphbraid.fullgraph.step.tasks import Buffer
from graphbraid.graph import Graph
from graphbraid.synth.emit.recorded import Standing, address_of

READERS = {torch.float32: "floats", torch.int32: "int32s", torch.int64: "int64s"}
"""The dtypes of a program's arrays, as its functions name them."""


@dataclass(frozen=True, eq=False, slots=True)
class ArrayFile:
    """An array that a program maps."""

    name: str
    file: str
    in_store: bool
    """Whether it is a file of the store; else it is one that synthesis writes."""
    tensor: Tensor

    @property
    def reader(self) -> str:
        """The function that opens it."""
        return READERS[self.tensor.dtype]

    @property
    def digest(self) -> str:
        """XXH64 of its values. The program checks the file by it."""
        return f"0x{digest_of(self.tensor):016x}"


def digest_of(tensor: Tensor) -> int:
    """Return the XXH64 of a tensor's values."""
    values = tensor.detach().contiguous().numpy().reshape(-1)
    return xxhash.xxh64_intdigest(values.tobytes() if not values.size else values.data)


_Place = tuple[int, torch.dtype]
"""Where an array begins, and its dtype. Arrays without elements may begin at one place; dtypes tell them
apart."""
Content = tuple[torch.dtype, tuple[int, ...], int]
"""Dtype, shape and digest of an array."""


def _place(tensor: Tensor) -> _Place:
    return address_of(tensor), tensor.dtype


class Arrays:
    """The arrays of a program, each once.

    The graph's own are read from its store. New files go to ``folder``, a part of ``plan/``. Equal arrays
    share a file, also with the program's other input paths, whose files are ``written``.
    """

    def __init__(
        self, graph: Graph | None, folder: str = "", written: dict[Content, str] | None = None
    ) -> None:
        self.files: list[ArrayFile] = []
        self._folder, self._written = folder, written
        self._by_place: dict[_Place, ArrayFile] = {}
        self._largest: dict[_Place, Tensor] = {}
        self._stored: dict[_Place, tuple[str, Tensor]] = {}
        if graph is not None:
            parts = {"x": graph.x, "indptr": graph.csc.indptr, "indices": graph.csc.indices}
            self._stored = {_place(t): (n, t) for n, t in parts.items() if isinstance(t, Tensor)}

    def look_at(self, standing: Standing) -> None:
        """Find the largest tensor at each address that a step reads. Smaller ones are its beginnings."""
        for given in standing.recording.tensors():
            known = self._largest.get(_place(given))
            if known is None or known.numel() < given.numel():
                self._largest[_place(given)] = given

    def add(self, tensor: Tensor, role: str) -> ArrayFile:
        """Return the file of a tensor."""
        place = _place(tensor)
        if place not in self._by_place:
            whole = self._largest.get(place, tensor)
            stored = self._stored.get(place)
            if whole.dtype not in READERS:
                raise NotLoweredError("synthesis", f"a step reads {whole.dtype}", "float32 features")
            in_store = stored is not None and stored[1].shape == whole.shape and stored[1].is_contiguous()
            name = stored[0] if stored is not None and in_store else f"{role}{len(self.files)}"
            made = ArrayFile(name, f"{name}.npy" if in_store else self._file(name, whole), in_store, whole)
            self._by_place[place] = made
            self.files.append(made)
        return self._by_place[place]

    def _file(self, name: str, tensor: Tensor) -> str:
        """Return the file for a tensor's values: one with equal values if there is one."""
        file = f"{self._folder}{name}.npy"
        if self._written is None:
            return file
        return self._written.setdefault((tensor.dtype, tuple(tensor.shape), digest_of(tensor)), file)


class Memory:
    """C++ expressions for the tensors of one recorded step.

    New arrays are added to ``arrays``. The members of the C++ structure ``arena`` are the arena's buffers.
    """

    def __init__(self, standing: Standing, arrays: Arrays, arena: str) -> None:
        self.standing, self._arrays, self.arena = standing, arrays, arena
        buffers = standing.step.arena.buffers
        self._begin = address_of(buffers[0].tensor) - buffers[0].offset
        self._end = self._begin + standing.step.arena.nbytes
        self.names = _unique(buffers)
        self._made: dict[int, str] = {}
        self.made: list[tuple[str, int]] = []
        """Name and number of elements of each array that a call writes for later calls of the same step."""
        self.last_use: dict[str, int] = {}
        """Parameter's name -> position of the last task that touches its gradient."""
        arrays.look_at(standing)

    def make(self, tensor: Tensor, role: str) -> None:
        """Reserve memory in the program for a call's result, unless the result has memory already."""
        address, standing = address_of(tensor), self.standing
        is_elsewhere = self._begin <= address < self._end or address in standing.gradients
        if is_elsewhere or address in standing.weights or address in self._made:
            return
        self._made[address] = f"{self.arena}_{role}{len(self.made)}"
        self.made.append((self._made[address], tensor.numel()))

    def matrix(self, tensor: Tensor | None, at: int, role: str = "rows") -> str | None:
        """Return a matrix of float32; None for None."""
        if tensor is None:
            return None
        if tensor.dtype != torch.float32 or tensor.ndim != 2:
            raise NotLoweredError("synthesis", f"a step reads rows of {tensor.dtype}", "storage='float32'")
        (rows, columns), (row_stride, column_stride) = tensor.shape, tensor.stride()
        address = address_of(tensor)
        if self._begin <= address < self._end and column_stride == 1:
            place = self._tensor(address, at)
            stride = "" if row_stride == columns else f", {row_stride}"
            return f"{place}({rows}, {columns}{stride})"
        values = self._values(tensor, at, role)
        if (row_stride, column_stride) == (columns, 1):
            return f"contiguous({values}, {rows}, {columns})"
        if (row_stride, column_stride) == (1, rows):
            return f"transposed(contiguous({values}, {columns}, {rows}))"
        return f"strided({values}, {rows}, {columns}, {row_stride}, {column_stride})"

    def pointer(self, tensor: Tensor | None, at: int, role: str) -> str | None:
        """Return a pointer to the elements of a vector, or of a contiguous matrix that is not float32."""
        if tensor is None:
            return None
        if not tensor.is_contiguous():
            raise NotLoweredError("synthesis", f"a step reads a strided {role}", "contiguous arrays")
        return self._values(tensor, at, role)

    def _values(self, tensor: Tensor, at: int, role: str) -> str:
        """Return a pointer to a tensor's first element."""
        address = address_of(tensor)
        if self._begin <= address < self._end:
            read = "int32s" if tensor.dtype == torch.int32 else "floats"
            return f"{self._tensor(address, at)}.{read}()"
        if address in self.standing.gradients:
            name = self.standing.gradients[address]
            self.last_use[name] = max(at, self.last_use.get(name, at))
            return f"gradient({cpp_name(name)})"
        if address in self._made:
            return f"{self._made[address]}.data()"
        if address in self.standing.weights:
            return f"value({cpp_name(self.standing.weights[address])})"
        if address not in self.standing.arrays:
            what = f"a step's {role} are in memory that is not planned"
            raise NotLoweredError("synthesis", what, "training in Python")
        return f"{self.array(tensor, role)}.{READERS[tensor.dtype]}()"

    def counter(self, tensor: Tensor) -> str:
        """Return a counter of steps, which is saved with the weights."""
        return f"counter({cpp_name(self.standing.weights[address_of(tensor)])})"

    def array(self, tensor: Tensor, role: str) -> str:
        """Return a constant array."""
        return f"plan.{self._arrays.add(tensor, role).name}"

    def _tensor(self, address: int, at: int) -> str:
        """Return the arena's buffer at an address, or a place in it."""
        # Buffers that are not live at the same time share memory: the task's position tells which one it is.
        offset = address - self._begin
        for buffer, name in self.names:
            size = buffer.nbytes + self.standing.step.gap
            if buffer.offset <= offset < buffer.offset + size and buffer.first <= at <= buffer.last:
                rest = offset - buffer.offset
                return f"{self.arena}.{name}" + (f".behind({rest})" if rest else "")
        raise NotLoweredError("synthesis", "a task touches memory that it was not planned for", "a report")


def cpp_name(name: str) -> str:
    """Return a weight's name as a C++ identifier."""
    return "w_" + re.sub(r"\W", "_", name)


def _unique(buffers: Iterable[Buffer]) -> list[tuple[Buffer, str]]:
    taken: set[str] = set()
    found = []
    for buffer in buffers:
        base = "_".join(re.findall(r"[a-z0-9]+", buffer.name.lower()))
        name, number = base, 2
        while name in taken:
            name, number = f"{base}_{number}", number + 1
        taken.add(name)
        found.append((buffer, name))
    return found

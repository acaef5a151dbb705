"""Graph breaks: calls of a model without a lowered form, which PyTorch runs between lowered operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.program.operations import Operation, itself, run_call
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.nn.adjacency import MadeOfTensors

if TYPE_CHECKING:
    from graphbraid.fullgraph.program.program import Program


@dataclass(frozen=True, slots=True)
class FromInput:
    """An argument of a call: one of the break's inputs, a matrix of node rows."""

    number: int


@dataclass(frozen=True, slots=True)
class FromCall:
    """An argument of a call: the result of an earlier call of the same break, of any kind."""

    number: int


@dataclass(frozen=True, slots=True)
class FromGraph:
    """An argument of a call: the graph's edges, or another thing that the model gets of the graph."""

    name: str
    by_row: bool = False
    """Whether it has a row for each node, so that a call on the first rows gets its first rows."""


@dataclass(frozen=True, slots=True)
class FromBreak:
    """An argument of a call: a result that an earlier break keeps. Its rows are an input of this break."""

    number: int
    """Number of that input."""
    call: int
    """Number of the earlier break's call."""


@dataclass(frozen=True, slots=True)
class FromKept:
    """A call's result of any form that a break keeps, since the model returns it."""

    value: str
    """The value that the break makes."""
    call: int
    """Number of the break's call."""


@dataclass(frozen=True, eq=False)
class LoweredLayer:
    """A layer that gets other edges than the graph's, or other values of these: it runs by its own program.

    It is called with a tuple of matrices of node rows, a ``(2, num_edges)`` edge list, and the edges' weights
    and features or None. The program reads the matrices side by side.
    """

    module: nn.Module
    """The user's layer."""
    program: Program
    learns_weights: bool
    """Whether the weights need a gradient."""


RunLayer = Callable[..., Tensor]
"""Runs a :class:`LoweredLayer`, which comes first, with its arguments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenCall:
    """One call that a model makes, of a module, a function or a method of its first argument."""

    target: nn.Module | LoweredLayer | Callable[..., Any] | str
    """The module or function to call, or the name of a method."""
    args: tuple[Any, ...]
    """Arguments by position. Inside, also in containers, are :class:`FromInput`, :class:`FromCall`,
    :class:`FromBreak` and :class:`FromGraph`; tensors of the model are there themselves."""
    kwargs: Mapping[str, Any]
    """Arguments by name."""
    name: str
    """Name of the module or function, for people."""
    where: str = ""
    """File and line of the user's code that makes the call; empty if no such line was found."""
    code: str = ""
    """A short name of the kind of reason why it has no lowered form; see :class:`.NotLoweredError`."""
    why: str = ""
    """The part and the reason."""
    needed: str = ""
    """A replacement that could be lowered; may be empty."""

    def explained(self) -> str:
        """Return the line of ``explain()`` about the call."""
        needed = f". Needed: {self.needed}" if self.needed else ""
        return f"{self.where + ': ' if self.where else ''}{self.why} [{self.code}]{needed}"

    def run(self, find: Callable[[Any], Any], run_layer: RunLayer | None = None) -> Any:
        """Make the call; ``find`` returns the value of a reference among its arguments."""
        args, kwargs = _with(self.args, find), _with(dict(self.kwargs), find)
        if isinstance(self.target, LoweredLayer):
            assert run_layer is not None
            return run_layer(self.target, *args)
        return run_call(self.target, args, kwargs)

    def references(self) -> Iterator[Any]:
        """Yield all arguments that are no containers."""
        yield from _inside(self.args)
        yield from _inside(dict(self.kwargs))


class GraphValues(dict[str, Any]):
    """The values of a graph that the calls of breaks receive, by name. Copies of a program share them."""

    def __deepcopy__(self, _: Any) -> GraphValues:
        return self


@dataclass(frozen=True, kw_only=True)
class Break(Operation):
    """Calls that PyTorch runs as the model makes them, with autograd.

    They are a graph break, unless they are a known module of PyTorch's or PyG's that has no kernel here.

    The inputs are matrices of rows of the same nodes, and so is the result, that of the last call. Values
    computed on the way may have any form. Dropout in it draws from torch's generator.
    """

    calls: tuple[WrittenCall, ...]
    """The calls in the order they are made."""
    width_out: int
    """Columns of the result."""
    couples_rows: bool
    """Whether a row's result may depend on other rows or on their order. If so, there must be a row for each
    node, in the graph's order."""
    given: GraphValues = field(default_factory=GraphValues)
    """Values that the calls read of the graph for which the model was read."""
    kept: frozenset[int] = frozenset()
    """Numbers of the calls whose results later breaks read."""
    symbol = "as written"

    def run(
        self,
        inputs: Sequence[Tensor],
        given: Mapping[str, Any] | None = None,
        *,
        run_layer: RunLayer | None = None,
        earlier: Callable[[FromBreak], Any] | None = None,
        keep: dict[int, Any] | None = None,
    ) -> Tensor:
        """Return the ``(num_rows, width_out)`` result; differentiable as PyTorch's operations are.

        Args:
            inputs: the rows of each input.
            given: values of the graph that the calls read, by name. If None, :attr:`given`.
            run_layer: runs layers by their own programs.
            earlier: returns a result that an earlier break has kept.
            keep: gets the results of the calls in :attr:`kept`, by number.
        """
        of_graph = self.given if given is None else given
        made: list[Any] = []

        def find(value: Any) -> Any:
            if isinstance(value, FromCall):
                return made[value.number]
            if isinstance(value, FromInput):
                return inputs[value.number]
            if isinstance(value, FromBreak):
                assert earlier is not None
                return earlier(value)
            if not isinstance(value, FromGraph):
                return value
            found = of_graph[value.name]
            return found[: inputs[0].shape[0]] if value.by_row else found

        for call in self.calls:
            made.append(call.run(find, run_layer))  # noqa: PERF401 - find reads earlier results in it
        if keep is not None:
            keep |= {number: made[number] for number in self.kept}
        result: Tensor = made[-1]
        return result

    @property
    def is_graph_break(self) -> bool:
        """Whether it calls anything but modules that are known, and does more than keep its inputs."""
        inputs = [call.target is itself and isinstance(call.args[0], FromInput) for call in self.calls]
        return any(
            call.why or not (isinstance(call.target, nn.Module) or is_input)
            for call, is_input in zip(self.calls, inputs, strict=True)
        )

    @property
    def reads(self) -> frozenset[str]:
        """Names of the graph's values that the calls read."""
        return frozenset(one.name for one in self._references() if isinstance(one, FromGraph))

    @property
    def by_row(self) -> frozenset[str]:
        """Names of those among :attr:`reads` that have a row for each node."""
        return frozenset(one.name for one in self._references() if isinstance(one, FromGraph) and one.by_row)

    @property
    def used_inputs(self) -> frozenset[int]:
        """Numbers of the inputs that the calls read; the others only say whose rows the result has."""
        return frozenset(one.number for one in self._references() if isinstance(one, FromInput))

    @property
    def read_breaks(self) -> tuple[FromBreak, ...]:
        """The results of earlier breaks that the calls read, each once."""
        return tuple(dict.fromkeys(one for one in self._references() if isinstance(one, FromBreak)))

    def _references(self) -> Iterator[Any]:
        return (one for call in self.calls for one in call.references())

    @property
    def layers(self) -> tuple[LoweredLayer, ...]:
        """The layers that run by programs of their own."""
        return tuple(call.target for call in self.calls if isinstance(call.target, LoweredLayer))

    def modules(self) -> tuple[nn.Module, ...]:
        """Return the modules that are called, each once."""
        called = (call.target for call in self.calls)
        found = (one.module if isinstance(one, LoweredLayer) else one for one in called)
        return tuple({id(one): one for one in found if isinstance(one, nn.Module)}.values())

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the parameters that the calls use, of modules and among arguments, each once."""
        whole = (call.target for call in self.calls if isinstance(call.target, nn.Module))
        of_modules = [parameter for module in whole for parameter in module.parameters()]
        of_modules += [parameter for layer in self.layers for parameter in layer.program.parameters()]
        among = (one for one in self._references() if isinstance(one, nn.Parameter))
        return tuple({id(one): one for one in (*of_modules, *among)}.values())

    def _details(self) -> str:
        return ", ".join(call.name for call in self.calls)


@dataclass(frozen=True, kw_only=True, slots=True)
class Returned:
    """A model's output that holds one or several matrices of node rows, such as a tuple or a dict."""

    value: Any
    """Tuples, lists and dicts, at any depth, with a :class:`FromInput` in place of each matrix of node
    rows, and a :class:`FromKept` in place of any other result."""
    widths: tuple[int, ...]
    """Columns of each matrix. The program's output has them side by side."""

    def of(self, out: Tensor, kept: Callable[[FromKept], Any] | None = None) -> Any:
        """Return the model's output, given the program's, with the matrices in their places.

        ``kept`` returns a result that a break has kept.
        """
        parts = [
            part.clone() for part in torch.split(out, [*self.widths], 1)
        ]  # views could not be written over

        def find(one: Any) -> Any:
            if isinstance(one, FromKept):
                assert kept is not None
                return kept(one)
            return parts[one.number] if isinstance(one, FromInput) else one

        return _with(self.value, find)

    def joined(self, returned: Any) -> Tensor:
        """Return the program's output, given the model's."""
        pairs = zip(_inside(self.value), _inside(returned), strict=True)
        parts = {place.number: part for place, part in pairs if isinstance(place, FromInput)}
        return torch.cat([parts[number] for number in range(len(self.widths))], 1)


def written_lines(breaks: Sequence[Break]) -> list[str]:
    """Return the lines of ``explain()`` about the graph breaks of a program; none if there are none."""
    if not breaks:
        return []
    lines = [f"Runs as written, between lowered operations: {len(breaks)} graph breaks"]
    for op in breaks:
        lines.append(f"  {op.out} = {op.details()}")
        lines += [f"    {call.explained()}" for call in op.calls if call.why]
    return lines


def reasons_of(breaks: Sequence[Break]) -> list[str]:
    """Return why calls of graph breaks have no lowered form, each reason once."""
    return list(dict.fromkeys(call.explained() for op in breaks for call in op.calls if call.why))


def _with(value: Any, find: Callable[[Any], Any]) -> Any:
    """Return a container with its references replaced, at any depth."""
    if isinstance(value, tuple):
        filled = (_with(one, find) for one in value)
        return type(value)(*filled) if hasattr(value, "_fields") else tuple(filled)
    if isinstance(value, list):
        return [_with(one, find) for one in value]
    if isinstance(value, dict):
        return {key: _with(one, find) for key, one in value.items()}
    if isinstance(value, slice):
        return slice(_with(value.start, find), _with(value.stop, find), _with(value.step, find))
    return find(value)


def _inside(value: Any) -> Iterator[Any]:
    """Yield the values in a container at any depth; of another value, the value itself."""
    if isinstance(value, dict):
        value = tuple(value.values())
    elif isinstance(value, slice):
        value = (value.start, value.stop, value.step)
    if isinstance(value, tuple | list):
        for one in value:
            yield from _inside(one)
    else:
        yield value


EDGE_LIST, EDGE_WEIGHT, NUM_NODES, DTYPE, DEVICE = "edges", "weights", "number of nodes", "dtype", "device"
"""Names of the graph's values that a :class:`.FromGraph` can ask for."""
_MADE = MadeOfTensors()
"""Values computed of a graph or batch. Layers, and steps on the same graph, share them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputedEdges:
    """Calls of a model that read the graph's edges alone, and so give the same in each step on a graph.

    PyTorch makes them once for each graph or batch, as they are written, on a list of its edges in the order
    of their destinations.
    """

    calls: tuple[WrittenCall, ...]
    edges: FromCall | FromGraph
    """The edges that messages run along: the graph's own, or a ``(2, num_edges)`` result."""
    values: tuple[FromCall | FromGraph, ...]
    """Results with a row for each of these edges: numbers or vectors."""
    matrix: Any = None
    """The :class:`.MatrixKind` of sparse matrix that the calls get for the edges; None: they get a list."""

    def of(self, csc: Csc, dtype: torch.dtype) -> tuple[Csc, tuple[Tensor, ...]]:
        """Return the edges computed of a graph, and the values in their order.

        ``dtype`` is that of the node rows, and of the values. The graph has as many sources as destinations.
        """
        tensors = [csc.indices, csc.indptr] + ([] if csc.weight is None else [csc.weight])
        key = self.edges, self.values, tuple(str(call) for call in self.calls), self.matrix, dtype
        return _MADE.get(tensors, key, lambda: self._made(csc, dtype))

    @torch.inference_mode(False)  # whose tensors count no writes, and which no later step could save
    def _made(self, csc: Csc, dtype: torch.dtype) -> tuple[Csc, tuple[Tensor, ...]]:
        edges = torch.stack((csc.indices.long(), csc.destinations().long()))
        weight = None if csc.weight is None else csc.weight.detach().to(dtype, copy=True)
        edges, values = self.run(edges, weight, csc.num_src, dtype)
        if isinstance(self.edges, FromGraph):  # the graph's own, in their order
            return csc, values
        found, order = coo_to_csc(edges[0], edges[1], csc.num_src, csc.num_dst)
        return found, tuple(value if order is None else value[order] for value in values)

    def run(
        self,
        edges: Tensor,
        weight: Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
        note: Callable[[Any], object] = id,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Make the calls; return the list of edges and the values, in the order of the model's own.

        Args:
            edges: ``(2, num_edges)``, int64: the graph's edges in any order.
            weight: a number for each of them, of ``dtype``; None without weights.
            num_nodes: the number of nodes.
            dtype: dtype of the node rows, and of the values.
            note: is called with each call's result, before others may write over it.

        Raises:
            ValueError: they write over the graph's own edges or weights.
        """
        before = [None if one is None else one._version for one in (edges, weight)]
        given = edges if self.matrix is None else self.matrix.made(edges, weight, num_nodes, dtype)
        state = None if self.matrix is None else self.matrix.state_of(given)
        of_graph: Mapping[str, Any] = {
            EDGE_LIST: given,
            EDGE_WEIGHT: weight,
            NUM_NODES: num_nodes,
            DTYPE: dtype,
            DEVICE: edges.device,
        }
        made: list[Any] = []

        def find(value: Any) -> Any:
            if isinstance(value, FromCall):
                return made[value.number]
            return of_graph[value.name] if isinstance(value, FromGraph) else value

        with torch.no_grad():
            for call in self.calls:
                made.append(call.run(find))  # find reads earlier results in it
                note(made[-1])
        is_changed = before != [None if one is None else one._version for one in (edges, weight)]
        if is_changed or (state is not None and state != self.matrix.state_of(given)):
            raise ValueError("the graph's own edges are written over")
        return find(self.edges), tuple(find(value).to(dtype) for value in self.values)

"""Linear maps of a message move to the nodes: ``W [x_i; x_j] = A x_i + B x_j``, where ``W`` is ``[A, B]``.

A message often begins with a linear map of both ends' rows side by side, or of their difference. A product
for each node takes less than one for each edge, and the rest of the work for each edge is elementwise.
Likewise, a map that ends the message moves behind a sum or mean.

The trace of the message is followed column by column. As long as calls only move columns, add, or multiply by
numbers, each number of a value is known as a sum of constants times numbers of earlier rows.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from graphbraid.fullgraph.program import Linear, View, run_call
from graphbraid.fullgraph.reading.exact import is_from
from graphbraid.fullgraph.reading.message_trial import MessageCalls, name_of_call
from graphbraid.fullgraph.reading.reader import Writer

if TYPE_CHECKING:
    from graphbraid.fullgraph.reading.messages import Propagation

_MOST_PARTS = 8
"""Most terms of the sum that a value is followed as, and most products that one linear map may become."""
_PRODUCTS = {"matmul", "mm"}
_JOINS = {"cat", "concat", "stack", "getitem", "chunk", "split", "repeat", "expand"}
"""Calls that move columns to other places, which no step of a kernel does."""
_SHAPES = {"reshape", "flatten", "unsqueeze", "squeeze", "view", "contiguous"}


def is_plain_linear(module: nn.Module) -> bool:
    """Return whether a call of a module is that of PyTorch's or PyG's linear map alone, without hooks."""
    is_pyg = type(module).__name__ == "Linear" and is_from(type(module), _PYG_LINEAR)
    return (type(module) is nn.Linear or is_pyg) and not any(map(vars(module).get, _HOOKS))


@dataclass(frozen=True, eq=False, kw_only=True)
class TracedMessage(MessageCalls):
    """A message as calls on rows."""

    rows: dict[str, Any]
    """By argument, the name of the node rows from which it gets a row per edge, or anything else."""
    shapes: dict[str, tuple[int, ...]]
    """By argument, the shape of an edge's row."""
    shape: tuple[int, ...]
    """The shape of an edge's message."""
    is_moved: bool = False
    """Whether linear maps were taken out, so that the layer's own method computes something else."""
    after: LastMap | None = None
    """The linear map to apply to the reduced messages."""


@dataclass(frozen=True, slots=True)
class LastMap:
    """A linear map with or without a bias; both are parameters as they are."""

    weight: nn.Parameter
    bias: nn.Parameter | None = None
    turned: bool = False
    """Whether the weight is stored as ``(in_channels, out_channels)``."""

    @property
    def shape(self) -> tuple[int, int]:
        """Shape ``(out_channels, in_channels)`` of the matrix."""
        return View(turned=self.turned).shape(self.weight)


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A term of the sums that values are written as: rows of nodes, or a call's rows of edges."""

    first: int
    """Number of its first column among those of all leaves."""
    width: int
    node: fx.Node
    value: str | None = None
    """Name of the node rows; None for rows of edges."""
    end: str = ""
    """``_i`` or ``_j``, the end of an edge whose row it is."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Successive columns of a value that are successive columns of a leaf, times a factor."""

    leaf: _Leaf
    first: int
    """The first column of the value."""
    at: int
    """The first column of the leaf."""
    width: int
    factor: float


_Terms = list[tuple[Tensor, Tensor]]
"""A value as a sum: for each term the factors, float64, and the numbers of the columns that they multiply,
int64. Both have the shape of two rows of the value. A factor of 0 goes with any number."""


def with_maps_moved(
    message: TracedMessage, of: Propagation, writer: Writer, *, takes_last: bool
) -> TracedMessage:
    """Return an equal message whose linear maps of node rows are products that the writer gets.

    The message was shown to work row by row; its node rows are of one level. If ``takes_last``, a linear map
    that ends it may move behind the reduction.
    """
    # The layer's own method computes any other tensor again in each call, and a moved message would keep it.
    held = {id(tensor) for tensor in (*of.layer.parameters(), *of.layer.buffers())}
    if any(id(tensor) not in held for tensor in message.tensors.values()):
        return message
    state = writer.state()
    moved = _Mover(message, of, writer, takes_last).run()
    if not moved.is_moved:
        writer.put_back(state)
        return message
    return moved


@dataclass
class _Mover:
    """Copies a message's calls, without the linear maps that move."""

    message: TracedMessage
    of: Propagation
    writer: Writer
    takes_last: bool

    def __post_init__(self) -> None:
        layer = self.of.layer
        self._graph, self._tensors = fx.Graph(), dict(self.message.tensors)
        self._rows, self._shapes = dict(self.message.rows), dict(self.message.shapes)
        self._dtype = next((p.dtype for p in layer.parameters()), self.of.dtype or torch.float32)
        self._held: dict[fx.Node, Any] = {}
        """The result of each call for two rows."""
        self._terms: dict[fx.Node, Any] = {}
        """Values as sums: :data:`_Terms`, or a tuple of them for a call that returns several tensors."""
        self._copies: dict[fx.Node, fx.Node] = {}
        self._leaves: list[_Leaf] = []
        self._products: dict[tuple[Any, ...], str] = {}
        self._is_moved = False

    def run(self) -> TracedMessage:
        """Return the message that is left."""
        shape, after = self.message.shape, None
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            for node in self.message.graph.nodes:
                if node.op != "output":
                    self._follow(node)
                    continue
                out: Any = node.args[0]
                last = (
                    self._map_of(out) if self.takes_last and self._copies[out].target == out.target else None
                )
                if last is not None and self._held[last[1]].ndim == 2:
                    after, out = last
                    shape, self._is_moved = (after.shape[1],), True
                self._graph.output(self._copied(out))
        for made in reversed(self._graph.nodes):
            if made.op != "output" and not made.users:
                self._graph.erase_node(made)
        left = {str(node.target) for node in self._graph.find_nodes(op="placeholder")}
        return TracedMessage(
            layer=self.of.layer,
            graph=self._graph,
            tensors=self._tensors,
            rows={key: value for key, value in self._rows.items() if key in left},
            shapes={key: value for key, value in self._shapes.items() if key in left},
            shape=shape,
            is_moved=self._is_moved,
            after=after,
        )

    def _follow(self, node: fx.Node) -> None:
        """Copy a call, and follow its result."""
        if node.op == "placeholder":
            self._take(node)
            return
        if node.op == "get_attr":
            self._held[node] = self._tensors[str(node.target)]
            self._copies[node] = self._graph.node_copy(node)
            return
        self._held[node] = self._called(node, self._held.__getitem__)
        found = self._map_of(node)
        if found is not None and self._move(node, *found):
            return
        terms = self._followed(node)
        if terms is not None:
            self._terms[node] = terms
            self._copies[node] = self._graph.node_copy(node, self._copies.__getitem__)
            return
        made = self._copies[node] = self._graph.node_copy(node, self._copied)
        if isinstance(self._held[node], Tensor) and any(one in self._terms for one in node.all_input_nodes):
            self._terms[node] = [self._entered(made, self._held[node])]

    def _take(self, node: fx.Node) -> None:
        """Copy an argument."""
        key = str(node.target)
        made = self._copies[node] = self._graph.node_copy(node)
        if key in self.of.special:
            self._held[node] = torch.zeros(2, dtype=torch.int64) if self.of.special[key] == "ids" else 1
            return
        self._held[node] = torch.rand(2, *self._shapes[key], dtype=self._dtype)
        self._terms[node] = [self._entered(made, self._held[node], key)]

    def _entered(self, made: fx.Node, like: Tensor, key: str = "") -> tuple[Tensor, Tensor]:
        """Enter rows that values are sums of; return the term that is these rows."""
        first = self._leaves[-1].first + self._leaves[-1].width if self._leaves else 0
        value = self._rows.get(key)
        is_of_nodes = isinstance(value, str)
        leaf = _Leaf(first, like[0].numel(), made, value if is_of_nodes else None, key[-2:] * is_of_nodes)
        self._leaves.append(leaf)
        places = (
            torch.arange(first, first + leaf.width).view(1, *like.shape[1:]).repeat(2, *[1] * (like.ndim - 1))
        )
        return torch.ones(places.shape, dtype=torch.float64), places

    def _called(self, node: Any, held: Callable[[fx.Node], Any]) -> Any:
        """Return the value of a call from those of its arguments."""
        args, named = (fx.node.map_arg(one, held) for one in (node.args, node.kwargs))
        if node.op == "call_module":
            module = self.of.module(node)
            return args[0] if isinstance(module, nn.Dropout) else module(args[0])
        if node.target is F.dropout:
            return args[0]
        return run_call(node.target, args, named)

    # ---- values as sums

    def _followed(self, node: Any) -> Any:
        """Return a call's result as a sum; None if it is not known to be one, or has too many terms."""
        name, args = name_of_call(node.target), node.args
        terms = [self._terms[one] for one in node.all_input_nodes if one in self._terms]
        if not terms or (len(node.kwargs) > 0 and name not in _JOINS | _SHAPES):
            return None
        made: Any = None
        if name in ("add", "sub"):
            made = self._sum(*args, sign=1.0 if name == "add" else -1.0) if len(args) == 2 else None
        elif name == "neg":
            made = [(-factors, places) for factors, places in terms[0]]
        elif name == "mul" and len(terms) == 1 and any(isinstance(one, int | float) for one in args):
            number = next(float(one) for one in args if not isinstance(one, fx.Node))
            if number and math.isfinite(number):  # of an infinite or undefined number, 0 times is no 0
                made = [(number * factors, places) for factors, places in terms[0]]
        elif self._rests(node):
            made = terms[0]
        elif name == "getitem" and isinstance(terms[0], tuple):
            made = terms[0][args[1]]
        elif name in _JOINS | _SHAPES and all(
            one in self._terms or not isinstance(self._held[one], Tensor) for one in node.all_input_nodes
        ):
            made = self._joined_terms(node, max(map(len, terms)))
        return made if isinstance(made, tuple) or (made and len(made) <= _MOST_PARTS) else None

    def _rests(self, node: fx.Node) -> bool:
        """Return whether a call is an identity, or a dropout out of training."""
        if node.op == "call_module":
            module = self.of.module(node)
            return type(module) is nn.Identity or (type(module) is nn.Dropout and not module.training)
        given = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
        return node.target is F.dropout and given.get("training", True) is False

    def _sum(self, one: Any, other: Any, *, sign: float) -> _Terms | None:
        if one not in self._terms or other not in self._terms:
            return None
        made, shape = [], (self._held[one] + self._held[other]).shape
        for node, factor in ((one, 1.0), (other, sign)):
            made += [(factor * f.expand(shape), places.expand(shape)) for f, places in self._terms[node]]
        return made

    def _joined_terms(self, node: fx.Node, count: int) -> Any:
        """Return the result, as sums, of a call that only moves columns."""

        def made(number: int, which: int) -> Any:
            def held(one: fx.Node) -> Any:
                if one not in self._terms:
                    return self._held[one]
                terms = self._terms[one]
                return terms[number][which] if number < len(terms) else torch.zeros_like(terms[0][which])

            return self._called(node, held)

        found = [(made(number, 0), made(number, 1)) for number in range(count)]
        if isinstance(found[0][0], Tensor):
            return found
        return tuple([(f[at], places[at]) for f, places in found] for at in range(len(found[0][0])))

    def _parts(self, terms: _Terms) -> Iterator[_Part]:
        """Yield the successive columns of each term that have one factor."""
        for factors, places in terms:
            of_row = list(zip(factors[0].flatten().tolist(), places[0].flatten().tolist(), strict=True))
            first = 0
            for k in range(1, len(of_row) + 1):
                factor, place = of_row[first]
                leaf = next(one for one in reversed(self._leaves) if one.first <= place)
                goes_on = k < len(of_row) and place + k - first < leaf.first + leaf.width
                if goes_on and of_row[k] == (factor, place + k - first):
                    continue
                if factor:
                    yield _Part(leaf, first, place - leaf.first, k - first, factor)
                first = k

    # ---- linear maps

    def _map_of(self, node: fx.Node) -> tuple[LastMap, fx.Node] | None:
        """Return the linear map that a call applies, if its weights are plain parameters, and its input."""
        x: Any
        weight: Any
        bias: Any
        if node.op == "call_module":
            module: Any = self.of.module(node)
            if not is_plain_linear(module):
                return None
            x, weight, bias = node.args[0], module.weight, module.bias
        elif node.target is F.linear:
            given = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | node.kwargs
            x, weight, bias = (
                given.get("input"),
                *(self._tensor(given.get(key)) for key in ("weight", "bias")),
            )
        elif name_of_call(node.target) in _PRODUCTS and len(node.args) == 2 and not node.kwargs:
            x, weight, bias = node.args[0], self._tensor(node.args[1]), None
        else:
            return None
        held = (weight,) if bias is None else (weight, bias)
        if not all(isinstance(one, nn.Parameter) for one in held) or weight.ndim != 2 or x not in self._terms:
            return None
        return LastMap(weight, bias, turned=name_of_call(node.target) in _PRODUCTS), x

    def _tensor(self, argument: Any) -> Any:
        return self._held[argument] if isinstance(argument, fx.Node) else argument

    def _move(self, node: fx.Node, by: LastMap, x: fx.Node) -> bool:
        """Take a linear map of node rows out of the message; return False if it is none."""
        parts = list(self._parts(self._terms[x])) if self._held[x].ndim == 2 else []
        if len(parts) > _MOST_PARTS or not any(part.leaf.value for part in parts):
            return False
        sums: dict[str, list[tuple[float, str]]] = {}
        for part in parts:
            if part.leaf.value:
                sums.setdefault(part.leaf.end, []).append((part.factor, self._product(by, part)))
        values = {end: self.writer.combine(*terms) for end, terms in sums.items()}
        if by.bias is not None:
            end = min(values)  # of the destination if there is one, which has fewer rows
            values[end] = self.writer.epilogue(values[end], bias=by.bias)
        like = self._held[node]
        given = [self._argument(end, value, tuple(like.shape[1:])) for end, value in values.items()]
        given += [self._product_of_edges(by, part) for part in parts if not part.leaf.value]
        self._replace(node, given, is_written=any(map(self._writes, node.users)))
        return True

    def _product(self, by: LastMap, part: _Part) -> str:
        """Return the value of a part's linear map, which equal parts share."""
        value, at, width = part.leaf.value, part.at, part.width
        key = value, at, width, part.first, id(by.weight), by.turned
        if key not in self._products:
            assert value is not None
            columns = None if width == by.shape[1] else (part.first, part.first + width)
            view = View(columns=columns, turned=by.turned)
            rows = self.writer.columns(value, at, at + width)
            self._products[key] = self.writer.add(Linear, rows, weight=by.weight, view=view)
        return self._products[key]

    def _product_of_edges(self, by: LastMap, part: _Part) -> fx.Node:
        """Return the call of a part's linear map that stays in the message."""
        call, (first, at) = self._graph.call_function, (part.first, part.at)
        name = next(
            (key for key, held in self._tensors.items() if held is by.weight), f"weight_{len(self._tensors)}"
        )
        self._tensors[name] = by.weight
        weight = self._graph.get_attr(name)
        weight = call(torch.t, (weight,)) if by.turned else weight
        weight = call(operator.getitem, (weight, (slice(None), slice(first, first + part.width))))
        rows = call(torch.flatten, (part.leaf.node, 1))
        rows = call(operator.getitem, (rows, (slice(None), slice(at, at + part.width))))
        made = call(F.linear, (rows, weight))
        return made if part.factor == 1 else call(operator.mul, (made, part.factor))

    # ---- the calls that are left

    def _argument(self, end: str, value: str, shape: tuple[int, ...]) -> fx.Node:
        """Return an argument that gets rows of a value, which equal ones share."""
        key = f"{value}_{'x'.join(map(str, shape))}{end}"
        while key in self.message.rows:
            key = f"_{key}"
        found = next((n for n in self._graph.find_nodes(op="placeholder") if n.target == key), None)
        self._rows[key], self._shapes[key] = value, shape
        return self._graph.placeholder(key) if found is None else found

    def _replace(self, node: fx.Node, given: Iterable[fx.Node], *, is_written: bool = False) -> None:
        """Let a sum of rows stand for a call."""
        given = tuple(given)
        self._terms[node] = [
            self._entered(one, self._held[node], str(one.target) if one.op == "placeholder" else "")
            for one in given
        ]
        total: Any = given[0]
        for other in given[1:] or (0.0,) * is_written:
            total = self._graph.call_function(operator.add, (total, other))
        self._copies[node], self._is_moved = total, True

    def _copied(self, node: fx.Node) -> fx.Node:
        """Return the replacement of a call. Rows of nodes replace joined columns of such rows."""
        joins = name_of_call(node.target) in _JOINS and node.op != "placeholder"
        is_copy = joins and isinstance(self._held[node], Tensor) and self._copies[node].target == node.target
        if is_copy and isinstance(self._terms.get(node), list):
            shape, arguments = tuple(self._held[node].shape[1:]), list[tuple[str, str]]()
            for term in self._terms[node]:
                parts = list(self._parts([term]))
                ends = {part.leaf.end for part in parts}
                is_whole = sum(part.width for part in parts) == math.prod(shape)
                if (
                    len(ends) > 1
                    or not is_whole
                    or any(part.factor != 1 or not part.leaf.end for part in parts)
                ):
                    return self._copies[node]
                columns = [
                    self.writer.columns(str(part.leaf.value), part.at, part.at + part.width) for part in parts
                ]
                arguments.append((ends.pop(), self.writer.beside(*columns)))
            self._replace(node, [self._argument(end, value, shape) for end, value in arguments])
        return self._copies[node]

    def _writes(self, node: fx.Node) -> bool:
        return node.op == "call_module" and bool(getattr(self.of.module(node), "inplace", False))


_PYG_LINEAR = "torch_geometric.nn.dense.linear"
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")

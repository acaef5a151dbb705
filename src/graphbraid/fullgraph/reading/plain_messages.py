"""Messages of a ``forward`` without layers: it gathers rows by ``edge_index``, and scatters rows of edges.

In a trace, the calls between gathers ``x[src]`` and a scatter by ``dst`` are the body of a ``message``. They
become a recorded call of ``propagate``, which is read as that of a layer. The calls are found by their names,
and a trial shows that they are messages (:mod:`.scatter_trial`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.reading.aggregations import AGGREGATIONS
from graphbraid.fullgraph.reading.calling import EDGE_ATTR, EDGES_TARGET, WEIGHTS_TARGET, target_of
from graphbraid.fullgraph.reading.messages import PlainMessage, Propagation, is_traced_layer
from graphbraid.fullgraph.reading.trace_context import softmax_of_edges, writes
from graphbraid.fullgraph.reading.tracer import TracedCalls

WHY = "why"
"""Key of a scatter's ``meta``: the reason why its messages run as written."""
_INTO = ("input", "dim", "index", "src", "reduce")
_SCATTERS: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("index_add", "scatter_add", "scatter_reduce", "index_reduce"), _INTO
)
_SCATTERS |= {f"{name}_": takes for name, takes in _SCATTERS.items()}
_SCATTERS |= dict.fromkeys(("scatter", "scatter_sum", "scatter_mean"), ("src", "index"))
_SCATTERS |= {"segment": ("src", "ptr"), "segment_csr": ("src", "indptr")}
_SCATTERS |= {"segment_reduce": ("data", "offsets")}
_SCATTERS |= dict.fromkeys(("scatter_max", "scatter_min"), ())
"""Parameters of PyTorch's scatters, which write into their first, and of those of PyG and torch-scatter; none
of those that are refused because of :data:`FIRST`."""
FIRST = "its gradient goes to the first of equal messages in the order of the list"
"""Why a maximum or minimum of torch-scatter has no lowered form."""
_LEAST = {"max": -math.inf, "min": math.inf}
"""What a maximum or minimum may begin with, beside zeros."""
_BY_NUMBER = {"isinf", "isfinite", "isneginf", "isposinf", "logical_not", "invert", "where", "masked_fill"}
_BY_NUMBER |= {"nan_to_num", "relu", "clamp", "clamp_min", "clamp_max", "eq", "ne", "lt", "le", "gt", "ge"}
_BY_NUMBER |= {"detach", "zeros_like", "full_like"}
"""Calls that give each number of a result by the same number of their arguments alone."""
_NEW = {"new_zeros": torch.zeros, "new_ones": torch.ones}
"""Methods of rows, and functions that make the same of their dtype and device."""
_MADE = ("zeros", "zeros_like")
_FILLED = ("full", "new_full", "full_like")
"""Calls that make zeros for a scatter to write into, and those that do if the number that they get is 0."""
_SAME_ROWS = {"to", "type_as", "contiguous"}
"""Calls that give rows in a dtype and form that they may have already."""
_APART = {"itruediv": operator.truediv, "div_": operator.truediv, "imul": operator.mul, "mul_": operator.mul}
"""Calls that write over what a scatter gives, and calls with a new result in their places."""
_CONVERTS = {"to", "type_as", "float", "double"}
"""Calls that give zeros in another dtype."""
_SHAPES = {"view", "reshape", "unsqueeze", "squeeze"}
_SAME_INDEX = {*_SHAPES, "expand", "expand_as", "repeat", "long", "to", "contiguous", "broadcast_to"}
"""Calls that give an index in another shape."""
_VIEWS = _SAME_INDEX | {"getitem", "getattr", "select", "narrow", "detach", "flatten", "transpose", "t"}
_VIEWS |= {"chunk", "split", "unbind", "view_as", "reshape_as", "type_as", "float", "double", "permute"}
_VIEWS |= {"ravel", "swapaxes", "swapdims", "movedim", "diagonal", "unflatten", "unfold", "half", "bfloat16"}
_VIEWS |= {"dropout", "broadcast_tensors", "tensor_split", "cpu", "int", "requires_grad_", "atleast_2d"}
"""Calls whose result may share its first argument's memory."""
_CALLS = ("call_function", "call_method")
_MOST_CALLS = 96
"""Most calls of a message; where rows of edges go on to the next layer, it holds those of the one before."""

End = tuple[fx.Node, int | None]
"""An end of edges in a trace: the list of edges and 0 or 1; or an index computed of edges, and None."""


class _NotMessagesError(Exception):
    """The input of a scatter is not known to be messages; the text says why."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PlainPropagation(Propagation):
    """The messages of a scatter in a plain ``forward``."""

    key: str
    """Name of the scatter, unique in the trace."""
    written: fx.Node
    """The call that the messages replace: the scatter, or a quotient of it."""
    messages: fx.Node
    """The input of the scatter: a row for each edge."""
    ends: Mapping[fx.Node, int]
    """The calls that give the edges' sources (0) and destinations (1)."""
    gathers: Mapping[fx.Node, str]
    """The calls that give the messages rows of nodes, with the arguments of the messages that get these."""
    same: Mapping[fx.Node, fx.Node]
    """Calls that give rows of edges in a dtype or form which they have already, and these rows."""
    scatter: fx.Node
    """The scatter: :attr:`written`, or the dividend of that quotient."""
    along: fx.Node | None
    """The edges, if the model computes them from more than the graph's edges."""
    empty: float = 0.0
    """What the scatter gives a node without messages. Nothing shows whether it is this or 0."""
    is_plain: bool = True


def find_messages(trace: TracedCalls, tried: Mapping[str, list[str]]) -> tuple[set[fx.Node], set[fx.Node]]:
    """Replace scatters of a trace by calls of ``propagate``.

    Args:
        trace: the trace; its graph is changed.
        tried: by the key of a scatter, why it could not be read so far: first as a mean with the quotient
            behind it, if there is one, then by itself. After that it is left as written.

    Returns:
        The calls that read only edges and the number of nodes, and those inside messages that nothing else
        reads; none without messages.
    """
    scatters = [one for one in trace.graph.nodes if _name(one) in _SCATTERS]
    finder = _Finder(trace, has_scatters=bool(scatters))
    for number, node in enumerate(scatters):
        key = f"{number} {node.name}"
        try:
            finder.replace(node, key, tried.get(key, []))
        except _NotMessagesError as error:
            node.meta[WHY] = str(error)
            finder.forget_inserted()
    if not finder.stood_for:
        return set(), set()
    skipped = set[fx.Node]()
    for node in reversed(trace.graph.nodes):
        is_asked = bool(node.users) and finder.kind(node) == "shape"  # as the dtype of messages, for zeros
        if (is_asked or node in finder.stood_for) and skipped.issuperset(node.users):
            skipped.add(node)
    of_edges = {one for one in trace.graph.nodes if one.op in _CALLS and finder.kind(one) == "edges"}
    waiting = [*of_edges]
    for node in waiting:
        waiting += [one for one in node.all_input_nodes if finder.kind(one) == "shape" and one not in waiting]
    return set(waiting), skipped


def _name(node: fx.Node) -> str:
    if node.op not in _CALLS:
        return ""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


class _Finder:
    """Replaces the scatters of one trace. In layers, values of edges that are overwritten become new ones."""

    def __init__(self, trace: TracedCalls, *, has_scatters: bool) -> None:
        self.trace, self.graph = trace, trace.graph
        self.stood_for = set[fx.Node]()
        """The calls that messages replace."""
        self._writes_own = set[fx.Node]()
        """In-place scatters into zeros that were made for them."""
        self.reshaped = set[fx.Node]()
        """The calls that reshape the index of the current scatter."""
        self.ends: dict[fx.Node, End] = {}
        """The calls that give the ends of edges for the current scatter."""
        self._inserted: list[fx.Node] = []
        """The calls that make an index of the current scatter's segments."""
        self._kinds: dict[fx.Node, str] = {}
        order = {one: place for place, one in enumerate(self.graph.nodes)}
        for node in order:  # in order, as a deep model has more calls than Python's stack takes
            if has_scatters and node.op == "call_method" and node.target in _NEW:
                self._make_of_shapes(node)
            if self.kind(node) and not has_scatters and not self._is_in_layer(node):
                continue
            if self.kind(node) and writes(node) and self._is_apart(node, order):
                node.args = (node.args[0], node.target, *node.args[1:])
                node.op, node.target = "call_function", ir.on_a_copy
            elif not self.kind(node) and writes(node) and isinstance(of := (*node.args, None)[0], fx.Node):
                self._kinds |= dict.fromkeys(_memory_of(of), "")  # from here on it holds values of rows

    def _is_in_layer(self, node: fx.Node) -> bool:
        """Return whether a message passing layer whose forward is traced makes a call."""
        around = (str(name) for name, _ in node.meta.get("nn_module_stack", {}).values())
        return any(is_traced_layer(self.trace.modules[name]) for name in around)

    def forget_inserted(self) -> None:
        """Erase the calls that were inserted for a scatter that is left as written."""
        while self._inserted:
            self.graph.erase_node(self._inserted.pop())

    def kind(self, node: fx.Node) -> str:
        """Return ``edges`` if a call reads edges alone, ``shape`` if it reads shapes alone, else ``""``."""
        if node not in self._kinds:
            self._kinds[node] = self._kind(node)
        return self._kinds[node]

    def _kind(self, node: fx.Node) -> str:
        if target_of(node) in (EDGES_TARGET, WEIGHTS_TARGET):
            return "edges"
        if node.op not in _CALLS or isinstance(node.target, Propagation) or node.target is ir.itself:
            return ""
        kinds = {self.kind(one) for one in node.all_input_nodes}
        if kinds <= {"edges", "shape"}:
            return "edges" if "edges" in kinds else "shape"
        asks = node.target is getattr and node.args[1] in ("shape", "dtype", "device")
        return "shape" if asks or _name(node) == "size" else ""

    def _make_of_shapes(self, node: fx.Node) -> None:
        """Let ``torch.zeros`` stand for ``x.new_zeros``, which reads only the dtype and device of rows."""
        of, *sizes = node.args
        with self.graph.inserting_before(node):
            asked: dict[str, Any] = {
                key: self.graph.call_function(getattr, (of, key)) for key in ("dtype", "device")
            }
        for one in asked.values():
            one.meta = dict(node.meta)
        node.args, node.kwargs = tuple(sizes), asked | node.kwargs
        node.op, node.target = "call_function", _NEW[str(node.target)]

    def _is_apart(self, node: fx.Node, order: Mapping[fx.Node, int]) -> bool:
        """Return whether nothing but an in-place call's own result shows later what it wrote over.

        All that reads the value later then reads that result, as ``deg`` after ``deg[deg == 0] = 1``. A value
        that is also seen through a view, or that is the user's, is left alone.
        """
        of, at = node.args[0] if node.args else None, order[node]
        if not isinstance(of, fx.Node) or "out" in node.kwargs:
            return False
        before = {one for one in _memory_of(of) if one not in order or order[one] < at}
        seen = {user for one in before - {of} for user in one.users if order.get(user, at) > at}
        if seen or not all(one.op in _CALLS for one in before):
            return False
        for user in [user for user in of.users if order.get(user, at) > at]:
            user.replace_input_with(of, node)
        return True

    def end(self, index: Any) -> End | None:
        """Return the end of edges that an index is; None if it is anything else."""
        while isinstance(index, fx.Node) and (_name(index) in _SAME_INDEX or _adds_dimension(index)):
            self.reshaped.add(index)
            index = index.args[0]
        if not isinstance(index, fx.Node):
            return None
        of, at = _row_of(index)
        if of is None and self.kind(index) != "edges":
            return None
        self.ends[index] = found = (index, None) if of is None else (of, at)
        return found

    def replace(self, node: fx.Node, key: str, why: list[str]) -> None:
        """Replace a scatter, or a quotient of it, by messages.

        Raises:
            _NotMessagesError: its input is not messages, or an earlier trial has shown that it is not.
        """
        if self.kind(node):
            return
        self._inserted.clear()
        self.reshaped.clear()
        self.ends.clear()
        given, takes, end, aggr = self._given_to(node)
        source = given["src"]
        order = {one: place for place, one in enumerate(self.graph.nodes)}
        is_sum, made, empty = aggr in ("sum", "add"), list[fx.Node](), 0.0
        base: Any = given.get("input")
        if "input" in takes:
            made, empty = self._base(node, base, order, aggr)
            if not made and not (is_sum and self._adds_onto(node, base, order)):
                raise _NotMessagesError("it writes into a matrix that is not made of zeros for it")
            if _name(node).endswith("_"):
                for user in [user for user in base.users if user is not node and made]:
                    user.replace_input_with(base, node)  # what it has written into is its result
                self._writes_own.add(node)
        if empty and not self._hides(node, end, empty):
            raise _NotMessagesError(f"it gives nodes without messages {empty}, and later calls may show it")
        first = min(node.users, key=order.__getitem__, default=node)
        if _name(first) in _APART and not first.kwargs and self._is_apart(first, order):
            first.op, first.target = "call_function", _APART[_name(first)]
        quotients = [one for one in node.users if is_sum and self._is_quotient(one, node)]
        is_mean = len(node.users) == 1 and (bool(made) or "input" not in takes)
        ways = [(one, "mean") for one in quotients] * is_mean + [(node, aggr)]
        if len(why) >= len(ways):
            raise _NotMessagesError(why[-1])
        message = _Copied(self, end)
        message.graph.output(message.copied(source))
        stood_for = {*message.visited, *self.reshaped, node, *made}
        written, aggr = ways[len(why)]
        self._check_writes(stood_for, order, order[written])
        fields = {"aggr": aggr, "messages": source, "empty": empty}
        view = self._append(key, node, written, message, fields)
        if "input" in takes and not made:
            self._add_onto(node, base, view)
        self.stood_for |= stood_for | {written}

    def _given_to(self, node: fx.Node) -> tuple[dict[str, Any], tuple[str, ...], End, str]:
        """Return a scatter's arguments, the names of the first, the end that it goes by and its reduction.

        Raises:
            _NotMessagesError: it has no lowered form.
        """
        into = "scatter_reduce" if node.target == "scatter" else _name(node)
        is_of = (getattr(node.target, "__module__", None) or "").startswith("torch_scatter")
        takes = _SCATTERS["scatter" if is_of and into == "scatter_add" else into]
        if not takes:
            raise _NotMessagesError(FIRST)
        texts = (one for one in (*node.args, *node.kwargs.values()) if isinstance(one, str))
        found = "mean" if "mean" in into else next(texts, "sum")
        aggr = {"amax": "max", "amin": "min"}.get(str(found), found)
        segments = takes[1] in ("ptr", "indptr", "offsets")  # whose equal maxima share no negative gradient
        if aggr not in AGGREGATIONS or (segments and aggr in _LEAST):
            raise _NotMessagesError(f"reduce={aggr!r} has no lowered form")
        given = dict(zip(takes, node.args, strict=False)) | node.kwargs
        ends = given.get("lengths", given.get(takes[1])) if segments else None
        if isinstance(ends, fx.Node) and self.kind(ends) == "edges":
            with self.graph.inserting_before(node):
                counts = ends if "lengths" in given else self.graph.call_method("diff", (ends,))
                index = given["index"] = self.graph.call_function(torch.repeat_interleave, (counts,))
            self._inserted += [index] if counts is ends else [counts, index]
        source = given["src"] = next((given[one] for one in ("src", "source", "data") if one in given), None)
        end = self.end(given.get("index"))
        if end is None or not isinstance(source, fx.Node):
            raise _NotMessagesError("its index is no end of edges")
        if takes[0] != "input" and not all(
            self.kind(one) for one in node.all_input_nodes if one is not source
        ):
            raise _NotMessagesError("it writes into a matrix that it is given")
        return given, takes, end, aggr

    def _base(
        self, node: fx.Node, base: Any, order: Mapping[fx.Node, int], aggr: str
    ) -> tuple[list[fx.Node], float]:
        """Return the calls that make a matrix for a scatter alone, and what it is full of; none if none.

        Numbers do not show this: a parameter may be zero while the model is read.
        """
        made: list[Any] = [base] if isinstance(base, fx.Node) else []
        while made and _name(made[-1]) in _CONVERTS and len(made[-1].args[0].users) == 1:
            made.append(made[-1].args[0])
        for one in made[-1:]:
            number = 0.0 if _name(one) in _MADE else None
            number = one.kwargs.get("fill_value", *one.args[-1:]) if _name(one) in _FILLED else number
            is_known = type(number) in (int, float) and number in (0, _LEAST.get(aggr, 0))
            if is_known and all(order[user] >= order[node] for user in base.users):
                return made, cast("float", number)
        return [], 0.0

    def _hides(self, node: fx.Node, end: End, empty: float) -> bool:
        """Return whether nothing depends on whether a scatter gives nodes without messages ``empty`` or 0.

        Calls after it give the same for both numbers, as ``where(isinf(out), 0, out)`` does, or gather rows
        by the end that it goes by.
        """
        # Calls of `_BY_NUMBER` treat each number by itself: two numbers show what they make of any rows.
        held: dict[fx.Node, Any] = {node: torch.tensor([empty, 0.0])}
        differ = {node}
        """The calls whose results tell the two numbers apart."""
        for one in list(self.graph.nodes):
            if one is node or differ.isdisjoint(one.all_input_nodes) or self.kind(one) == "shape":
                continue
            if one.target is operator.getitem and self.end(one.args[1]) == end:
                continue
            if _name(one) not in _BY_NUMBER or not held.keys() >= {*one.all_input_nodes}:
                return False
            args, kwargs = fx.node.map_arg((one.args, one.kwargs), held.__getitem__)
            try:
                held[one] = ir.run_call(one.target, args, kwargs)
            except Exception:  # whatever it may raise
                return False
            if not torch.equal(held[one][:1], held[one][1:]):
                differ.add(one)
        return True

    def _adds_onto(self, node: fx.Node, base: Any, order: Mapping[fx.Node, int]) -> bool:
        """Return whether a scatter adds its messages to rows that nothing else sees it write over."""
        is_plain = len(node.args) <= len(_INTO) and {*_INTO, "source"}.issuperset(node.kwargs)
        is_node = isinstance(base, fx.Node) and not self.kind(base)
        return is_plain and is_node and (not _name(node).endswith("_") or self._is_apart(node, order))

    def _add_onto(self, node: fx.Node, base: Any, view: fx.Node) -> None:
        """Let a scatter into other rows be the sum of these and of a scatter into zeros."""
        with self.graph.inserting_before(node):
            zeros = self.graph.call_function(torch.zeros_like, (base,))
        node.replace_input_with(base, zeros)
        self.stood_for.add(zeros)
        with self.graph.inserting_after(view):
            total = self.graph.call_function(operator.add, (base, view))
        view.replace_all_uses_with(total, lambda user: user is not total)
        total.meta = dict(node.meta)

    def _is_quotient(self, one: fx.Node, node: fx.Node) -> bool:
        """Return whether a call divides the scatter by a value of edges alone, such as degrees."""
        by = one.args[1] if _name(one) in ("truediv", "div") and one.args[0] is node else None
        if not isinstance(by, fx.Node) or self.kind(by) != "edges":
            return False
        read = [by]
        for call in read:
            read += [before for before in call.all_input_nodes if self.kind(before) and before not in read]
        return not any(
            writes(call) and call not in read and not _memory_of(call).isdisjoint(read)
            for call in self.graph.nodes
            if self.kind(call) == "edges"
        )

    def _check_writes(self, own: set[fx.Node], order: Mapping[fx.Node, int], last: int) -> None:
        """Refuse messages if a call between the first gather and the replaced call may overwrite inputs.

        Messages read rows where the replaced call stands. There, rows must still be those of the gathers.
        """
        first = min(order[one] for one in own)
        between = [one for one, place in order.items() if first < place < last]
        for one in [one for one in between if self.kind(one) == "edges" and writes(one)]:
            read = {user for call in _memory_of(one) for user in call.users if user in own}
            if any(order[user] < order[one] for user in read):
                raise _NotMessagesError(f"{one} writes over a value of edges that its messages read before")
        for one in [one for one in between if not self.kind(one)]:
            module = self.trace.modules.get(str(one.target)) if one.op == "call_module" else None
            if writes(one) or getattr(module, "inplace", False):
                of = one.args[0] if one in own else None  # it writes over what nothing else reads
                if not (one in self._writes_own or (isinstance(of, fx.Node) and len(of.users) == 1)):
                    raise _NotMessagesError(f"{one} writes in place before the messages are reduced")

    def _append(
        self, key: str, node: fx.Node, written: fx.Node, message: _Copied, fields: Mapping[str, Any]
    ) -> fx.Node:
        """Insert the call of ``propagate`` in place of the call ``written``; return the rows it gives."""
        with self.graph.inserting_before(written):
            edges, along = message.edges()
            rows: Any = {
                name: self.graph.call_function(ir.as_matrix, (of,)) for name, of in message.rows.items()
            }
            target = PlainPropagation(
                name=_name(written),
                layer=message.layer,
                graph=message.graph,
                tensors=message.tensors,
                takes=(tuple(str(one.target) for one in message.graph.find_nodes(op="placeholder")), ()),
                special=message.special,
                dtype=next((p.dtype for p in self.trace.root.parameters()), None),
                key=key,
                written=written,
                ends=message.ends(),
                gathers=message.gathers,
                same=message.same,
                scatter=node,
                along=along,
                **fields,
            )
            out = self.graph.call_function(target, (edges,), rows | message.values)
            view = self.graph.call_method("view", (out, -1, 0))
        written.replace_all_uses_with(view)
        for one in (edges, *edges.all_input_nodes, *rows.values(), out, view):
            one.meta = one.meta or dict(written.meta)
        return view


def _memory_of(node: fx.Node) -> set[fx.Node]:
    """Return the calls whose results may share the memory that a call writes over."""

    def shares(one: fx.Node) -> bool:
        return bool(one.args) and one.op in _CALLS and (_name(one) in _VIEWS or writes(one))

    while shares(node) and isinstance(of := node.args[0], fx.Node):
        node = of
    found = [node]
    for one in found:
        found += [user for user in one.users if user.args[:1] == (one,) and shares(user)]
    return {*found}


def _kept_rows(node: fx.Node) -> fx.Node | None:
    """Return the rows that a call may give as they are, in the dtype and on the device of others; or None."""
    of, *others = (*node.args, *node.kwargs.values()) if node.target in _SAME_ROWS else (None,)
    is_like = all(
        isinstance(one, fx.Node) and (node.target == "type_as" or one.args[1:] in (("dtype",), ("device",)))
        for one in others
    )
    return of if is_like and isinstance(of, fx.Node) else None


def _adds_dimension(node: fx.Node) -> bool:
    """Return whether a call is ``x[:, None]`` or ``x[..., None]``."""
    index = node.args[1] if node.target is operator.getitem else None
    return isinstance(index, tuple) and index in ((slice(None), None), (..., None))


def _row_of(index: fx.Node) -> tuple[fx.Node | None, int]:
    """Return the matrix from which a call takes a row, and the row's number; None for any other call."""
    of: Any = index.args[0] if index.args else None
    at: Any = index.args[1] if index.target is operator.getitem else None
    at = at[0] if isinstance(at, tuple) and at[1:] in ((slice(None),), (...,)) else at
    if _name(index) == "select" and index.args[1] == 0:
        at = index.args[2]
    of = of.args[0] if isinstance(of, fx.Node) and _name(of) == "unbind" else of
    return (of, at % 2) if isinstance(of, fx.Node) and type(at) is int and -2 <= at < 2 else (None, 0)


class _Copied:
    """The calls between gathers and a scatter, copied as a message.

    Args:
        finder: the trace.
        destination: the end that the scatter goes by.
    """

    def __init__(self, finder: _Finder, destination: End) -> None:
        self._finder, self._destination, self._source = finder, destination, cast("End | None", None)
        self.graph, self.layer, self.tensors = fx.Graph(), PlainMessage(), dict[str, Tensor]()
        self.visited = set[fx.Node]()
        self.rows: dict[str, fx.Node] = {}
        """By argument, the node rows that it gets a row of for each edge."""
        self.values: dict[str, fx.Node] = {}
        """By argument, the value of each edge that it gets."""
        self.gathers: dict[fx.Node, str] = {}
        """The calls that take these rows, and the arguments that get them."""
        self.same: dict[fx.Node, fx.Node] = {}
        """Calls that give rows of edges as they are, and these rows."""
        self.special: dict[str, str] = {}
        self._copies: dict[fx.Node, fx.Node] = {}
        self._arguments: dict[str, fx.Node] = {}

    def copied(self, node: fx.Node) -> fx.Node:
        """Return the copy of a call, after those of all that it reads."""
        if node not in self._copies:
            if (of := _kept_rows(node)) is not None and not self._finder.kind(node):
                self.same[node] = of
                self.visited.add(node)
                self._copies[node] = self.copied(of)
            else:
                self._copies[node] = self._copy(node)
        return self._copies[node]

    def _argument(self, name: str) -> fx.Node:
        if name not in self._arguments:
            with self.graph.inserting_before():
                self._arguments[name] = self.graph.placeholder(name)
        return self._arguments[name]

    def _copy(self, node: fx.Node) -> fx.Node:
        finder, inner = self._finder, node.args[0] if node.args else None
        reshapes = _name(node) in _SHAPES or _adds_dimension(node)
        is_reshaped = reshapes and isinstance(inner, fx.Node) and node.all_input_nodes == [inner]
        if target_of(node) == EDGE_ATTR or (finder.kind(node) == "edges" and not is_reshaped):
            self.values[f"{node.name}_e"] = node
            return self._argument(f"{node.name}_e")
        if node.op == "get_attr":
            self.tensors[node.name] = finder.trace.attribute(str(node.target))
            return self.graph.get_attr(node.name)
        self.visited.add(node)
        if len(self.visited) > _MOST_CALLS:
            raise _NotMessagesError(f"its messages are more than {_MOST_CALLS} calls")
        if not is_reshaped and (gather := self._gather(node)) is not None:
            return gather
        if not node.all_input_nodes or isinstance(node.target, Propagation) or node.target is ir.itself:
            raise _NotMessagesError(f"its messages read {node} as a whole")
        if node.target is softmax_of_edges():
            return self._softmax(node)
        if _adds_dimension(node):
            at = 1 if node.args[1] == (slice(None), None) else -1
            return self.graph.call_method("unsqueeze", (self.copied(cast("fx.Node", inner)), at))
        made = self.graph.node_copy(node, self.copied)
        if node.op == "call_module":
            module = finder.trace.modules[str(node.target)]
            held = (key for key, one in self.layer.named_children() if one is module)
            name = next(held, f"m{len(self.layer._modules)}")
            self.layer.add_module(name, module)
            made.target = f"layer.{name}"
        return made

    def _gather(self, node: fx.Node) -> fx.Node | None:
        """Return the argument that gets what a call takes, if that is a row of node rows for each edge."""
        of, index = (*node.args, None, None)[:2]
        if node.target is operator.getitem:
            rest = index[1:] if isinstance(index, tuple) else ()
            index = (
                index[0]
                if isinstance(index, tuple) and all(one in (slice(None), ...) for one in rest)
                else index
            )
        elif node.target in ("index_select", torch.index_select):  # PyG replaces PyTorch's
            given = dict(zip(("input", "dim", "index"), node.args, strict=False)) | node.kwargs
            of, index = given["input"], given.get("index") if given.get("dim") == 0 else None
        else:
            return None
        end = self._finder.end(index)
        if end is None or not isinstance(of, fx.Node):
            return None
        if end != self._destination:
            if self._source not in (None, end):
                raise _NotMessagesError("its messages gather rows by more than the two ends of edges")
            self._source = end
        name = f"{of.name}_{'i' if end == self._destination else 'j'}"
        self.rows[name], self.gathers[node] = of, name
        return self._argument(name)

    def _softmax(self, node: fx.Node) -> fx.Node:
        """Copy PyG's softmax over the edges of each destination."""
        given = dict(zip(("src", "index", "ptr", "num_nodes", "dim"), node.args, strict=False)) | node.kwargs
        if self._finder.end(given.get("index")) != self._destination:
            raise _NotMessagesError("its messages have a softmax that goes by another index")
        given["index"], self.special["index"] = self._argument("index"), "ids"
        if given.get("num_nodes") is not None:
            given["num_nodes"], self.special["size_i"] = self._argument("size_i"), "counts"
        given["src"] = self.copied(cast("fx.Node", given["src"]))
        return self.graph.call_function(cast("Any", node.target), (), given)

    def ends(self) -> dict[fx.Node, int]:
        """Return the calls that give the sources (0) and destinations (1)."""
        of_end = {self._source: 0, self._destination: 1}
        return {one: of_end[end] for one, end in self._finder.ends.items() if end in of_end}

    def edges(self) -> tuple[fx.Node, fx.Node | None]:
        """Return the edges in the trace, and those of them that are made of more than the graph's."""
        (of, at), graph = self._destination, self._finder.graph
        along = None if self._finder.kind(of) == "edges" else of
        if at == 1 and self._source in (None, (of, 0)):
            return of, along
        source = self._source or (None if at is None else (of, 1))
        if source is None:
            raise _NotMessagesError("its messages read no row of sources")
        ends = [
            one if place is None else graph.call_function(operator.getitem, (one, place))
            for one, place in (source, self._destination)
        ]
        return graph.call_function(torch.stack, (ends,)), along

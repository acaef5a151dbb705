"""Islands: calls of a trace without a lowered form, which become graph breaks where their results are read.

Each such call is tried once while the model is read, on rows of random numbers and copies of its modules. So
it is known which results are matrices of node rows, and what a call writes over. When an operation reads a
matrix of node rows that such a call makes, the calls that lead to it from other node rows become one break.
Results of any other form stay inside a break. Those that two breaks need are computed in both; if a call
draws random numbers or is one of a module, the first break keeps them for the second. What is computed of
the graph alone is computed once, while the model is read. A layer that gets edges or values of edges which
calls make is one of the calls, and runs by a program of its own (:mod:`.own_edges`).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from graphbraid.fullgraph.program import (
    INPUT,
    Break,
    FromBreak,
    FromCall,
    FromGraph,
    FromInput,
    FromKept,
    GraphValues,
    NotLoweredError,
    WrittenCall,
    itself,
)
from graphbraid.fullgraph.reading.break_trial import Breaks, CallTrials, NoBreakError, negated, plain
from graphbraid.fullgraph.reading.messages import Propagation, is_message_passing
from graphbraid.fullgraph.reading.own_edges import CallOnEdges, LayerOnEdges
from graphbraid.fullgraph.reading.reader import Writer
from graphbraid.fullgraph.reading.row_dependence import Dependence, RowWatch, is_of_torch, tensors_in
from graphbraid.fullgraph.reading.tracer import WHERE, TracedCalls


@dataclass(eq=False)
class _Written:
    """A call that a break may make."""

    why: NotLoweredError | None
    """Why it has no lowered form; None if only a call that takes its result has none."""
    result: Any
    """Result of the trial, without a graph."""
    kind: Dependence
    node_type: int
    """Number of the node type of the rows that it depends on."""
    repeats: bool
    """Whether it may be computed twice: it draws no random numbers and calls no module."""
    drew: bool = False
    """Whether it drew random numbers in the trial."""
    is_constant: bool = False
    """Whether it is computed of the graph alone."""
    writes_before: tuple[fx.Node, ...] = ()
    """The calls that wrote over its arguments before it was made."""
    layer: LayerOnEdges | None = None
    """The layer that it calls, if that has a lowered form on any edges."""
    is_run: bool = False
    """Whether a break computes it or, of a constant, holds it."""
    kept_by: tuple[str, int] | None = None
    """The value of the break that computes it, and the number of the call there."""
    value: str | None = None
    """Name of its rows, if these are the result of a break."""


class Islands:
    """The calls of one trace without a lowered form.

    Args:
        writer: collects the operations.
        trace: the trace.
        breaks: how and on what calls are tried.
        values: the names of values by the nodes of the trace that made them; added to.
    """

    def __init__(
        self, writer: Writer, trace: TracedCalls, breaks: Breaks, values: dict[fx.Node, str]
    ) -> None:
        self._writer, self._trace, self._breaks, self._values = writer, trace, breaks, values
        self._written: dict[fx.Node, _Written] = {}
        self._seen: dict[fx.Node, dict[fx.Node, str]] = {}
        """By call, the names that the values of its arguments had when it was made."""
        self._place_of = {node: number for number, node in enumerate(trace.graph.nodes)}
        self._trials = CallTrials(writer, trace, breaks)
        self._tried: dict[fx.Node, Any] = {}
        self._last: dict[int, int] = {}
        """Place of the last call of each module that a break makes."""
        self._writes: list[tuple[fx.Node, set[int]]] = []
        """The calls that wrote over an argument, in order, and the memory that they wrote to."""

    # ---- calls that have no lowered form

    def see(self, node: fx.Node) -> None:
        """Note what a call's arguments are before it is read: others may be written over them later."""
        self._seen[node] = {one: self._values[one] for one in node.all_input_nodes if one in self._values}

    def add(self, node: fx.Node, why: NotLoweredError) -> None:
        """Take a call, and try it.

        Raises:
            NotLoweredError: it cannot run between lowered operations.
        """
        if node.op not in _CALLS:
            raise why
        try:
            if node.target is itself:  # an attribute of the user's data
                self._written[node] = self._tried_call(node, None)
            else:
                self._written[node] = self._layer_call(node, why) or self._tried_call(node, why)
        except NoBreakError as error:
            raise _both(why, error) from error

    def _layer_call(self, node: fx.Node, why: NotLoweredError) -> _Written | None:
        """Return a call of a layer by its own program; None if that is not possible.

        Raises:
            NotLoweredError: it is not, and the call is one of ``propagate``, which cannot run as written.
        """
        module = self._trials.module(node)
        is_propagate = isinstance(node.target, Propagation)
        if not is_propagate and (module is None or not is_message_passing(module)):
            return None
        if self._breaks.place.type != "cpu" or len(self._breaks.num_rows) > 1:
            if is_propagate:
                raise why
            return None
        before = self._try_arguments(node)
        call = CallOnEdges(
            node=node,
            num_rows=self._breaks.num_rows[0],
            dtype=self._breaks.dtype,
            result_of=partial(self._result_for, node),
            learns=partial(self._learns, node),
            shape_of=self.shape_of,
        )
        try:
            layer = call.read(module)
        except NotLoweredError as error:
            if is_propagate:
                raise _both(why, NoBreakError(error.code, error.reason)) from error
            return None
        draw = torch.Generator().manual_seed(len(self._written))
        result = torch.rand(call.num_rows, layer.width, generator=draw, dtype=call.dtype)
        return _Written(why, result, Dependence.COUPLED, 0, repeats=False, writes_before=before, layer=layer)

    def _learns(self, at: fx.Node, one: fx.Node) -> bool:
        """Return whether an argument of a call may require a gradient."""
        if (value := self._value_for(at, one)) is not None:
            return value != INPUT
        if one.op == "get_attr":
            return isinstance(self._trace.attribute(str(one.target)), nn.Parameter)
        if one not in self._written or self._written[one].is_constant:
            return False
        module = self._trials.module(one)
        of_module = module is not None and any(True for _ in module.parameters())
        of_layer = self._written[one].layer is not None
        sources = (*one.all_input_nodes, *self._written[one].writes_before)
        return of_module or of_layer or any(self._learns(one, other) for other in sources)

    def sees_memory_of(self, value: str) -> bool:
        """Return whether a call's result may share the memory of a value."""
        own = [self._trials.rows[value]] if value in self._trials.rows else []
        made = (one.result for one in self._written.values() if one.value == value)
        own += [tensor for result in made for tensor in tensors_in(result)]
        others = (one.result for one in self._written.values() if one.value != value)
        return bool(_memory(own) & _memory(tensors_in(list(others))))

    def _try_arguments(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """Try the calls among a call's arguments that have lowered forms; return what wrote over them."""
        for one in node.all_input_nodes:
            if one.op in _CALLS and one not in self._written and self._value_for(node, one) is None:
                self._written[one] = self._tried_call(one, None)
        read = _memory(tensors_in([self._result_for(node, one) for one in node.all_input_nodes]))
        return tuple(by for by, memory in self._writes if memory & read)

    def _tried_call(self, node: fx.Node, why: NotLoweredError | None) -> _Written:
        if isinstance(node.target, Propagation):
            raise NoBreakError("form", "it is part of a layer")
        writes_before = self._try_arguments(node)
        results = {one: self._result_for(node, one) for one in node.all_input_nodes}
        tensors = [tensor for result in results.values() for tensor in tensors_in(result)]
        before = [tensor._version for tensor in tensors]
        kinds = {one: self._kind_for(node, one) for one in node.all_input_nodes}
        types = {self._type_for(node, one) for one, kind in kinds.items() if kind is not Dependence.NONE}
        types -= {None}
        if len(types) > 1:
            raise NoBreakError("node-types", "it computes with rows of several node types")
        node_type = types.pop() if types else 0
        assert node_type is not None
        module, num_rows = self._trials.module(node), self._breaks.num_rows[node_type]
        of_kind = {
            kind: [t for one in kinds if kinds[one] is kind for t in tensors_in(results[one])]
            for kind in Dependence
        }
        watch = RowWatch(num_rows, of_kind[Dependence.ALIGNED], of_kind[Dependence.COUPLED])
        with watch:
            result, drew = self._trials.call(node, results)
        written = [one for one, version in zip(tensors, before, strict=True) if one._version != version]
        repeats = module is None and not drew and _is_torchs(node.target)
        is_constant = repeats and self._is_constant(node)
        if written:
            is_constant = self._note_write(node, _memory(written), is_constant=is_constant)
        made = partial(
            _Written, why, result, repeats=repeats, drew=drew, is_constant=is_constant, node_type=node_type
        )
        if written or writes_before:
            return made(kind=Dependence.COUPLED, writes_before=writes_before)
        if watch.sizes_by_numbers and any(one.shape[:1] == (num_rows,) for one in tensors_in(result)):
            self._check_size(node, module, results, result)
        if all(kind is Dependence.NONE for kind in kinds.values()):
            return made(kind=Dependence.NONE)
        is_known = is_of_torch(module) if module is not None else _is_torchs(node.target)
        is_aligned = is_known and num_rows > 1 and _is_by_row(result, watch, num_rows)
        return made(kind=Dependence.ALIGNED if is_aligned else Dependence.COUPLED)

    def _is_constant(self, node: fx.Node) -> bool:
        """Return whether a call computes its result of the graph alone, or of the shapes of node rows."""
        if self._breaks.constants is None:
            return False
        if node.target in ("size", "dim") or (node.target is getattr and node.args[1] in _OF_SHAPE):
            return all(self._has_constant_shape(node, one) for one in node.all_input_nodes)
        return all(self._is_constant_for(node, one) for one in node.all_input_nodes)

    def _has_constant_shape(self, node: fx.Node, one: fx.Node) -> bool:
        """Return whether an argument has one shape on one graph: not so are edges that a mask selects."""
        is_rows = self._value_for(node, one) is not None or one.op == "get_attr"
        return is_rows or self._is_constant_for(node, one)

    def _is_constant_for(self, node: fx.Node, one: fx.Node) -> bool:
        if self._value_for(node, one) is not None or one.op == "get_attr":
            return False
        return one not in self._written or self._written[one].is_constant

    def _note_write(self, node: fx.Node, memory: set[int], *, is_constant: bool) -> bool:
        """Note that a call writes over an argument: calls that read it later come after this one.

        Returns:
            Whether the argument is still a constant, which nothing but constants has read before.

        Raises:
            NoBreakError: others than the calls of one break see that memory.
        """
        others = _memory(tensors_in([*self._trials.rows.values(), *self._tried.values()]))
        shares = [one for one in self._written.values() if _memory(tensors_in(one.result)) & memory]
        if memory & others or any(one.is_run or one.value is not None for one in shares):
            raise NoBreakError("in-place", "it writes over its argument")
        readers = (at for at, one in self._written.items() if not one.is_constant)
        read = [self._result_for(at, one) for at in readers for one in at.all_input_nodes]
        if is_constant and not _memory(tensors_in(read)) & memory:
            return True
        self._writes.append((node, memory))
        for one in shares:  # each break makes it anew
            one.is_constant = False
        return False

    def _check_size(
        self, node: fx.Node, module: nn.Module | None, arguments: Mapping[fx.Node, Any], result: Any
    ) -> None:
        """Refuse a call that selects by values and gave a row for each node, if it may give other sizes.

        A module may select edges, so it is tried again, on rows of the opposite sign.

        Raises:
            NoBreakError: it may.
        """
        if module is not None:
            again, _ = self._trials.call(node, {one: negated(value) for one, value in arguments.items()})
        shapes = None if module is None else [one.shape for one in tensors_in(again)]
        if shapes != [one.shape for one in tensors_in(result)]:
            raise NoBreakError("form", "how many rows it returns depends on their numbers")

    # ---- arguments

    def _value_for(self, node: fx.Node, one: fx.Node) -> str | None:
        """Return the name of the value that a call gets for an argument; None if that is no value."""
        value = self._seen[node].get(one)
        return self._written[one].value if value is None and one in self._written else value

    def _result_for(self, node: fx.Node, one: fx.Node) -> Any:
        """Return what a call gets for an argument in the trials."""
        if (value := self._seen[node].get(one)) is not None:
            return self._trials.rows_of(value)
        if one in self._written:
            return self._written[one].result
        if one not in self._tried:
            self._tried[one] = self._trials.of_model_or_graph(one)
        return self._tried[one]

    def _kind_for(self, node: fx.Node, one: fx.Node) -> Dependence:
        if self._value_for(node, one) is not None:
            return Dependence.ALIGNED
        if one in self._written:
            return self._written[one].kind
        if one.op == "get_attr":
            return Dependence.NONE
        return Dependence.ALIGNED if self._is_by_row(one) else Dependence.COUPLED

    def _is_by_row(self, node: fx.Node) -> bool:
        return node.op == "placeholder" and str(node.target) in self._breaks.by_row

    def _type_for(self, node: fx.Node, one: fx.Node) -> int | None:
        if (value := self._value_for(node, one)) is not None:
            return self._writer.node_type(value)
        return self._written[one].node_type if one in self._written else None

    def _members(self, *nodes: fx.Node) -> list[fx.Node]:
        """Return calls and all those that they depend on, back to values, in order."""
        found, waiting = {*nodes}, [*nodes]
        while waiting:
            at = waiting.pop()
            for one in (*at.all_input_nodes, *self._written[at].writes_before):
                if one not in self._written or one in found or self._value_for(at, one) is not None:
                    continue
                if not self._is_kept(one) and not self._written[one].is_constant:
                    found.add(one)
                    waiting.append(one)
        return sorted(found, key=self._place_of.__getitem__)

    def _is_kept(self, node: fx.Node) -> bool:
        """Return whether an earlier break has computed a call that must be made once."""
        return self._written[node].kept_by is not None and not self._written[node].repeats

    # ---- breaks

    def value(self, node: fx.Node) -> str | None:
        """Return the name of the value with a node's rows, made by a break; None if it has no node rows."""
        if node in self._values:
            return self._values[node]
        written = self._written.get(node)
        if written is None or not self._is_rows(written):
            return None
        try:
            self._run(node)
        except NoBreakError as error:
            raise _both(written.why or NotLoweredError(str(node), "a break makes it"), error) from error
        return self._values[node]

    def shape_of(self, matrix: fx.Node) -> tuple[int, ...]:
        """Return the shape of a row before it was made a row of a matrix."""
        self._try_arguments(matrix)
        return tuple(self._result_for(matrix, matrix.all_input_nodes[0]).shape[1:])

    def returned(self, nodes: Iterable[fx.Node]) -> dict[fx.Node, FromKept]:
        """Return references to results that are no node rows, of calls that breaks make, those here at last.

        Raises:
            NotLoweredError: one is no result of such a call, or cannot run between lowered operations.
        """
        wanted = dict.fromkeys(nodes)
        for node in wanted:
            if not self._breaks.returns or node not in self._written or self._written[node].is_constant:
                raise NotLoweredError("forward", f"it returns {node}, no matrix of node rows", "one result")
        try:
            self._run(*(node for node in wanted if self._written[node].kept_by is None))
        except NoBreakError as error:
            why = NotLoweredError("forward", f"it returns {', '.join(map(str, wanted))}")
            raise _both(why, error) from error
        found = {}
        for node in wanted:
            value, number = self._kept(node)
            found[node] = FromKept(value, number)
        return found

    def _is_rows(self, written: _Written) -> bool:
        """Return whether a call's result is a matrix of node rows, as operations read.

        A matrix of a row and a column for each node is none where the number of nodes changes.
        """
        result, num_rows = written.result, self._breaks.num_rows[written.node_type]
        return (
            isinstance(result, Tensor)
            and result.layout == torch.strided
            and result.ndim == 2
            and result.shape[0] == num_rows
            and result.shape[1] > 0
            and (result.shape[1] % num_rows > 0 or self._breaks.constants is not None)
            and result.dtype == self._breaks.dtype
        )

    def _run(self, *nodes: fx.Node) -> None:
        """Append the break that makes a node's rows, after those that make other rows on the way to it.

        Of results in other forms, one break makes several.
        """
        if not nodes:
            return
        node = nodes[0]
        for one in self._members(*nodes):
            inside = set(self._members(*nodes))
            is_between = one not in nodes and one in inside and self._written[one].why is not None
            is_between = is_between and not self._writes_to(one)
            if is_between and self._is_rows(self._written[one]) and any(u not in inside for u in one.users):
                self._run(one)
        found = {one for of in nodes for write in self._writes_to(of) for one in self._members(write)}
        members = sorted({*found, *self._members(*nodes)}, key=self._place_of.__getitem__)
        self._check_kept(members)
        values = [self._value_for(at, one) for at in members for one in at.all_input_nodes]
        read = {one for at in members for one in at.all_input_nodes if one in self._written}
        values += [self._written[one].kept_by[0] for one in read if self._is_kept(one)]  # type: ignore[index]
        inputs = list(dict.fromkeys(value for value in values if value is not None))
        for one in members:
            self._check_order(one)
        is_rows = len(nodes) == 1 and self._is_rows(self._written[node])
        out = self._append(node if is_rows else None, members, inputs)
        if is_rows:
            self._values[node] = self._written[node].value = out

    def _check_kept(self, members: list[fx.Node]) -> None:
        """Refuse a break that would see, or write over, an earlier break's results as they no longer are.

        Raises:
            NoBreakError: it would.
        """
        last = {by: memory for by, memory in self._writes if self._is_kept(by)}
        for at in members:
            read = [one for one in at.all_input_nodes if one in self._written]
            lost = any(self._is_kept(one) and self._writes_to(one)[-1:] not in ([], [one]) for one in read)
            for by in self._written[at].writes_before:
                shares = (
                    one
                    for one in read
                    if _memory(tensors_in(self._written[one].result)) & last.get(by, set())
                )
                lost |= not all(self._is_kept(one) for one in shares)
            if lost or self._is_kept(at):
                raise NoBreakError("in-place", "an earlier part of the model has what it writes over")

    def _writes_to(self, node: fx.Node) -> list[fx.Node]:
        """Return the calls so far that wrote over a call's result."""
        memory = _memory(tensors_in(self._written[node].result))
        return [by for by, written in self._writes if memory & written]

    def _check_order(self, node: fx.Node) -> None:
        """Note that a break makes a call.

        Raises:
            NoBreakError: another one makes a later call of the same module.
        """
        self._written[node].is_run = True
        if (module := self._trials.module(node)) is not None:
            place = self._place_of[node]
            if self._last.get(id(module), -1) > place:
                raise NoBreakError("order", f"{node} would run after a later call of the same module")
            self._last[id(module)] = place

    def _append(self, node: fx.Node | None, members: list[fx.Node], inputs: list[str]) -> str:
        """Append the break of some calls; without a ``node`` whose rows it makes, it returns its input."""
        if not inputs and len(self._breaks.num_rows) > 1:
            raise NoBreakError("node-types", "it makes node rows of a type that is not known")
        says_rows = inputs or any(self._is_by_row(one) for at in members for one in at.all_input_nodes)
        couples = not says_rows or any(self._written[one].kind is Dependence.COUPLED for one in members)
        rows = self._writer.on_one_level(*inputs) if inputs else [INPUT]
        place_of_input = {value: number for number, value in enumerate(inputs)}
        place_of_call = {one: number for number, one in enumerate(members)}
        given = GraphValues()

        def argument(at: fx.Node, one: fx.Node) -> Any:
            nonlocal couples
            if (value := self._value_for(at, one)) is not None:
                return FromInput(place_of_input[value])
            if one in place_of_call:
                return FromCall(place_of_call[one])
            if one.op == "get_attr":
                return self._trace.attribute(str(one.target))
            if one not in self._written:
                given[str(one.target)] = self._trials.of_graph(one)
                return FromGraph(str(one.target), by_row=self._is_by_row(one))
            if self._is_kept(one):
                couples = True
                return self._keep(one, place_of_input)
            name = f"constant {one}"
            given[name] = self._constant(one)
            return given[name] if isinstance(given[name], _PLAIN) else FromGraph(name)

        calls = [self._call(one, partial(argument, one)) for one in members]
        if members[-1] is not node:  # calls that write over it come behind it
            of: Any = FromInput(0) if node is None else FromCall(place_of_call[node])
            calls.append(WrittenCall(target=itself, args=(of,), kwargs={}, name="itself"))
        result = None if node is None else self._written[node].result
        out = self._writer.add(
            Break,
            *rows,
            calls=tuple(calls),
            width_out=self._writer.width(rows[0]) if result is None else int(result.shape[1]),
            couples_rows=couples,
            given=given,
        )
        for one in members:
            self._written[one].kept_by = out, place_of_call[one]
        return out

    def _keep(self, node: fx.Node, place_of_input: Mapping[str, int]) -> FromBreak:
        """Make the break that computes a call keep its result; return the reference to it."""
        value, number = self._kept(node, couples=True)
        return FromBreak(place_of_input[value], number)

    def _kept(self, node: fx.Node, *, couples: bool = False) -> tuple[str, int]:
        """Make the break that computes a call keep its result; return its value and the call's number.

        If the result ``couples`` breaks, they must run on the same rows, which are all.
        """
        kept_by = self._written[node].kept_by
        assert kept_by is not None
        value, number = kept_by
        ops = self._writer.ops
        at = next(place for place, op in enumerate(ops) if op.out == value)
        earlier: Any = ops[at]
        couples = couples or earlier.couples_rows
        ops[at] = replace(earlier, kept=earlier.kept | {number}, couples_rows=couples)
        return value, number

    def _constant(self, node: fx.Node) -> Any:
        """Return a result that is computed of the graph alone, the same object whenever it is read again."""
        written, constants = self._written[node], self._breaks.constants
        assert constants is not None
        written.is_run = True
        return constants.setdefault(self._key_of(node), written.result)

    def _key_of(self, node: fx.Node) -> Any:
        """Return what tells the calls of a constant apart: all calls that lead to it, by their places."""
        before = [one for one in self._place_of if self._place_of[one] <= self._place_of[node]]
        return str([(one.op, one.target, one.args, one.kwargs) for one in before])

    def _call(self, node: fx.Node, argument: Callable[[fx.Node], Any]) -> WrittenCall:
        written, module = self._written[node], self._trials.module(node)
        name = getattr(node.target, "__name__", str(node.target))
        if module is not None:
            name = f"{str(node.target).removeprefix('model.')} {type(module).__name__}"
        target: Any = node.target if module is None else module
        made = partial(WrittenCall, where=str(node.meta.get(WHERE, "")))
        if (layer := written.layer) is not None:
            args: Any = plain(fx.node.map_arg(layer.args, argument))
            name = f"{name} on its own edges, lowered"
            return made(target=layer.layer, args=args, kwargs={}, name=name)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), argument)
        why = written.why
        return made(
            target=target,
            args=plain(args),
            kwargs=plain(kwargs),
            name=name,
            code="" if why is None else why.code,
            why="" if why is None else f"{why.part}: {why.reason}",
            needed="" if why is None else why.needed,
        )

    def check_all_run(self) -> None:
        """Refuse calls whose results nothing reads, if they may do more than return one.

        Raises:
            NotLoweredError: there is such a call.
        """
        for node, written in self._written.items():
            is_free = written.repeats or (self._is_inert(node) and not written.drew)
            if written.why is not None and not written.is_run and not is_free:
                what = f"nothing reads {node}, and it may do more than return a result"
                raise _both(written.why, NoBreakError("unread", what))

    def _is_inert(self, node: fx.Node) -> bool:
        """Return whether a module does nothing but return a result, unless it draws random numbers."""
        module = self._trials.module(node)
        return module is not None and is_of_torch(module) and not any(True for _ in module.buffers())

    # ---- undoing

    def state(self) -> _State:
        """Return what :meth:`put_back` needs."""
        runs = {node: (one.is_run, one.kept_by, one.value) for node, one in self._written.items()}
        return runs, dict(self._last)

    def put_back(self, state: _State) -> None:
        """Forget the breaks made since :meth:`state`, after the writer has forgotten them."""
        before, self._last = state
        for node, one in self._written.items():
            one.is_run, one.kept_by, one.value = before.get(node, (False, None, None))
        made = {op.out for op in self._writer.ops}
        for value in [one for one in self._trials.rows if one.startswith("v") and one not in made]:
            del self._trials.rows[value]


def _is_by_row(result: Any, watch: RowWatch, num_rows: int) -> bool:
    """Return whether a result is one or several tensors with a row of its own for each row."""
    several = result if isinstance(result, tuple | list) else (result,)
    return all(
        isinstance(one, Tensor) and one.shape[:1] == (num_rows,) and watch.kind_of(one) is Dependence.ALIGNED
        for one in several
    )


_State = tuple[dict[fx.Node, tuple[bool, tuple[str, int] | None, str | None]], dict[int, int]]
_OF_SHAPE = ("shape", "dtype", "device", "ndim")
"""Attributes of a tensor that do not depend on its numbers."""
_PLAIN = (bool, int, float, str, torch.Size, torch.dtype, torch.device)
"""Classes of constants that stand in a call themselves."""
_CALLS = ("call_function", "call_method", "call_module")


def _both(why: NotLoweredError, error: NoBreakError) -> NotLoweredError:
    """Return the error for a call that has neither a lowered form nor can run between lowered operations."""
    what = f"{why.reason}, and it cannot be a graph break: {error}"
    return NotLoweredError(why.part, what, why.needed, code=error.code, where=why.where)


def _is_torchs(target: Any) -> bool:
    """Return whether a function or method computes its result from its arguments alone."""
    if isinstance(target, str | types.BuiltinFunctionType) or target is itself:
        return True
    package = (getattr(target, "__module__", None) or "").split(".")[0]
    is_of_pyg = package == "torch_geometric" and target is torch.index_select  # which PyG replaces
    return is_of_pyg or package in ("torch", "_operator", "builtins", "math")


def _memory(tensors: Iterable[Tensor]) -> set[int]:
    found = {one.untyped_storage().data_ptr() for one in tensors if one.layout == torch.strided}
    return found - {0}  # of tensors without elements

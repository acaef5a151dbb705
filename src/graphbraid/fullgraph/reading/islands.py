"""Islands: calls of a trace without a lowered form, which become graph breaks where their results are read.

Each such call is tried once while the model is read, on rows of random numbers and copies of its modules. The
trial shows which results are matrices of node rows, and which memory it overwrites. When an operation reads a
matrix of node rows that such a call makes, the calls that lead to it from other node rows become one break.
Results of any other form stay inside a break. Those that two breaks need are computed in both; if a call
draws random numbers or is one of a module, the first break keeps them for the second. Values of the graph
alone are computed once, while the model is read. A layer that gets edges or values of edges which
calls make is one of the calls, and runs by a program of its own (:mod:`.own_edges`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.reading.break_trial import (
    CALLS,
    Breaks,
    CallTrials,
    NoBreakError,
    TriedCall,
    memory_of,
    plain,
)
from graphbraid.fullgraph.reading.messages import Propagation, is_message_passing
from graphbraid.fullgraph.reading.own_edges import CallOnEdges
from graphbraid.fullgraph.reading.reader import Writer
from graphbraid.fullgraph.reading.row_dependence import Dependence, is_of_torch, tensors_in
from graphbraid.fullgraph.reading.tracer import WHERE, TracedCalls


class Islands:
    """The calls of one trace without a lowered form.

    Args:
        writer: collects the operations.
        trace: the trace.
        breaks: the inputs of trials.
        values: the names of values by the nodes of the trace that made them; added to.
    """

    def __init__(
        self, writer: Writer, trace: TracedCalls, breaks: Breaks, values: dict[fx.Node, str]
    ) -> None:
        self._writer, self._trace, self.breaks, self._values = writer, trace, breaks, values
        self.trials = CallTrials(writer, trace, breaks, values)
        """The calls so far, each tried once."""
        self._tried = self.trials.tried
        self._place_of = {node: number for number, node in enumerate(trace.graph.nodes)}
        self._last: dict[int, int] = {}
        """Place of the last call of each module that a break makes."""

    # ---- calls that have no lowered form

    def add(self, node: fx.Node, why: ir.NotLoweredError) -> None:
        """Take a call, and try it.

        Raises:
            NotLoweredError: it cannot run between lowered operations.
        """
        if node.op not in CALLS:
            raise why
        try:
            if node.target is ir.itself:  # an attribute of the user's data
                self._tried[node] = self.trials.try_call(node, None)
            else:
                self._tried[node] = self._layer_call(node, why) or self.trials.try_call(node, why)
        except NoBreakError as error:
            raise _both(why, error) from error

    def _layer_call(self, node: fx.Node, why: ir.NotLoweredError) -> TriedCall | None:
        """Return a call of a layer by its own program; None if that is not possible.

        Raises:
            NotLoweredError: it is not, and the call is one of ``propagate``, which cannot run as written.
        """
        module = self.trials.module(node)
        is_propagate = isinstance(node.target, Propagation)
        if not is_propagate and (module is None or not is_message_passing(module)):
            return None
        if self.breaks.place.type != "cpu" or len(self.breaks.num_rows) > 1:
            if is_propagate:
                raise why
            return None
        before = self.trials.try_arguments(node)
        call = CallOnEdges(self, node)
        try:
            layer = call.read(module)
        except ir.NotLoweredError as error:
            if is_propagate:
                raise _both(why, NoBreakError(error.code, error.reason)) from error
            return None
        draw = torch.Generator().manual_seed(len(self._tried))
        width = layer.program.width(layer.program.output)
        result = torch.rand(call.num_rows, width, generator=draw, dtype=call.dtype)
        made = TriedCall(why, result, Dependence.COUPLED, 0, repeats=False, writes_before=before)
        made.layer, made.layer_args = layer, call.args
        return made

    def learns(self, at: fx.Node, one: fx.Node) -> bool:
        """Return whether an argument of a call may require a gradient."""
        if (value := self.trials.value_for(at, one)) is not None:
            return value != ir.INPUT
        if one.op == "get_attr":
            return isinstance(self._trace.attribute(str(one.target)), nn.Parameter)
        if one not in self._tried or self._tried[one].is_constant:
            return False
        module = self.trials.module(one)
        of_module = module is not None and any(True for _ in module.parameters())
        of_layer = self._tried[one].layer is not None
        sources = (*one.all_input_nodes, *self._tried[one].writes_before)
        return of_module or of_layer or any(self.learns(one, other) for other in sources)

    def _members(self, *nodes: fx.Node) -> list[fx.Node]:
        """Return calls and all those that they depend on, back to values, in order."""
        found, waiting = {*nodes}, [*nodes]
        while waiting:
            at = waiting.pop()
            for one in (*at.all_input_nodes, *self._tried[at].writes_before):
                if one not in self._tried or one in found or self.trials.value_for(at, one) is not None:
                    continue
                if not self._is_kept(one) and not self._tried[one].is_constant:
                    found.add(one)
                    waiting.append(one)
        return sorted(found, key=self._place_of.__getitem__)

    def _is_kept(self, node: fx.Node) -> bool:
        """Return whether an earlier break has computed a call that must be made once."""
        return self._tried[node].kept_by is not None and not self._tried[node].repeats

    # ---- breaks

    def value(self, node: fx.Node) -> str | None:
        """Return the name of the value with a node's rows, made by a break; None if it has no node rows."""
        if node in self._values:
            return self._values[node]
        written = self._tried.get(node)
        if written is None or not self._is_rows(written):
            return None
        try:
            self._run(node)
        except NoBreakError as error:
            raise _both(written.why or ir.NotLoweredError(str(node), "a break makes it"), error) from error
        return self._values[node]

    def shape_of(self, matrix: fx.Node) -> tuple[int, ...]:
        """Return the shape of a row before it was made a row of a matrix."""
        self.trials.try_arguments(matrix)
        return tuple(self.trials.result_for(matrix, matrix.all_input_nodes[0]).shape[1:])

    def returned(self, nodes: Iterable[fx.Node]) -> dict[fx.Node, ir.FromKept]:
        """Return references to results that are no node rows, of calls that breaks make, those here at last.

        Raises:
            NotLoweredError: one is no result of such a call, or cannot run between lowered operations.
        """
        wanted = dict.fromkeys(nodes)
        for node in wanted:
            if not self.breaks.returns or node not in self._tried or self._tried[node].is_constant:
                raise ir.NotLoweredError(
                    "forward", f"it returns {node}, no matrix of node rows", "one result"
                )
        try:
            self._run(*(node for node in wanted if self._tried[node].kept_by is None))
        except NoBreakError as error:
            why = ir.NotLoweredError("forward", f"it returns {', '.join(map(str, wanted))}")
            raise _both(why, error) from error
        found = {}
        for node in wanted:
            value, number = self._kept(node)
            found[node] = ir.FromKept(value, number)
        return found

    def _is_rows(self, written: TriedCall) -> bool:
        """Return whether a call's result is a matrix of node rows, as operations read.

        A matrix of a row and a column for each node is none where the number of nodes changes.
        """
        result, num_rows = written.result, self.breaks.num_rows[written.node_type]
        return (
            isinstance(result, Tensor)
            and result.layout == torch.strided
            and result.ndim == 2
            and result.shape[0] == num_rows
            and result.shape[1] > 0
            and (result.shape[1] % num_rows > 0 or self.breaks.constants is not None)
            and result.dtype == self.breaks.dtype
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
            # A call on the way, whose rows others read too, gets a break of its own and is computed once.
            is_between = one not in nodes and one in inside and self._tried[one].why is not None
            is_between = is_between and not self.trials.writes_to(one)
            if is_between and self._is_rows(self._tried[one]) and any(u not in inside for u in one.users):
                self._run(one)
        found = {one for of in nodes for write in self.trials.writes_to(of) for one in self._members(write)}
        members = sorted({*found, *self._members(*nodes)}, key=self._place_of.__getitem__)
        self._check_kept(members)
        values = [self.trials.value_for(at, one) for at in members for one in at.all_input_nodes]
        read = {one for at in members for one in at.all_input_nodes if one in self._tried}
        values += [self._tried[one].kept_by[0] for one in read if self._is_kept(one)]  # type: ignore[index]
        inputs = list(dict.fromkeys(value for value in values if value is not None))
        for one in members:
            self._check_order(one)
        is_rows = len(nodes) == 1 and self._is_rows(self._tried[node])
        out = self._append(node if is_rows else None, members, inputs)
        if is_rows:
            self._values[node] = self._tried[node].value = out

    def _check_kept(self, members: list[fx.Node]) -> None:
        """Refuse a break that would see, or write over, an earlier break's results as they no longer are.

        Raises:
            NoBreakError: it would.
        """
        last = {by: memory for by, memory in self.trials.writes if self._is_kept(by)}
        for at in members:
            read = [one for one in at.all_input_nodes if one in self._tried]
            lost = any(
                self._is_kept(one) and self.trials.writes_to(one)[-1:] not in ([], [one]) for one in read
            )
            for by in self._tried[at].writes_before:
                shares = (
                    one
                    for one in read
                    if memory_of(tensors_in(self._tried[one].result)) & last.get(by, set())
                )
                lost |= not all(self._is_kept(one) for one in shares)
            if lost or self._is_kept(at):
                raise NoBreakError("in-place", "it writes over a result that an earlier part holds")

    def _check_order(self, node: fx.Node) -> None:
        """Note that a break makes a call.

        Raises:
            NoBreakError: another one makes a later call of the same module.
        """
        self._tried[node].is_run = True
        if (module := self.trials.module(node)) is not None:
            place = self._place_of[node]
            if self._last.get(id(module), -1) > place:
                raise NoBreakError("order", f"{node} would run after a later call of the same module")
            self._last[id(module)] = place

    def _append(self, node: fx.Node | None, members: list[fx.Node], inputs: list[str]) -> str:
        """Append the break of some calls; without a ``node`` whose rows it makes, it returns its input."""
        if not inputs and len(self.breaks.num_rows) > 1:
            raise NoBreakError("node-types", "it makes node rows of a type that is not known")
        says_rows = inputs or any(self.trials.is_by_row(one) for at in members for one in at.all_input_nodes)
        couples = not says_rows or any(self._tried[one].kind is Dependence.COUPLED for one in members)
        rows = self._writer.on_one_level(*inputs) if inputs else [ir.INPUT]
        place_of_input = {value: number for number, value in enumerate(inputs)}
        place_of_call = {one: number for number, one in enumerate(members)}
        given = ir.GraphValues()

        def argument(at: fx.Node, one: fx.Node) -> Any:
            nonlocal couples
            if (value := self.trials.value_for(at, one)) is not None:
                return ir.FromInput(place_of_input[value])
            if one in place_of_call:
                return ir.FromCall(place_of_call[one])
            if one.op == "get_attr":
                return self._trace.attribute(str(one.target))
            if one not in self._tried:
                given[str(one.target)] = self.trials.of_graph(one)
                return ir.FromGraph(str(one.target), by_row=self.trials.is_by_row(one))
            if self._is_kept(one):
                couples = True
                value, number = self._kept(one, couples=True)
                return ir.FromBreak(place_of_input[value], number)
            name = f"constant {one}"
            given[name] = self._constant(one)
            return given[name] if isinstance(given[name], _PLAIN) else ir.FromGraph(name)

        calls = [self._call(one, partial(argument, one)) for one in members]
        if members[-1] is not node:  # calls that write over it come behind it
            of: Any = ir.FromInput(0) if node is None else ir.FromCall(place_of_call[node])
            calls.append(ir.WrittenCall(target=ir.itself, args=(of,), kwargs={}, name="itself"))
        result = None if node is None else self._tried[node].result
        out = self._writer.add(
            ir.Break,
            *rows,
            calls=tuple(calls),
            width_out=self._writer.width(rows[0]) if result is None else int(result.shape[1]),
            couples_rows=couples,
            given=given,
        )
        for one in members:
            self._tried[one].kept_by = out, place_of_call[one]
        return out

    def _kept(self, node: fx.Node, *, couples: bool = False) -> tuple[str, int]:
        """Make the break that computes a call keep its result; return its value and the call's number.

        If the result ``couples`` breaks, they must run on the same rows, which are all.
        """
        kept_by = self._tried[node].kept_by
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
        written, constants = self._tried[node], self.breaks.constants
        assert constants is not None
        written.is_run = True
        # All calls that lead to it, by their places, are its key.
        before = [one for one in self._place_of if self._place_of[one] <= self._place_of[node]]
        key = str([(one.op, one.target, one.args, one.kwargs) for one in before])
        return constants.setdefault(key, written.result)

    def _call(self, node: fx.Node, argument: Callable[[fx.Node], Any]) -> ir.WrittenCall:
        written, module = self._tried[node], self.trials.module(node)
        name = getattr(node.target, "__name__", str(node.target))
        if module is not None:
            name = f"{str(node.target).removeprefix('model.')} {type(module).__name__}"
        target: Any = node.target if module is None else module
        made = partial(ir.WrittenCall, where=str(node.meta.get(WHERE, "")))
        if (layer := written.layer) is not None:
            args: Any = plain(fx.node.map_arg(written.layer_args, argument))
            name = f"{name} on its own edges, lowered"
            return made(target=layer, args=args, kwargs={}, name=name)
        args, kwargs = (plain(one) for one in fx.node.map_arg((node.args, node.kwargs), argument))
        made = partial(made, target=target, args=args, kwargs=kwargs, name=name)
        why = written.why
        return (
            made() if why is None else made(code=why.code, why=f"{why.part}: {why.reason}", needed=why.needed)
        )

    def check_all_run(self) -> None:
        """Refuse calls whose results nothing reads, if they may do more than return one.

        Raises:
            NotLoweredError: there is such a call.
        """
        for node, written in self._tried.items():
            module = self.trials.module(node)
            # A module of torch's without buffers returns a result and does no more.
            is_inert = module is not None and is_of_torch(module) and not any(True for _ in module.buffers())
            # So does a layer that has a program, if that moves no statistics.
            layer = written.layer
            of_layer = layer is not None and not any(
                isinstance(op, ir.Normalise | ir.Break) for op in layer.program.ops
            )
            is_free = written.repeats or of_layer or (is_inert and not written.drew)
            if written.why is not None and not written.is_run and not is_free:
                what = f"nothing reads {node}, and it may do more than return a result"
                raise _both(written.why, NoBreakError("unread", what))

    # ---- undoing

    def state(self) -> _State:
        """Return the state that :meth:`put_back` needs."""
        runs = {node: (one.is_run, one.kept_by, one.value) for node, one in self._tried.items()}
        return runs, dict(self._last)

    def put_back(self, state: _State) -> None:
        """Forget the breaks made since :meth:`state`, after the writer has forgotten them."""
        before, self._last = state
        for node, one in self._tried.items():
            one.is_run, one.kept_by, one.value = before.get(node, (False, None, None))
        made = {op.out for op in self._writer.ops}
        for value in [one for one in self.trials.rows if one.startswith("v") and one not in made]:
            del self.trials.rows[value]


_State = tuple[dict[fx.Node, tuple[bool, tuple[str, int] | None, str | None]], dict[int, int]]
_PLAIN = (bool, int, float, str, torch.Size, torch.dtype, torch.device)
"""Classes of constants that stand in a call themselves."""


def _both(why: ir.NotLoweredError, error: NoBreakError) -> ir.NotLoweredError:
    """Return the error for a call that has neither a lowered form nor can run between lowered operations."""
    what = f"{why.reason}, and it cannot be a graph break: {error}"
    return ir.NotLoweredError(why.part, what, why.needed, code=error.code, where=why.where)

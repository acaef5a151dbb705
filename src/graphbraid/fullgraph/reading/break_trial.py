"""Trials of calls that have no lowered form, on rows of random numbers and copies of modules."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map_only

from graphbraid.errors import ConfigError
from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.reading.exact import computed_weights
from graphbraid.fullgraph.reading.messages import Propagation
from graphbraid.fullgraph.reading.reader import Writer
from graphbraid.fullgraph.reading.row_dependence import Dependence, RowWatch, is_of_torch, tensors_in
from graphbraid.fullgraph.reading.trace_context import generators, put_back, recorded_of
from graphbraid.fullgraph.reading.tracer import TracedCalls
from graphbraid.nn.module_traits import copy_of

_HOST = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Breaks:
    """How a model is read if calls without a lowered form become graph breaks.

    Attributes:
        num_rows: number of rows that calls are tried on, by node type; one in a graph of one type. A call
            that walks the edges needs the number of nodes.
        values: by the target of a placeholder, makes a value of the graph for calls: its edges, their
            weights and their features. Calls that take any other are refused.
        place: the device of the model and of these values.
        dtype: the dtype of node rows.
        returns: whether the model may return results of breaks in any form.
        by_row: targets of values that have a row for each node.
        whole: modules to run as written, by their names after ``model.``, and why.
        constants: collects values computed of the graph alone, by the call that computes them. If None,
            breaks run on other graphs, too, and compute them in each run.
    """

    num_rows: tuple[int, ...]
    values: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    place: torch.device = _HOST
    dtype: torch.dtype = torch.float32
    by_row: frozenset[str] = frozenset()
    returns: bool = False
    whole: Mapping[str, ir.NotLoweredError] = field(default_factory=dict)
    constants: dict[Any, Any] | None = None


CALLS = ("call_function", "call_method", "call_module")
"""Kinds of nodes that are calls."""


class NoBreakError(Exception):
    """Raised for a call that cannot run between lowered operations: the code of the reason, and a clause."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(what)
        self.code = code


@dataclass(eq=False)
class TriedCall:
    """A call that a break may make."""

    why: ir.NotLoweredError | None
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
    layer: ir.LoweredLayer | None = None
    """The layer that it calls, if that has a lowered form on any edges."""
    layer_args: tuple[Any, ...] = ()
    """Arguments of that layer, with nodes of the trace."""
    is_run: bool = False
    """Whether a break computes it or, of a constant, holds it."""
    kept_by: tuple[str, int] | None = None
    """The value of the break that computes it, and the number of the call there."""
    value: str | None = None
    """Name of its rows, if these are the result of a break."""


class CallTrials:
    """Tries the calls of one trace that have no lowered form, and makes their arguments.

    Args:
        writer: has the widths and node types of values.
        trace: the trace.
        breaks: the inputs of trials.
        values: the names of values by the nodes of the trace that made them; they change as it is read.
    """

    def __init__(
        self, writer: Writer, trace: TracedCalls, breaks: Breaks, values: Mapping[fx.Node, str]
    ) -> None:
        self._writer, self._trace, self._breaks, self._values = writer, trace, breaks, values
        self.tried: dict[fx.Node, TriedCall] = {}
        """The calls that were tried."""
        self.writes: list[tuple[fx.Node, set[int]]] = []
        """The calls that wrote over an argument, in order, and the memory that they wrote to."""
        self._seen: dict[fx.Node, dict[fx.Node, str]] = {}
        """By call, the names that the values of its arguments had when it was made."""
        self._own: dict[fx.Node, Any] = {}
        """Calls' arguments that are the model's own tensors or values of the graph."""
        self.rows: dict[str, Tensor] = {}
        """The rows that stand for values, by name."""
        self._copies: dict[int, Any] = {}
        self._given = ir.GraphValues()

    def call(self, node: fx.Node, arguments: Mapping[fx.Node, Any]) -> tuple[Any, bool]:
        """Return a call's result on random rows, and whether it drew random numbers.

        Raises:
            NoBreakError: it fails.
        """
        args, kwargs = plain(fx.node.map_arg((node.args, node.kwargs), arguments.__getitem__))
        devices = [self._breaks.place] if self._breaks.place.type == "cuda" else []
        module = self.module(node)
        target = self._copied(module) if module is not None else node.target
        with torch.random.fork_rng(devices), warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            before, held = generators(), _held(target)
            try:
                result = ir.run_call(target, args, kwargs)
            except Exception as error:  # whatever the user's code may raise
                lines = str(error).strip().splitlines() or [type(error).__name__]
                what = f"as written it fails on rows of random numbers ({lines[0]})"
                raise NoBreakError("fails", what) from error
            finally:
                drew = put_back(before)
            if _held(target) != held:
                raise NoBreakError("state", "it changes attributes of its own when it is called")
        return tree_map_only(Tensor, Tensor.detach, result), drew or bool(devices)

    def of_model_or_graph(self, node: fx.Node) -> Any:
        """Return a copy, for a call to write over, of a tensor of the model or a value of the graph.

        Raises:
            NoBreakError: it is something that a break cannot have.
        """
        if node.op == "get_attr":
            found = self._trace.attribute(str(node.target))
            if not isinstance(found, Tensor):
                raise NoBreakError("needs", f"its argument {node} is no tensor")
            if found.requires_grad and not isinstance(found, nn.Parameter):
                what = f"its argument {node} was computed apart from the model's inputs"
                raise NoBreakError("reads-values", what)
            return found.detach().clone()
        found = self.of_graph(node)
        return found.clone() if hasattr(found, "clone") else found

    def of_graph(self, node: fx.Node) -> Any:
        """Return a call's argument that is a value of the graph, always the same object.

        Raises:
            NoBreakError: it is something else.
        """
        target = str(node.target)
        if node.op != "placeholder" or target not in self._breaks.values:
            what = f"it needs {node}, which is neither node rows nor edges of the whole graph"
            raise NoBreakError("needs", what)
        if target not in self._given:
            try:
                self._given[target] = self._breaks.values[target]()
            except ConfigError as error:  # a batch in layout 'blocks' has no edge_index
                raise NoBreakError("needs", f"it needs {node}, and {error}") from error
        return self._given[target]

    def rows_of(self, value: str) -> Tensor:
        """Return the random rows that stand for a value."""
        if value not in self.rows:
            count, width = self._breaks.num_rows[self._writer.node_type(value)], self._writer.width(value)
            self.rows[value] = torch.rand(
                count, width, generator=torch.Generator().manual_seed(len(self.rows))
            ).to(self._breaks.place, self._breaks.dtype)
        return self.rows[value]

    def module(self, node: fx.Node) -> nn.Module | None:
        """Return the module that a node calls; None for any other call."""
        return self._trace.modules[str(node.target)] if node.op == "call_module" else None

    def see(self, node: fx.Node) -> None:
        """Note the values of a call's arguments before it is read: later calls may write over them."""
        self._seen[node] = {one: self._values[one] for one in node.all_input_nodes if one in self._values}

    def sees_memory_of(self, value: str) -> bool:
        """Return whether a call's result may share the memory of a value."""
        own = [self.rows[value]] if value in self.rows else []
        made = (one.result for one in self.tried.values() if one.value == value)
        own += [tensor for result in made for tensor in tensors_in(result)]
        others = (one.result for one in self.tried.values() if one.value != value)
        return bool(memory_of(own) & memory_of(tensors_in(list(others))))

    def try_arguments(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """Try the calls with lowered forms among a call's arguments; return the calls that overwrote them."""
        for one in node.all_input_nodes:
            if one.op in CALLS and one not in self.tried and self.value_for(node, one) is None:
                self.tried[one] = self.try_call(one, None)
        read = memory_of(tensors_in([self.result_for(node, one) for one in node.all_input_nodes]))
        return tuple(by for by, memory in self.writes if memory & read)

    def try_call(self, node: fx.Node, why: ir.NotLoweredError | None) -> TriedCall:
        """Try a call, after those of its arguments that were not tried yet.

        ``why`` says why it has no lowered form; None if only a call that takes its result has none.

        Raises:
            NoBreakError: it cannot run between lowered operations.
        """
        if isinstance(node.target, Propagation):
            raise NoBreakError("form", "it is part of a layer")
        writes_before = self.try_arguments(node)
        results = {one: self.result_for(node, one) for one in node.all_input_nodes}
        tensors = [tensor for result in results.values() for tensor in tensors_in(result)]
        before = [tensor._version for tensor in tensors]  # each write in place raises a tensor's version
        kinds = {one: self._kind_for(node, one) for one in node.all_input_nodes}
        types = {self._type_for(node, one) for one, kind in kinds.items() if kind is not Dependence.NONE}
        types -= {None}
        if len(types) > 1:
            raise NoBreakError("node-types", "it computes with rows of several node types")
        node_type = types.pop() if types else 0
        assert node_type is not None
        module, num_rows = self.module(node), self._breaks.num_rows[node_type]
        of_kind = {
            kind: [t for one in kinds if kinds[one] is kind for t in tensors_in(results[one])]
            for kind in Dependence
        }
        watch = RowWatch(num_rows, of_kind[Dependence.ALIGNED], of_kind[Dependence.COUPLED])
        with watch:
            result, drew = self.call(node, results)
        written = [one for one, version in zip(tensors, before, strict=True) if one._version != version]
        repeats = module is None and not drew and _is_pure(node.target)
        is_constant = repeats and self._is_constant(node)
        if written:
            # The memory that it writes over no longer holds an earlier call's result.
            is_constant = self._note_write(node, memory_of(written), is_constant=is_constant)
        made = partial(
            TriedCall, why, result, repeats=repeats, drew=drew, is_constant=is_constant, node_type=node_type
        )
        if written or writes_before:
            return made(kind=Dependence.COUPLED, writes_before=writes_before)
        # A mask that happened to select as many rows as there are nodes would look like node rows. A mask of
        # the graph alone selects the same in each step.
        has_size = any(one.shape[:1] == (num_rows,) for one in tensors_in(result))
        if watch.sizes_by_numbers and has_size and not is_constant:
            self._check_size(node, module, results, result)
        if all(kind is Dependence.NONE for kind in kinds.values()):
            return made(kind=Dependence.NONE)
        is_known = is_of_torch(module) if module is not None else _is_pure(node.target)
        is_aligned = is_known and num_rows > 1 and _has_own_rows(result, watch, num_rows)
        return made(kind=Dependence.ALIGNED if is_aligned else Dependence.COUPLED)

    def _is_constant(self, node: fx.Node) -> bool:
        """Return whether a call computes its result of the graph alone, or of the shapes of node rows."""
        by_shape = node.target in ("size", "dim") or (node.target is getattr and node.args[1] in _OF_SHAPE)

        def is_constant(one: fx.Node) -> bool:
            if self.value_for(node, one) is not None or one.op == "get_attr":
                return by_shape
            # Edges that a mask selects have no shape of the graph either.
            return one not in self.tried or self.tried[one].is_constant

        return self._breaks.constants is not None and all(map(is_constant, node.all_input_nodes))

    def _note_write(self, node: fx.Node, memory: set[int], *, is_constant: bool) -> bool:
        """Note that a call writes over an argument: calls that read it later come after this one.

        Returns:
            Whether the argument is still a constant, which nothing but constants has read before.

        Raises:
            NoBreakError: others than the calls of one break see that memory.
        """
        others = memory_of(tensors_in([*self.rows.values(), *self._own.values()]))
        shares = [one for one in self.tried.values() if memory_of(tensors_in(one.result)) & memory]
        if memory & others or any(one.is_run or one.value is not None for one in shares):
            raise NoBreakError("in-place", "it writes over its argument")
        readers = (at for at, one in self.tried.items() if not one.is_constant)
        read = [self.result_for(at, one) for at in readers for one in at.all_input_nodes]
        if is_constant and not memory_of(tensors_in(read)) & memory:
            return True
        self.writes.append((node, memory))
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
            again, _ = self.call(node, {one: negated(value) for one, value in arguments.items()})
        shapes = None if module is None else [one.shape for one in tensors_in(again)]
        if shapes != [one.shape for one in tensors_in(result)]:
            raise NoBreakError("form", "how many rows it returns depends on their numbers")

    # ---- arguments

    def value_for(self, node: fx.Node, one: fx.Node) -> str | None:
        """Return the name of the value that a call gets for an argument; None if that is no value."""
        value = self._seen[node].get(one)
        return self.tried[one].value if value is None and one in self.tried else value

    def result_for(self, node: fx.Node, one: fx.Node) -> Any:
        """Return the value of a call's argument in the trials."""
        if (value := self._seen[node].get(one)) is not None:
            return self.rows_of(value)
        if one in self.tried:
            return self.tried[one].result
        if one not in self._own:
            self._own[one] = self.of_model_or_graph(one)
        return self._own[one]

    def _kind_for(self, node: fx.Node, one: fx.Node) -> Dependence:
        if self.value_for(node, one) is not None:
            return Dependence.ALIGNED
        if one in self.tried:
            return self.tried[one].kind
        if one.op == "get_attr":
            return Dependence.NONE
        return Dependence.ALIGNED if self.is_by_row(one) else Dependence.COUPLED

    def is_by_row(self, node: fx.Node) -> bool:
        """Return whether an argument is of the graph and has a row for each node."""
        return node.op == "placeholder" and str(node.target) in self._breaks.by_row

    def _type_for(self, node: fx.Node, one: fx.Node) -> int | None:
        if (value := self.value_for(node, one)) is not None:
            return self._writer.node_type(value)
        return self.tried[one].node_type if one in self.tried else None

    def writes_to(self, node: fx.Node) -> list[fx.Node]:
        """Return the calls so far that wrote over a call's result."""
        memory = memory_of(tensors_in(self.tried[node].result))
        return [by for by, written in self.writes if memory & written]

    # ---- copies

    def _copied(self, module: nn.Module) -> Any:
        """Return a copy of a module, whose buffers and attributes a trial may change.

        Raises:
            NoBreakError: it cannot be copied.
        """
        for inner in module.modules():
            for weight in (vars(inner).get(name) for name in computed_weights(inner)):
                if isinstance(weight, Tensor):  # which has a graph, and cannot be copied
                    self._copies.setdefault(id(weight), weight.detach().clone())
        try:
            return copy_of(module, self._copies)
        except Exception as error:  # whatever a user's attributes may raise
            raise NoBreakError("state", "one of its attributes cannot be copied") from error


def _has_own_rows(result: Any, watch: RowWatch, num_rows: int) -> bool:
    """Return whether a result is one or several tensors with a row of its own for each row."""
    several = result if isinstance(result, tuple | list) else (result,)
    return all(
        isinstance(one, Tensor) and one.shape[:1] == (num_rows,) and watch.kind_of(one) is Dependence.ALIGNED
        for one in several
    )


_OF_SHAPE = ("shape", "dtype", "device", "ndim")
"""Attributes of a tensor that do not depend on its numbers."""


def _is_pure(target: Any) -> bool:
    """Return whether a function or method computes its result from its arguments alone."""
    own = (ir.itself, ir.as_matrix, ir.on_a_copy)
    if isinstance(target, str | types.BuiltinFunctionType) or target in own:
        return True
    if id(target) in recorded_of(everywhere=False):
        return True
    package = (getattr(target, "__module__", None) or "").split(".")[0]
    is_of_pyg = package == "torch_geometric" and target is torch.index_select  # which PyG replaces
    return is_of_pyg or package in ("torch", "_operator", "builtins", "math")


def memory_of(tensors: Iterable[Tensor]) -> set[int]:
    """Return the addresses of the memory of tensors, the same for a tensor and its views."""
    found = {one.untyped_storage().data_ptr() for one in tensors if one.layout == torch.strided}
    return found - {0}  # of tensors without elements


_KEPT_EDGES = ("_cached_edge_index", "_cached_adj_t")


def _held(target: Any) -> list[tuple[str, int, int]]:
    """Return the attributes, parameters and buffers of a module and those inside, by name and identity.

    Parameters have their version, too, since a module may write over its own, as ``nn.Embedding`` does with
    ``max_norm``. The edges that PyG's layers keep with ``cached=True`` are left out.
    """
    modules = list(target.modules()) if isinstance(target, nn.Module) else []
    parts = (
        {key: part[key] for key in part.keys() - computed_weights(m)}
        for m in modules
        for part in (vars(m), m._parameters, m._buffers, m._modules)
    )
    named = (pair for part in parts for pair in part.items())
    return sorted(
        (name, id(value), value._version if isinstance(value, nn.Parameter) else 0)
        for name, value in named
        if name not in _KEPT_EDGES
    )


def negated(value: Any) -> Any:
    """Return a tensor of floats with the opposite sign, and anything else as it is."""
    return -value if isinstance(value, Tensor) and value.is_floating_point() else value


def plain(value: Any) -> Any:
    """Return containers of a trace as Python's own, which can be compared and copied."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if type(value) is tuple:
        return tuple(map(plain, value))
    return list(map(plain, value)) if isinstance(value, list) else value

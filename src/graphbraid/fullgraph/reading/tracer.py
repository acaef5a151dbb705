"""Tracing of the very call of a model that would run, with modules that have a reader kept whole.

A trace records the one path that Python took. It is therefore made in the model's current mode, and refused
if the model changes itself or draws random numbers on the way, since another call might take another path.
"""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from traceback import walk_stack, walk_tb
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from graphbraid.fullgraph.program import NotLoweredError, itself, run_call
from graphbraid.fullgraph.reading.aggregations import is_hgt
from graphbraid.fullgraph.reading.calling import (
    ADJACENCY,
    DATA,
    EDGE_ATTR,
    EDGES,
    EDGES_TARGET,
    NUM_NODES,
    Calling,
    CallValues,
    Given,
    X,
    target_along,
    target_of,
    targets_of,
)
from graphbraid.fullgraph.reading.exact import check, python_value
from graphbraid.fullgraph.reading.han import is_han, recorded_weights
from graphbraid.fullgraph.reading.messages import (
    Propagation,
    is_message_passing,
    is_traced_layer,
    recorded_propagations,
)
from graphbraid.fullgraph.reading.modes import TRACING
from graphbraid.fullgraph.reading.reader import no_reader, reader_of
from graphbraid.fullgraph.reading.relational import outputs_of_hgt
from graphbraid.fullgraph.reading.trace_context import (
    MATRICES,
    TensorProxy,
    ValueReads,
    as_tensors,
    forget_after,
    kept_functions,
    restore_after_trace,
    writes,
)
from graphbraid.fullgraph.reading.watch import NOT_USERS, Reached, package_of

WHERE = "where"
"""Key of a node's ``meta`` with the file and line of the user's code that makes the call."""


@dataclass(frozen=True, slots=True)
class TracedCalls:
    """The calls that a model makes, in order, with the modules and tensors that they name."""

    graph: fx.Graph
    modules: Mapping[str, nn.Module]
    """The modules, by the targets of calls."""
    root: nn.Module
    """The module whose attributes the targets of tensors are."""

    def attribute(self, target: str) -> Any:
        """Return the attribute that a ``get_attr`` node reads."""
        return attrgetter(target)(self.root)

    def module_around(self, node: fx.Node) -> str | None:
        """Return the name of the innermost module whose forward makes a call; None for the model's own."""
        if isinstance(node.target, Propagation):
            name = node.target.name
        else:
            around = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
            name = next((path for path in reversed(around) if path != node.target), "").removeprefix("model.")
        return name if f"model.{name}" in self.modules else None


def traced(
    model: nn.Module,
    calling: Calling,
    given: Given,
    *,
    whole: dict[str, NotLoweredError] | None = None,
    assumes: bool = True,
) -> TracedCalls:
    """Trace a call of the model.

    ``whole`` names modules to keep whole, each as one call, and why. One whose forward cannot be followed is
    added; if ``whole`` is None, its exception is raised. If ``assumes``, a comparison of sizes may go on as
    for matrices of node rows.

    Raises:
        NotLoweredError: the call cannot be followed, or is another without gradients.
    """
    reached = Reached(model)
    if reached.why:
        raise NotLoweredError(type(model).__name__, f"its forward cannot be followed: {reached.why}")
    try:
        with (
            TRACING,
            restore_after_trace(model, reached),
            as_tensors(reached.functions),
            recorded_propagations(model, reached.functions),
            recorded_weights(model),
            kept_functions(reached.functions),
        ):
            root = _Root(model, calling, given, whole)
            root.tracer.assumes = assumes
            with ValueReads(model) as reads:
                graph = root.tracer.trace(root)
            reads.check(graph)
            if root.tracer.overwrites_matrix():
                what = "its forward writes over the sparse matrix of its edges"
                needed = "operations not in place"
                raise NotLoweredError(type(model).__name__, what, needed, code="in-place")
            with torch.inference_mode():  # a forward may ask whether gradients are wanted, and act on it
                without = _Root(model, calling, given, whole)
                without.tracer.assumes = assumes
                again = without.tracer.trace(without)
    except NotLoweredError as refused:
        # A module that ends at a comparison is kept whole, and one that goes on may write over its buffers.
        if refused.code not in ("draws", "effects") or not root.tracer.has_assumed:
            raise
        return traced(model, calling, given, whole=whole, assumes=False)
    except Exception as error:  # whatever a user's forward may raise under tracing
        raise _why_not_traced(type(model).__name__, error) from error
    root.tracer.check_constants()
    if _calls(again) != _calls(graph):
        raise NotLoweredError(
            type(model).__name__, "its forward is another without gradients", "a forward that does not ask"
        )
    return TracedCalls(graph, {**dict(root.named_modules()), **root.tracer.bare}, root)


def _calls(graph: fx.Graph) -> list[str]:
    """Return the calls. Each names another call by its place, and a tensor of the model by its target.

    A module whose forward cannot be followed has left tensors in one trace, and used names of nodes up.
    """
    written: dict[fx.Node, tuple[str, Any]] = {}
    calls: list[str] = []
    for node in graph.nodes:
        if node.op == "get_attr":
            written[node] = (node.op, node.target)
        else:
            written[node] = (node.op, len(calls))
            given = fx.node.map_arg((node.args, node.kwargs), written.__getitem__)
            calls.append(str((node.op, node.target, given)))
    return calls


class _Root(nn.Module):
    """The module that is traced: it makes the placeholders and calls the model as a user would."""

    def __init__(
        self, model: nn.Module, calling: Calling, given: Given, whole: dict[str, NotLoweredError] | None
    ) -> None:
        super().__init__()
        self.model = model
        self._calling, self._given, self._targets = calling, given, targets_of(given)
        edges = given.classes.get(EDGES, Tensor) if given.matrix is None else given.matrix.kind
        places = (EDGES_TARGET, *(target_along(EDGES_TARGET, one) for one in given.relations))
        self.tracer = _Tracer({**given.classes, **dict.fromkeys(places, edges)}, whole, given)
        self._made: dict[str, fx.Proxy] = {}

    def forward(self) -> Any:
        """Call the model and return its output."""
        values = _CallArguments(self._attribute)
        for what, of in self._targets.items():
            if isinstance(of, str):
                values[what] = self._proxy(of)
            else:
                values[what] = {key: self._proxy(one) for key, one in of.items()}
        if self._given.typed:
            return self._calling.run(self.model, values)
        values[DATA] = _Data(self._given, values)
        returned = self._calling.run(self.model, values)
        _check_containers(returned)
        return returned

    def _attribute(self, name: str) -> Any:
        """Return a flag, or a proxy of another attribute of the user's data.

        Raises:
            NotLoweredError: they have no such tensor, or there may be no graph breaks to read it.
        """
        if name in self._given.constants:
            return self._given.constants[name]
        if name not in self._given.others or not self.tracer.has_breaks:
            raise NotLoweredError("forward", f"it takes {name!r}", "forward(x, edge_index)")
        return self.tracer.create_proxy("call_function", itself, (self._proxy(name),), {})

    def _proxy(self, target: str) -> fx.Proxy:
        if target not in self._made:
            self._made[target] = self.tracer.create_proxy("placeholder", target, (), {})
        return self._made[target]


def _check_containers(returned: Any) -> None:
    """Refuse containers of a user's own classes: a trace keeps their contents, not their class."""
    kind = type(returned)
    if isinstance(returned, dict | list | tuple):
        if kind not in (dict, list, tuple) and not hasattr(kind, "_fields"):
            raise NotLoweredError("forward", f"it returns a {kind.__name__}", "a tuple, a list or a dict")
        for one in returned.values() if isinstance(returned, dict) else returned:
            _check_containers(one)


class _CallArguments(CallValues):
    """The arguments of the call. The number of nodes is made anew each time: calls may be undone."""

    def __missing__(self, what: str) -> Any:
        if what == NUM_NODES and isinstance(x := self.get(X), fx.Proxy):
            return x.size(0)
        return super().__missing__(what)


class _Data:
    """Stand-in for PyG's data in a trace. On mini-batches only features, edges and weights can be read."""

    def __init__(self, given: Given, values: _CallArguments) -> None:
        plain: type = getattr(sys.modules.get("torch_geometric.data"), "Data", object)
        self._class = plain if given.data_class is None else given.data_class
        lost = {ADJACENCY} if given.matrix is None else {EDGES}
        self._given = {name: value for name, value in values.items() if name in given.held - lost}
        self._others = dict.fromkeys({NUM_NODES, *given.others}, values)
        self._missing = given.missing

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class of the user's data, which ``isinstance`` reports."""
        return self._class

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            return None
        if name in self._others:
            return self._others[name][name]
        if name not in self._given:
            raise NotLoweredError("forward", f"it reads {name!r} of the data", "data.x and data.edge_index")
        return self._given[name]


class _Tracer(fx.Tracer):
    """A tracer that keeps modules with a reader whole, and refuses switched gradients or precision."""

    def __init__(
        self, classes: Mapping[str, type], whole: dict[str, NotLoweredError] | None, given: Given
    ) -> None:
        """Make a tracer.

        ``classes`` has the classes of placeholders by their names; others are plain tensors. For ``whole``
        see :func:`traced`.
        """
        super().__init__()
        self._is_typed = given.typed
        self._gradients, self._classes, self._whole = torch.is_grad_enabled(), classes, whole
        self.thread = threading.get_ident()  # modules that other threads call meanwhile are not traced
        self.has_breaks, self.assumes, self.has_assumed = whole is not None, True, False
        self.bare: dict[str, nn.Module] = {}
        """Layers whose network is traced, without it, by the targets of calls."""
        self._matrix, self._examples = None if given.typed else given.matrix, dict[fx.Node, Any]()
        """What calls give on a small graph that read a sparse matrix of edges alone."""
        with torch.inference_mode(False):  # whose tensors count no writes
            self._small = None if self._matrix is None else self._matrix.small()
        self._small_state = None if self._matrix is None else self._matrix.state_of(self._small)
        self._may_write = False
        self._read: list[tuple[Tensor, int]] = []
        """The tensors that are no results of calls, and their versions when a call read them."""

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self.thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if self._whole is not None and (module_qualified_name in self._whole or _is_pyg_part(m)):
            return True
        if is_message_passing(m):
            return not is_traced_layer(m)
        return reader_of(type(m)) is not None or super().is_leaf_module(m, module_qualified_name)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Compare two equal reads of one tensor, as ``min(x.size(0), x.size(0))`` does, or sizes of rows.

        A matrix of edges has as many rows as columns.
        """
        node = obj.node
        if node.target in _COMPARISONS and len(node.args) == 2:
            if node in self._examples and all(map(_is_num_nodes, node.args)):
                return bool(self._examples[node])
            first, second = (
                (one.op, one.target, one.args, one.kwargs) if isinstance(one, fx.Node) else None
                for one in node.args
            )
            if first is not None and first == second and first[1] in ("size", getattr, operator.getitem):
                return _COMPARISONS[node.target]
            if self.assumes and not self._is_typed and (assumed := _as_matrices(node)) is not None:
                self.has_assumed, (sizes, node.meta[MATRICES]) = True, assumed
                return bool(cast("Any", node.target)(*sizes))
        return bool(super().to_bool(obj))

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        by_type = any(isinstance(value, dict) for value in (*args, *kwargs.values()))
        if by_type and is_message_passing(m) and not is_han(m):
            name = self.path_of_module(m).removeprefix("model.")
            if not is_hgt(m):  # its result may be a dict, which a trace cannot look into
                raise no_reader(name, m)
            types = outputs_of_hgt(name, m, *args, **kwargs)
            made = super().call_module(m, forward, args, kwargs)
            return {one: made[one] for one in types}
        # A whole call of a module that takes dicts would not give the dict that its caller reads.
        if by_type and self._whole is not None and (why := self._whole.get(self.path_of_module(m))):
            raise why
        is_in_two = self._maps_by_users_code(m) and args and isinstance(args[0], fx.Proxy)
        call_apart = self._call_in_two if is_in_two else self._on_mapped_edges
        if (made := call_apart(m, args, kwargs)) is not None:
            return made
        if self._whole is None or m is self.root.model or by_type:
            return super().call_module(m, forward, args, kwargs)
        # If it raises, the calls that it has recorded so far must go, and fx's stack of modules be put back.
        last, stack = next(iter(reversed(self.graph.nodes)), None), dict(self.module_stack)
        try:
            return super().call_module(m, forward, args, kwargs)
        except BaseException as error:
            self.module_stack.clear()
            self.module_stack.update(stack)
            if not isinstance(error, Exception):  # a caller ends the forward at a module of its own
                raise
            # Whatever a forward may raise under tracing, it runs as written.
            name = self.path_of_module(m)
            self._whole[name] = _why_whole(name.removeprefix("model."), m, error)
            forget_after(self.graph, last)
            return super().call_module(m, forward, args, kwargs)

    def _maps_by_users_code(self, m: nn.Module) -> bool:
        """Return whether a layer ends in a network that no reader knows as a whole, as GIN's may be."""
        network = m._modules.get("nn")
        is_kept = self._whole is not None and self.path_of_module(m) in self._whole
        is_gin = reader_of(type(m)) is not None and type(m).__module__ == _GIN
        return is_gin and not is_kept and network is not None and not _is_read(network)

    def _call_in_two(self, m: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call of GIN's layer with an identity in the place of its network, and trace that."""
        name = f"{self.path_of_module(m)} before its nn"
        bare = self.bare[name] = copy.copy(m)
        bare._modules = {**m._modules, "nn": nn.Identity()}
        network: Any = m._modules["nn"]
        return network(self.create_proxy("call_module", name, args, kwargs))

    def _on_mapped_edges(self, m: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record GATv2's self-loops and its map of learned edge features before it; return None for others.

        No kernel gives such features a gradient. What is left of the layer are messages that do.
        """
        if type(m).__module__ != _GATV2 or is_traced_layer(m) or m._modules.get("lin_edge") is None:
            return None
        given = inspect.signature(type(m).forward).bind(m, *args, **kwargs).arguments
        found: list[Any] = [given.get(key) for key in ("x", "edge_index", EDGE_ATTR)]
        x, edges, attr = found
        is_plain = given.keys() <= {"self", "x", "edge_index", EDGE_ATTR} and isinstance(x, fx.Proxy)
        is_kept = self._whole is None or self.path_of_module(m) in self._whole
        if not is_plain or is_kept or self._matrix is not None or self._is_typed or not _is_learned(attr):
            return None
        if m.add_self_loops:
            utils = sys.modules["torch_geometric.utils"]
            made = utils.remove_self_loops(edges, attr)
            made = utils.add_self_loops(made[0], made[1], fill_value=m.fill_value, num_nodes=x.size(0))
            edges, attr = made[0], made[1]
        name = f"{self.path_of_module(m)} on mapped edges"
        bare = self.bare[name] = copy.copy(m)
        bare.add_self_loops, bare._modules = False, {**m._modules, "lin_edge": nn.Identity()}
        return self.create_proxy(
            "call_module", name, (x, edges, m.lin_edge(attr.reshape(-1, m.edge_dim))), {}
        )

    def proxy(self, node: fx.Node) -> fx.Proxy:
        made = TensorProxy(node, self)
        if node.op == "placeholder":
            made.kind = self._classes.get(str(node.target), Tensor)
        elif node.op == "get_attr":  # buffers are not recorded but read
            made.kind = nn.Parameter
        if self._matrix is not None and (example := self._example(node)) is not _UNKNOWN:
            self._examples[node] = made.example = example
            if made.is_matrix:
                made.kind = type(example)
        return made

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *others: Any, **named: Any) -> Any:
        """Record a call; return its result itself if it is the same for all sparse matrices of a kind."""
        made = super().create_proxy(kind, target, args, kwargs, *others, **named)
        example = self._examples.get(made.node, _UNKNOWN)
        is_same = example is None or (kind == "call_method" and target in _OF_KIND)
        if kind == "call_method" and target == "is_coalesced":  # torch-sparse looks at the entries
            of: Any = made.node.args[0]
            is_same = of.op == "placeholder" and isinstance(self._small, Tensor)
        return example if is_same and example is not _UNKNOWN and target is not getattr else made

    def overwrites_matrix(self) -> bool:
        """Return whether calls have written over the small matrix, or may do so with values of nodes."""
        matrix = self._matrix
        return matrix is not None and (self._may_write or matrix.state_of(self._small) != self._small_state)

    def _example(self, node: fx.Node) -> Any:
        """Return what a call gives for a small matrix, if it reads nothing else but numbers of nodes."""
        inputs, target = node.all_input_nodes, cast("Any", node.target)
        if node.op == "placeholder" and target == EDGES_TARGET:
            return self._small
        if node.op not in ("call_function", "call_method") or not inputs:
            return _UNKNOWN
        if not all(one in self._examples for one in inputs):
            self._may_write |= writes(node) and node.args[0] in self._examples
            if target == "size":
                return 3 if node.args[1:] in ((0,), (-2,)) else _UNKNOWN
            return _OF_ROWS.get(str(node.args[1]), _UNKNOWN) if target is getattr else _UNKNOWN
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._examples.__getitem__)
        try:
            with torch.random.fork_rng([]), torch.inference_mode(False):
                return run_call(target, args, kwargs)
        except Exception:  # whatever a user's code may raise for a graph of three nodes
            self._may_write |= writes(node)
            return _UNKNOWN

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Iterate over a value whose number of parts is known."""
        made: Any = obj
        try:
            count = self.num_parts(obj.node)
        except TypeError:
            return super().iter(obj)
        return iter([made[place] for place in range(count)])

    def num_parts(self, node: fx.Node) -> int:
        """Return the length of a tensor that is computed of the model's own, or of the shape of node rows.

        Raises:
            TypeError: the length of another value is not known.
        """
        try:
            return len(self._shaped(node))
        except Exception as error:  # whatever PyTorch raises for tensors without numbers
            target: Any = node.target  # x.size() or x.shape
            is_shape = node.args[1:] == {"size": (), getattr: ("shape",)}.get(target)
            if not is_shape or not self.assumes or self._is_typed:
                raise TypeError("the number of its parts depends on values") from error
            self.has_assumed, node.meta[MATRICES] = True, [node.args[0]]
            return 2

    def _shaped(self, argument: Any) -> Any:
        """Return a tensor without numbers, of the shape of a node that depends on none of the graph's."""
        if not isinstance(argument, fx.Node):
            return argument
        if argument.op == "get_attr":
            *path, name = str(argument.target).split(".")
            module: Any = functools.reduce(lambda held, key: held._modules[key], path, cast("Any", self.root))
            return (module._parameters | module._buffers)[name].to("meta")
        args, kwargs = fx.node.map_aggregate((argument.args, argument.kwargs), self._shaped)
        if argument.op not in ("call_function", "call_method"):
            raise TypeError("its shape depends on the graph")
        return run_call(argument.target, args, kwargs)

    def create_arg(self, a: Any) -> Any:
        if issubclass(type(a), Tensor) and not a.is_inference():  # a proxy says that it is one
            self._read.append((a, a._version))
        return super().create_arg(python_value(a))

    def check_constants(self) -> None:
        """Refuse a forward that writes over a tensor of its own after a call has read it."""
        if any(one._version != version for one, version in self._read):
            what = "it writes over a tensor that an earlier call has read"
            raise NotLoweredError("forward", what, "operations that are not in place", code="in-place")

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if self._gradients and (not torch.is_grad_enabled() or torch.is_inference_mode_enabled()):
            raise NotLoweredError(
                "forward", "a part of it runs without gradients", "a forward with gradients"
            )
        if torch.is_autocast_enabled("cpu"):
            raise NotLoweredError("forward", "a part of it runs under autocast", "a forward in float32")
        node = super().create_node(*args, **kwargs)
        node.meta[WHERE] = _line_of_user(walk_stack(sys._getframe(1)))
        return node


_UNKNOWN = object()
"""Stands for the result of a call that reads more than a sparse matrix of edges."""
_OF_ROWS = {"shape": (3, 1), "dtype": torch.float32, "device": torch.device("cpu")}
"""Attributes of node rows on a small graph."""
_OF_KIND = ("has_value", "dim", "is_coalesced", "sparse_dim", "dense_dim")
"""Methods whose results are the same for all sparse matrices of a kind."""
_GIN, _GATV2 = "torch_geometric.nn.conv.gin_conv", "torch_geometric.nn.conv.gatv2_conv"


def _is_num_nodes(value: Any) -> bool:
    """Return whether a value is the number of rows of the features, or of rows or columns of their matrix."""
    if not isinstance(value, fx.Node) or value.target not in ("size", "sparse_size"):
        return False
    of: Any = value.args[0]
    return of.op == "placeholder" and of.target in (X, EDGES_TARGET)


def _as_matrices(node: fx.Node) -> tuple[list[int], list[fx.Node]] | None:
    """Return what a comparison compares if tensors are matrices of node rows, and these; None for others.

    Ranks are compared with numbers, and numbers of rows with each other: 0 stands for one.
    """
    kinds, sizes, tensors = set[str](), list[int](), list[fx.Node]()
    for one in node.args:
        if isinstance(one, fx.Node) and one.args and isinstance(of := one.args[0], fx.Node):
            asks_rows = one.target == "size" and one.args[1:] == (0,) and target_of(of) != EDGE_ATTR
            asks_rank = one.target == "dim" or (one.target is getattr and one.args[1] == "ndim")
            kinds.add("rows" if asks_rows else "rank" if asks_rank else "")
            sizes.append(2 if asks_rank else 0)
            tensors.append(of)
        else:
            kinds.add("rank" if type(one) is int else "")
            sizes.append(one if type(one) is int else 0)
    return (sizes, tensors) if kinds in ({"rows"}, {"rank"}) else None


def _is_learned(value: Any) -> bool:
    """Return whether a value is computed by modules or parameters of the model."""
    before = [value.node] if isinstance(value, fx.Proxy) else []
    for node in before:
        before += [one for one in node.all_input_nodes if one not in before]
    return any(one.op in ("call_module", "get_attr") for one in before)


def _is_read(network: nn.Module) -> bool:
    """Return whether a network is of modules that map rows to rows and have a reader."""
    if type(network) is nn.Sequential:
        return all(map(_is_read, network.children()))
    reader = reader_of(type(network))
    return reader is not None and reader.edges is None


_COMPARISONS: dict[Any, bool] = dict.fromkeys((operator.eq, operator.le, operator.ge), True)
_COMPARISONS |= dict.fromkeys((operator.ne, operator.lt, operator.gt), False)
"""Comparisons, and their results for two equal values."""


def _line_of_user(frames: Iterable[tuple[types.FrameType, int]]) -> str:
    """Return the file and line of the first frame outside of libraries; empty if the forward has none."""
    for frame, line in frames:
        if frame.f_code is _Root.forward.__code__:
            break
        if package_of(frame.f_globals) not in NOT_USERS and package_of(frame.f_globals):
            return f"{_short(frame.f_code.co_filename)}:{line}"
    return ""


def _why_whole(name: str, module: nn.Module, error: Exception) -> NotLoweredError:
    """Return the error for a module that is kept whole: a setting that its reader refuses, or the trace's."""
    try:
        if reader := reader_of(type(module)):
            check(name, module, reader.known)
    except NotLoweredError as refused:
        return refused
    return _why_not_traced(name, error)


def _why_not_traced(name: str, error: Exception) -> NotLoweredError:
    """Return the error for a module whose forward raises an exception under tracing."""
    if isinstance(error, NotLoweredError):
        return error
    why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    what, needed = (
        f"its forward cannot be traced ({why})",
        "a forward without branches on tensors' values or shapes",
    )
    where = _line_of_user(reversed([*walk_tb(error.__traceback__)]))
    return NotLoweredError(name, what, needed, code="reads-values", where=where)


def _short(path: str) -> str:
    """Return a path relative to the working directory, if it lies there."""
    short = os.path.relpath(path)
    return path if short.startswith(os.pardir) else short


_FOLLOWED = {f"torch_geometric.nn.models.{name}" for name in ("mlp", "jumping_knowledge")}
"""Homes of modules of PyG's that are made of modules and functions with a reader."""


def _is_pyg_part(module: nn.Module) -> bool:
    """Return whether a module is of PyG and has no graph layers inside, which could be read."""
    home = type(module).__module__
    is_list = isinstance(module, nn.Sequential)  # its call only calls its children
    of_pyg = home.startswith("torch_geometric.nn.") and not is_list and home not in _FOLLOWED
    return of_pyg and not any(map(is_message_passing, module.modules()))

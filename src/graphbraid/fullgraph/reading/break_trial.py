"""Trials of calls that have no lowered form, on rows of random numbers and copies of modules."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map_only

from graphbraid.fullgraph.program import GraphValues, NotLoweredError
from graphbraid.fullgraph.reading.exact import computed_weights
from graphbraid.fullgraph.reading.reader import Writer
from graphbraid.fullgraph.reading.trace_guard import generators, put_back
from graphbraid.fullgraph.reading.tracer import TracedCalls

_HOST = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Breaks:
    """What a model is read with if calls without a lowered form become graph breaks.

    Attributes:
        num_rows: number of rows that calls are tried on, by node type; one in a graph of one type. A call
            that walks the edges needs the number of nodes.
        values: by the target of a placeholder, makes what calls get of the graph: its edges, their weights
            and their features. Calls that take any other are refused.
        place: the device of the model and of these values.
        dtype: the dtype of node rows.
        returns: whether the model may return what breaks compute in any form.
        by_row: targets of values that have a row for each node.
        whole: modules to run as written, by their names after ``model.``, and why.
        constants: collects what is computed of the graph alone, by the call that computes it. If None, breaks
            run on other graphs, too, and compute it in each run.
    """

    num_rows: tuple[int, ...]
    values: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    place: torch.device = _HOST
    dtype: torch.dtype = torch.float32
    by_row: frozenset[str] = frozenset()
    returns: bool = False
    whole: Mapping[str, NotLoweredError] = field(default_factory=dict)
    constants: dict[Any, Any] | None = None


class NoBreakError(Exception):
    """Raised for a call that cannot run between lowered operations: the code of the reason, and a clause."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(what)
        self.code = code


class CallTrials:
    """Makes the calls of one trace, and what they get.

    Args:
        writer: has the widths and node types of values.
        trace: the trace.
        breaks: on what calls are tried.
    """

    def __init__(self, writer: Writer, trace: TracedCalls, breaks: Breaks) -> None:
        self._writer, self._trace, self._breaks = writer, trace, breaks
        self.rows: dict[str, Tensor] = {}
        """The rows that stand for values, by name."""
        self._copies: dict[int, Any] = {}
        self._given = GraphValues()

    def call(self, node: fx.Node, arguments: Mapping[fx.Node, Any]) -> tuple[Any, bool]:
        """Return what a call gives on random rows, and whether it drew random numbers.

        Raises:
            NoBreakError: it fails.
        """
        args, kwargs = plain(fx.node.map_arg((node.args, node.kwargs), arguments.__getitem__))
        devices = [self._breaks.place] if self._breaks.place.type == "cuda" else []
        module = self.module(node)
        target = self._copied(module) if module is not None else node.target
        if isinstance(target, str):
            args, target = args[1:], getattr(args[0], target)
        with torch.random.fork_rng(devices), warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            before, held = generators(), _held(target)
            try:
                result = target(*args, **kwargs)
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
        """Return what a call gets of the model's own tensors, or of the graph, to write over.

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
        """Return what a call gets of the graph, the same object whenever it is asked for.

        Raises:
            NoBreakError: it is something else.
        """
        target = str(node.target)
        if node.op != "placeholder" or target not in self._breaks.values:
            what = f"it needs {node}, which is neither node rows nor edges of the whole graph"
            raise NoBreakError("needs", what)
        if target not in self._given:
            self._given[target] = self._breaks.values[target]()
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
            return copy.deepcopy(module, self._copies)
        except Exception as error:  # whatever a user's attributes may raise
            raise NoBreakError("state", "it holds what cannot be copied") from error


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

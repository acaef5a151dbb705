"""Layers that get other edges than the graph's, or values of edges that the forward computes.

Examples are turned edges, edges without some that dropout takes away, edges with self-loops and the weights
that ``gcn_norm`` gives them, and edge features that an MLP has mapped. Such a layer is read by itself, as on
a mini-batch, into a program that reads nothing of the graph. It runs inside a graph break, on the edges that
it is called with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.reading.calling import EDGE_ATTR, EDGE_TYPE, only_node_type
from graphbraid.fullgraph.reading.exact import is_plain
from graphbraid.fullgraph.reading.message_reader import read_messages
from graphbraid.fullgraph.reading.messages import Propagation, give_shape
from graphbraid.fullgraph.reading.reader import (
    Edges,
    LayerCall,
    NodeRows,
    Writer,
    bound_arguments,
    checked_reader,
)

if TYPE_CHECKING:
    from graphbraid.fullgraph.reading.islands import Islands


class CallOnEdges:
    """A call of a layer, or of a user's ``propagate``, that is read by itself.

    Args:
        islands: the calls without a lowered form around it.
        node: the call.
    """

    def __init__(self, islands: Islands, node: fx.Node) -> None:
        self.node, self._islands = node, islands
        self.num_rows, self.dtype = islands.breaks.num_rows[0], islands.breaks.dtype
        """Number of rows, and dtype, of matrices of node rows."""
        self._rows: list[fx.Node] = []
        self._edges: fx.Node | None = None
        self._weight: fx.Node | None = None
        self._features: fx.Node | None = None

    def _result_of(self, one: fx.Node) -> Any:
        return self._islands.trials.result_for(self.node, one)

    def _learns(self, one: fx.Node | None) -> bool:
        """Return whether a node's result may require a gradient."""
        return one is not None and self._islands.learns(self.node, one)

    @property
    def args(self) -> tuple[Any, ...]:
        """The layer's arguments: a tuple of matrices of node rows, the edges, their weights and features."""
        return tuple(self._rows), self._edges, self._weight, self._features

    def read(self, module: nn.Module | None) -> ir.LoweredLayer:
        """Return the layer with its program.

        Args:
            module: the module that is called; None for ``propagate``.

        Raises:
            NotLoweredError: it is no layer that has a lowered form on any edges.
        """
        if isinstance(self.node.target, Propagation):
            return self._of_messages(self.node.target)
        assert module is not None
        return self._of_layer(str(self.node.target).removeprefix("model."), module)

    def _of_layer(self, name: str, module: nn.Module) -> ir.LoweredLayer:
        reader = checked_reader(name, module)
        given = dict(bound_arguments(name, reader.takes, self.node.args, self.node.kwargs))
        if reader.edges is None or EDGE_TYPE in reader.takes or getattr(module, "cached", False):
            raise ir.NotLoweredError(name, "it has no lowered form on edges that are made in the forward")
        first, edges = given.pop(reader.takes[0], None), given.pop(reader.edges, None)
        several = tuple(first) if isinstance(first, tuple | list) else (first,)
        if len(several) > 1 and not (reader.relates and len(several) == 2):
            raise ir.NotLoweredError(name, "it takes several matrices", "one matrix of node rows")
        self._take_edges(name, edges, given.pop("edge_weight", None), given.pop(EDGE_ATTR, None))
        others = {key: value for key, value in given.items() if value is not None}
        if unread := [key for key in others if key not in reader.gives]:
            raise ir.NotLoweredError(name, f"it takes {unread[0]!r} too", f"a call without {unread[0]}")
        writer, values = self._inputs(name, [*several, *others.values()])
        channels = None if self._features is None else int(self._result_of(self._features).shape[1])
        own = Edges(weighted=self._weight is not None, channels=channels)
        more = {key: NodeRows(value) for key, value in zip(others, values[len(several) :], strict=True)}
        pair = tuple(values[: len(several)]) if len(several) > 1 else ()
        call = LayerCall(writer, name, module, values[0], own, more, pair)
        return self._made(name, module, writer, reader.read(call))

    def _of_messages(self, of: Propagation) -> ir.LoweredLayer:
        by_node: dict[str, Any] = {
            key: value
            for key, value in self.node.kwargs.items()
            if key[-2:] in ("_i", "_j") and value is not None
        }
        of_edges = {key: value for key, value in self.node.kwargs.items() if key not in by_node}
        constants = {key: value for key, value in of_edges.items() if not isinstance(value, fx.Node)}
        roles: dict[str, ir.ReadRows] = {}
        found: dict[ir.ReadRows, fx.Node] = {}
        for key, value in of_edges.items():
            if isinstance(value, fx.Node):
                ndim = getattr(self._result_of(value), "ndim", 0)
                role = roles[key] = ir.ReadRows.WEIGHT if ndim == 1 else ir.ReadRows.FEATURES
                if found.setdefault(role, value) is not value:
                    raise of.refuse("its message reads several values of edges", "one of each edge")
        edges, weight = self.node.args[0], found.get(ir.ReadRows.WEIGHT)
        self._take_edges(of.name, edges, weight, found.get(ir.ReadRows.FEATURES))
        writer, values = self._inputs(of.name, list(by_node.values()))
        rows: dict[str, str | ir.ReadRows | int] = {**dict(zip(by_node, values, strict=True)), **roles}
        # Rows are read of matrices, into which propagate has joined the heads.
        shapes = {key: self._islands.shape_of(value) for key, value in by_node.items()}
        shapes |= {key: tuple(self._result_of(found[role]).shape[1:]) for key, role in roles.items()}
        learns = self._learns(weight)
        out, shape = read_messages(writer, of, rows, constants, shapes, learns_edges=learns)
        give_shape(self.node, shape)
        return self._made(of.name, of.layer, writer, out)

    def _take_edges(self, name: str, edges: Any, weight: Any, features: Any) -> None:
        """Check the edges and their values."""
        found: Any = self._result_of(edges) if isinstance(edges, fx.Node) else None
        is_list = is_plain(found) and found.ndim == 2 and found.shape[0] == 2
        if not is_list or found.dtype not in (torch.int32, torch.int64):
            raise ir.NotLoweredError(name, "it takes edges that are no list of pairs", "edge_index")
        for value, ndim in ((weight, 1), (features, 2)):
            if value is None:
                continue
            held: Any = self._result_of(value) if isinstance(value, fx.Node) else None
            fits = is_plain(held) and held.dtype == self.dtype and held.ndim == ndim
            if not fits or held.shape[0] != found.shape[1] or 0 in held.shape[1:]:
                raise ir.NotLoweredError(name, f"it takes {value}, which is not one row for each edge")
        self._edges, self._weight, self._features = edges, weight, features

    def _inputs(self, name: str, given: Sequence[Any]) -> tuple[Writer, list[str]]:
        """Return a writer whose input has the columns of all matrices side by side, and their values."""
        for value in given:
            held: Any = self._result_of(value) if isinstance(value, fx.Node) else None
            fits = is_plain(held) and held.ndim == 2 and held.shape[0] == self.num_rows
            if not fits or held.dtype != self.dtype or held.shape[1] == 0:
                raise ir.NotLoweredError(name, f"its argument {value} is not a matrix of node rows")
        self._rows = list(dict.fromkeys(given))
        widths = [int(self._result_of(one).shape[1]) for one in self._rows]
        writer, first, values = Writer({ir.INPUT: sum(widths)}), 0, dict[fx.Node, str]()
        for one, width in zip(self._rows, widths, strict=True):
            values[one] = writer.columns(ir.INPUT, first, first + width)
            first += width
        return writer, [values[one] for one in given]

    def _made(self, name: str, module: nn.Module, writer: Writer, out: str) -> ir.LoweredLayer:
        learns_weights, learns_features = self._learns(self._weight), self._learns(self._features)
        for op in writer.ops:
            if learns_weights and ir.stops_gradient(op, of_features=False):
                raise ir.NotLoweredError(name, "its edge weights are learned", "weights that are not")
            if learns_features and ir.stops_gradient(op, of_features=True):
                raise ir.NotLoweredError(name, "its edge features are learned", "features that are not")
        try:
            program = ir.Program(
                ops=ir.needed_for(writer.ops, out), node_types=(only_node_type(writer.width(ir.INPUT)),)
            )
        except ValueError as error:
            raise ir.NotLoweredError(name, str(error)) from None
        return ir.LoweredLayer(module, program, learns_weights)

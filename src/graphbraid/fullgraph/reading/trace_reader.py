"""Reading a model's own ``forward``: the calls that it makes, in their order, become operations."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.reading import (  # readers enter themselves when they are imported
    convolutions,  # noqa: F401
    propagation,  # noqa: F401
)
from graphbraid.fullgraph.reading.aggregations import is_hgt
from graphbraid.fullgraph.reading.break_trial import Breaks, plain
from graphbraid.fullgraph.reading.call_readers import of_parameters
from graphbraid.fullgraph.reading.calling import (
    EDGE_ATTR,
    EDGES_TARGET,
    WEIGHTS_TARGET,
    Calling,
    Given,
    X,
    check_ends,
    edges_of,
    ids_target,
    is_edge_attr,
    relation_of,
    target_along,
    target_of,
)
from graphbraid.fullgraph.reading.edge_calls import EdgeCalls
from graphbraid.fullgraph.reading.exact import COUNTED, check_parameter
from graphbraid.fullgraph.reading.han import (
    RelationWeights,
    attention_of_relation,
    ends_of,
    is_han,
    read_weights,
)
from graphbraid.fullgraph.reading.islands import Islands
from graphbraid.fullgraph.reading.matrices import own_part, product_of, weighted_entries
from graphbraid.fullgraph.reading.message_reader import check_message_ends, read_messages
from graphbraid.fullgraph.reading.messages import (
    Propagation,
    give_shape,
    is_traced_layer,
    own_messages,
)
from graphbraid.fullgraph.reading.module_readers import learned_rows, run_by_torch
from graphbraid.fullgraph.reading.plain_messages import WHY, PlainPropagation, find_messages
from graphbraid.fullgraph.reading.reader import (
    FUNCTIONS,
    METHODS,
    NEEDED,
    Column,
    Edges,
    FunctionCall,
    FunctionReader,
    Heads,
    LayerCall,
    MappedEdges,
    NodeRows,
    NumRows,
    Writer,
    as_linear,
    bound_arguments,
    checked_reader,
)
from graphbraid.fullgraph.reading.relational import read_hgt
from graphbraid.fullgraph.reading.scatter_trial import ScatterTrial
from graphbraid.fullgraph.reading.trace_context import MATRICES, writes
from graphbraid.fullgraph.reading.tracer import WHERE, TracedCalls, traced


def read_traced(
    writer: Writer,
    model: nn.Module,
    calling: Calling,
    given: Given,
    *,
    node_type: str | None = None,
    breaks: Breaks | None = None,
) -> tuple[str, ir.Returned | None]:
    """Append the operations of a model's call to a writer.

    Over node types, ``HeteroConv`` and modules of ``to_hetero`` are read as their calls: one layer for each
    relation, and the sum, mean or maximum of the results of those into one type.

    Args:
        writer: collects the operations.
        model: the model.
        calling: how to call it.
        given: the arguments that are available.
        node_type: the type whose outputs are wanted; None if the model returns outputs of one type alone.
        breaks: how calls without a lowered form become graph breaks. If None, they are refused.

    Returns:
        The name of the result, empty if there are no outputs of ``node_type``; and the model's output around
        the result, None if the model returns the result itself.

    Raises:
        NotLoweredError: part of the model cannot be read; the message names it.
    """
    whole = None if breaks is None else dict(breaks.whole)
    tried: dict[str, list[str]] = {}
    while True:
        trace = traced(model, calling, given, whole=whole)
        reader = _TraceReader(writer, trace, given)
        reader.find_messages(tried)
        if breaks is not None and whole is not None:
            reader.allow(breaks, whole)
        before = writer.state()
        try:
            return reader.read_all(node_type)
        except _ReadAgainError as error:
            writer.put_back(before)
            if error.scatter:
                tried.setdefault(error.scatter, []).append(error.why.reason)
                continue
            assert whole is not None
            whole[f"model.{error.layer}"], tried = error.why, {}


class _ReadAgainError(Exception):
    """Raised for a part without a lowered form; the model is read again without it.

    It is a ``layer``, by its name, which may be a graph break as a whole, or a ``scatter`` of a plain
    forward, by its key, which cannot be read as messages.
    """

    def __init__(self, why: ir.NotLoweredError, *, layer: str = "", scatter: str = "") -> None:
        super().__init__(layer or scatter)
        self.why, self.layer, self.scatter = why, layer, scatter


class _TraceReader:
    """Turns the nodes of a trace into operations."""

    def __init__(self, writer: Writer, trace: TracedCalls, given: Given) -> None:
        self._writer, self._trace, self._given, self._typed = writer, trace, given, given.typed
        self._rows = {one.input: one.input for one in given.node_types} if given.typed else {X: ir.INPUT}
        self._matrix = None if given.typed else given.matrix
        self._ids = {ids_target(one): one for one in given.node_types}
        self._values: dict[fx.Node, str] = {}
        self._others: dict[fx.Node, Any] = {}
        """Results of readers that are no values: stacks, shapes, tensors of parameters."""
        self._memory: dict[fx.Node, fx.Node] = {}
        """The node whose memory a result shares, where that is not its own."""
        self._edge_calls = EdgeCalls(self._matrix)
        self._islands: Islands | None = None
        self._whole: Mapping[str, ir.NotLoweredError] = {}
        self._of_edges, self._inside = set[fx.Node](), set[fx.Node]()
        """Calls that messages of a plain forward need of the edges, and those that they replace."""

    def find_messages(self, tried: Mapping[str, list[str]]) -> None:
        """Make messages of gathers and scatters along ``edge_index``; see :func:`.find_messages`."""
        if not self._typed and self._matrix is None:
            self._of_edges, self._inside = find_messages(self._trace, tried)

    def allow(self, breaks: Breaks, whole: Mapping[str, ir.NotLoweredError]) -> None:
        """Make graph breaks of calls without a lowered form, and of modules that were kept ``whole``."""
        self._whole = whole
        self._islands = Islands(self._writer, self._trace, breaks, self._values)

    def read_all(self, node_type: str | None) -> tuple[str, ir.Returned | None]:
        """Read all nodes in order; return the result as :func:`read_traced` does."""
        returned = None
        for node in self._trace.graph.nodes:
            if node.op == "output":
                returned = node.args[0]
            elif node not in self._inside:
                self._read_or_break(node)
        if node_type is not None and isinstance(returned, dict):
            if node_type not in returned:
                return "", None
            returned = returned[node_type]
        rows = self._seen(returned) if node_type is not None else fx.node.map_aggregate(returned, self._seen)
        out, structure = self._returned(rows, returned)
        if self._islands is not None:
            self._islands.check_all_run()
        if node_type is not None and self._type_of(out) != node_type:
            what = f"it returns rows of {self._type_of(out)!r}, and those of {node_type!r} are wanted"
            raise ir.NotLoweredError("forward", what, f"node_type={self._type_of(out)!r}")
        return out, structure

    def _returned(self, rows: Any, returned: Any) -> tuple[str, ir.Returned | None]:
        """Return the value with all node rows that the model returns, and the structure that holds them."""
        if isinstance(rows, NodeRows):
            return rows.value, None
        places: dict[str, ir.FromInput] = {}
        others = list[fx.Node]()
        fx.node.map_arg(rows, others.append)
        kept = {} if self._islands is None else self._islands.returned(others)
        for one in kept.values():  # so that the program computes it
            places.setdefault(one.value, ir.FromInput(len(places)))

        def place(one: Any) -> Any:
            if isinstance(one, NodeRows):
                return places.setdefault(one.value, ir.FromInput(len(places)))
            if isinstance(one, fx.Node) and one in kept:
                return kept[one]
            if one is None or type(one) in (bool, int, float, str):
                return one
            what = f"it returns {returned}, which is not made of matrices of node rows"
            raise ir.NotLoweredError("forward", what, "node rows in tuples, lists and dicts")

        structure = fx.node.map_aggregate(rows, place)
        if not places:
            place(returned)
        writer = self._writer
        widths = tuple(writer.width(value) for value in places)
        if len({writer.node_type(value) for value in places}) == 1:
            return writer.beside(*places), ir.Returned(value=plain(structure), widths=widths)
        # Rows of several types have no place side by side: a call that does nothing keeps each.
        calls = tuple(
            ir.WrittenCall(target=ir.itself, args=(ir.FromInput(number),), kwargs={}, name="itself")
            for number in (*range(len(places)), 0)
        )
        kept_by = writer.add(
            ir.Break,
            *writer.on_one_level(*places),
            calls=calls,
            width_out=widths[0],
            couples_rows=True,
            kept=frozenset(range(len(places))),
        )
        structure = fx.node.map_aggregate(
            structure, lambda one: ir.FromKept(kept_by, one.number) if isinstance(one, ir.FromInput) else one
        )
        return kept_by, ir.Returned(value=plain(structure), widths=widths[:1])

    def _read_or_break(self, node: fx.Node) -> None:
        """Read a node; if it has no lowered form and may become part of a graph break, keep it for that."""
        islands, writer = self._islands, self._writer
        self._check_matrices(node)
        if islands is not None:
            islands.trials.see(node)
        reads_edges = not self._typed and (self._matrix or self._of_edges or self._layer_of(node))
        if reads_edges and self._edge_calls.takes(node, self._values, self._others, self._of_edges):
            return
        over = bool(reads_edges) and self._reads_written(node)
        if isinstance(node.target, PlainPropagation):
            self._show(node, node.target)
        before = None
        if islands is not None:  # reading may fail half-way, after it has appended operations
            held = dict(self._values), dict(self._others), dict(self._memory)
            before = writer.state(), held, islands.state()
        try:
            self._read(node)
        except ir.NotLoweredError as why:
            why.where = why.where or str(node.meta.get(WHERE, ""))
            if over and islands is not None:  # a break would not see all writes
                raise self._kept_whole(node, why) from why
            if islands is None or before is None:
                if isinstance(node.target, PlainPropagation):
                    raise _ReadAgainError(why, scatter=node.target.key) from why
                raise self._named_by_layer(node, why) from why
            state, (values, self._others, self._memory), run = before
            writer.put_back(state)
            self._values.clear()  # islands hold this dict
            self._values.update(values)
            islands.put_back(run)
            if node.op == "get_attr":  # an argument of calls, which a break takes as it is
                return
            try:
                islands.add(node, why)
            except ir.NotLoweredError as error:
                if isinstance(node.target, PlainPropagation):
                    raise _ReadAgainError(why, scatter=node.target.key) from error
                raise self._kept_whole(node, error) from error

    def _check_matrices(self, node: fx.Node) -> None:
        """Refuse a call that goes by sizes of tensors that the trace took for node rows and that are none."""
        others = {*node.meta.get(MATRICES, ())} - self._values.keys()
        compares_sizes = all(getattr(one, "target", "") == "size" for one in node.args)
        if compares_sizes:  # heads of node rows have as many rows as these
            others = {one for one in others if not isinstance(self._others.get(one), Heads)}
        if not all(map(is_edge_attr, others)):
            what = f"it goes by sizes of {', '.join(map(str, others))}, which is no matrix of node rows"
            why = ir.NotLoweredError(str(node), what, code="reads-values")
            raise why if self._islands is None else self._kept_whole(node, why)

    def _reads_written(self, node: fx.Node) -> bool:
        """Return whether a call reads a value of the edges that is written over in place.

        Raises:
            NotLoweredError: it does, and is no product of a matrix, which may be read nevertheless.
        """
        if isinstance(node.target, Propagation) or not self._edge_calls.are_written_over(node):
            return False
        if self._matrix is None or product_of(node) is None:
            what = f"{node} is computed of the edges and written over in place"
            why = ir.NotLoweredError(str(node), what, "operations that are not in place", code="in-place")
            raise self._kept_whole(node, why) if self._islands is not None else why
        return True

    def _show(self, node: fx.Node, of: PlainPropagation) -> None:
        """Show that messages of a plain forward are what is written.

        Raises:
            _ReadAgainError: they are not.
        """
        try:
            shapes = {}
            for key, value in node.kwargs.items():
                if key[-2:] in ("_i", "_j"):
                    self._value(of.name, value)
                    shapes[key] = self._shape_of(cast("fx.Node", value))
            node.target = ScatterTrial(
                node=node,
                shapes=shapes,
                value_of=self._rows_like,
                trace=self._trace,
                edge_channels=self._given.edge_channels or 0,
            ).shown()
        except ir.NotLoweredError as why:
            raise _ReadAgainError(why, scatter=of.key) from why

    def _rows_like(self, node: fx.Node, count: int) -> Any:
        """Return random rows for what a call gives on some nodes, or their number; None for other calls."""
        if isinstance(other := self._others.get(node), NumRows):
            return count
        value = other.value if isinstance(other, Heads | Column) else self._values.get(node)
        if value is None:
            return None
        shape: tuple[int, ...] = (self._writer.width(value),) if other is None else ()
        shape = (other.heads, self._writer.width(value) // other.heads) if isinstance(other, Heads) else shape
        return torch.rand(count, *shape, generator=torch.Generator().manual_seed(len(value)))

    def _kept_whole(self, node: fx.Node, why: ir.NotLoweredError) -> Exception:
        """Return the exception that keeps the module whole that makes a call; the reason if none does."""
        name = self._trace.module_around(node)
        return why if name is None else _ReadAgainError(self._named_by_layer(node, why), layer=name)

    def _layer_of(self, node: fx.Node) -> str:
        """Return the name of the traced message passing layer that makes a call; empty if none does."""
        names = (str(name) for name, _ in node.meta.get("nn_module_stack", {}).values())
        layers = (name for name in names if is_traced_layer(self._trace.modules[name]))
        return next(layers, "").removeprefix("model.")

    def _named_by_layer(self, node: fx.Node, why: ir.NotLoweredError) -> ir.NotLoweredError:
        """Return a reason with the traced layer that makes a call, if one does."""
        if isinstance(node.target, Propagation) or not (name := self._layer_of(node)):
            return why
        layer: Any = self._trace.modules.get(f"model.{name}", self._trace.modules["model"])
        what = f"{type(layer).__name__} with aggr={layer.aggr!r} calls {why.part}: {why.reason}"
        return ir.NotLoweredError(name, what, why.needed, code=why.code, where=why.where)

    def _make_rows(self, argument: Any) -> None:
        """Make a graph break of an argument that has node rows, if it is a call without a lowered form."""
        if self._islands is None or not isinstance(argument, fx.Node) or argument.op == "placeholder":
            return
        if argument not in self._values and argument not in self._others:
            self._islands.value(argument)

    def _read(self, node: fx.Node) -> None:
        if node.target is operator.getitem and not node.users:
            return  # as of ``x, _ = conv(...)``
        if node.op == "placeholder":
            if node.target in self._rows:
                self._values[node] = self._rows[str(node.target)]
        elif node.op == "call_module":
            self._keep(node, self._module(node))
        elif isinstance(node.target, Propagation):
            self._values[node] = self._messages(node, node.target)
        elif isinstance(of := node.target, RelationWeights):
            rows = [self._value(of.__name__, one) for one in node.args]
            self._others[node] = read_weights(self._writer, of, rows)
        elif (product := self._product(node)) is not None:
            self._values[node] = product
        elif (
            node.op == "call_method"
            and node.args[1:] == (-1,)
            and isinstance(of := node.all_input_nodes[0].target, Propagation)
            and of.is_vector
        ):
            self._others[node] = Column(self._value("view", node.args[0]))
        elif node.op in ("call_function", "call_method"):
            self._keep(node, self._call(node))
        elif node.users:
            self._keep(node, self._own_tensor(node))

    def _keep(self, node: fx.Node, made: Any) -> None:
        if isinstance(made, str | NodeRows):
            self._values[node] = made if isinstance(made, str) else made.value
        else:
            self._others[node] = made

    def _own_tensor(self, node: fx.Node) -> str | float | ir.SmallTensor:
        """Read a tensor of the model's own: a learned row for each node, or a few numbers."""
        name, tensor = str(node.target).removeprefix("model."), self._trace.attribute(str(node.target))
        if isinstance(tensor, nn.Parameter):
            check_parameter(name, "it", tensor)
            graph = self._given.graph
            by_node = graph is not None and tensor.ndim == 2 and tensor.shape[0] == graph.num_nodes > 1
            if by_node and not self._typed:
                return self._writer.add(ir.Learned, ir.INPUT, table=tensor)
        elif not self._is_of_buffer(tensor):
            of_model = next((p.dtype for p in self._trace.root.parameters()), torch.float32)
            keeps_dtype = tensor.ndim == 0 or tensor.dtype in (torch.float32, of_model)
            if name.startswith("_tensor_constant") and keeps_dtype and _is_number(tensor):
                return float(tensor)  # as 1 + eps: the model is read again when the buffer has changed
            raise ir.NotLoweredError(
                name, "a tensor of the model's own takes part in its forward", "a parameter or a buffer"
            )
        return ir.SmallTensor(ir.itself, (ir.Leaf(tensor),))

    def _is_of_buffer(self, tensor: Any) -> bool:
        """Return whether a constant is a view of a buffer, whose numbers it has in each step."""
        own = (b for name, b in self._trace.root.named_buffers() if not name.endswith(COUNTED))
        memory = {buffer.untyped_storage().data_ptr() for buffer in own}
        keeps_dtype = tensor.dtype == torch.float32 or (tensor.is_floating_point() and tensor.ndim == 0)
        is_plain = keeps_dtype and not tensor.requires_grad
        return is_plain and tensor.untyped_storage().data_ptr() in memory

    def _type_of(self, value: str) -> str:
        return self._given.node_types[self._writer.node_type(value)].name

    # ---- modules

    def _module(self, node: fx.Node) -> str | MappedEdges | tuple[NodeRows] | dict[str, str]:
        module = self._trace.modules[str(node.target)]
        name = str(node.target).removeprefix("model.") if node.target != "model" else type(module).__name__
        if (why := self._whole.get(str(node.target))) is not None:
            raise why
        if is_hgt(module):
            return self._hgt(node, name, module)
        only: Any = node.args[0] if len(node.args) == 1 and not node.kwargs else None
        ids = self._ids.get(target_of(only))
        if type(module) is nn.Embedding and ids is not None and (graph := self._given.graph) is not None:
            return learned_rows(self._writer, name, module, ids, graph.nodes_of(ids.name).num_nodes)
        of_edges = is_edge_attr(only) and self._given.matrix is None
        if of_edges and (linear := as_linear(name, module)) is not None:
            return MappedEdges(linear, target_of(only))
        if only in self._values and (run := run_by_torch(self._writer, name, module, self._values[only])):
            return run
        reader = checked_reader(name, module)
        bound = dict(bound_arguments(name, reader.takes, node.args, node.kwargs))
        rows = bound.pop(reader.takes[0], None)
        several = tuple(self._value(name, row) for row in rows) if isinstance(rows, list | tuple) else ()
        x = several[0] if several else self._value(name, rows)
        edges = Edges()
        if reader.edges is not None:
            attr = bound.get(EDGE_ATTR)
            mapped = self._others.get(attr) if isinstance(attr, fx.Node) else None
            edges = edges_of(name, reader, bound, self._given, mapped, layer=module)
        # Of the pair that PyG returns with coefficients, nothing may read more than the first.
        is_pair = bound.get(_COEFFICIENTS) is True and all(
            user.target is operator.getitem and (user.args[1] == 0 or not user.users) for user in node.users
        )
        if is_pair:
            bound.pop(_COEFFICIENTS)
        given = {key: self._seen(value) for key, value in bound.items() if value is not None}
        if unread := [key for key in given if key not in reader.gives]:
            raise ir.NotLoweredError(name, f"it takes {unread[0]!r} too", f"a call without {unread[0]}")
        call = LayerCall(self._writer, name, module, x, edges, given, several)
        if reader.edges is not None:
            check_ends(call, reader, self._given)
        out = reader.read(call)
        in_place = getattr(module, "inplace", False)
        if isinstance(rows, fx.Node) and (out == x or in_place):  # an identity and a resting dropout share it
            self._memory[node] = self._memory.get(rows, rows)
        if in_place:
            self._overwrite(name, rows, out)
        return (NodeRows(out),) if is_pair else out

    def _hgt(self, node: fx.Node, name: str, layer: nn.Module) -> dict[str, str]:
        """Read PyG's ``HGTConv``; return the values of its result by node type."""
        bound = dict(bound_arguments(name, ("x_dict", "edge_index_dict"), node.args, node.kwargs))
        xs = {one: self._value(name, rows) for one, rows in bound["x_dict"].items()}
        relations = [relation_of(ends, self._given) for ends in bound["edge_index_dict"].values()]
        found = [one for one in relations if one is not None]
        if self._given.matrix is not None:
            raise ir.NotLoweredError(name, "its edges are sparse matrices", "edge_index_dict")
        if [one.edge_type for one in found] != [*bound["edge_index_dict"]]:
            raise ir.NotLoweredError(name, "it takes other edges than those of its relations as they are")
        if any(self._type_of(x) != one for one, x in xs.items()):
            raise ir.NotLoweredError(name, "it takes rows of one type under the name of another")
        return read_hgt(self._writer, name, layer, xs, found)

    def _messages(self, node: fx.Node, of: Propagation) -> str:
        along: Any = node.args[0]
        relation = relation_of(along, self._given) if self._typed else None
        own_edges = self._part_of_graph(along) == target_along(EDGES_TARGET, relation)
        if not (own_edges or along in self._edge_calls) or (self._typed and self._given.matrix is not None):
            raise of.refuse("its propagate takes other edges than the list of all of them", "edge_index")
        if relation is not None:
            check_message_ends(of, node, relation, self._node_type)
        if relation is not None and is_han(of.layer):
            ends = [(self._others[rows].value, self._trace.attribute(name)) for rows, name in ends_of(node)]
            out = attention_of_relation(self._writer, of.layer, ends, relation)
            give_shape(node, (self._writer.width(out),))
            return out
        weights, features = (target_along(what, relation) for what in (WEIGHTS_TARGET, EDGE_ATTR))
        channels = self._given.channels_of(relation)
        rows: dict[str, str | ir.ReadRows | int] = {}
        computed: dict[str, fx.Node] = {}
        encoders: dict[str, Any] = {}
        constants, shapes = dict[str, Any](), dict[str, tuple[int, ...]]()
        for key, value in node.kwargs.items():
            self._make_rows(value)
            if not isinstance(value, fx.Node | tuple | list):
                constants[key] = value
                continue
            target, by_node = self._part_of_graph(value), key[-2:] in ("_i", "_j")
            given = value if isinstance(value, fx.Node) else node  # a list is none of these
            mapped = self._others.get(given)
            if by_node and given in self._values:
                rows[key], shapes[key] = self._values[given], self._shape_of(given)
            elif not by_node and target == weights and own_edges:
                rows[key], shapes[key] = ir.ReadRows.WEIGHT, ()
            elif not by_node and (given in self._edge_calls or target == weights):
                rows[key], computed[key] = len(computed), given
            elif own_edges and not by_node and isinstance(mapped, MappedEdges) and mapped.target == features:
                encoders[key] = mapped.linear
                rows[key], shapes[key] = ir.ReadRows.FEATURES, (int(mapped.linear.weight.shape[0]),)
            elif not by_node and own_edges and target == features and channels:
                rows[key], shapes[key] = ir.ReadRows.FEATURES, (channels,)
            else:
                what = f"its message's {key!r} is neither rows of nodes nor the graph's own of edges"
                raise of.refuse(what, "x_j, x_i, edge_attr or edge_weight")
        edges = None
        if computed or not own_edges:
            edges, of_values = self._edge_calls.computed(of.name, along, tuple(computed.values()))
            shapes |= dict(zip(computed, of_values, strict=True))
        how: dict[str, Any] = {"edges": edges, "encoders": encoders, "relation": relation}
        out, shape = read_messages(self._writer, of, rows, constants, shapes, **how)
        give_shape(node, shape)
        return out

    def _node_type(self, rows: fx.Node) -> int:
        return self._writer.node_type(self._value(str(rows), rows))

    def _part_of_graph(self, value: Any) -> str:
        """Return the target of a value of the graph's edges as it is; of a matrix, they are its entries."""
        if self._matrix is None or target_of(value) == EDGES_TARGET:
            return target_of(value)
        part = own_part(value)
        return part if part != WEIGHTS_TARGET or self._given.weighted else ""

    def _product(self, node: fx.Node) -> str | None:
        """Read a product of a sparse matrix of edges and node rows; return None for any other call."""
        product = None if self._matrix is None else product_of(node)
        if product is None or self._matrix is None:
            return None
        matrix, x, reduce = product
        is_own = target_of(matrix) == EDGES_TARGET
        if not (is_own or matrix in self._edge_calls):
            return None
        name = str(getattr(node.target, "__name__", node.target))
        rows = self._value(name, x)
        if self._matrix.merges and not self._given.is_simple():
            raise ir.NotLoweredError(name, "it may add up repeated entries of a matrix", "layout CSR")
        ties = self._matrix.shown(name, node, reduce, next(self._trace.root.parameters(), torch.ones(1)))
        if is_own and reduce in ("sum", "mean"):
            adjacency = ir.AdjacencyMatrix(kind=reduce, weighted=self._given.weighted)
            return self._writer.add(ir.Aggregate, rows, adjacency=adjacency)
        if is_own and ties is not None and not self._given.weighted:
            return self._writer.add(ir.Maximum, rows, ties=ties)
        if reduce not in ("sum", "mean"):
            what = f"reduce={reduce!r} has no lowered form for weights or computed entries of a matrix"
            raise ir.NotLoweredError(name, what, "reduce='sum' or 'mean'")
        graph, entries = self._trace.graph, list[fx.Node]()
        with graph.inserting_before(node):
            entries.append(graph.call_function(weighted_entries, (matrix,)))
            entries += [graph.call_function(operator.getitem, (entries[0], place)) for place in (0, 1)]
        for one in entries:
            self._edge_calls.takes(one, self._values, self._others)
        edges, _ = self._edge_calls.computed(name, entries[1], (entries[2],))
        dtype = next((p.dtype for p in self._trace.root.parameters()), None)
        of = own_messages(
            name, lambda x_j, edge_weight: edge_weight.view(-1, 1) * x_j, aggr=reduce, dtype=dtype
        )
        shapes = {"x_j": (self._writer.width(rows),), "edge_weight": ()}
        return read_messages(self._writer, of, {"x_j": rows, "edge_weight": 0}, {}, shapes, edges=edges)[0]

    def _shape_of(self, matrix: fx.Node) -> tuple[int, ...]:
        """Return the shape of a row before it was made a row of a matrix."""
        before = matrix.args[0]
        assert isinstance(before, fx.Node)
        if isinstance(self._others.get(before), Column):
            return ()
        heads, width = self._others.get(before), self._writer.width(self._values[matrix])
        if isinstance(heads, Heads):
            return heads.heads, width // heads.heads
        if self._islands is not None and before not in self._values and before not in self._others:
            return self._islands.shape_of(matrix)
        return (width,)

    # ---- calls

    def _call(self, node: fx.Node) -> Any:
        target: Any = node.target
        if isinstance(target, type) and issubclass(target, tuple) and hasattr(target, "_fields"):
            fields: Any = fx.node.map_aggregate(node.args, self._seen)
            return target(*fields)  # a namedtuple, made to be returned
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        function = _function_reader(node)
        both = (user for one in (node, *node.all_input_nodes) for user in one.users)
        if name == "clone" and any(writes(user) and _function_reader(user) is None for user in both):
            function = None  # PyTorch writes over one of both, which must not be the memory of the other
        unknown = ir.NotLoweredError(name, "no operation stands for this call", _KNOWN)
        if (why := node.meta.get(WHY)) is not None:
            unknown = ir.NotLoweredError(name, why, "a scatter as docs/fullgraph.md has it", code="scatter")
        if function is None and not any(one in self._others for one in node.all_input_nodes):
            raise unknown
        args, kwargs = fx.node.map_aggregate((node.args, node.kwargs), self._seen)
        is_small = any(isinstance(one, ir.SmallTensor) for one in (*args, *kwargs.values()))
        if is_small and (small := of_parameters(target, args, kwargs)) is not None:
            return small
        if function is None:
            raise unknown
        arguments = self._arguments(name, function, node)
        out = function.read(FunctionCall(self._writer, name, arguments))
        first: Any = node.args[0] if node.args else node.kwargs[next(iter(function.takes))]
        in_place = function.in_place or arguments.get("inplace", False) is not False
        rests = target is nn.functional.dropout and out == self._values.get(first)  # it returns its argument
        if isinstance(first, fx.Node) and (function.views or in_place or rests):
            self._memory[node] = self._memory.get(first, first)
        if isinstance(out, str) and in_place:
            self._overwrite(name, first, out)
        return out

    def _arguments(self, name: str, function: FunctionReader, node: fx.Node) -> dict[str, Any]:
        positional = [key for key in function.takes if key not in function.by_name]
        given = dict(bound_arguments(name, positional, node.args, {}))
        for key, value in node.kwargs.items():
            if key not in function.takes or key in given:
                raise ir.NotLoweredError(name, f"it takes {key!r} too", f"a call without {key}")
            given[key] = value
        found = {key: given.get(key, default) for key, default in function.takes.items()}
        if missing := [key for key, value in found.items() if value is NEEDED]:
            raise ir.NotLoweredError(name, f"its argument {missing[0]!r} is not given")
        return {key: fx.node.map_aggregate(value, self._seen) for key, value in found.items()}

    def _seen(self, argument: Any) -> Any:
        """Return an argument as the readers of functions see it, with node rows as :class:`NodeRows`."""
        if not isinstance(argument, fx.Node):
            return argument
        self._make_rows(argument)
        if argument in self._values:
            return NodeRows(self._values[argument])
        other = self._others.get(argument, argument)
        if self._typed and argument.target in (torch.max, torch.min) and isinstance(other, tuple):
            return other[0]  # HeteroConv takes the pair that these return for its first
        return other

    def _value(self, name: str, argument: Any) -> str:
        self._make_rows(argument)
        if isinstance(argument, fx.Node) and argument in self._values:
            return self._values[argument]
        seen = self._seen(argument)
        if isinstance(seen, NodeRows):
            return seen.value
        if is_edge_attr(argument) or isinstance(seen, MappedEdges):
            raise ir.NotLoweredError(
                name,
                "it maps edge features, which layers read as the graph has them",
                "a layer's edge_dim, which maps them linearly, or features that are encoded before",
            )
        what = f"its argument {argument} is not a matrix of node rows"
        raise ir.NotLoweredError(name, what, code="argument")

    def _overwrite(self, name: str, argument: Any, out: str) -> None:
        """Make all names of an argument refer to the value written over it from here on."""
        before, memory = self._value(name, argument), self._memory.get(argument, argument)
        if before == ir.INPUT:
            raise ir.NotLoweredError(name, "it writes over the features", "an operation that is not in place")
        # Names that share the memory see the new value, too. Seen in another shape, it could not be followed.
        shares = [one for one in (*self._values, *self._others) if self._memory.get(one, one) is memory]
        held = self._values
        apart = any(held.get(one, out) not in (before, out) or one in self._others for one in shares)
        if apart or (self._islands is not None and self._islands.trials.sees_memory_of(before)):
            what = "it writes over a matrix that is seen in parts"
            raise ir.NotLoweredError(name, what, "one not in place")
        if any(op.out == before and isinstance(op, ir.Learned) for op in self._writer.ops):
            raise ir.NotLoweredError(name, "it writes over a parameter", "an operation that is not in place")
        for node in shares:
            self._values[node] = out


def _function_reader(node: fx.Node) -> FunctionReader | None:
    target: Any = node.target
    return METHODS.get(target) if node.op == "call_method" else FUNCTIONS.get(target)


def _is_number(tensor: Tensor) -> bool:
    """Return whether a tensor that the forward made is one number, which it has not written over since."""
    is_one = tensor.numel() == 1 and tensor.ndim <= 2 and tensor.is_floating_point()
    return is_one and not (tensor.requires_grad or tensor.is_inference()) and tensor._version == 0


_KNOWN = "a call of docs/lowered_models.md"
_COEFFICIENTS = "return_attention_weights"

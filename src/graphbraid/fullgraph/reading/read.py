"""The entry points for reading models, and the state of the graph and of the user's data that they read.

Graphbraid's own models are read layer by layer, others by a trace.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.arguments import shown
from graphbraid.errors import ConfigError, DataError, GraphbraidError
from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.program import Linear, Maximum, NotLoweredError, Program
from graphbraid.fullgraph.reading.as_written import AsWritten, WholeValues
from graphbraid.fullgraph.reading.break_trial import Breaks
from graphbraid.fullgraph.reading.calling import (
    ADJACENCY,
    EDGE_ATTR,
    EDGE_TYPE,
    EDGES,
    EDGES_TARGET,
    WEIGHTS_TARGET,
    Calling,
    Given,
    X,
    calling_of,
    of_data,
    only_node_type,
)
from graphbraid.fullgraph.reading.convolutions import OWN_MODELS, checked_call, read_own, sorted_edges
from graphbraid.fullgraph.reading.exact import check_model, is_from, other_dtype
from graphbraid.fullgraph.reading.matrices import MatrixKind, is_matrix
from graphbraid.fullgraph.reading.reader import Writer
from graphbraid.fullgraph.reading.relational import read_rgcn, relations_of_layers
from graphbraid.fullgraph.reading.row_dependence import rows_to_try
from graphbraid.fullgraph.reading.trace_reader import read_traced
from graphbraid.fullgraph.reading.watch import GraphWatch
from graphbraid.graph import Graph, NodeSet
from graphbraid.graph.csc import first_out_of_order
from graphbraid.graph.interop.convert import as_edge_attr
from graphbraid.graph.interop.pyg import edge_features_of, entries_of_any, graph_from_pyg, stored_of
from graphbraid.graph.types import MOST_RELATIONS, ONLY_NODE_TYPE, EdgeType, Relation
from graphbraid.nn import RGCN, module_traits

MOST_OPERATIONS = 800
"""Largest number of operations over node types: the time of lowering grows with their cube."""


def read_model(
    model: nn.Module,
    in_channels: int = 0,
    given: Given | None = None,
    calling: Calling | None = None,
    *,
    node_type: str | None = None,
    dtypes: Collection[torch.dtype] = (torch.float32,),
    breaks: Breaks | None = None,
) -> ir.Program:
    """Read a model in its current mode into a program.

    Args:
        model: a model of :mod:`graphbraid.nn`, or any whose ``forward`` is made of layers, modules and
            functions that have a reader. Where there are types, it is called with
            ``(x_dict, edge_index_dict)``, as those of PyG's ``HeteroConv`` or made by ``to_hetero``.
        in_channels: number of feature columns, where ``given`` does not say.
        given: the arguments available to call it with. If None, features and edges without weights.
        calling: how to call it. If None, determined by
            :func:`graphbraid.fullgraph.reading.calling.calling_of`.
        node_type: the type whose outputs are wanted, where there are types; None if the model returns those
            of one alone.
        dtypes: dtypes that parameters may have: float32, also float64, or both.
        breaks: how calls without a lowered form become graph breaks. If None, they are refused.

    Raises:
        NotLoweredError: part of the model cannot be read; the message names it.
    """
    given, name = given or Given(), type(model).__name__
    if given.typed and module_traits.takes_blocks(model) and type(model) is not RGCN:
        what = "no operations stand for it on a graph with types so far"
        raise ir.NotLoweredError(name, what, "graphbraid.nn.RGCN")
    check_model(model)
    node_types = given.node_types if given.typed else (only_node_type(in_channels),)
    numbers = {one.input: number for number, one in enumerate(node_types)}
    writer = Writer({one.input: one.channels for one in node_types}, numbers)
    returned: ir.Returned | None = None
    if type(model) in OWN_MODELS and not given.typed:
        out = read_own(checked_call(writer, model))
    elif type(model) is RGCN and given.typed:
        out = read_rgcn(writer, model, given, node_type)
    else:
        calling = calling or calling_of(model, given)
        out, returned = read_traced(writer, model, calling, given, node_type=node_type, breaks=breaks)
    if out == ir.INPUT:
        raise ir.NotLoweredError(name, "it returns its input")
    if not out:
        raise ir.NotLoweredError(name, f"it gives no outputs of {node_type!r}", f"node_type={node_type!r}")
    ops = _reached(writer.ops, out)
    _check_worth(ops, None if given.typed else given.graph)
    if given.typed:
        if not any(op.moves for op in ops):
            what = f"its outputs of {node_type!r} read no edges"
            raise ir.NotLoweredError(name, what, "a layer over a relation")
        if len(ops) > MOST_OPERATIONS:
            what = f"it comes to {len(ops)} operations, and reading takes up to {MOST_OPERATIONS}"
            raise ir.NotLoweredError(name, what, "mini-batches (mode='sampled')")
    by_relation = given.typed or _reads_relations(ops)
    try:
        program = ir.Program(ops=ops, node_types=node_types, by_relation=by_relation, returned=returned)
    except ValueError as error:
        raise ir.NotLoweredError(name, str(error)) from None
    read = {id(parameter) for parameter in program.parameters()}
    for path, parameter in model.named_parameters():
        if id(parameter) in read and parameter.dtype not in dtypes:
            module, _, key = path.rpartition(".")
            raise other_dtype(module, key, parameter)
    return program


def _reads_relations(ops: tuple[ir.Operation, ...]) -> bool:
    """Return whether operations read edges by relation.

    Raises:
        NotLoweredError: others of them read all edges together.
    """
    reads = [op for op in ops if op.moves and not isinstance(op, ir.DestinationRows)]
    by_relation = [op for op in reads if op.walks is not None]
    if by_relation and len(by_relation) < len(reads):
        raise ir.NotLoweredError(
            "forward", "some layers read relations and others all edges together", "layers of one kind"
        )
    return bool(by_relation)


def _moves_statistics(op: ir.Operation) -> bool:
    """Return whether an operation may write to buffers: a normalisation, or a call of a module with some."""
    if isinstance(op, ir.Break):
        modules = [call.target for call in op.calls if isinstance(call.target, nn.Module)]
        return op.couples_rows and any([*one.buffers()] for one in modules)
    return isinstance(op, ir.Normalise) and op.couples_rows


def _reached(ops: list[ir.Operation], out: str) -> tuple[ir.Operation, ...]:
    """Return the operations that the result depends on; the last of them computes it."""
    kept = ir.needed_for(ops, out)
    values = {op.out for op in kept}
    for op in (op for op in reversed(ops) if op.out not in values):
        if isinstance(op, ir.Break) and op.is_graph_break:
            raise ir.NotLoweredError(op.calls[-1].name, "nothing reads its result", code="unread")
        if _moves_statistics(op):
            raise ir.NotLoweredError(str(op.symbol), "it moves statistics and nothing reads its result")
    return kept


_BREAK_ROWS, _EDGE_ROWS = 7, 8
"""Rows that a graph break copies for each node, and that a lowered layer saves for each edge, in a step.

A break copies its result (2), and in backward its gradient (2) and its input's (3). PyTorch's layer gathers
a row for each edge (2), scales it (2) and adds it up (2), and the same backward, where a lowered one reads 4.
"""


def _check_worth(ops: tuple[ir.Operation, ...], graph: Graph | None) -> None:
    """Refuse graph breaks that would cost more than the lowered operations save.

    Raises:
        NotLoweredError: no layer over edges is lowered, or there are too few edges for the breaks.
    """
    calls = [call for op in ops if isinstance(op, ir.Break) and op.is_graph_break for call in op.calls]
    if not calls:
        return
    # A scatter says more than the gathers before it, which break because it does.
    first = max(calls, key=lambda call: (call.code == "scatter", bool(call.code)))
    part, _, reason = (first.why or f"{first.name}: it runs inside a graph break").partition(": ")
    apart = [layer.program.ops for op in ops if isinstance(op, ir.Break) for layer in op.layers]
    layers = [
        op
        for op in (*ops, *chain(*apart))
        if (op.moves or op.relations_read) and not isinstance(op, ir.DestinationRows)
    ]
    if not layers:
        raise ir.NotLoweredError(part, reason, first.needed, code=first.code, where=first.where)
    if graph is None:
        return
    copied = _BREAK_ROWS * graph.num_nodes * sum(isinstance(op, ir.Break) and op.is_graph_break for op in ops)
    saved = _EDGE_ROWS * graph.num_edges * len(layers)
    if copied > saved:
        what = f"{reason}; breaks around it would cost more than the {len(layers)} lowered layers save"
        raise ir.NotLoweredError(part, what, first.needed, code="small", where=first.where)


# ---- the graph that a model is read for, and the user's data behind it

READ = ("x", "edge_index", "adj_t", "edge_weight", "edge_attr", "edge_type")
"""Attributes of PyG's data from which a graph is made."""


def graph_of_data(data: Any) -> Graph:
    """Make a graph of PyG's data without edge features; a :class:`Source` adds them once they are read."""
    return graph_from_pyg(Graph, data, edge_features=False)


class Source:
    """A graph and, if it was made of PyG's ``Data`` or ``HeteroData``, these.

    Args:
        graph: the graph that programs run on.
        data: the user's data. If None, there is only the graph.
        node_type: the type whose outputs are wanted; None in a graph without types.
        why: why programs cannot run on the data in its current state. If None, they can.

    Raises:
        DataError: ``data`` is not PyG data.
    """

    def __init__(
        self, graph: Graph, data: Any = None, node_type: str | None = None, why: NotLoweredError | None = None
    ) -> None:
        if node_type is None and data is not None and not (hasattr(data, "get") and hasattr(data, "keys")):
            raise DataError(f"data must be the PyG Data that the graph was made of; got {shown(data)}")
        self.graph, self.node_type, self._data, self._why = graph, node_type, data, why
        """The graph gets its edge features when the first program that reads them is read."""
        stores = () if data is None else (data,) if node_type is None else data.stores
        self._held = [(one, key, one.get(key)) for one in stores if hasattr(one, "get") for key in READ]
        sparse = [held for *_, held in self._held if is_matrix(held) and not isinstance(held, Tensor)]
        self._parts = [(matrix, stored_of(matrix)) for matrix in sparse]
        """Matrices of torch-sparse, which are no tensors, and the tensors that hold their entries."""
        parts = (part for _, kept in self._parts for part in kept)
        self.watch = GraphWatch(graph, [*(held for *_, held in self._held), *parts])
        missing = (key for key in _NONE_IF_MISSING if node_type is None and data is not None)
        self._held += [(data, key, None) for key in missing if data.get(key) is None]
        self._by_relation: Graph | None = None
        self._values: dict[str, Any] = {}
        """Values of the graph for graph breaks, the same objects whenever the model is read."""
        self._constants: dict[Any, Any] = {}
        """Values that graph breaks compute of the graph alone, by the calls that compute them."""

    @property
    def nodes(self) -> Graph | NodeSet:
        """The nodes with outputs, and their splits: all nodes of the graph, or the nodes of one type."""
        return self.graph if self.node_type is None else self.graph.nodes_of(self.node_type)

    @property
    def store(self) -> Any:
        """The user's data of these nodes; None if there is only a graph."""
        return self._data if self._data is None or self.node_type is None else self._data[self.node_type]

    def has_changed(self) -> bool:
        """Return whether a tensor was written to or, in the user's data, replaced."""
        return (
            self.watch.has_changed()
            or any(one.get(key) is not value for one, key, value in self._held)
            or any(not all(map(is_, stored_of(matrix), kept)) for matrix, kept in self._parts)
        )

    def anew(self) -> Source:
        """Return a source of the current state of the graph and the user's data."""
        if self._data is None:
            return Source(self.graph, None, self.node_type)
        try:
            return Source(graph_of_data(self._data), self._data, self.node_type)
        except GraphbraidError as error:  # the model may not use the faulty attribute
            why = NotLoweredError("data", str(error), "data that agrees")
            return Source(self.graph, self._data, self.node_type, why)

    def given(self) -> Given:
        """Describe the arguments that are available to call a model with."""
        given = Given.of(self.graph)
        if self._data is None:
            return given
        given = of_data(given, self._data)
        if given.typed:
            return replace(given, matrix=self._kind_of_all())
        classes = {key: type(value) for _, key, value in self._held if value is not None}
        adj_t = self._data.get(ADJACENCY)
        keys = {str(key) for key in self._data.keys() if str(key) not in READ}  # noqa: SIM118 - of PyG
        is_pyg = is_from(type(self._data), "torch_geometric.data.data")
        attr = edge_features_of(self._data)  # None unless they are a matrix of floats
        return replace(
            given,
            edge_channels=None if attr is None or len(attr) != self.graph.num_edges else int(attr.shape[1]),
            classes=classes,
            others=frozenset(key for key in keys if _is_plain(self._data.get(key))),
            missing=frozenset(one for one in _NONE_IF_MISSING if is_pyg and self._data.get(one) is None),
            matrix=MatrixKind.of(adj_t, weighted=given.weighted) if is_matrix(adj_t) else None,
        )

    def read(
        self, model: nn.Module, breaks_at: torch.device | None = None, *, for_some_nodes: bool = False
    ) -> Program:
        """Read a model in its current mode into a program.

        Args:
            model: the model.
            breaks_at: the device on which calls without a lowered form run between lowered operations. If
                None, they are refused.
            for_some_nodes: whether the program runs on some nodes at a time, so that these calls may not read
                the edges, and are tried on few rows.

        Raises:
            NotLoweredError: part of the model cannot be read; the message names it.
            DataError: the model takes features and the graph has none.
        """
        given = self.given()
        calling = calling_of(model, given)
        if not given.takes_matrix(calling):
            given = replace(given, matrix=None)
        elif given.matrix is None and given.typed:
            what = "they are no sparse matrices of one kind, one for each relation"
            raise NotLoweredError(ADJACENCY, what, "data of ToSparseTensor()")
        elif given.matrix is None:
            csr = MatrixKind(torch.Tensor, torch.sparse_csr, given.weighted)
            given = replace(given, matrix=csr)
        if not given.typed and self.graph.x is None:
            if calling.takes(X):
                raise DataError(
                    "the model needs node features, but graph.x is None; give some with replace(x=...)"
                )
            raise NotLoweredError("forward", "it takes no features", "a forward(x, edge_index)")
        if self._why is not None:
            raise self._why
        if given.matrix is not None and not self._is_of_graph():
            what = "it has other edges or weights than edge_index, of which the graph is made"
            raise NotLoweredError(ADJACENCY, what, "data without edge_index")
        if self.watch.wants_gradients():
            what = "its features, edge features or edge weights require gradients"
            raise NotLoweredError("graph", what, "tensors that do not")
        try:
            breaks = None
            if breaks_at is not None and for_some_nodes:
                held = [self.graph.nodes_of(one).x for one in self.graph.node_types]
                widths = [int(x.shape[1]) for x in held if x is not None]
                breaks = Breaks(num_rows=rows_to_try(model, len(held), others=widths), place=breaks_at)
            elif breaks_at is not None:
                breaks = self._breaks(model, given, calling, breaks_at)
            program = self._read(model, given, calling, breaks)
            self._check_dtypes(program)
            self._check_order(program)
            return program
        except (NotLoweredError, GraphbraidError):
            raise
        except Exception as error:  # reading must never make a model fail that runs as written
            raise NotLoweredError.of_failure(model, error) from error

    def _kind_of_all(self) -> MatrixKind | None:
        """Return the kind of the matrices of all relations; None if they are no matrices, or of several."""
        matrices = [store.get(ADJACENCY) for store in self._data.edge_stores]
        if not matrices or not all(map(is_matrix, matrices)):
            return None
        weighted = any(self.graph.edges_of(one).weighted for one in self.graph.edge_types)
        kinds = {MatrixKind.of(one, weighted=weighted) for one in matrices}
        return kinds.pop() if len(kinds) == 1 else None

    def _is_of_graph(self) -> bool:
        """Return whether the entries of the user's ``adj_t`` are the graph's edges and weights."""
        if self._data is None:
            return True
        types = self.graph.edge_types
        stores = [self._data[one] for one in types] if self.graph.is_typed else [self._data]
        return all(self._are_of(store, one) for store, one in zip(stores, types, strict=True))

    def _are_of(self, store: Any, edge_type: EdgeType) -> bool:
        matrix = store.get(ADJACENCY)
        if matrix is None or store.get(EDGES) is None:  # the graph is made of it, or it of the graph
            return True
        dst, src, values = entries_of_any(matrix)
        csc = self.graph.relation(edge_type)
        lists = (
            (torch.stack((src, dst)).long(), values),
            (torch.stack((csc.indices, csc.destinations())).long(), csc.weight),
        )
        ours, theirs = (
            sorted_edges((ends, torch.ones(ends.shape[1]) if held is None else held.float()), csc.num_src)
            for ends, held in lists
        )
        return torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])

    def _read(self, model: nn.Module, given: Given, calling: Calling, breaks: Breaks | None) -> Program:
        if self.node_type is not None:
            return read_model(model, 0, given, calling, node_type=self.node_type, breaks=breaks)
        if self._data is not None and relations_of_layers(model):
            given = replace(given, relations=self._relations())
        assert self.graph.x is not None
        program = read_model(model, int(self.graph.x.shape[1]), given, calling, breaks=breaks)
        if program.reads_edges:
            self._bring_edge_features()
        return program

    def _check_dtypes(self, program: Program) -> None:
        """Refuse a program whose outputs would have the dtype of the user's features, and not float32.

        A matrix of float32, as parameters are, multiplies no other features: PyTorch refuses to.
        """
        if self._data is None or any(isinstance(op, Linear) for op in program.ops):
            return
        for one in program.node_types:
            x = (self._data[one.name] if self.node_type is not None else self._data).get(X)
            is_read = any(one.input in op.inputs for op in program.ops)
            if isinstance(x, Tensor) and x.dtype != torch.float32 and is_read:
                what = f"its outputs are {x.dtype}, as the features are, and kernels give float32"
                raise NotLoweredError("forward", what, "features.float()")

    def _check_order(self, program: Program) -> None:
        """Refuse a maximum whose gradient goes to a row's first entry if rows are in another order here."""
        if not any(isinstance(op, Maximum) and op.ties == "first" for op in program.ops):
            return
        for matrix in [held for _, key, held in self._held if key == ADJACENCY and is_matrix(held)]:
            dst, src, _ = entries_of_any(matrix)
            if first_out_of_order(src.contiguous(), dst.contiguous()) >= 0:
                what = "its rows are not sorted, and the first of equal maxima gets the gradient"
                raise NotLoweredError(ADJACENCY, what, "sorted rows, as ToSparseTensor makes them")

    def _breaks(self, model: nn.Module, given: Given, calling: Calling, place: torch.device) -> Breaks:
        """Return the inputs of graph breaks: the user's own tensors, if there are some."""
        graph = self.graph
        if graph.is_typed:
            return Breaks(
                num_rows=tuple(graph.nodes_of(one).num_nodes for one in graph.node_types), place=place
            )
        edges = EDGES if given.matrix is None else ADJACENCY
        names = {EDGES_TARGET: edges, EDGE_ATTR: EDGE_ATTR, EDGE_TYPE: EDGE_TYPE}
        names |= {} if given.weights is None else {WEIGHTS_TARGET: given.weights}
        written = cache(partial(self.as_written, model, place))

        def value(target: str) -> Any:
            if target not in self._values:
                self._values[target] = written().value(names.get(target, target))
                if target in given.others:
                    held = self._data.get(target)
                    self._held.append((self._data, target, held))
                    self.watch.add(held)
            return self._values[target]

        makers = {target: partial(value, target) for target in (*names, *given.others)}
        return Breaks(num_rows=(graph.num_nodes,), values=makers, place=place, constants=self._constants)

    def graph_for(self, program: Program) -> Graph:
        """Return the graph that a program runs on, with its relations apart if the program reads them."""
        if self.node_type is not None or not program.by_relation:
            return self.graph
        assert self._by_relation is not None
        return self._by_relation

    def _relations(self) -> tuple[Relation, ...]:
        """Return the relations with edges of the user's ``edge_type``; empty if there is none."""
        if self._by_relation is None:
            self._by_relation = graph_by_relation(self._data, self.graph)
        types = None if self._by_relation is None else self._by_relation.types
        if types is None:
            return ()
        return tuple(one for one in types.relations() if types.edges[one.edge_type].num_edges)

    def _bring_edge_features(self) -> None:
        """Give the graph the user's edge features in its order; copied only if that differs from theirs."""
        if self.graph.edge_attr is not None:
            return
        attr, ids = as_edge_attr(edge_features_of(self._data), self.graph.num_edges), self.graph.edge_id
        assert attr is not None
        ordered = attr if ids is None else attr.index_select(0, ids)
        self.graph = self.graph.replace(edge_attr=ordered)

    def as_written(self, model: nn.Module, place: torch.device) -> AsWritten:
        """Return a runner of the model as it is written."""
        values = WholeValues(model, self.graph, place)
        return AsWritten(model, calling_of(model, self.given()), values, self._data, self.node_type)


_NONE_IF_MISSING = ("pos", "batch", "y", "edge_attr")
"""Attributes that PyG's ``Data`` gives as None where it does not hold them."""


def _is_plain(value: Any) -> bool:
    """Return whether a value is a tensor that a trace may replace: a plain one that needs no gradient."""
    is_tensor = type(value) is Tensor and value.layout == torch.strided
    return is_tensor and not value.requires_grad and not value.is_inference()


def source_of(model: nn.Module, graph: Graph, data: Any = None, node_type: str | None = None) -> Source:
    """Return the source of a model's graph.

    Raises:
        ConfigError: ``node_type`` does not go with the graph, or is needed and missing.
        DataError: the graph is divided among ranks.
    """
    graph.check_whole("a model on the whole graph")
    if graph.is_typed:
        return Source(graph, data, wanted_type(model, graph, node_type))
    if node_type is not None:
        raise ConfigError(
            f"node_type={node_type!r} chooses among node types, and the graph has one; leave it out."
        )
    return Source(graph, data)


def wanted_type(model: nn.Module, graph: Graph, node_type: str | None) -> str:
    """Return the type whose outputs are wanted: the one given, the model's, or the only one with labels.

    Raises:
        ConfigError: none of these says, or the graph has no such type.
    """
    of_model = getattr(model, "node_type", None)
    labelled = [one for one in graph.node_types if graph.nodes_of(one).y is not None]
    for given in (node_type, of_model, *(labelled if len(labelled) == 1 else ())):
        if isinstance(given, str):
            try:
                graph.nodes_of(given)
            except DataError as error:
                raise ConfigError(str(error)) from None
            return given
    if len(graph.node_types) == 1:
        return graph.node_types[0]
    raise ConfigError(
        f"the graph has the node types {', '.join(graph.node_types)}; say whose outputs are wanted, with "
        "node_type."
    )


def graph_by_relation(data: Any, graph: Graph) -> Graph | None:
    """Return the graph with a relation for each number of ``edge_type``; None if that is no such vector.

    It shares features, labels and splits with ``graph``, which has one relation.
    """
    edge_index, edge_type = data.get("edge_index"), data.get(EDGE_TYPE)
    if not isinstance(edge_index, Tensor) or not isinstance(edge_type, Tensor):
        return None
    is_vector = edge_type.shape == (graph.num_edges,) and edge_type.dtype != torch.bool
    if not is_vector or edge_type.is_floating_point() or not edge_type.numel():
        return None
    first, last = (int(end) for end in edge_type.aminmax())
    if first < 0 or last >= MOST_RELATIONS:
        return None
    order = edge_type.detach().long().argsort(stable=True)
    counts = torch.bincount(edge_type.detach().long(), minlength=last + 1).tolist()
    lists = torch.split(edge_index.detach()[:, order], counts, dim=1)
    return Graph.from_relations(
        {(ONLY_NODE_TYPE, f"relation {number}", ONLY_NODE_TYPE): pairs for number, pairs in enumerate(lists)},
        {ONLY_NODE_TYPE: graph.num_nodes},
        x=None if graph.x is None else {ONLY_NODE_TYPE: graph.x},
    )

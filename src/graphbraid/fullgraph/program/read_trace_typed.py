"""Reading the ``forward`` of a model over node types: calls with a dict of features and one of edge lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from graphbraid.fullgraph.program.calling import EDGES, N_ID, Calling, Given, X
from graphbraid.fullgraph.program.ir import TypePart
from graphbraid.fullgraph.program.operations import Learned
from graphbraid.fullgraph.program.read_trace import TraceReader
from graphbraid.fullgraph.program.readers.exact import Known, anything, check, count, one_of
from graphbraid.fullgraph.program.readers.reading import Edges, LayerCall, Reader
from graphbraid.fullgraph.program.refusal import NotLoweredError
from graphbraid.fullgraph.program.tracing import traced_by_type
from graphbraid.fullgraph.program.writer import Writer
from graphbraid.graph.types import Relation, Types


def read_traced_by_type(
    writer: Writer,
    model: nn.Module,
    calling: Calling,
    types: Types,
    parts: Sequence[TypePart],
    *,
    node_type: str,
) -> str | None:
    """Append the operations of a model's call over types to a writer.

    ``HeteroConv`` and what ``to_hetero`` makes are read as what they call: one layer for each relation, and
    the sum, mean or maximum of the results of those into one type.

    Returns:
        The name of the outputs of ``node_type``; None if there are none.

    Raises:
        NotLoweredError: part of the model cannot be read; the message names it.
    """
    targets: dict[str, dict[Any, str]] = {
        X: {part.name: part.input for part in parts if types.nodes[part.name].x is not None},
        EDGES: {one.edge_type: _edges_name(one) for one in types.relations()},
        N_ID: {part.name: _ids_name(part) for part in parts},
    }
    graph, modules = traced_by_type(model, calling, targets)
    return _TypedReader(writer, modules, types, parts, node_type).read_all(graph) or None


def _edges_name(relation: Relation) -> str:
    return f"edges {relation.number}"


def _ids_name(part: TypePart) -> str:
    return f"ids of {part.name}"


class _TypedReader(TraceReader):
    """Turns the nodes of a trace over types into operations."""

    def __init__(
        self,
        writer: Writer,
        modules: dict[str, nn.Module],
        types: Types,
        parts: Sequence[TypePart],
        node_type: str,
    ) -> None:
        super().__init__(writer, modules, Calling((), {}), Given())
        self._of_graph, self._parts, self._wanted = types, parts, node_type
        self._inputs = {part.input for part in parts}
        self._part_of = {_ids_name(part): part for part in parts}
        self._relation_of = {_edges_name(one): one for one in types.relations()}

    def _placeholder(self, node: fx.Node) -> None:
        if node.target in self._inputs:
            self._values[node] = str(node.target)

    def _output(self, returned: Any) -> str:
        if isinstance(returned, dict):
            if self._wanted not in returned:
                return ""
            returned = returned[self._wanted]
        out = super()._output(returned)
        if self._name_of(out) != self._wanted:
            what = f"it returns rows of {self._name_of(out)!r}, and those of {self._wanted!r} are wanted"
            raise NotLoweredError("forward", what, f"node_type={self._name_of(out)!r}")
        return out

    def _module(self, node: fx.Node) -> str:
        module = self._modules[str(node.target)]
        ids = node.args[0] if len(node.args) == 1 and not node.kwargs else None
        if type(module) is nn.Embedding and isinstance(ids, fx.Node) and ids.target in self._part_of:
            name = str(node.target).removeprefix("model.")
            return learned_rows(self._writer, name, module, self._part_of[str(ids.target)], self._of_graph)
        return super()._module(node)

    def _edges_of(self, name: str, reader: Reader, bound: dict[str, Any]) -> Edges:
        key = next(key for key in reader.takes if key in ("edge_index", "csc"))
        ends = bound.pop(key, None)
        relation = self._relation_of.get(str(ends.target)) if isinstance(ends, fx.Node) else None
        if relation is None:
            raise NotLoweredError(
                name,
                "it takes other edges than those of one relation as they are",
                "a list of edge_index_dict",
            )
        if not reader.relates:
            raise NotLoweredError(
                name,
                "layers of its class have no lowered form over one relation",
                "SAGEConv, GraphConv or GATConv",
            )
        return Edges(relation=relation)

    def _check_ends(self, call: LayerCall, reader: Reader) -> None:
        super()._check_ends(call, reader)
        relation = call.edges.relation
        assert relation is not None
        for value, needed in ((call.x, relation.source), (call.own, relation.destination)):
            if self._writer.part(value) != needed:
                what = f"takes rows of {self._name_of(value)!r} for those of {self._parts[needed].name!r}"
                raise call.refuse(what, "the rows of the relation's two types")

    def _name_of(self, value: str) -> str:
        return self._parts[self._writer.part(value)].name


def learned_rows(writer: Writer, name: str, layer: Any, part: TypePart, types: Types) -> str:
    """Append the rows of an embedding of all nodes of a type.

    Raises:
        NotLoweredError: the embedding does more, or has other rows than the type has nodes.
    """
    check(name, layer, _ROWS)
    num_nodes = types.nodes[part.name].num_nodes
    if layer.num_embeddings != num_nodes:
        what = f"it has {layer.num_embeddings} rows, and the graph {num_nodes} nodes of {part.name!r}"
        raise NotLoweredError(name, what)
    return writer.add(Learned, part.input, table=layer.weight)


_ROWS = Known(
    {
        "num_embeddings": anything,
        "embedding_dim": count,
        "padding_idx": one_of(None),
        "max_norm": one_of(None),
        "norm_type": anything,
        "scale_grad_by_freq": one_of(False),
        "sparse": one_of(False),
    },
    ("weight",),
)

__all__ = ["learned_rows", "read_traced_by_type"]

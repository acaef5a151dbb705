"""Operations that read rows along edges, and the products that mini-batches join with a sum beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.program.graph_break import ComputedEdges
from graphbraid.fullgraph.program.operations import AdjacencyMatrix, Following, Linear, Operation, name_of
from graphbraid.graph.types import Relation
from graphbraid.ops.message_reductions import SeveralReductions
from graphbraid.ops.message_steps import ComposedMap, DotProducts, MessageOp, MessageStep
from graphbraid.ops.messages import MessageReduction
from graphbraid.ops.spmm import Ties

FILLS = ("mean", "add", "sum", "min", "max", "mul")
"""Reductions of the features of a node's in-edges to those of the self-loop that PyG adds to it."""
_TIES: dict[Ties, str] = {
    "first": "the first of equals has the gradient",
    "shared": "",
    "shared with zero": "an initial zero has a share of a zero's gradient",
}


@dataclass(frozen=True, kw_only=True)
class Aggregate(Following):
    """``out[v] = sum over in-neighbours u of a[v, u] x[u]``, plus the second input if there is one."""

    adjacency: AdjacencyMatrix
    rows: torch.dtype = torch.float32
    """Dtype to which the rows are rounded before they are read; sums are float32."""
    symbol = "aggregate"
    moves = True

    def _details(self) -> str:
        rounded = "" if self.rows == torch.float32 else f", {str(self.rows).removeprefix('torch.')} rows"
        return f"{self.adjacency}{rounded}{super()._details()}"


@dataclass(frozen=True, kw_only=True)
class Maximum(Operation):
    """``out[v] = max over in-neighbours u of x[u]``, column by column; 0 where there are none."""

    ties: Ties = "shared"
    """Which of several equal maxima receive the gradient."""
    relation: Relation | None = None
    """The relation whose edges it reads, in a graph with types."""
    symbol = "maximum"
    moves = True

    def _details(self) -> str:
        over = "" if self.relation is None else f"over {name_of(self.relation)}"
        return "; ".join(part for part in (over, _TIES[self.ties]) if part)


@dataclass(frozen=True, kw_only=True)
class Gine(Operation):
    """``out[v] = loop_scale x[v] + sum over in-neighbours u of relu(x[u] + e)``: GINE's sum.

    ``e`` is the edge's row of the graph's edge features, or of their linear map where there is a weight.
    """

    edge_channels: int
    """Number of edge features."""
    weight: nn.Parameter | None = None
    """``(width, edge_channels)`` weight of the edge features' linear map; None if there is no map."""
    bias: nn.Parameter | None = None
    """``(width,)`` bias of the map; None if there is none."""
    loop_scale: float = 0.0
    relation: Relation | None = None
    """The relation whose edges it reads, in a graph with types."""
    symbol = "rectified sum"
    learned = ("weight", "bias")
    moves = reads_edges = True

    def _details(self) -> str:
        loops = f" + {self.loop_scale:g} I" if self.loop_scale else ""
        made = "edge features" if self.weight is None else f"{self.edge_channels} edge features, mapped"
        over = "" if self.relation is None else f" over {name_of(self.relation)}"
        return f"{made}{loops}{over}"


def stops_gradient(op: Operation, *, of_features: bool) -> bool:
    """Return whether an operation reads features of edges, or else weights, and gives them no gradient."""
    if of_features:
        passes = isinstance(op, Gine | Messages) or (isinstance(op, Attention) and op.kind == "gat")
        return op.reads_edges and not passes
    return op.moves and not isinstance(op, Messages)


class ReadRows(Enum):
    """The rows that a message reads for an edge ``u -> v``: of the source, the destination or the edge."""

    SOURCE = "x_j"
    """Row ``u`` of an input."""
    DESTINATION = "x_i"
    """Row ``v`` of an input."""
    FEATURES = "edge features"
    """The edge's row of the graph's edge features."""
    WEIGHT = "edge weight"
    """The edge's weight, one number."""
    COMPUTED = "computed of the edges"
    """The edge's row of a value of :attr:`Messages.edges`."""


@dataclass(frozen=True, kw_only=True)
class Messages(Operation):
    """``out[v] = reduction of message(row u, row v, row of the edge)`` over the in-edges of ``v``.

    The message is a method of a layer that maps each edge's rows to a row. It runs as the steps of a kernel,
    or as it is written, on some edges at a time.
    """

    layer: nn.Module
    """The layer whose ``message`` runs, and whose ``aggregate`` does if the reduction is ``own``."""
    calls: nn.Module | None = None
    """Runs in place of ``message`` if linear maps were taken out of it. If None, ``message`` runs."""
    reads: tuple[tuple[str, ReadRows, int], ...]
    """For each parameter that receives rows: its name, whose rows it reads, and the number of the input or of
    the computed value. Sources come first, then destinations, then edges."""
    shapes: tuple[tuple[int, ...], ...]
    """For each of :attr:`reads`, the shape of an edge's row: ``(columns,)``, ``(heads, channels)``, or ``()``
    for one number."""
    constants: tuple[tuple[str, Any], ...]
    """The other arguments of these methods, by name."""
    takes: tuple[tuple[str, ...], tuple[str, ...]]
    """Names of the parameters of ``message``, and of ``aggregate`` without its first."""
    used: tuple[nn.Parameter, ...]
    """The parameters that the message, the encoders and the aggregation read."""
    reduction: MessageReduction
    ties: Ties
    """Which of several equal messages receive the gradient of a maximum or minimum."""
    width_out: int
    """Columns of the result."""
    edge_width: int
    """Elements of an edge's message."""
    several: SeveralReductions | Literal["sum"] | None = None
    """The reduction ``own`` as the kernel of steps computes it: several reductions of the same messages, or
    the sum of messages that steps multiply by their softmax."""
    encoders: tuple[tuple[str, nn.Module], ...] = ()
    """By parameter that receives edge features, the linear map that the model applies to them before."""
    edges: ComputedEdges | None = None
    """The edges that the messages run along; None for the graph's own."""
    relation: Relation | None = None
    """The relation whose edges it reads, in a graph with types."""
    by_destination: bool = False
    """Whether a row of the message may depend on all edges of its destination, as with a softmax."""
    ids: tuple[str, ...] = ()
    """Parameters that receive the destination of each edge."""
    counts: tuple[str, ...] = ()
    """Parameters that receive the number of destinations."""
    draws: bool = False
    """Whether the message draws random numbers, as its dropout does in training."""
    steps: tuple[MessageStep, ...] = ()
    """The message as a kernel's steps, which name parameters by their place in ``used``; none if it is made
    of anything else."""
    composed: tuple[ComposedMap, ...] = ()
    """Linear maps of mapped edge features, which steps read as if they stood behind ``used``."""
    attends: DotProducts | None = None
    """A message that drops coefficients of an attention, as compiled segments of mini-batches run it."""
    heads: int = 1
    """Heads of the steps' rows."""
    symbol = "messages"
    learned = ("used",)
    moves = True

    @property
    def reads_edges(self) -> bool:
        """Whether the operation reads edge features."""
        return any(role is ReadRows.FEATURES for _, role, _ in self.reads)

    @property
    def reads_weights(self) -> bool:
        """Whether the operation reads edge weights."""
        return any(role is ReadRows.WEIGHT for _, role, _ in self.reads)

    @property
    def selects(self) -> bool:
        """Whether the reduction is a maximum or minimum."""
        return self.reduction in ("max", "min")

    @property
    def reads_result(self) -> bool:
        """Whether backward reads the result: for a maximum or minimum, or if a step is a softmax."""
        return self.selects or any(step.op is MessageOp.SOFTMAX for step in self.steps)

    @property
    def has_device_kernel(self) -> bool:
        """Whether the kernel of steps runs it on a device.

        A sum of columns may have other bits in backward there, where a maximum would lose its gradient.
        """
        of_several = self.several.names if isinstance(self.several, SeveralReductions) else ()
        selects = self.selects or not {"max", "min"}.isdisjoint(of_several)
        is_exact = not selects or all(step.op is not MessageOp.SUM_COLUMNS for step in self.steps)
        return bool(self.steps) and is_exact

    def operands(self) -> tuple[Tensor, ...]:
        """Return the parameters and matrices that steps read."""
        return *self.used, *(one.of(self.used) for one in self.composed)

    def run(self, *rows: Tensor, index: Tensor | None = None, num_rows: int = 0) -> Tensor:
        """Return the messages of some edges, or their ``aggregate`` if the reduction is ``own``.

        Attributes that the layer sets meanwhile are put back.

        Args:
            rows: for each of :attr:`reads`, a row for each edge.
            index: ``(num_edges,)`` int64, the destination of each edge.
            num_rows: number of destinations.
        """
        given: dict[str, Any] = dict(self.constants)
        for (name, _, _), shape, one in zip(self.reads, self.shapes, rows, strict=True):
            given[name] = one.view(-1, *shape)
        given |= {name: encoder(given[name]) for name, encoder in self.encoders}
        given |= dict.fromkeys(self.ids, index) | dict.fromkeys(self.counts, num_rows)
        of_message, of_aggregate = ({key: given[key] for key in names} for names in self.takes)
        layer: Any = self.layer
        held, before = vars(layer), dict(vars(layer))
        try:
            made: Tensor = (self.calls or layer.message)(**of_message)
            return made if self.reduction != "own" else layer.aggregate(made, **of_aggregate)
        finally:
            for key in [key for key in held if key not in before]:
                del held[key]
            held.update((key, value) for key, value in before.items() if held.get(key) is not value)

    def _details(self) -> str:
        names = {name for name, _, _ in self.reads}
        read = ", ".join(name for name in self.takes[0] if name in names)
        how = "in one kernel" if self.steps else "on blocks of edges"
        how += ", all of a node in one block" if self.by_destination and not self.steps else ""
        if self.edges is not None:
            calls = ", ".join(call.name for call in self.edges.calls)
            how += f", edges computed once ({calls})"
        reduction = self.reduction if self.reduction != "own" else str(self.layer.aggr_module)
        how += "" if self.calls is None else ", linear maps moved to the nodes"
        how += "" if self.relation is None else f" over {name_of(self.relation)}"
        return f"{reduction} of {type(self.layer).__name__}.message({read}), {how}"


@dataclass(frozen=True, kw_only=True)
class Attention(Operation):
    """Attention over in-neighbours of rows that are already transformed: GAT or GATv2 without linear maps.

    The first input holds the sources' rows. The second is optional: for GATv2 the destinations' own rows, and
    for GAT these too with ``own_rows``, else the rows that give the coefficients, if they differ from those
    that are summed.
    """

    kind: str
    """``gat`` or ``gatv2``."""
    heads: int
    channels: int
    """Columns of one head."""
    concat: bool
    """Whether the heads are concatenated; if False, their mean is the result."""
    negative_slope: float
    self_loops: bool
    dropout: float
    vectors: tuple[nn.Parameter, ...]
    """Attention vectors, each ``(1, heads, channels)``: the source's and the destination's for GAT, one for
    GATv2."""
    edge_weight: nn.Parameter | None = None
    """``(heads * channels, num_edge_features)`` weight of the edge features' map, which adds to the logit
    (GAT) or to the input of the leaky ReLU (GATv2); None if edge features have no part in the attention."""
    edge_vector: nn.Parameter | None = None
    """``(1, heads, channels)`` attention vector of the mapped edge features, for GAT with ``edge_weight``."""
    fill: float | str | Tensor = field(default="mean", compare=False)
    """Features of added self-loops: numbers, or the reduction (of :data:`FILLS`) of those of the in-edges."""
    own_rows: bool = False
    """Whether GAT's destinations have their coefficients from rows of their own, the second input."""
    relation: Relation | None = None
    """The relation whose edges it reads, in a graph with types."""
    symbol = "attention"
    learned = ("vectors", "edge_weight", "edge_vector")
    moves = True

    @property
    def reads_edges(self) -> bool:
        """Whether the operation reads edge features."""
        return self.edge_weight is not None

    def edge_map(self) -> Tensor | None:
        """Return the map of edge features; None without them.

        GAT's gives the logits of edges: it is the weight times the edges' vector, ``(heads, features)``.
        """
        if self.edge_weight is None or self.edge_vector is None:
            return self.edge_weight
        by_head = self.edge_weight.view(self.heads, self.channels, -1)
        return (by_head * self.edge_vector[0][:, :, None]).sum(1)

    @property
    def averages(self) -> bool:
        """Whether the result is a mean over several heads."""
        return not self.concat and self.heads > 1

    def _details(self) -> str:
        joined = "side by side" if self.concat else "mean"
        edges = "" if self.edge_weight is None else f", {self.edge_weight.shape[1]} edge features"
        over = "" if self.relation is None else f" over {name_of(self.relation)}"
        return f"{self.kind}, {self.heads} heads of {self.channels} ({joined}){edges}{over}"


@dataclass(frozen=True, kw_only=True)
class RelationAttention(Operation):
    """Attention of the nodes of a type over their in-neighbours by several relations, under one softmax.

    The first input holds the queries of the destinations' own rows. The others hold, for each relation, keys,
    queries and values of its sources side by side; keys and values are mapped head by head by matrices of the
    relation.
    """

    layer: nn.Module
    """PyG's ``HGTConv``, which has the relations' matrices and strengths."""
    relations: tuple[Relation, ...]
    """The relations into the type."""
    symbol = "attention over relations"

    @property
    def relations_read(self) -> tuple[Relation, ...]:
        """All relations whose edges it reads, which lead to the level of its result."""
        return self.relations

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the parameters it learns."""
        layer = cast("Any", self.layer)
        strengths = (layer.p_rel["__".join(one.edge_type)] for one in self.relations)
        return layer.k_rel.weight, layer.v_rel.weight, *strengths

    def _details(self) -> str:
        return f"{cast('Any', self.layer).heads} heads over {', '.join(map(name_of, self.relations))}"


# ---- products that mini-batches join with the sum beside them


@dataclass(frozen=True, kw_only=True)
class AggregateLinear(Linear):
    """``out = A x Wᵀ``, plus ``x_dst W_rootᵀ`` of the destinations' own rows if there is a root."""

    adjacency: AdjacencyMatrix
    root: Linear | None = None
    """The operation that would multiply the destinations' own rows alone."""
    symbol = "aggregate and linear"
    learned = (*Linear.learned, "root")
    moves = True

    def _details(self) -> str:
        return f"{self.adjacency}{', and own rows' if self.root else ''}, {super()._details()}"


@dataclass(frozen=True, kw_only=True)
class LinearSum(Following):
    """``out = x Wᵀ + x_other W_otherᵀ``."""

    terms: tuple[Linear, Linear]
    """The operations that would multiply each input alone."""
    symbol = "sum of linear"
    learned = ("terms", "after")

    @property
    def width_out(self) -> int:
        """Number of columns of the result."""
        return self.terms[0].shape[0]

    def _details(self) -> str:
        return " and ".join(term.details() for term in self.terms) + super()._details()

"""OwnConv: a layer whose aggregation a program has written itself; one operation of the engine's program."""

from __future__ import annotations

from torch import Tensor, nn

from graphbraid.errors import ConfigError
from graphbraid.fullgraph.program import Aggregate, DestinationRows, Messages, ReadRows
from graphbraid.fullgraph.reading.exact import Known, anything, count
from graphbraid.fullgraph.reading.fused_messages import plain_sum
from graphbraid.fullgraph.reading.module_readers import as_linear
from graphbraid.fullgraph.reading.reader import LayerCall, reads
from graphbraid.graph.csc import Csc
from graphbraid.nn.adjacency import as_csc
from graphbraid.nn.linear import Linear
from graphbraid.ops.message_steps import MessageOp
from graphbraid.ops.messages import aggregate_messages
from graphbraid.ops.reference.messages import COMPUTED
from graphbraid.synth.language.aggregating import OwnAggregation

_WEIGHT = "weight"
"""The message's argument for the edges' weights; names of rows end in ``_j`` and ``_i``, as PyG's do."""


class OwnConv(nn.Module):
    """The layer of an own aggregation; each property that it reads is a linear map of the layer's rows.

    Args:
        in_channels: columns of its rows.
        out_channels: columns of each property and of the result.
        form: the aggregation.
    """

    def __init__(self, in_channels: int, out_channels: int, form: OwnAggregation) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.form = in_channels, out_channels, form
        self.maps = nn.ModuleDict({f"{name}_": Linear(in_channels, out_channels) for name in form.properties})

    @property
    def takes_weights(self) -> bool:
        """Whether the message reads the weights of edges."""
        return self.form.reads_weights

    def forward(self, x: Tensor, edge_index: Csc | Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Run the layer, with its messages as PyTorch's functions.

        Raises:
            ConfigError: the message reads weights, and the edges have none.
        """
        csc = as_csc(edge_index, x.shape[0], edge_weight)
        if self.takes_weights and csc.weight is None:
            raise ConfigError(f"{self.form.name} reads the weights of edges; the edges have none")
        rows = {name: self.maps[f"{name}_"](x) for name in self.form.properties}
        names = [name for name, _, _ in self.reads]
        out = aggregate_messages(
            csc,
            lambda *given: self.message(**dict(zip(names, given, strict=True))),
            sources=[rows[name] for name in self.form.sources],
            destinations=[rows[name] for name in self.form.destinations],
            edges=[csc.weight] if csc.weight is not None and self.takes_weights else [],
            reduction=self.form.reduction,
            shape=(self.out_channels,),
        )
        for name in self.form.added:
            out = out + rows[name][: csc.num_dst]
        return out

    @property
    def reads(self) -> list[tuple[str, ReadRows, str]]:
        """The arguments of the message: name, end of the edge and property of each."""
        sources, destinations = self.form.sources, self.form.destinations
        return [
            *((f"{name}_j", ReadRows.SOURCE, name) for name in sources),
            *((f"{name}_i", ReadRows.DESTINATION, name) for name in destinations),
            *([(_WEIGHT, ReadRows.WEIGHT, "")] if self.takes_weights else []),
        ]

    def message(self, **rows: Tensor) -> Tensor:
        """Return the messages of some edges, ``(num_edges, out_channels)``."""
        made: list[Tensor] = []
        like = next(iter(rows.values()))
        for step in self.form.steps:
            if step.op is MessageOp.SOURCE:
                made.append(rows[f"{self.form.sources[step.first]}_j"])
            elif step.op is MessageOp.DESTINATION:
                made.append(rows[f"{self.form.destinations[step.first]}_i"])
            elif step.op is MessageOp.WEIGHT:
                made.append(rows[_WEIGHT].view(-1, 1))
            elif step.op is MessageOp.NUMBER:
                made.append(like.new_full((), step.number))
            else:
                compute = COMPUTED[step.op - MessageOp.ADD]
                made.append(compute(made[step.first], made[step.second], step.number))
        return made[-1].expand(len(like), self.out_channels)

    def extra_repr(self) -> str:
        """Return the channels and the program's name of it."""
        return f"{self.in_channels}, {self.out_channels}, {self.form.name}"


@reads(
    "graphbraid.synth.own_layer.OwnConv",
    known=Known({"in_channels": count, "out_channels": count, "form": anything}, children=("maps",)),
    takes=("x", "csc", "edge_weight"),
)
def _read_own_layer(call: LayerCall) -> str:
    conv, writer = call.layer, call.writer
    form: OwnAggregation = conv.form
    if form.reads_weights and not call.edges.weighted:
        raise call.refuse(f"{form.name} reads the weights of edges; the graph has none")
    if call.several:
        raise call.refuse("of a pair of matrices has no lowered form", "one matrix of node rows")

    def mapped(x: str, name: str) -> str:
        linear = as_linear(f"{call.name}.maps.{name}_", conv.maps[f"{name}_"])
        if linear is None:
            raise call.refuse(f"has no linear map for {name}")
        return writer.linear(x, linear)

    rows = {name: mapped(call.x, name) for name in dict.fromkeys((*form.sources, *form.destinations))}
    values, order = list(rows.values()), list(rows)
    reads = [(name, role, order.index(of) if of else 0) for name, role, of in conv.reads]
    shapes: dict[str, tuple[int, ...]] = {
        name: () if role is ReadRows.WEIGHT else (conv.out_channels,) for name, role, _ in reads
    }
    plain = plain_sum(form.steps, reads, shapes, None, form.reduction, dtype=None)
    if plain is not None:
        matrix, source = plain
        out = writer.add(Aggregate, values[source], adjacency=matrix)
    else:
        out = writer.add(
            Messages,
            *values,
            layer=conv,
            reads=tuple(reads),
            shapes=tuple(shapes.values()),
            constants=(),
            takes=(tuple(shapes), ()),
            used=(),
            reduction=form.reduction,
            ties="shared",
            width_out=conv.out_channels,
            edge_width=conv.out_channels,
            steps=form.steps,
        )
    for name in form.added:
        known, below = rows.get(name), writer.add(DestinationRows, rows.get(name, call.x))
        out = writer.sum(below if known else mapped(below, name), out)
    return out

"""StepPlan: the tasks and buffers collected while a training step is planned, shared while it runs.

A value's gradient has a buffer of its own: the first consumer planned writes it, and the others add to it. If
an operation passes a gradient on unchanged, as an addition does, both values share one buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.lowering.levels import Blocks, TypedBlock, aggregation, nodes_of, num_rows_of
from graphbraid.fullgraph.program import (
    AdjacencyMatrix,
    Aggregate,
    Attention,
    Gine,
    LevelPart,
    Linear,
    Maximum,
    Operation,
    Own,
    Program,
    RowFunction,
    UnitRows,
)
from graphbraid.fullgraph.step.ahead import Ahead
from graphbraid.fullgraph.step.calls import kernels
from graphbraid.fullgraph.step.calls.device_copies import DeviceCopies
from graphbraid.fullgraph.step.calls.rows import Constant, FirstRows, Read, add, copy, zero
from graphbraid.fullgraph.step.calls.seeds import Seeds
from graphbraid.fullgraph.step.divided_edges import DividedEdges
from graphbraid.fullgraph.step.features.node_features import NodeFeatures
from graphbraid.fullgraph.step.features.part_features import PartFeatures
from graphbraid.fullgraph.step.features.streams import Streams
from graphbraid.fullgraph.step.planned.row_functions import FUNCTIONS
from graphbraid.fullgraph.step.step_tasks import StepTasks
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.types import Relation
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.peers.pipeline_plan import PipelineConfig

if TYPE_CHECKING:
    from graphbraid.distributed.peers.group import Peers
    from graphbraid.distributed.ranks.communicator import Communicator
    from graphbraid.fullgraph.lowering.route import PartView
    from graphbraid.fullgraph.lowering.streamed import StreamedFeatures
    from graphbraid.fullgraph.step.calls.travel import Travel
    from graphbraid.fullgraph.step.planned.attention.base import PlannedAttention
    from graphbraid.fullgraph.step.planned.exchanges.overlap import Overlapped
    from graphbraid.fullgraph.step.planned.exchanges.peer_reads import PeerReads
    from graphbraid.fullgraph.step.planned.norm import PlannedNorm
    from graphbraid.fullgraph.step.planned.torch_ops import TorchOp


WhenWhole = Callable[[nn.Parameter, Tensor], None]
"""Takes a parameter and its gradient, which is whole."""


class StepPlan(StepTasks):
    """The tasks of a program's step planned so far, and the rows of its values and gradients.

    Args:
        program: a lowered program.
        graph: a graph with features, used in place.
        blocks: the edges from each level to the next, on the host.
        training: whether there is a backward pass.
        copies: copies what a step reads to a device. If None, the step runs where the graph is.
        comm: the ranks that run the program together. If None, there is one.
        part: the place of ``graph`` in the whole one, if it is one rank's part of it.
        wire: dtype to which rows and gradients are rounded on their way between ranks.
        streamed: where the features are read block by block. If None, as the graph has them.
        peers: those ranks as peers, on a device other than the host. If None, they are on the host.
    """

    def __init__(
        self,
        program: Program,
        graph: Graph,
        blocks: Blocks,
        *,
        training: bool,
        copies: DeviceCopies | None,
        comm: Communicator | None = None,
        part: PartView | None = None,
        wire: torch.dtype = torch.float32,
        streamed: StreamedFeatures | None = None,
        peers: Peers | None = None,
    ) -> None:
        super().__init__(copies)
        self.peers, self.pipeline = peers, PipelineConfig()
        """The ranks whose memory is read, and how the kernel that reads it divides its work."""
        self.program, self.graph, self.training = program, graph, training
        self.comm, self.part, self.wire = comm, part, wire
        self.when_whole: WhenWhole | None = None
        """Called with each parameter and its gradient as no further task of a backward pass adds to it."""
        self.seeds = Seeds() if copies is None else copies.seeds()
        self.host_blocks = blocks
        """The edges from each level to the next, on the host."""
        self.blocks = blocks if copies is None else self._copied_blocks(copies)
        """The same edges, on the device where the kernels run."""
        self.streams = (
            None if streamed is None else Streams(program, graph, blocks, streamed, training=training)
        )
        """The features that the step reads block by block; None where they lie in memory."""
        self.features = self._made_features(copies)
        self.values: dict[str, FirstRows] = {}
        self.constants: dict[str, Constant] = {}
        self.grads: dict[str, FirstRows] = {}
        """The gradient of each value, by its name."""
        self._aggregations: dict[tuple[AdjacencyMatrix, int, bool], kernels.Map] = {}
        # What the forward passes of operations leave for their backward passes, by the value's name.
        self.torch_ops: dict[str, TorchOp] = {}
        self.attentions: dict[str, PlannedAttention] = {}
        self.norms: dict[str, PlannedNorm] = {}
        self.masks: dict[str, kernels.Mask] = {}
        self.kept: dict[str, FirstRows] = {}
        self.overlapped: dict[str, Overlapped | PeerReads] = {}
        self.ahead = Ahead()
        self.divided = DividedEdges()
        self.travels: dict[str, Travel] = {}
        self.begins_early = True
        """Whether anything is planned ahead, and gradients are told of before the end."""
        self.travel_bytes = 0
        """Bytes of rows that are rounded for their way between ranks."""
        self._first_uses = program.first_uses()

    def _copied_blocks(self, copies: DeviceCopies) -> Blocks:
        by_edge = [op for op in self.program.ops if isinstance(op, Attention | Gine | Maximum)]
        walked = {op.walks.number for op in by_edge if op.walks is not None}
        return copies.blocks(self.host_blocks, walked, transpose=self.training and bool(by_edge))

    def _made_features(self, copies: DeviceCopies | None) -> NodeFeatures | PartFeatures:
        if self.program.parts:
            return PartFeatures(self.program, self.graph, self.host_blocks, copies)
        return NodeFeatures(self.program, self.graph, self.host_blocks, copies, streams=self.streams)

    # ---- rows

    def num_rows(self, level: int, part: int = 0) -> int:
        """Return the number of nodes of a level, where there are types those of one."""
        return num_rows_of(self.host_blocks, LevelPart(level, part), self.graph.num_nodes)

    def count_of(self, value: str) -> int:
        """Return the number of rows of a value."""
        return self.num_rows(*self.program.place(value))

    def nodes_of(self, value: str) -> Tensor | None:
        """Return the node of each row of a value, on the kernels' device; None if row v is node v."""
        part, place = self.part, self.program.place(value)
        return nodes_of(self.blocks, place) if part is None else part.ids[: self.num_rows(*place)]

    def features_of(self, value: str) -> NodeFeatures:
        """Return the features that a value of the program's inputs holds."""
        return self.features.of(value)

    def whole_map(self, adjacency: AdjacencyMatrix) -> Aggregation:
        """Return the linear map over all of the graph, with the coefficients of the whole one."""
        how, part = aggregation(adjacency, self.whole_edges(adjacency.relation)), self.part
        return how if part is None else part.corrected(adjacency, how)

    def whole_edges(self, relation: Relation | None) -> Csc:
        """Return all edges of the graph, where there are types those of a relation."""
        block = self.host_blocks[0] if self.host_blocks else None
        if relation is None or not isinstance(block, TypedBlock):
            return self.graph.csc
        return block.whole[relation.number]

    def new(self, name: str, op: Operation) -> FirstRows:
        """Return new rows of the shape of ``op``'s value."""
        return self.scratch(name, self.count_of(op.out), self.program.width(op.out))

    def factor_of(self, value: str) -> Callable[[], kernels.Input] | None:
        """Return the form in which weights multiply a value that holds features; None for any other value."""
        if self.streams is not None and value in self.streams:
            streamed = self.streams.input_of(value)
            return lambda: streamed
        if value not in self.program.inputs:
            return None
        features = self.features_of(value)
        return lambda: features.factor

    def is_one_call(self, value: str) -> bool:
        """Return whether a value's product with weights is one call of a kernel."""
        is_streamed = self.streams is not None and value in self.streams
        return not is_streamed and self.program.path_of(value) != "sparse"

    def turned_weight(self, op: Linear) -> tuple[FirstRows, ...]:
        """Return scratch rows for the transpose of ``op``'s weight; only the sparse path needs them."""
        if self.program.path_of(op.inputs[0]) != "sparse":
            return ()
        out_channels, in_channels = op.shape
        return (self.scratch(f"{op.out}: weight by column", in_channels, out_channels),)

    # ---- values

    def read(self, value: str) -> Read:
        """Return the access to a value's rows."""
        if value in self.program.inputs and value not in self.constants:
            self.constants[value] = self.features_of(value).rows_of(0)
        if value in self.constants:
            constant = self.constants[value]
            return Read(lambda: constant.tensor, ())
        rows = self.values[value]
        return Read(lambda: rows.tensor, (rows,))

    def may_overwrite(self, value: str) -> bool:
        """Return whether a value's consumer may overwrite it, as nothing else, nor a backward, reads it."""
        alone = value in self.values and len(self.program.consumers(value)) == 1
        maker = self.program.producer(value)
        is_read = isinstance(maker, Own | UnitRows) or (isinstance(maker, Attention) and not maker.averages)
        is_read |= isinstance(maker, Maximum) and maker.ties != "first"
        is_read |= isinstance(maker, RowFunction) and FUNCTIONS[maker.kind].reads_result
        return alone and not is_read and not self.program.ends_in_epilogue(value)

    def rounded(self, op: Aggregate, x: Read) -> Read:
        """Return ``x`` rounded to the dtype in which an aggregation reads its rows."""
        if op.rows == torch.float32 or not x.touches:
            return x
        (rows,) = x.touches
        small = self.scratch(f"{op.out}: rounded rows", rows.count, rows.buffer.shape[1], dtype=op.rows)
        self.do(f"{op.out}: round", lambda: copy(x.get(), small.tensor), rows, small)
        return Read(lambda: small.tensor, (small,))

    def aggregation(self, op: Aggregate) -> kernels.Map:
        """Return the linear map of an aggregation, the same for both passes."""
        source = op.inputs[0]
        block = self.host_blocks[self.program.level(source)].of(op.adjacency.relation)
        backward = self.training and self.program.learns(source)
        key = (op.adjacency, id(block), backward)
        if key not in self._aggregations:
            how = block.bind(self.whole_map(op.adjacency))
            self._aggregations[key] = (
                kernels.BothWays(how)
                if self.copies is None
                else self.copies.aggregation(how, backward=backward)
            )
        return self._aggregations[key]

    # ---- gradients

    def grad_of(self, value: str) -> tuple[FirstRows, bool]:
        """Return the rows of ``value``'s gradient, and whether they already hold a sum to add to."""
        if value in self.grads:
            return self.grads[value], True
        op = self.program.producer(value)
        assert op is not None
        if isinstance(op, Own):  # a prefix of the source's gradient
            whole, is_there = self.grad_of(op.inputs[0])
            if not is_there:
                self.do(f"gradient of {op.inputs[0]}: zero", lambda: zero(whole.tensor), whole)
            self.grads[value] = FirstRows(whole.buffer, self.count_of(value))
            return self.grads[value], True
        self.grads[value] = self.new(f"gradient of {value}", op)
        return self.grads[value], False

    def part_of_grad(self, value: str) -> tuple[FirstRows, FirstRows | None]:
        """Return rows for a kernel to write its part of a gradient, and the sum to add it to, if any.

        Plan the kernel's task and then call :meth:`add_part`.
        """
        total, is_there = self.grad_of(value)
        if not is_there:
            return total, None
        return self.scratch(f"part of the gradient of {value}", total.count, total.buffer.shape[1]), total

    def add_part(self, value: str, part: FirstRows, total: FirstRows | None) -> None:
        """Plan to add what a kernel wrote to the sum, if there is one."""
        if total is not None:
            self.do(f"gradient of {value}", lambda: add(part.tensor, total.tensor), part, total)

    def pass_on(self, op: Operation, value: str) -> None:
        """Plan to pass ``op``'s gradient on to ``value``, in the same buffer if nothing else reads it."""
        grad = self.grads[op.out]
        if not self.program.learns(value):
            return
        alone = len(self.program.consumers(value)) == 1
        is_changed = isinstance(self.program.producer(value), Own) or self.program.ends_in_epilogue(value)
        if alone and not is_changed and value not in self.grads:
            self.grads[value] = grad
            return
        target, is_there = self.grad_of(value)
        join = add if is_there else copy
        self.do(f"gradient of {value}", lambda: join(grad.tensor, target.tensor), grad, target)

    def tell_of_whole(self, op: Operation) -> None:
        """Plan to tell of the gradients that are whole once those of ``op``'s parameters are; only once."""
        parameters = self._first_uses.pop(op.out, ())

        def tell() -> None:
            for parameter in parameters:
                if self.when_whole is not None and id(parameter) in self._found:
                    self.when_whole(parameter, self._found[id(parameter)])

        if parameters and self.comm is not None and self.begins_early:
            self.do(f"{self.planning}: gradients are whole", tell)

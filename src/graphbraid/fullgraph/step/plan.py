"""StepPlan: the tasks and buffers collected while a requested step is planned, shared while it runs.

A value's gradient has a buffer of its own: the first consumer planned writes it, and the others add to it. If
an operation passes a gradient on unchanged, as an addition does, both values share one buffer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.lowering.levels import Blocks, TypedBlock, aggregation, nodes_of, num_rows_of
from graphbraid.fullgraph.step.device_copies import DeviceCopies
from graphbraid.fullgraph.step.features import EdgeFeatures, Input, LinearMap, NodeFeatures, features_by_value
from graphbraid.fullgraph.step.streams import Streams
from graphbraid.fullgraph.step.tasks import (
    BoundCall,
    Buffer,
    Constant,
    EpilogueMask,
    FirstRows,
    MaskSeed,
    ParameterGradients,
    Rows,
    Seeds,
    SeedsInMemory,
    StepTask,
)
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.types import Relation
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.peers import PipelineConfig

if TYPE_CHECKING:
    from graphbraid.distributed.peers import PeerMap, Peers
    from graphbraid.distributed.ranks.communicator import Communicator
    from graphbraid.fullgraph.lowering.levels import PartView
    from graphbraid.fullgraph.lowering.options import StreamedFeatures
    from graphbraid.fullgraph.step.operations.exchange import Overlapped
    from graphbraid.fullgraph.step.operations.row_exchange import LazyMap, PeerReads, RowExchange, SourceSplit


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class StepRequest:
    """A program, the graph that it runs over, and where and with whom it runs."""

    program: ir.Program
    """A lowered program."""
    graph: Graph
    """A graph with features, used in place."""
    blocks: Blocks
    """The edges from each level to the next, on the host."""
    training: bool
    """Whether there is a backward pass."""
    copies: DeviceCopies | None = None
    """Copies the step's inputs to a device. Constants are made where the graph is, and copied, too. If None,
    the step runs where the graph is."""
    streamed: StreamedFeatures | None = None
    """Where the features are read block by block. If None, they lie in memory, as the graph has them."""
    comm: Communicator | None = None
    """The ranks that run the program together and all call the same methods. If None, there is one."""
    part: PartView | None = None
    """The place of ``graph`` in the whole one, if it is one rank's part of it."""
    wire: torch.dtype = torch.float32
    """Dtype to which rows and gradients are rounded on their way between ranks."""
    peers: Peers | None = None
    """The ranks as peers, on a device other than the host. If None, they are on the host."""
    begins_early: bool = True
    """Whether several ranks compute gradients while others travel, and announce each one that is whole."""

    def num_rows(self, place: ir.LevelNodes) -> int:
        """Return the number of nodes of a level, and of one type in a graph with types."""
        return num_rows_of(self.blocks, place, self.graph.num_nodes)

    def whole_edges(self, relation: Relation | None) -> Csc:
        """Return all edges of the graph, or of one relation in a graph with types."""
        block = self.blocks[0] if self.blocks else None
        if relation is None or not isinstance(block, TypedBlock):
            return self.graph.csc
        return block.whole[relation.number]


@dataclass(slots=True)
class ExchangeState:
    """The exchanges of a step, and its splits of edges. Operations over the same edges share a split."""

    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    """How the kernel that reads peers' rows divides its work; alike on all ranks."""
    nbytes: int = 0
    """Bytes of the splits, and of rows that are rounded before they are sent."""
    travels: dict[str, RowExchange] = field(default_factory=dict)
    """Moves the rows of each exchange, by the value's name."""
    overlapped: dict[str, Overlapped | PeerReads] = field(default_factory=dict)
    """The exchanges whose only reader is an aggregation, which begins early or reads peers' memory."""
    returning: dict[str, FirstRows] = field(default_factory=dict)
    """Memory that receives gradients from others, for exchanges that have sent the halo's gradients."""
    gone_back: set[str] = field(default_factory=set)
    """Linear maps whose gradients are computed while the gradients of the halo travel."""
    first_back: set[str] = field(default_factory=set)
    """Linear maps of constants just before those, with gradients that are computed at the same time."""
    maps: dict[tuple[ir.AdjacencyMatrix, int], tuple[LinearMap, LinearMap]] = field(default_factory=dict)
    """The linear maps over edges from own rows and over those from the halo."""
    source_splits: dict[int, SourceSplit] = field(default_factory=dict)
    """The edges by source: those from own rows and those from the halo."""
    peer_maps: dict[tuple[ir.AdjacencyMatrix, int], LazyMap] = field(default_factory=dict)
    """The linear maps whose rows are read where peers keep them, by this rank's edges."""
    made_maps: list[tuple[LazyMap, PeerMap]] = field(default_factory=list)
    """The maps that were made, in the order in which all ranks have made them."""


WhenWhole = Callable[[nn.Parameter, Tensor], None]
"""Takes a parameter and its complete gradient."""
Op = TypeVar("Op", bound=ir.Operation)


class PlannedOperation(ABC, Generic[Op]):
    """The tasks of one operation, and the memory that its forward tasks leave for its backward tasks."""

    other_bytes = 0
    """Bytes that it takes at most beside the arena, of torch's allocator."""
    keeps_result = False
    """Whether its backward reads its result, or its result lies in another value's rows."""

    def __init__(self, plan: StepPlan, op: Op) -> None:
        self.plan, self.op = plan, op
        self.source = op.inputs[0]
        """Name of the first input."""

    @abstractmethod
    def forward(self) -> None:
        """Plan the tasks that compute the operation's value."""

    def backward(self) -> None:
        """Plan the gradients of the inputs and parameters from that of the value; none if nothing learns."""

    @property
    def grad(self) -> FirstRows:
        """The gradient of the operation's value."""
        return self.plan.grads[self.op.out]


class StepPlan:
    """The tasks of a program's step planned so far, and the rows of its values and gradients."""

    def __init__(self, request: StepRequest) -> None:
        self.request, self.program, self.training = request, request.program, request.training
        self.copies, self.comm = request.copies, request.comm
        self.tasks: list[StepTask] = []
        self.bound_calls: list[BoundCall] = []
        """The tasks that bind their kernels' arguments."""
        self.planning = ""
        """Name of the value whose operation is being planned."""
        self.planned: dict[str, PlannedOperation[Any]] = {}
        """The operations planned so far, by the value's name."""
        self.parameters = ParameterGradients(on_host=self.copies is None)
        """Collects the parameters' gradients of a backward pass."""
        self.when_whole: WhenWhole | None = None
        """Called with each parameter and its gradient as soon as no later task adds to it."""
        self.seeds = Seeds() if self.copies is None else SeedsInMemory(self.copies.place)
        self.masks: dict[str, EpilogueMask] = {}
        """The masks of epilogues, by the value's name."""
        self.blocks = request.blocks if self.copies is None else self._copied_blocks(self.copies)
        """The edges from each level to the next, on the device where the kernels run."""
        self.streams = None if request.streamed is None else Streams(request, request.streamed)
        """The features that the step reads block by block; None where they lie in memory."""
        self.features: dict[str, NodeFeatures] = features_by_value(request, self.streams)
        """The node features, by the name of the value that holds them."""
        self.edge_features = EdgeFeatures(request)
        self.values: dict[str, FirstRows] = {}
        self.constants: dict[str, Constant] = {}
        self.grads: dict[str, FirstRows] = {}
        """The gradient of each value, by its name."""
        self._aggregations: dict[tuple[ir.AdjacencyMatrix, int, bool], LinearMap] = {}
        self.exchanges = ExchangeState()
        self._first_uses = self.program.first_uses()

    def _copied_blocks(self, copies: DeviceCopies) -> Blocks:
        by_edge = [
            op for op in self.program.ops if isinstance(op, ir.Attention | ir.Gine | ir.Maximum | ir.Messages)
        ]
        walked = {op.walks.number for op in by_edge if op.walks is not None}
        return copies.blocks(self.request.blocks, walked, transpose=self.training and bool(by_edge))

    @property
    def other_bytes(self) -> int:
        """Bytes beside the arena: constants, other forms of the features, split edges, written parts."""
        constants = sum(constant.nbytes for constant in self.constants.values())
        features = sum(one.factor_bytes for one in self.features.values()) + self.edge_features.nbytes
        operations = sum(one.other_bytes for one in self.planned.values())
        return constants + features + operations + self.exchanges.nbytes

    def compute_coefficients(self) -> None:
        """Compute the aggregations' coefficients, which :attr:`other_bytes` does not count."""
        for made in self._aggregations.values():
            _ = made.how

    def allocate(self) -> None:
        """Compute the coefficients and the constants, and make the features' other forms."""
        self.compute_coefficients()  # else the first run would, while its calls are watched
        for features in self.features.values():
            features.allocate()
        for constant in self.constants.values():
            _ = constant.tensor
        self.edge_features.allocate()
        for features in self.features.values():
            features.release()

    # ---- tasks

    @staticmethod
    def scratch(name: str, count: int, *width: int, dtype: torch.dtype = torch.float32) -> FirstRows:
        """Return a new buffer of ``count`` rows; a vector has no width."""
        return FirstRows(Buffer(name, (count, *width), dtype), count)

    def new(self, name: str, op: ir.Operation) -> FirstRows:
        """Return new rows of the shape of ``op``'s value."""
        return self.scratch(name, self.count_of(op.out), self.program.width(op.out))

    def do(self, name: str, run: Callable[[], object], *touches: Rows | None) -> None:
        """Add a task, named by the value that it computes or by any other text.

        ``touches`` are all rows that it reads or writes; those in the arena stay until then.
        """
        buffers = tuple(rows.buffer for rows in touches if isinstance(rows, FirstRows))
        self.tasks.append(StepTask(name, run, buffers, self.planning))

    def repeat(
        self,
        name: str,
        run: Callable[..., object],
        *touches: Rows | None,
        seed: MaskSeed | None = None,
        gradient_of: nn.Parameter | None = None,
    ) -> None:
        """Add a task that is one kernel call; on the host its arguments are bound after the first steps.

        The call is on memory that does not move. It takes the memory of the gradient that it writes, of
        ``gradient_of``. ``seed`` is that of its dropout mask, if it has one.
        """
        call = BoundCall(
            run, seed=seed, gradient_of=None if gradient_of is None else (gradient_of, self.parameters)
        )
        if self.copies is None:
            self.bound_calls.append(call)
        self.do(name, call if self.copies is None else call.run_once, *touches)

    # ---- values

    def count_of(self, value: str) -> int:
        """Return the number of rows of a value."""
        return self.request.num_rows(self.program.place(value))

    def nodes_of(self, value: str) -> Tensor | None:
        """Return the node of each row of a value, on the kernels' device; None if row v is node v."""
        part, place = self.request.part, self.program.place(value)
        return nodes_of(self.blocks, place) if part is None else part.ids[: self.request.num_rows(place)]

    def rows(self, value: str) -> Rows:
        """Return the rows of a value for a task to read."""
        if value in self.program.inputs and value not in self.constants:
            self.constants[value] = self.features[value].rows_of(0)
        return self.constants[value] if value in self.constants else self.values[value]

    def result(self, op: ir.Operation, *, overwrites: str | None = None) -> FirstRows:
        """Return the rows of ``op``'s value: those of the input that it overwrites, or new ones."""
        rows = self.new(op.out, op) if overwrites is None else self.values[overwrites]
        self.values[op.out] = rows
        return rows

    def rows_to_add_into(self, op: ir.Operation) -> FirstRows:
        """Return the rows that ``op`` adds into: its second input if nothing else reads that, or a copy."""
        if len(op.inputs) < 2:
            return self.result(op)
        if self.may_overwrite(op.inputs[1]):
            return self.result(op, overwrites=op.inputs[1])
        out, addend = self.result(op), self.rows(op.inputs[1])
        self.do(f"{op.out}: copy", lambda: out.tensor.copy_(addend.tensor), out, addend)
        return out

    def may_overwrite(self, value: str) -> bool:
        """Return whether a value's consumer may overwrite it: neither another one nor a backward reads it."""
        alone = value in self.values and len(self.program.consumers(value)) == 1
        return alone and not self.planned[value].keeps_result and not self.program.ends_in_epilogue(value)

    def input_of(self, value: str) -> Callable[[], Input] | None:
        """Return a getter of the form in which weights multiply features; None if ``value`` holds none."""
        if self.streams is not None and value in self.streams:
            streamed = self.streams.input_of(value)
            return lambda: streamed
        if value not in self.program.inputs:
            op = self.program.producer(value)
            return self.input_of(op.inputs[0]) if op is not None and self.program.is_compact(value) else None
        features = self.features[value]
        return lambda: features.factor

    def is_one_call(self, value: str) -> bool:
        """Return whether a value's product with weights is one call of a kernel; not if it is streamed."""
        return self.streams is None or value not in self.streams

    def turned_weight(self, op: ir.Linear) -> FirstRows | None:
        """Return rows for ``op``'s weight or its gradient by column, which only the sparse path needs."""
        if self.program.path_of(op.inputs[0]) != "sparse":
            return None
        out_channels, in_channels = op.shape
        return self.scratch(f"{op.out}: weight by column", in_channels, out_channels)

    def mask_of(self, op: ir.Epilogue) -> EpilogueMask:
        """Return the mask of an epilogue, the same for all its tasks."""
        if op.out not in self.masks:
            self.masks[op.out] = EpilogueMask(op.p, self.seeds, self.nodes_of(op.out))
        return self.masks[op.out]

    # ---- edges

    def whole_map(self, adjacency: ir.AdjacencyMatrix) -> Aggregation:
        """Return the map over all edges here. A rank's part has the coefficients of the whole graph."""
        how, part = aggregation(adjacency, self.request.whole_edges(adjacency.relation)), self.request.part
        return how if part is None else part.corrected(adjacency, how)

    def aggregation(self, op: ir.Aggregate) -> LinearMap:
        """Return the linear map of an aggregation, the same for both passes."""
        source = op.inputs[0]
        block = self.request.blocks[self.program.level(source)].of(op.adjacency.relation)
        backward = self.training and self.program.learns(source)
        key = (op.adjacency, id(block), backward)
        if key not in self._aggregations:
            made = LinearMap(lambda: block.bind(self.whole_map(op.adjacency)))
            self._aggregations[key] = (
                made if self.copies is None else self.copies.aggregation(made.how, backward=backward)
            )
        return self._aggregations[key]

    # ---- gradients

    def grad_of(self, value: str) -> tuple[FirstRows, bool]:
        """Return the rows of ``value``'s gradient, and whether they already hold a sum to add to."""
        if value in self.grads:
            return self.grads[value], True
        op = self.program.producer(value)
        assert op is not None
        if isinstance(op, ir.DestinationRows):  # a prefix of the source's gradient
            whole = self.begun_grad(op.inputs[0])
            self.grads[value] = FirstRows(whole.buffer, self.count_of(value))
            return self.grads[value], True
        self.grads[value] = self.new(f"gradient of {value}", op)
        return self.grads[value], False

    def begun_grad(self, value: str) -> FirstRows:
        """Return the rows of ``value``'s gradient; plan zeros there if they hold no sum yet."""
        rows, is_there = self.grad_of(value)
        if not is_there:
            self.do(f"gradient of {value}: zero", lambda: torch.zero_(rows.tensor), rows)
        return rows

    def part_of_grad(self, value: str) -> tuple[FirstRows, FirstRows | None]:
        """Return rows for one kernel's part of a gradient, and the sum to add it to, if there is one.

        Plan the kernel's task and then call :meth:`add_part`.
        """
        total, is_there = self.grad_of(value)
        if not is_there:
            return total, None
        return self.scratch(f"part of the gradient of {value}", total.count, total.width), total

    def add_part(self, value: str, part: FirstRows, total: FirstRows | None) -> None:
        """Plan to add a kernel's part to the sum, if there is a sum."""
        if total is not None:
            self.do(f"gradient of {value}", lambda: total.tensor.add_(part.tensor), part, total)

    def write_grad(self, value: str, run: Callable[[Tensor], object], *touches: Rows | None) -> None:
        """Plan a kernel that writes a value's gradient, if it learns, or a part that is then added."""
        if self.program.learns(value):
            target, total = self.part_of_grad(value)
            self.do(f"gradient of {value}", lambda: run(target.tensor), target, *touches)
            self.add_part(value, target, total)

    def accumulate(
        self, value: str, run: Callable[[Tensor, bool], object], *touches: Rows | None, binds: bool = False
    ) -> None:
        """Plan one call that writes a value's gradient, if it learns, or adds to it if it holds a sum.

        ``run`` is called with the gradient's rows, and whether to add to them. If ``binds``, it is one kernel
        call, see :meth:`repeat`.
        """
        if self.program.learns(value):
            target, adds = self.grad_of(value)
            plan = self.repeat if binds else self.do
            plan(f"gradient of {value}", lambda: run(target.tensor, adds), *touches, target)

    def add_to_grad(self, value: str, rows: FirstRows) -> None:
        """Plan to add rows to ``value``'s gradient, or to copy them there if it holds no sum yet."""
        self.accumulate(value, lambda out, add: (out.add_ if add else out.copy_)(rows.tensor), rows)

    def takes_over(self, value: str) -> bool:
        """Return whether a value's gradient may be where its only consumer's is: nothing else adds to it."""
        alone = len(self.program.consumers(value)) == 1 and value not in self.grads
        return alone and not isinstance(self.program.producer(value), ir.DestinationRows)

    def pass_on(self, op: ir.Operation, value: str) -> None:
        """Plan to pass ``op``'s gradient on to ``value``, in the same buffer if nothing else reads it."""
        if not self.program.learns(value):
            return
        if self.takes_over(value) and not self.program.ends_in_epilogue(value):
            self.grads[value] = self.grads[op.out]
        else:
            self.add_to_grad(value, self.grads[op.out])

    def tell_of_whole(self, op: ir.Operation) -> None:
        """Plan to announce the gradients that are complete after ``op``; planned once for each operation."""
        parameters = self._first_uses.pop(op.out, ())

        def tell() -> None:
            for parameter in parameters:
                found = self.parameters.of(parameter)
                if self.when_whole is not None and found is not None:
                    self.when_whole(parameter, found)

        if parameters and self.comm is not None and self.request.begins_early:
            self.do(f"{self.planning}: gradients are whole", tell)

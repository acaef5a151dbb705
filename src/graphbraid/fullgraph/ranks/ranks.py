"""Ranks: those that run a program together, the rows of each, and lowering where each holds a part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

import torch
import xxhash
from torch import Tensor, nn

from graphbraid.arguments import shown
from graphbraid.distributed.partitioning.choose import partition as divide
from graphbraid.distributed.partitioning.records import Partition
from graphbraid.distributed.parts.saving import SavedPartition
from graphbraid.distributed.parts.split import list_sums
from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.distributed.ranks.joining import check_alike
from graphbraid.errors import ConfigError, DataError
from graphbraid.fullgraph.device import Device
from graphbraid.fullgraph.lowering.costs import CostModel, Link
from graphbraid.fullgraph.lowering.levels import Block, Blocks
from graphbraid.fullgraph.lowering.lower_program import Lowered
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.fullgraph.lowering.passes import through_passes
from graphbraid.fullgraph.program import Decision, Program
from graphbraid.fullgraph.ranks.distribute import RankPart, Weigh, as_decided, divided_program, weighed
from graphbraid.fullgraph.ranks.halo import NAME, halo_seconds, steady_link, values_that_may_travel
from graphbraid.fullgraph.ranks.pipeline_tuner import PipelineTuner
from graphbraid.fullgraph.step.plan import WhenWhole
from graphbraid.graph import Graph
from graphbraid.graph.identity import check_made_for, features_mark, mark, topology_mark
from graphbraid.ops.gather import places_of
from graphbraid.ops.peers import PipelineConfig
from graphbraid.signatures import typed

Wire = Literal["float32", "bfloat16"]
_WIRES: dict[Wire, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@typed
@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Ranks:
    """The ranks that run a program together. All must make the same calls of engines made with them.

    Raises:
        ConfigError: the partition has another number of parts than there are ranks, or no dtype is called
            ``wire``.
    """

    comm: Communicator
    partition: Partition
    """The owner of each node."""
    part: RankPart | None = None
    """This rank's part, if ranks hold their own parts alone; None if each holds the whole graph."""
    wire: Wire = "float32"
    """Dtype of rows and their gradients on the wire in training; ``bfloat16`` rounds each number to 8
    significant bits on its way, an error of at most 1 in 512, and halves the bytes."""
    pipeline: PipelineConfig | Literal["tuned"] | None = None
    """How the kernel that reads peers' rows on devices divides its work. ``tuned`` finds out in the first
    steps, or knows it from an earlier run; None is the kernel's own. Its ``ps`` changes rounding."""
    _listeners: list[WhenWhole] = field(default_factory=list, init=False, repr=False)
    _links: list[Link] = field(default_factory=list, init=False, repr=False)
    """The way between the ranks, once it is known."""

    def __post_init__(self) -> None:
        if self.wire not in _WIRES:
            raise ConfigError(f"wire must be {' or '.join(map(repr, _WIRES))}; got {shown(self.wire)}.")
        if isinstance(self.pipeline, str) and self.pipeline != "tuned":
            raise ConfigError(
                f"pipeline must be a PipelineConfig, 'tuned' or None; got {shown(self.pipeline)}."
            )
        if self.partition.num_parts != self.comm.size:
            raise ConfigError(
                f"the partition has {self.partition.num_parts} parts, and there are {self.comm.size} ranks; "
                "divide the graph into as many."
            )

    @classmethod
    def dividing(
        cls,
        comm: Communicator,
        graph: Graph,
        *,
        wire: Wire = "float32",
        pipeline: PipelineConfig | Literal["tuned"] | None = None,
    ) -> Ranks:
        """Let rank 0 divide a graph among the ranks, which all call this together.

        The options are :attr:`wire` and :attr:`pipeline`.
        """
        part_of = torch.empty(graph.num_nodes, dtype=torch.int32)
        strategy = ""
        if comm.rank == 0:
            found = divide(graph, comm.size)
            part_of.copy_(found.part_of)
            strategy = found.strategy
        comm.broadcast(part_of).wait()
        strategy = comm.share(strategy)
        made = Partition(part_of=part_of, num_parts=comm.size, strategy=strategy, balance="edges")
        return cls(comm=comm, partition=made, wire=wire, pipeline=pipeline)

    @classmethod
    def of_saved(
        cls,
        comm: Communicator,
        saved: SavedPartition,
        graph: Graph,
        *,
        wire: Wire = "float32",
        pipeline: PipelineConfig | Literal["tuned"] | None = None,
    ) -> Ranks:
        """Let each rank read its own part of a graph; all call this together.

        Args:
            comm: the ranks.
            saved: a partition's folder, the same on all ranks.
            graph: the graph. If it is in a store, only the rows of the own part are read.
            wire: see :attr:`wire`.
            pipeline: see :attr:`pipeline`.

        Raises:
            ConfigError: the partition has another number of parts than there are ranks, or ranks were given
                different partitions.
            DataError: a file is missing or damaged, the partition is of another graph, or its parts do not
                fit each other.
        """
        check_alike(comm, {"partition": saved.identity}, "give all ranks the same partition")
        if saved.num_parts != comm.size:
            raise ConfigError(
                f"the partition in {saved.folder} has {saved.num_parts} parts, and there are {comm.size} "
                f"ranks; start {saved.num_parts}, or divide the graph anew: graphbraid partition --parts "
                f"{comm.size}."
            )
        part = RankPart.read(saved, comm.rank, graph)
        ids, route = part.view.ids, part.view.route
        expected = list_sums(ids[part.view.num_own :], route.receive_rows)
        sent, ones = list_sums(ids[route.send], route.send_rows), [1] * comm.size
        differ = (comm.all_to_all(sent, ones, ones).wait() != expected).nonzero().flatten().tolist()
        told = comm.gather(differ)
        saved.refuse_unmirrored([(one, rank) for rank, senders in enumerate(told) for one in senders])
        return cls(comm=comm, partition=saved.partition(), part=part, wire=wire, pipeline=pipeline)

    @property
    def config(self) -> PipelineConfig:
        """The kernel's configuration, until a search has found another."""
        return self.pipeline if isinstance(self.pipeline, PipelineConfig) else PipelineConfig()

    def tuner(self, lowered: Lowered, device: Device) -> PipelineTuner | None:
        """Return the search for the kernel's configuration in a program's first steps.

        None if the configuration is given, or the device does not tell its limits.
        """
        limits = device.limits()
        if self.pipeline != "tuned" or limits is None:
            return None
        owners = xxhash.xxh3_128(self.partition.part_of.numpy().tobytes()).hexdigest()
        identity = xxhash.xxh3_128(f"{lowered.program} {owners} {self.wire}".encode()).hexdigest()
        return PipelineTuner(self.comm, identity, device.name, limits)

    @property
    def wire_dtype(self) -> torch.dtype:
        """The dtype that :attr:`wire` names."""
        return _WIRES[self.wire]

    def listen(self, listener: WhenWhole | None) -> None:
        """Let ``listener`` know of each parameter's gradient once nothing more is added to it.

        It is called during ``loss.backward()``, for the same parameters in the same order on all ranks, while
        the gradients of earlier layers are still to be computed, so that sums over the ranks can begin
        (:meth:`.GradientSum.begin`). None removes the listener.
        """
        self._listeners[:] = [] if listener is None else [listener]

    def tell_of_whole(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Tell whoever listens of a gradient that is whole."""
        for listener in self._listeners:
            listener(parameter, gradient)

    def weigh(self, costs: CostModel, options: CompileOptions) -> Weigh | None:
        """Return the function that decides whether rows of level 0 travel; all ranks call it together.

        None on a device, whose link to others is not measured: there they are computed.
        """
        if NAME not in options.passes or not options.device.is_host:
            return None

        def weigh(program: Program, num_rows: int) -> Decision:
            link, counts = self._link(options), self.comm.gather(num_rows)
            seconds = halo_seconds(program, costs, link, max(counts))
            said = self.comm.share(asdict(seconds.decision(values_that_may_travel(program))))
            return Decision(**said)

        return weigh

    @property
    def link(self) -> Link | None:
        """The link, for the evidence of a lowering; None if nothing needed it."""
        return self._links[0] if self._links else None

    def _link(self, options: CompileOptions) -> Link:
        """Return the way between the ranks, as rank 0's evidence has it, or measured."""
        if not self._links:
            known = None if options.evidence is None else options.evidence.link
            told = self.comm.share(None if known is None else asdict(known))
            self._links.append(Link(**told) if told else steady_link(self.comm))
        return self._links[0]

    def owned(self, nodes: Tensor) -> Tensor:
        """Return those of ``nodes`` that this rank owns, in their order."""
        return nodes[self.partition.part_of[nodes] == self.comm.rank]

    def gathered(self, rows: Tensor, blocks: Blocks) -> Tensor:
        """Return on every rank the ``(num_nodes, width)`` outputs of all nodes, in the graph's order.

        ``rows`` are this rank's, of each node that it owns, in the order of the last level of the blocks of
        all ranks together; in the order of the ids, without blocks, if ranks hold their own parts.
        """
        place, rows, partition = rows.device, rows.cpu(), self.partition
        ids = blocks[-1].after()[1] if blocks else None
        whole = rows.new_empty(partition.num_nodes, rows.shape[1])
        for rank in range(self.comm.size):
            nodes = partition.owned(rank) if ids is None else ids[partition.part_of[ids] == rank]
            part = (
                rows.contiguous() if rank == self.comm.rank else rows.new_empty(nodes.numel(), rows.shape[1])
            )
            whole[nodes] = self.comm.broadcast(part, rank).wait()
        return whole.to(place)

    def check_same(self, options: Mapping[str, str], graph: Graph, nodes: Tensor) -> None:
        """Check that all ranks were given the same model, training nodes and, if each holds it whole, graph.

        Raises:
            ConfigError: they were not; the message names the first difference.
            DataError: the partition or this rank's part is of another graph.
        """
        marks = {"training nodes": mark(nodes)}
        if self.part is None:
            check_made_for(self.partition, graph.csc, "the partition was")
            sets = {} if graph.types is None else graph.types.nodes
            marks |= {"graph's edges": topology_mark(graph.csc), "graph's features": features_mark(graph.x)}
            marks |= {f"features of the {name} nodes": features_mark(held.x) for name, held in sets.items()}
            marks |= {} if graph.edge_attr is None else {"graph's edge_attr": mark(graph.edge_attr)}
        elif self.part.marks != (topology_mark(graph.csc), features_mark(graph.x)):
            raise DataError(
                "this rank's part was read from another graph, or the graph was changed in place since; make "
                "the ranks anew from this graph: Ranks.of_saved(comm, saved, graph)"
            )
        mine = {f"model's {name}": value for name, value in options.items()} | marks
        check_alike(self.comm, mine, "give all ranks the same model, graph and nodes")

    def check_alike_lowered(self, program: Program, blocks: Blocks) -> None:
        """Raise ConfigError unless all ranks have lowered to the same program and blocks."""
        order = xxhash.xxh3_64()
        for block in (one.of(None) for one in blocks):
            order.update(f"{block.csc.num_src} {block.csc.num_dst} {block.csc.num_edges}".encode())
            if block.destinations is not None:
                order.update(block.destinations.numpy().tobytes())
        mine = {
            "lowered program": xxhash.xxh3_64(str(program).encode()).hexdigest(),
            "lowered order of nodes": order.hexdigest(),
            "partition": xxhash.xxh3_64(self.partition.part_of.numpy().tobytes()).hexdigest(),
            "wire": self.wire,
            "pipeline": str(self.pipeline),
        }
        check_alike(self.comm, mine, "give all ranks the same evidence, partition and free memory")


# ---- lowering on ranks that each hold their own part of the graph alone

_LEFT = ("prune", "symmetry", "locality")
"""Passes that look at all edges of the graph."""


def lower_part(
    program: Program, ranks: Ranks, nodes: Tensor, options: CompileOptions, costs: CostModel
) -> Lowered:
    """Lower a program, as it was read, where each rank holds its own part; all ranks call this together.

    ``nodes`` are the ``(num_train,)`` int64 training nodes of all ranks. Of ``costs``, the rates of the first
    rank count.

    Raises:
        NotLoweredError: an operation cannot be divided among ranks, or needs more than a part holds.
        ConfigError: the ranks have not lowered alike.
    """
    part = ranks.part
    assert part is not None
    part.check_divisible(program)
    costs = _shared_costs(program, part, ranks, costs)
    left = [Decision(name=name, taken=False, what="each rank holds its part alone") for name in _LEFT]
    passed = through_passes(program.rewritten(program.ops, *left), costs, options.passes)
    divided, blocks = _part_of_program(passed, ranks, ranks.weigh(costs, options))
    own = ranks.owned(nodes)
    row_of = places_of(part.view.ids[: part.view.num_own], part.num_nodes, torch.int64)
    return Lowered(
        program=divided,
        graph=part.graph,
        nodes=own,
        blocks=tuple(blocks),
        rows=row_of[own],
        row_of=None,
        options=options,
        costs=costs,
        part=part.view,
    )


def evaluation_part(lowered: Lowered, program: Program, ranks: Ranks) -> tuple[Program, list[Block]]:
    """Lower a program in evaluation mode over the same part; nothing is hoisted."""
    assert ranks.part is not None
    ranks.part.check_divisible(program)
    passed = through_passes(
        program, replace(lowered.costs, hoist_bytes=0), lowered.options.passes - {"hoist"}
    )
    return _part_of_program(passed, ranks, as_decided(lowered.program))


def _part_of_program(program: Program, ranks: Ranks, weigh: Weigh | None) -> tuple[Program, list[Block]]:
    """Return a rank's program and blocks of a lowered program, once all have lowered alike."""
    assert ranks.part is not None
    ranks.check_alike_lowered(program, ())
    blocks = ranks.part.blocks(program.num_levels - 1)
    if blocks:
        program = weighed(program, blocks[0], weigh)
    divided, with_halo = divided_program(program)
    ranks.part.ask_for_scales(ranks.comm, program)
    return divided, blocks[with_halo:]


def _shared_costs(program: Program, part: RankPart, ranks: Ranks, own: CostModel) -> CostModel:
    """Return one cost model on all ranks, from sizes of the whole graph and of the ranks' parts."""
    num_blocks, comm = program.num_levels - 1, ranks.comm
    said = comm.gather([own.density, own.is_sparse, own.is_binary, own.hoist_bytes * comm.size])
    return replace(
        own,
        rows=(part.num_nodes,) * (num_blocks + 1),
        edges=(part.num_edges,) * num_blocks,
        density=said[0][0],
        is_sparse=said[0][1],
        is_binary=all(binary for _, _, binary, _ in said),
        hoist_bytes=min(allowed for *_, allowed in said),
    )

"""The costs that lowering weighs: sizes of the graph and its levels, and a machine's rates."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.fullgraph import program as ir
from graphbraid.graph import Graph
from graphbraid.graph.scaled_features import Features, ScaledFeatures
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.graph.types import Relation
from graphbraid.machine.hardware import Rates
from graphbraid.ops.binary import is_binary

if TYPE_CHECKING:
    from graphbraid.fullgraph.lowering.options import CompileOptions

# ---- evidence: the measurements behind a lowering, so that another one can repeat it bit for bit


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """The network model of a message: seconds to begin it, and seconds for each byte (alpha and beta)."""

    message_seconds: float
    byte_seconds: float

    @classmethod
    def from_json(cls, found: Any) -> Link:
        """Return a link read from a file; raise TypeError or ValueError unless it has positive numbers."""
        return cls(**sound_seconds(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Measurements that a run stores and uses again when it is resumed.

    The choices differ in how they round, so with new measurements, taken on another day or machine, a resumed
    run could give other bits.
    """

    rates: Rates
    link: Link | None = None
    """Measured link between the ranks; None if nothing needed it."""

    def to_json(self) -> dict[str, Any]:
        """Return the evidence as plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Any, where: str = "the evidence") -> Evidence:
        """Make evidence from the values of :meth:`to_json`.

        Raises:
            DataError: ``content`` is anything else; the message says what is wrong in ``where``.
        """
        try:
            rates, link = Rates.from_json(content["rates"]), content["link"]
            return cls(rates=rates, link=None if link is None else Link.from_json(link))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise DataError(
                f"{where} holds no sound measurements: {error}. Delete it, and the run goes on by those "
                "of this machine."
            ) from error


def sound_seconds(found: Any) -> dict[str, float]:
    """Return seconds by name read from a file; raise ValueError unless they are positive numbers."""
    if not isinstance(found, dict):
        raise ValueError("measurements must be seconds by name")
    for name, seconds in found.items():
        if not isinstance(seconds, float | int) or not math.isfinite(seconds) or seconds <= 0:
            raise ValueError(f"{name!r} cannot have taken {seconds!r} seconds")
    return {str(name): float(seconds) for name, seconds in found.items()}


# ---- the cost model: sizes of the graph and its levels, and a machine's rates

_CLOSE = 2.0
"""Features are searched for bits if these multiply within this factor of sparse features' predicted time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeTypeSizes:
    """Sizes of one node type, in a graph with types."""

    rows: tuple[int, ...]
    """Number of the type's nodes of each level."""
    density: float
    """Share of its features that are not zero; 0 without features."""
    is_sparse: bool
    """Whether the graph holds its features in CSR."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CostModel:
    """Predicts the seconds of operations from sizes and rates."""

    in_channels: int
    """Number of feature columns; where there are types, of all types together."""
    density: float
    """Share of the features that are not zero."""
    is_sparse: bool
    """Whether the graph holds its features in CSR."""
    is_binary: bool
    """Whether each node's non-zero features all equal one number; False, unchecked, where bits would not pay.
    """
    hoist_bytes: int
    """Bytes that hoisted aggregations may take."""
    rates: Rates
    doubt: str = ""
    """Why the rates may be wrong, as a sentence; empty if there is no doubt."""
    storage: torch.dtype = torch.float32
    """Dtype to which rows may be rounded before they are aggregated: float32 or bfloat16."""

    rows: tuple[int, ...] = ()
    """Number of nodes of each level."""
    edges: tuple[int, ...] = ()
    """Number of edges from each level to the next."""
    node_types: tuple[NodeTypeSizes, ...] = ()
    """The node types; empty for a graph of one."""
    relation_edges: tuple[Mapping[int, int], ...] = ()
    """Number of edges of each relation, by the level that they lead from; empty for a graph of one type."""

    def num_rows(self, place: ir.LevelNodes) -> int:
        """Return the number of nodes for which a value at a place has rows."""
        return (
            self.node_types[place.node_type].rows[place.level] if self.node_types else self.rows[place.level]
        )

    def density_of(self, node_type: int) -> float:
        """Return the share of a node type's features that are not zero."""
        return self.node_types[node_type].density if self.node_types else self.density

    def num_edges(self, level: int, relation: Relation | None = None) -> int:
        """Return the number of edges from ``level`` to the next, all or those of one relation."""
        return self.edges[level] if relation is None else self.relation_edges[level][relation.number]

    def fits(self, reads: RowReads, cache_bytes: int) -> bool:
        """Return whether a cache of ``cache_bytes`` holds all rows of a level, of the size that is read."""
        return self.rows[reads.level] * reads.row_bytes <= cache_bytes

    def aggregate_seconds(self, level: int, width: int, relation: Relation | None = None) -> float:
        """Return the seconds of an aggregation over the edges from ``level`` to the next."""
        return self.rates.aggregate_seconds(self.num_edges(level, relation), width)

    def product_seconds(self, path: str, rows: int, width: int) -> float:
        """Return the seconds of the features' product with a weight on an input path."""
        if path == "sparse":
            return self.rates.sparse_seconds(rows * self.in_channels * self.density, width)
        if path == "binary":
            return self.rates.binary_seconds(rows, self.in_channels, width)
        return self.rates.multiply_seconds(rows, self.in_channels, width)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowReads:
    """The rows that an operation reads at random in every epoch, one per edge of a block."""

    level: int
    row_bytes: int
    times: int
    """Number of passes over the edges, forward and backward."""


def row_reads(program: ir.Program) -> list[RowReads]:
    """List the random row reads of a program's aggregations, attention and maxima, forward and backward."""
    reads = []
    for op in program.ops:
        if not isinstance(op, ir.Aggregate | ir.Attention | ir.Maximum):
            continue
        source = op.inputs[0]
        row_bytes, backward_reads = 4 * program.width(source), 1
        if isinstance(op, ir.Aggregate):
            row_bytes = op.rows.itemsize * program.width(source)
        elif isinstance(op, ir.Attention):  # backward reads the sources' rows again, and gradient rows
            row_bytes, backward_reads = 4 * op.heads * op.channels, 2
        else:  # a maximum's backward reads gradients, and which edge won
            backward_reads = 2
        times = 1 + backward_reads * program.learns(source)
        reads.append(RowReads(level=program.level(source), row_bytes=row_bytes, times=times))
    return reads


def constant_bytes(program: ir.Program, costs: CostModel) -> int:
    """Return the bytes of a program's constants."""
    constants = [op.out for op in program.ops if isinstance(op, ir.Hoisted)]
    return sum(4 * costs.num_rows(program.place(value)) * program.width(value) for value in constants)


def order_seconds(
    program: ir.Program, linear: ir.Linear, aggregate: ir.Aggregate, costs: CostModel
) -> dict[str, float]:
    """Return the seconds per epoch with the transformation ``"first"`` and with it ``"last"``."""
    x = linear.inputs[0] if linear.out == aggregate.inputs[0] else aggregate.inputs[0]
    level, relation = program.level(aggregate.inputs[0]), aggregate.adjacency.relation
    before, after = (costs.num_rows(program.place(value)) for value in (aggregate.inputs[0], aggregate.out))
    narrow, wide = program.width(linear.out), program.width(x)
    learns = program.learns(x)
    products = 3 if learns else 2
    first = products * costs.rates.multiply_seconds(before, wide, narrow)
    first += 2 * costs.aggregate_seconds(level, narrow, relation)
    last = products * costs.rates.multiply_seconds(after, wide, narrow)
    last += (2 if learns else 1) * costs.aggregate_seconds(level, wide, relation)
    return {"first": first, "last": last}


def operation_seconds(
    program: ir.Program, op: ir.Operation, costs: CostModel, width: int, channels: int
) -> float:
    """Return an operation's seconds per epoch; an aggregation counts both ways, at its narrower side."""
    if isinstance(op, ir.Aggregate):
        level, relation = program.level(op.inputs[0]), op.adjacency.relation
        return 2 * costs.aggregate_seconds(level, min(width, channels), relation)
    if isinstance(op, ir.DestinationRows):
        return 0.0
    nbytes = 4 * costs.num_rows(program.place(op.out)) * width * (1 + len(op.inputs))
    return nbytes / costs.rates.stream_bytes


def cost_model(
    graph: Graph,
    rates: Rates,
    *,
    rows: Sequence[int] = (),
    edges: Sequence[int] = (),
    hoist_bytes: int,
    storage: torch.dtype = torch.float32,
    sample: Tensor | None = None,
    doubt: str = "",
) -> CostModel:
    """Make the cost model of a graph whose levels have ``rows`` nodes and ``edges`` edges to the next level.

    If the features are not in memory, a ``sample`` of their rows is looked at instead of all.
    """
    x = graph.x if sample is None else sample
    assert x is not None
    in_channels, share = int(x.shape[1]), density(x)
    serves = rates.binary_seconds(1, in_channels, 1) < _CLOSE * rates.sparse_seconds(share * in_channels, 1)
    return CostModel(
        rows=tuple(rows),
        edges=tuple(edges),
        in_channels=in_channels,
        density=share,
        is_sparse=isinstance(x, SparseFeatures),
        is_binary=serves and sample is None and is_binary(x),
        hoist_bytes=hoist_bytes,
        rates=rates,
        doubt=doubt,
        storage=storage,
    )


def costs_for(
    program: ir.Program, graph: Graph, options: CompileOptions, rates: Rates, doubt: str = ""
) -> CostModel:
    """Return the cost model of a program, as it was read, over a graph; its levels have no sizes yet."""
    of_options = {"hoist_bytes": options.hoist_bytes(), "storage": options.storage}
    how: dict[str, Any] = {"rates": rates, "doubt": doubt, **of_options}
    if program.by_relation:
        features = [graph.nodes_of(name).x for name in graph.node_types]
        shares = [0.0 if x is None else density(x) for x in features]
        are_sparse = [isinstance(x, SparseFeatures) for x in features]
        return CostModel(
            in_channels=sum(program.inputs.values()),
            density=max(shares, default=0.0),
            is_sparse=any(are_sparse),
            is_binary=False,
            node_types=tuple(
                NodeTypeSizes(rows=(), density=share, is_sparse=is_sparse)
                for share, is_sparse in zip(shares, are_sparse, strict=True)
            ),
            **how,
        )
    sample = None if options.features is None else options.features.sample()
    return cost_model(graph, sample=sample, **how)


def density(x: Features) -> float:
    """Return the share of features that are not zero; dense ones are sampled if there are more than 2²⁴."""
    cells = max(x.shape[0] * x.shape[1], 1)
    if isinstance(x, SparseFeatures):
        return x.nnz / cells
    every = max(1, cells // 2**24)
    sample = (x.values if isinstance(x, ScaledFeatures) else x)[::every]
    return float(torch.count_nonzero(sample)) / max(sample.numel(), 1)


def in_seconds(seconds: float) -> str:
    """Format a time."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def in_bytes(count: float) -> str:
    """Format a size."""
    return f"{count / 1e6:.3g} MB" if count < 1e9 else f"{count / 1e9:.3g} GB"

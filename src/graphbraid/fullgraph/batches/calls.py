"""BatchCall: one call of a model on a mini-batch, described by the role of each argument of ``forward``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid import native
from graphbraid.fullgraph.batches.edges import BatchEdges, RelationEdges
from graphbraid.fullgraph.program import Break, NotLoweredError
from graphbraid.fullgraph.reading.break_trial import Breaks
from graphbraid.fullgraph.reading.calling import (
    ADJACENCY,
    CSC,
    DATA,
    EDGE_ATTR,
    EDGE_TYPE,
    EDGES,
    EDGES_TARGET,
    NUM_NODES,
    WEIGHTS_TARGET,
    Calling,
    Given,
    X,
    node_type_of,
    only_node_type,
)
from graphbraid.fullgraph.reading.exact import is_plain
from graphbraid.fullgraph.reading.matrices import entries_of_matrix, is_matrix
from graphbraid.fullgraph.reading.row_dependence import rows_to_try
from graphbraid.graph import EdgeType
from graphbraid.graph.csc import Csc
from graphbraid.graph.interop.pyg import stored_of
from graphbraid.graph.types import ONLY_EDGE_TYPE, ONLY_NODE_TYPE, placed
from graphbraid.nn.rgcn import relations_of
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.sample import Sampled, SampledEdges

_FEW_EDGES, _CPU = 1 << 13, torch.device("cpu")
"""Number of edges of a batch up to which sorting them again takes less time than looking for sorted ones."""


@dataclass(eq=False)
class BatchForm:
    """How batches with the same attributes are called."""

    calling: Calling
    given: Given
    """The arguments that the batch can give."""
    held: frozenset[str]
    """The batch's attributes."""
    taken: tuple[str, ...]
    """The call's weights and features of edges, or its matrix."""
    shared: tuple[Any, ...]
    """:func:`shared_of` the call."""
    small: Any = None
    """The model's state and the program that :class:`.BatchRunner` last asked whether a batch is small."""


@dataclass(kw_only=True, eq=False)  # one is made in each step, and frozen ones take three times as long
class BatchCall:
    """One call of a model on a batch."""

    calling: Calling
    values: Mapping[str, Any]
    """The values of the call, by role: ``x``, ``edge_index`` and so on."""
    given: Given
    """The arguments that the batch can give."""
    batch: Any = None
    """The batch, for the order of its hops; None for a call with tensors."""
    seed_type: str | None = None
    """Node type of the seeds, whose outputs are wanted; None in a batch of one type, or without seeds."""
    num_seeds: int | None = None
    """Number of rows that are returned, the first ones; None for all that are computed."""
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Makes the context in which the model runs, but is not read."""
    trims: bool = True
    """Whether only the rows of the batch's seeds, its first hop, need to be computed."""
    form: BatchForm | None = None
    """How the batch is called, if batches with its attributes were called before."""
    shared: tuple[Any, ...] = ()
    """:func:`shared_of` the call, if it is known."""
    drawn: Sampled | None = None
    """The sample that graphbraid's sampler drew for the batch; None if edges may be others than drawn."""
    is_bare: bool = False
    """Whether the batch is of one node type, and the model takes no weights, features or matrix of edges."""
    sampled: list[list[SampledEdges]] | None = field(init=False)
    """The edges of each relation as they were drawn; None if they may be others."""

    def __post_init__(self) -> None:
        self.sampled = None if self.drawn is None else getattr(self.batch, "sampled_edges", None)
        self.drawn = None if self.sampled is None else self.drawn

    @cached_property
    def x(self) -> dict[str, Any]:
        """The features by node type."""
        x: Any = self.values.get(X) if self.batch is None else self.values[X]
        if x is None and self._reads_no_x():  # only the number of rows is looked at
            x = torch.empty(int(self.batch.num_nodes), 0)
        return dict(x) if self.given.typed and isinstance(x, Mapping) else {ONLY_NODE_TYPE: x}

    def _reads_no_x(self) -> bool:
        """Return whether the model gets a batch of one type and none of its features."""
        is_whole = self.calling.takes(DATA) or self.calling.takes(CSC)
        return self.batch is not None and not (self.given.typed or is_whole or self.calling.takes(X))

    @cached_property
    def num_nodes(self) -> dict[str, int]:
        """Number of nodes by type, of those types with features or in the batch."""
        counts = {one: int(rows.shape[0]) for one, rows in self.x.items()}
        return _counts_of(self.batch, counts) | counts if self.given.typed else counts

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """The relations of a batch with types."""
        if not self.given.typed:
            return ()
        by_hop = None if self.sampled is None else getattr(self.batch, "num_sampled_edges_dict", None)
        return tuple(self._lists if by_hop is None else by_hop)

    @property
    def _lists(self) -> Mapping[EdgeType, Any]:
        """The edge lists, or the sparse matrices, by relation."""
        held = self.values[ADJACENCY if self.given.takes_matrix(self.calling) else EDGES]
        return held if self.given.typed else {ONLY_EDGE_TYPE: held}

    @property
    def num_edges(self) -> int:
        """Number of edges of the batch."""
        return sum(self._counts_of_edges().values())

    def _counts_of_edges(self) -> dict[EdgeType, int]:
        if self.given.takes_matrix(self.calling):
            return {one: int(stored_of(matrix)[-2].shape[-1]) for one, matrix in self._lists.items()}
        if self.sampled is not None:
            counts = (sum(len(edges.indices) for edges in records) for records in self.sampled)
            return dict(zip(self.edge_types or (ONLY_EDGE_TYPE,), counts, strict=True))
        edges = self.values.get(EDGES) if self.batch is None else self.values[EDGES]
        lists = edges if isinstance(edges, Mapping) else {ONLY_EDGE_TYPE: edges}
        return {one: int(ends.shape[-1]) for one, ends in lists.items() if isinstance(ends, Tensor)}

    @property
    def _weights(self) -> dict[EdgeType, Tensor]:
        given = self.given
        if given.weights is None:
            return {}
        held: Any = self.values[given.weights]
        return {one: held[one] for one in given.with_weights} if given.typed else {ONLY_EDGE_TYPE: held}

    @property
    def _features(self) -> dict[EdgeType, Tensor]:
        given = self.given
        if given.typed:
            return {one: self.values[EDGE_ATTR][one] for one in given.channels}
        return {} if given.edge_channels is None else {ONLY_EDGE_TYPE: self.values[EDGE_ATTR]}

    @property
    def edge_attr(self) -> dict[int, Tensor]:
        """The features of edges by the number of the relation; of a batch of one type, by 0."""
        numbers = self.edge_types or (ONLY_EDGE_TYPE,)
        return {numbers.index(one): held for one, held in self._features.items()}

    def lacks_matrices(self) -> bool:
        """Return whether some of the matrices that the call takes are not sparse ones."""
        return not all(map(is_matrix, self._lists.values()))

    def breaks(self, model: nn.Module, unaligned: Collection[str] = ()) -> Breaks:
        """Return the inputs of trials for calls without a lowered form: the batch's edges, and more nodes.

        The program runs on batches of any size, so the number of nodes of each type is one that nothing else
        has (:func:`rows_to_try`). ``unaligned`` names values that had as many rows as there are nodes by
        chance, in some batch.
        """
        x, counts = next(iter(self.x.values())), self.num_nodes
        others = (self.num_edges, *self._widths().values())
        num_rows = rows_to_try(model, len(counts), least=max(counts.values()), others=others)
        by_row = {what for what in self._others if self.has_rows(what)} - {*unaligned}
        grows = {*by_row, EDGES_TARGET} if self.given.matrix is not None else by_row
        makers: dict[str, Callable[[], Any]] = {
            target: partial(self._tried_value, what, num_rows[0] if target in grows else None)
            for target, what in ({} if self.given.typed else self._targets).items()
        }
        return Breaks(
            num_rows=num_rows,
            values=makers,
            place=x.device,
            dtype=x.dtype,
            by_row=frozenset(by_row),
            returns=not self.given.typed,
        )

    def _tried_value(self, what: str, num_rows: int | None) -> Any:
        """Return a trial's value. Of a matrix, the last row is repeated, which keeps sorted rows sorted."""
        value = self.values[what]
        if num_rows is None:
            return value
        if what == ADJACENCY and self.given.matrix is not None:
            edges, values = entries_of_matrix(value)
            return self.given.matrix.made(edges, values, num_rows, next(iter(self.x.values())).dtype)
        return value[torch.arange(num_rows, device=value.device).clamp_(max=len(value) - 1)]

    @property
    def _others(self) -> frozenset[str]:
        """The names of the arguments that the model takes beside rows and edges."""
        self.shared = self.shared or shared_of(self.calling, self.given)
        found: frozenset[str] = self.shared[-1]
        return found

    def _why_no_matrix(self, kinds: Collection[Any]) -> str:
        for (source, _, destination), matrix in self._lists.items():
            if not is_matrix(matrix):
                return f"it is a {type(matrix).__name__}, not a sparse matrix in layout CSR, CSC or COO"
            rows, columns = (int(matrix.size(place)) for place in (0, 1))
            counts = [self.num_nodes.get(one) for one in (destination, source)]
            if [rows, columns] != counts:
                there = " and ".join(map(str, dict.fromkeys(counts)))
                return f"it has {rows} rows and {columns} columns, and there are {there} nodes"
            values = stored_of(matrix)[-1]
            if values is not None and (values.dtype, values.device) not in kinds:
                return f"its values are {values.dtype} on {values.device}, and x is not"
        if self.given.matrix is None:
            what = "its values require gradients, or each is a row of numbers"
            return f"{what}, or relations have matrices of several kinds" if self.given.typed else what
        return ""

    def has_rows(self, what: str) -> bool:
        """Return whether a value has a row for each node, as far as its size and name say."""
        value = self.values[what]
        [num_nodes] = self.num_nodes.values()
        is_rows = isinstance(value, Tensor) and value.ndim > 0 and len(value) == num_nodes > 0
        return is_rows and "edge" not in what and "adj" not in what

    def unaligned(self, by_row: Collection[str]) -> list[str]:
        """Return those of the names whose values have no row for each node in this batch."""
        return [what for what in by_row if not self.has_rows(what)]

    def given_to(self, breaks: Sequence[Break]) -> dict[str, Any]:
        """Return the values of the batch that graph breaks read, by the names in their calls."""
        return {target: self.values[self._targets[target]] for op in breaks for target in op.reads}

    @property
    def _targets(self) -> dict[str, str]:
        """The role of each value that graph breaks read, by the name in their calls."""
        edges = EDGES if self.given.matrix is None else ADJACENCY
        targets = {EDGES_TARGET: edges, EDGE_ATTR: EDGE_ATTR, EDGE_TYPE: EDGE_TYPE}
        weights = {} if self.given.weights is None else {WEIGHTS_TARGET: self.given.weights}
        return {**{what: what for what in self._others}, **targets, **weights}

    @property
    def signature(self) -> tuple[Any, ...]:
        """The key of the call's program: calls with equal signatures run one program."""
        given, widths = self.given, tuple(self._widths().items())
        of_edges: tuple[Any, ...] = given.weights, given.edge_channels, given.matrix, given.simple
        if given.typed:
            of_edges += given.with_weights, frozenset(given.channels.items())
        shared = self.shared or shared_of(self.calling, given)
        return shared, *of_edges, self.seed_type, widths, self.edge_types

    def described(self) -> Given:
        """Return the arguments that are available, with the node types and relations of the batch."""
        given = self.given
        if not given.typed:
            [width] = self._widths().values()
            return replace(given, node_types=(only_node_type(width),), others=self._others)
        node_types = tuple(node_type_of(one, width) for one, width in self._widths().items())
        counts, names = [0] * len(node_types), [one.name for one in node_types]
        return replace(
            given, node_types=node_types, relations=tuple(placed(counts, names, [*self.edge_types]))
        )

    def _widths(self) -> dict[str, int]:
        """Return the number of feature columns by node type; 0 without features."""
        return {one: int(self.x[one].shape[1]) if one in self.x else 0 for one in self.num_nodes}

    def why_not(self, parameter: Tensor | None) -> NotLoweredError | None:
        """Return why these arguments cannot go with a parameter of the model; None if they can."""
        kinds = set()
        if parameter is not None and self.batch is not None and self.values[X] is None and self._reads_no_x():
            self.x[ONLY_NODE_TYPE] = self.x[ONLY_NODE_TYPE].to(parameter)
        for one, x in self.x.items():
            if not is_plain(x) or x.ndim != 2 or not x.is_floating_point():
                name = f"x of {one!r}" if self.given.typed else "x"
                return NotLoweredError(name, "it is not one dense matrix of floats with a row per node")
            kinds.add((x.dtype, x.device))
        if parameter is not None:
            kinds.add((parameter.dtype, parameter.device))
        if len(kinds) != 1:
            several = ", ".join(f"{dtype} on {device}" for dtype, device in kinds) or "no features"
            return NotLoweredError("x", f"it and the parameters are {several}", "one dtype and device")
        [(dtype, device)] = kinds
        edges = self.values.get(EDGES)  # of a batch, usually not made
        lists = [] if edges is None else list(edges.values()) if self.given.typed else [edges]
        if self.given.takes_matrix(self.calling):
            if what := self._why_no_matrix(kinds):
                needed = "edge_index, or a matrix beside x with a row for each destination"
                return NotLoweredError(ADJACENCY, what, needed)
        elif not all(_is_edge_list(one, device) for one in lists):
            return NotLoweredError("edge_index", "it is not a dense (2, num_edges) matrix of ids beside x")
        if unknown := sorted({end for one in self.edge_types for end in one[::2]} - self.num_nodes.keys()):
            return NotLoweredError(
                "edge_index", f"how many nodes of type {unknown[0]!r} there are is unknown"
            )
        return self._why_not_edges(dtype, device)

    def fits(self, parameter: Tensor | None) -> bool:
        """Return True only where :meth:`why_not` is None, by a few checks of the most common case.

        That is a drawn batch of one node type, without weights or features of edges, whose ``x`` fits.
        """
        drawn = self.drawn
        if drawn is None or parameter is None or not self.is_bare:
            return False
        x = self.values[X]
        if not is_plain(x) or x.ndim != 2 or x.shape[0] != drawn.n_id_by_type[0].numel():
            return False
        vars(self).update(x={ONLY_NODE_TYPE: x}, num_nodes={ONLY_NODE_TYPE: x.shape[0]})
        return x.is_floating_point() and (x.dtype, x.device) == (parameter.dtype, parameter.device)

    def _why_not_edges(self, dtype: torch.dtype, device: torch.device) -> NotLoweredError | None:
        if (drawn := self.drawn) is not None and len(drawn.n_id_by_type) != len(self.num_nodes):
            return NotLoweredError("x", "it has rows of a node type that the batch lacks")
        if drawn is not None:
            for (one, count), ids in zip(self.num_nodes.items(), drawn.n_id_by_type, strict=True):
                if count != len(ids):
                    what = f"it has {count} rows, and the batch {len(ids)} nodes"
                    return NotLoweredError(f"x of {one!r}" if self.given.typed else "x", what)
        given, values = self.given, {"edge_weight": self._weights, "edge_attr": self._features}
        counts = self._counts_of_edges() if any(values.values()) else {}
        for name, by_relation in values.items():
            for edge_type, held in by_relation.items():
                if held.requires_grad or held.device != device or held.dtype != dtype:
                    what = f"{name} requires a gradient, or has another dtype or device than x"
                    return NotLoweredError(name, what, "a tensor that does not, of one dtype, on one device")
                if len(held) != (count := counts.get(edge_type, 0)):
                    of_relation = f" of {edge_type}" if given.typed else ""
                    what = f"{name}{of_relation} has {len(held)} rows, and there are {count} edges"
                    return NotLoweredError(name, what)
        return None

    def why_not_relations(self, num_relations: int) -> NotLoweredError | None:
        """Return why a batch's ``edge_type`` does not divide its edges into relations; None if it does."""
        if self.given.typed or not num_relations:
            return None
        edge_type, edges = self.values[EDGE_TYPE], self.values[EDGES]
        is_vector = is_plain(edge_type) and edge_type.dtype in (torch.int32, torch.int64)
        if not is_vector or edge_type.shape != edges.shape[1:] or edge_type.device != edges.device:
            return NotLoweredError("edge_type", "it is no vector of integers with a number for each edge")
        if edge_type.numel():
            first, last = (int(end) for end in edge_type.aminmax())
            if first < 0 or last >= num_relations:
                what = f"it goes from {first} to {last}, and the model has {num_relations} relations"
                return NotLoweredError("edge_type", what)
        return None

    def edges(self, num_relations: int = 0) -> BatchEdges:
        """Return the edges of the batch, with their weights if the model receives them.

        ``edge_type`` divides a batch of one type into ``num_relations``.
        """
        drawn, drawn_edges = self.drawn, self.sampled
        is_bare = self.is_bare and not num_relations
        if is_bare and drawn and drawn_edges and drawn.by_hop and self.batch.layout == "subgraph":
            [hop_counts], [[edges]] = drawn.nodes_by_type, drawn_edges  # the most common case
            is_enough = self.trims and (self.num_seeds is None or self.num_seeds <= hop_counts[0])
            return BatchEdges(
                relations=[RelationEdges(drawn=edges)],
                num_nodes=[*self.num_nodes.values()],
                hops=[[*accumulate(hop_counts)]] if is_enough else (),
                is_directed=True,
            )
        weights, counts, batch = self._weights, self.num_nodes, self.batch
        is_drawn = not num_relations and self.given.matrix is None
        sampled, numbers = self.sampled if is_drawn else None, list(counts)
        in_blocks = sampled is not None and batch.layout == "blocks"
        if sampled is None or self.drawn is None or not self.drawn.by_hop or self.given.typed:
            hops = _hops_of(batch, counts, typed=self.given.typed)
        else:
            hops = [[*accumulate(self.drawn.nodes_by_type[0])]]
        # More rows may be wanted than there are seeds, if the user has set batch_size.
        seeds = numbers.index(self.seed_type) if self.seed_type in numbers else 0
        is_enough = self.trims and (
            self.num_seeds is None or self.num_seeds <= (hops[seeds][0] if hops else 0)
        )
        hops = hops if is_enough or in_blocks else []
        if (
            sampled is None
            and batch is not None
            and (few := self._few_edges(hops, num_relations)) is not None
        ):
            return few
        relations = []
        if num_relations:
            [num_nodes] = counts.values()
            by_number = relations_of(self.values[EDGES], self.values[EDGE_TYPE], num_nodes, num_relations)
            relations = [RelationEdges(csc=csc) for csc in by_number]
        elif sampled is not None:
            edge_types = self.edge_types or (ONLY_EDGE_TYPE,)
            for records, edge_type in zip(sampled, edge_types, strict=True):
                source, _, destination = edge_type
                ends, weight = (numbers.index(source), numbers.index(destination)), weights.get(edge_type)
                if in_blocks:
                    of_hops = [hops[end] for end in ends] if hops else []
                    relations.append(_of_blocks(records, ends, of_hops, weight))
                    continue
                [edges] = records
                # A detached tensor keeps its memory where `weight.data` is replaced before backward.
                own = None if weight is None else weight.detach()
                relations.append(RelationEdges(drawn=edges, weight=own, source=ends[0], destination=ends[1]))
        else:
            matrix = self.given.matrix
            for edge_type, ends in self._lists.items():
                source, _, destination = edge_type
                sizes = counts[source], counts[destination]
                if matrix is None:
                    made = RelationEdges.of_list(ends, *sizes, weights.get(edge_type))
                else:
                    made = RelationEdges.of_matrix(ends, *sizes, weighted=matrix.weighted)
                relations.append(
                    replace(made, source=numbers.index(source), destination=numbers.index(destination))
                )
        return BatchEdges(
            relations=relations,
            num_nodes=list(counts.values()),
            hops=hops,
            is_directed=sampled is not None,
        )

    def _few_edges(self, hops: list[list[int]], num_relations: int) -> BatchEdges | None:
        """Return the edges of a batch that has few, divided and sorted by one call of compiled code.

        They have the order that :class:`RelationEdges` has, so that the bits are the same. ``hops`` are the
        nodes of each type up to each hop; empty if the batch does not say.

        Returns:
            None if there are many edges, or an id that is out of range, if levels cannot be trimmed to the
            hops, or if edges with weights or features are not ordered by destination.
        """
        kernels, given, counts = native.kernels(), self.given, self.num_nodes
        by_relation = given.typed and (given.weights is not None or given.channels)
        if kernels is None or given.matrix is not None or by_relation:
            return None
        lists, numbers = [*self._lists.values()], [*counts]
        kinds: Any = self.values[EDGE_TYPE].contiguous() if num_relations else None
        ends = [(numbers.index(source), numbers.index(last)) for source, _, last in self._lists]
        ends *= num_relations or 1  # of one list, if relations are numbers
        ids = lists if kinds is None else [*lists, kinds]
        if not all(_is_edge_list(one, _CPU) for one in lists) or any(one.dtype != torch.int64 for one in ids):
            return None
        if (num_edges := sum(one.shape[1] for one in lists)) > _FEW_EDGES:
            return None
        weight = None if given.weights is None else self.values[given.weights].detach()
        if weight is not None or given.edge_channels is not None:
            ordered = lists[0][1]
            if num_relations or len(lists) > 1 or not bool((ordered[1:] >= ordered[:-1]).all()):
                return None
        by_type = hops or [[count] for count in counts.values()]
        rows = [by_type[end][-1] + 1 for _, end in ends]
        indptr, indices = torch.empty(sum(rows), dtype=torch.int64), torch.empty(num_edges, dtype=torch.int32)
        found = kernels.few_edges(lists, ends, by_type, kinds, indptr, indices)
        if found is None or not found[1]:
            return None
        arrays = zip(ends, indptr.split_with_sizes(rows), indices.split_with_sizes(found[0]), strict=True)
        return BatchEdges(
            relations=[
                RelationEdges(
                    drawn=SampledEdges(indptr=begins, indices=sources, positions=None),
                    weight=weight,
                    source=source,
                    destination=destination,
                )
                for (source, destination), begins, sources in arrays
            ],
            num_nodes=[*counts.values()],
            hops=hops,
            is_directed=True,
        )


def shared_of(calling: Calling, given: Given) -> tuple[Any, ...]:
    """Return the part of a signature that calls of one form share; it ends with their ``_others``."""
    taken = {*calling.roles}
    taken |= given.held if DATA in taken else set()
    known = {X, EDGES, ADJACENCY, CSC, DATA, NUM_NODES, *given.constants}
    others = frozenset() if given.typed else frozenset(taken - known)
    flags = tuple(given.constants.items())
    return calling.positional, tuple(calling.named.items()), given.data_class, flags, others


def _is_edge_list(edges: Any, device: torch.device) -> bool:
    fits = is_plain(edges) and edges.ndim == 2 and edges.shape[0] == 2 and edges.device == device
    return fits and edges.dtype in (torch.int32, torch.int64)


def _of_blocks(
    records: Sequence[SampledEdges],
    ends: tuple[int, int],
    hops: Sequence[Sequence[int]],
    weight: Tensor | None,
) -> RelationEdges:
    """Return a relation's edges as they were sampled, hop by hop, outermost first."""
    blocks, starts, (sources, destinations) = [], (0, *accumulate(len(one.indices) for one in records)), hops
    for hop, edges in reversed([*enumerate(records)]):
        own = None if weight is None else weight[starts[hop] : starts[hop + 1]]
        indptr = edges.indptr[: destinations[hop] + 1]
        blocks.append(Csc(indptr, edges.indices, sources[hop + 1], own, trusted=True))
    return RelationEdges(blocks=tuple(blocks), starts=starts[-2::-1], source=ends[0], destination=ends[1])


def _counts_of(batch: Any, known: Mapping[str, int]) -> dict[str, int]:
    """Return the number of nodes of each type of a batch, as far as unknown; empty if there is no batch."""
    if isinstance(batch, MiniBatch):
        return {one: ids.numel() for one, ids in batch.n_id_dict.items()}
    stores = () if batch is None else batch.node_items()
    counts = ((one, known.get(one) or store.num_nodes) for one, store in stores)  # PyG counts for long
    return {one: count for one, count in counts if count is not None}


def _hops_of(batch: Any, num_nodes: Mapping[str, int], *, typed: bool) -> list[list[int]]:
    """Return the nodes of each type up to each hop; empty if the batch does not say, or not of all nodes."""
    counts: list[Any]
    if not typed:
        counts = [getattr(batch, "num_sampled_nodes", None)]
    elif isinstance(batch, MiniBatch):
        counts = [getattr(batch, "num_sampled_nodes_dict", {}).get(one) for one in num_nodes]
    else:
        stores: dict[str, Any] = {} if batch is None else dict(batch.node_items())
        counts = [stores[one].get("num_sampled_nodes") if one in stores else None for one in num_nodes]
    if not all(isinstance(one, list) and one for one in counts) or len({len(one) for one in counts}) != 1:
        return []
    hops = [list(accumulate(map(int, one))) for one in counts]
    fits = all(of_type[-1] == count for of_type, count in zip(hops, num_nodes.values(), strict=True))
    return hops if fits else []

"""The reference sampler in NumPy: tests compare all others with it, and it runs where kernels are missing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphbraid.arguments import as_count
from graphbraid.errors import DataError
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.scans import check_ids, first_unsound_weight
from graphbraid.graph.types import Types, only_types
from graphbraid.native import plain_errors
from graphbraid.ops import rng
from graphbraid.ops.library import derived
from graphbraid.sampling.batch_seeds import Constraints, EdgeTimes
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.sample import NeighborLists, Sampled, SampledEdges
from graphbraid.signatures import typed

I64 = npt.NDArray[np.int64]


@typed
def sample_batch(
    graph: Graph | Csc, config: SamplerConfig, seeds: Tensor, key: int, seed_type: str | None = None
) -> Sampled:
    """Sample one mini-batch.

    Each hop takes the relations in their order. A relation draws for the nodes of its destinations' type that
    the last hop found (in layout ``blocks``, for all), and new sources get the next local ids of their type.

    Args:
        graph: the graph, or its adjacency if it has one type; if ``config.weighted``, neighbours are drawn in
            proportion to its weights.
        config: options of the sampler.
        seeds: ``(batch,)`` int64 ids of nodes of ``seed_type``. Each copy of a repeated seed keeps a row of
            its own; edges from that node refer to the first.
        key: ``rng.batch_key(seed, epoch, step)``.
        seed_type: node type of the seeds. If None, seeds are of any type, as ids in the whole graph.

    Raises:
        ConfigError: ``key`` is not an integer of 64 bits.
        DataError: there is no such type, a seed is not a node of it, fanouts are not those of the relations,
            or weights are needed and are missing or negative.
    """
    types = only_types(graph) if isinstance(graph, Csc) else graph.all_types
    number = config.type_of_seeds(types, seed_type)
    if config.weighted:
        check_odds(types.rows)
    check_ids(seeds, types.num_nodes if seed_type is None else types.nodes[seed_type].num_nodes, "seeds")
    return sample_checked(types, config, number, seeds, as_count(key, "key", most=rng.MASK))


def check_odds(csc: Csc) -> None:
    """Raise DataError for the first weight that cannot be drawn by; reads them once per graph."""
    if csc.weight is None:
        raise DataError("drawing by weight needs edge weights; the graph has none")
    weight = csc.weight
    position = derived(csc, "unsound_odds", lambda: first_unsound_weight(weight, may_be_negative=False))
    if position >= 0:
        raise DataError(
            "edge weights must be finite and not negative to draw by them; "
            f"weight[{position}] is {float(weight[position]):g}"
        )


def sample_checked(
    types: Types,
    config: SamplerConfig,
    seed_type: int | None,
    seeds: Tensor,
    key: int,
    *,
    lists: NeighborLists | None = None,
    constraints: Constraints | None = None,
    edge_times: EdgeTimes | None = None,
) -> Sampled:
    """Sample one mini-batch as :func:`sample_batch` does, from arguments that have been checked.

    Without ``seed_type``, seeds are ids in the whole graph. ``lists``, if given, replaces
    ``types.rows.indices`` of a graph of one relation. ``constraints``, if given, limit the draws; their
    ``times`` need the rows of each relation sorted by ``edge_times``.
    """
    sizes = [max(nodes.num_nodes, 1) for nodes in types.nodes.values()]
    disjoint = constraints is not None and constraints.disjoint
    names = _seed_names(types, seed_type, seeds.numpy().astype(np.int64), sizes if disjoint else None)
    rows, relations = types.rows, types.relations()
    drawn: list[list[tuple[I64, I64, I64]]] = [[] for _ in relations]
    nodes_per_hop = [[len(ids)] for ids in names]
    known = [0] * len(sizes)  # nodes of each type that the hops before the last found
    by_layer = config.layout == "blocks"
    for hop in range(len(config.fanouts)):
        ends = [len(ids) for ids in names]
        for relation, fanouts in zip(relations, config.all_fanouts, strict=True):
            type_ = relation.destination
            drawing = names[type_][0 if by_layer else known[type_] : ends[type_]]
            nodes, trees = drawing % sizes[type_], drawing // sizes[type_]
            own_key = rng.tree_keys(key, trees) if disjoint else key
            keys = rng.relation_keys(own_key, hop, relation.number, nodes)
            at = relation.first_row + nodes * relation.stride
            if constraints is None:
                counts, positions = draw_rows(rows, config, at, fanouts[hop], keys)
            else:
                has_times = edge_times is not None and relation.number not in edge_times.untimed
                counts, positions = draw_constrained(
                    rows,
                    config,
                    at,
                    trees,
                    fanouts[hop],
                    keys=keys,
                    constraints=constraints,
                    edge_times=edge_times if has_times else None,
                )
            found = _sources(rows, lists, at, counts, positions) - relation.first_source
            found += np.repeat(trees * sizes[relation.source], counts)
            names[relation.source], local = relabel(names[relation.source], found)
            drawn[relation.number].append((counts, local, positions))
        for type_ in range(len(sizes)):
            nodes_per_hop[type_].append(len(names[type_]) - ends[type_])
        known = ends
    return Sampled(
        n_id_by_type=[torch.from_numpy(ids % size) for ids, size in zip(names, sizes, strict=True)],
        edges_by_relation=[[*edges_of_hops(hops, config)] for hops in drawn],
        nodes_by_type=nodes_per_hop,
        counts_by_relation=[[len(local) for _, local, _ in hops] for hops in drawn],
        trees_by_type=[torch.from_numpy(ids // size) for ids, size in zip(names, sizes, strict=True)]
        if disjoint
        else None,
    )


def _seed_names(types: Types, seed_type: int | None, seeds: I64, sizes: list[int] | None) -> list[I64]:
    """Return the seeds by type as ids within it; with ``sizes``, ids and trees in one."""
    first = np.array(types.first_ids)
    if seed_type is None:
        of_type = np.searchsorted(first, seeds, side="right") - 1
        seeds = seeds - first[of_type]
    else:
        of_type = np.full(len(seeds), seed_type)
    if sizes is not None:
        seeds = seeds + np.arange(len(seeds)) * np.array(sizes)[of_type]
    return [seeds[of_type == number] for number in range(len(types.nodes))]


def _sources(csc: Csc, lists: NeighborLists | None, rows: I64, counts: I64, positions: I64) -> I64:
    reader = None if lists is None else lists.native
    if reader is None:
        found: I64 = csc.indices.numpy()[positions].astype(np.int64)
        return found
    out = torch.empty(len(positions), dtype=torch.int64)
    ends = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
    with plain_errors():
        reader.read(csc.indptr, torch.from_numpy(rows), ends, torch.from_numpy(positions), out)
    return out.numpy()


def edges_of_hops(hops: list[tuple[I64, I64, I64]], config: SamplerConfig) -> Iterator[SampledEdges]:
    """Join hops of degrees, local sources and positions of edges, but for layout ``blocks``."""
    for record in [[hop] for hop in hops] if config.layout == "blocks" else [hops]:
        of_hops = record or [(np.zeros(0, np.int64),) * 3]
        counts, local, positions = (np.concatenate(parts) for parts in zip(*of_hops, strict=True))
        yield SampledEdges(
            indptr=torch.from_numpy(np.concatenate([[0], np.cumsum(counts)])),
            indices=torch.from_numpy(local.astype(np.int32)),
            positions=torch.from_numpy(positions) if config.return_edge_id else None,
        )


def relabel(n_id: I64, found: I64) -> tuple[I64, I64]:
    """Assign local ids to ``found`` in order of first appearance; return the longer ``n_id`` and the ids."""
    ids, first, inverse = np.unique(np.concatenate([n_id, found]), return_index=True, return_inverse=True)
    is_new = first >= len(n_id)
    order = np.argsort(first[is_new])
    local_of = first.copy()  # an id already in n_id keeps the position of its first copy
    new = np.flatnonzero(is_new)[order]
    local_of[new] = len(n_id) + np.arange(len(new))
    return np.concatenate([n_id, ids[new]]), local_of[inverse[len(n_id) :]]


def draw_rows(csc: Csc, config: SamplerConfig, rows: I64, fanout: int, keys: rng.U64) -> tuple[I64, I64]:
    """Draw for each row; return the number of edges per row and their positions in ``csc.indices``."""
    indptr = csc.indptr.numpy()
    start, degree = indptr[rows], indptr[rows + 1] - indptr[rows]
    if config.weighted:
        assert csc.weight is not None
        weight = csc.weight.numpy()
        drawn = [
            s + _draw_weighted(weight[s : s + d], config, fanout, key)
            for s, d, key in zip(start, degree, keys, strict=True)
        ]
        return np.array([len(row) for row in drawn], dtype=np.int64), np.concatenate([*drawn, start[:0]])
    if config.replace:
        counts = np.where(degree > 0, fanout, 0)
        draws = start[:, None] + rng.bounded(rng.draws(keys, fanout), degree.astype(np.uint64)[:, None])
    else:
        counts = degree if fanout < 0 else np.minimum(degree, fanout)
        draws = start[:, None] + _floyd(keys, degree, max(fanout, 0))
    takes_all = (counts == degree) & ~np.bool_(config.replace)
    offset = np.concatenate([[0], np.cumsum(counts)])
    place = np.arange(offset[-1]) - np.repeat(offset[:-1], counts)  # index of each edge within its row
    row = np.repeat(np.arange(len(rows)), counts)
    if draws.shape[1] == 0:
        return counts, start[row] + place
    return counts, np.where(
        takes_all[row], start[row] + place, draws[row, np.minimum(place, draws.shape[1] - 1)]
    )


def draw_constrained(
    csc: Csc,
    config: SamplerConfig,
    rows: I64,
    trees: I64,
    fanout: int,
    *,
    keys: rng.U64,
    constraints: Constraints,
    edge_times: EdgeTimes | None,
) -> tuple[I64, I64]:
    """Draw for each row of a tree as :func:`draw_rows` does, among the edges that constraints allow it.

    It draws as from a list of these alone. Without ``edge_times`` edges have no times, and all are early
    enough.
    """
    drawn: list[I64] = []
    last = edge_times is not None and edge_times.last
    for number, (one, tree) in enumerate(zip(rows, trees, strict=True)):
        edges = _allowed(csc, one, tree, constraints, edge_times)
        among = torch.from_numpy(edges[max(len(edges) - fanout, 0) :] if last and fanout >= 0 else edges)
        row = Csc(
            torch.tensor([0, among.numel()]),
            among,
            csc.num_src,
            None if csc.weight is None else csc.weight[among],
            trusted=True,
        )
        _, offsets = draw_rows(row, config, np.zeros(1, np.int64), fanout, keys[number : number + 1])
        drawn.append(among.numpy()[offsets])
    counts = np.array([len(row) for row in drawn], dtype=np.int64)
    return counts, np.concatenate([*drawn, np.zeros(0, np.int64)])


def _allowed(csc: Csc, row: int, tree: int, constraints: Constraints, edge_times: EdgeTimes | None) -> I64:
    """Return the positions of the edges in ``row`` that its tree may have, ascending."""
    indptr = csc.indptr.numpy()
    positions: I64 = np.arange(indptr[row], indptr[row + 1])
    if constraints.times is not None and edge_times is not None:
        positions = positions[edge_times.time.numpy()[positions] <= int(constraints.times[tree])]
    if constraints.excluded is not None:
        positions = positions[~np.isin(positions, constraints.excluded.numpy())]
    return positions


def _floyd(keys: rng.U64, degree: I64, k: int) -> I64:
    """Return ``(rows, k)`` distinct offsets by Floyd's algorithm; meaningful for rows with degree > k.

    Each neighbour is chosen with probability k/degree: the bound of draw i is inclusive,
    ``[0, degree - k + i]``, and an offset already taken is replaced by the bound.
    """
    chosen = np.full((len(keys), k), -1, dtype=np.int64)
    bits = rng.draws(keys, k)
    for i in range(k):
        bound = np.maximum(degree - k + i, 0)
        t = rng.bounded(bits[:, i], (bound + 1).astype(np.uint64))
        taken = (chosen[:, :i] == t[:, None]).any(1)
        chosen[:, i] = np.where(taken, bound, t)
    return chosen


def _draw_weighted(
    weight: npt.NDArray[np.float32], config: SamplerConfig, fanout: int, key: np.uint64
) -> I64:
    """Return offsets drawn by weight: an exponential race without replacement, inversion with replacement.

    Twin of ``csrc/sampling/sample_row.inl``.
    """
    runners: I64 = np.flatnonzero(weight > 0)
    if config.replace:
        running = np.cumsum(np.where(weight > 0, weight, 0).astype(np.float64))
        if len(runners) == 0:
            return runners
        draws = rng.draws(np.array([key]), fanout)[0].astype(np.float64)
        found: I64 = np.searchsorted(running, (draws + 0.5) * 2.0**-32 * running[-1], side="right")
        return found
    if fanout < 0 or len(runners) <= fanout:
        return runners
    bits = rng.draws(np.array([key]), len(weight))[0][runners]
    arrival = -rng.log_of_draw(bits) / weight[runners].astype(np.float64)
    return runners[np.lexsort((runners, arrival))[:fanout]]

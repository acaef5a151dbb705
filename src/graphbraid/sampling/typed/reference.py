"""The reference sampler of graphs with types in NumPy: that of one relation, for each of each hop."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphbraid.arguments import as_count
from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc
from graphbraid.graph.scans import check_ids
from graphbraid.graph.types import Types
from graphbraid.sampling import rng
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.constraints import Constraints, EdgeTimes
from graphbraid.sampling.reference import check_odds, draw_constrained, draw_rows, edges_of_hops, relabel
from graphbraid.sampling.typed.config import TypedConfig
from graphbraid.sampling.typed.sample import TypedSampled

I64 = npt.NDArray[np.int64]


def sample_typed(types: Types, config: TypedConfig, seed_type: str, seeds: Tensor, key: int) -> TypedSampled:
    """Sample one mini-batch.

    Each hop takes the relations in their order. A relation draws for the nodes of its destinations' type that
    the last hop found (in layout ``blocks``, for all), and new sources get the next local ids of their type.

    Args:
        types: types and relations of the graph.
        config: options of the sampler.
        seed_type: node type of the seeds.
        seeds: ``(batch,)`` int64 ids of that type; each copy of a repeated seed keeps a row of its own.
        key: ``rng.batch_key(seed, epoch, step)``.

    Raises:
        ConfigError: ``key`` is not an integer of 64 bits.
        DataError: there is no such type, a seed is not a node of it, fanouts are not those of the relations,
            or weights are needed and are missing or negative.
    """
    if seed_type not in types.nodes:
        raise DataError(f"there is no node type {seed_type!r} to draw seeds of")
    if len(config.relations) != len(types.edges):
        raise DataError(f"there are {len(types.edges)} relations and fanouts for {len(config.relations)}")
    if config.options.weighted:
        check_odds(types.rows)
    check_ids(seeds, types.nodes[seed_type].num_nodes, "seeds")
    return sample_checked(
        types, config, list(types.nodes).index(seed_type), seeds, as_count(key, "key", most=rng.MASK)
    )


def sample_checked(
    types: Types,
    config: TypedConfig,
    seed_type: int | None,
    seeds: Tensor,
    key: int,
    *,
    constraints: Constraints | None = None,
    edge_times: EdgeTimes | None = None,
) -> TypedSampled:
    """Sample one mini-batch as :func:`sample_typed` does, from arguments that have been checked.

    Without ``seed_type``, seeds are ids in the whole graph. Draws keep to ``constraints``, if given, for
    whose ``times`` the rows of each relation are sorted by ``edge_times``.
    """
    relations, disjoint = types.relations(), constraints is not None and constraints.disjoint
    sizes = [max(nodes.num_nodes, 1) for nodes in types.nodes.values()]
    # What nodes are told apart by: their ids, or, where trees are disjoint, their ids and trees in one.
    names = _seed_names(types, seed_type, seeds.numpy().astype(np.int64), sizes if disjoint else None)
    drawn: list[list[tuple[I64, I64, I64]]] = [[] for _ in relations]
    nodes_per_hop = [[len(ids)] for ids in names]
    known = [0] * len(sizes)  # nodes of each type that the hops before the last found
    by_layer = config.options.layout == "blocks"
    for hop in range(config.num_hops):
        ends = [len(ids) for ids in names]
        for relation, options in zip(relations, config.relations, strict=True):
            type_ = relation.destination
            drawing = names[type_][0 if by_layer else known[type_] : ends[type_]]
            nodes, trees = drawing % sizes[type_], drawing // sizes[type_]
            own_key = rng.tree_keys(key, trees) if disjoint else key
            keys = rng.relation_keys(own_key, hop, relation.number, nodes)
            times = None if edge_times is None or relation.number in edge_times.untimed else edge_times
            rows = relation.first_row + nodes * relation.stride
            counts, positions = _draw(
                types.rows,
                options,
                rows,
                trees,
                options.fanouts[hop],
                keys=keys,
                constraints=constraints,
                edge_times=times,
            )
            found = types.rows.indices.numpy()[positions].astype(np.int64) - relation.first_source
            found += np.repeat(trees * sizes[relation.source], counts)
            names[relation.source], local = relabel(names[relation.source], found)
            drawn[relation.number].append((counts, local, positions))
        for type_ in range(len(sizes)):
            nodes_per_hop[type_].append(len(names[type_]) - ends[type_])
        known = ends
    return TypedSampled(
        n_id=[torch.from_numpy(ids % size) for ids, size in zip(names, sizes, strict=True)],
        edges=[
            [
                edges_of_hops(group, config.options)
                for group in ([[hop] for hop in hops] if by_layer else [hops])
            ]
            for hops in drawn
        ],
        nodes_per_hop=nodes_per_hop,
        edges_per_hop=[[len(local) for _, local, _ in hops] for hops in drawn],
        trees=[torch.from_numpy(ids // size) for ids, size in zip(names, sizes, strict=True)]
        if disjoint
        else None,
    )


def _draw(
    csc: Csc,
    options: SamplerConfig,
    rows: I64,
    trees: I64,
    fanout: int,
    *,
    keys: rng.U64,
    constraints: Constraints | None,
    edge_times: EdgeTimes | None,
) -> tuple[I64, I64]:
    """Draw for each row, among the edges that constraints, if there are any, allow its tree."""
    if constraints is None:
        return draw_rows(csc, options, rows, fanout, keys)
    return draw_constrained(
        csc, options, rows, trees, fanout, keys=keys, constraints=constraints, edge_times=edge_times
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

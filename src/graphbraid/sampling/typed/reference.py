"""The reference sampler of graphs with types in NumPy: that of one relation, for each of each hop."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphbraid.arguments import as_count
from graphbraid.errors import DataError
from graphbraid.graph.scans import check_ids
from graphbraid.graph.types import Types
from graphbraid.sampling import rng
from graphbraid.sampling.reference import check_odds, draw_rows, edges_of_hops, relabel
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
    types: Types, config: TypedConfig, seed_type: int, seeds: Tensor, key: int
) -> TypedSampled:
    """Sample one mini-batch as :func:`sample_typed` does, from arguments that have been checked."""
    relations, num_types = types.relations(), len(types.nodes)
    n_id: list[I64] = [np.zeros(0, np.int64) for _ in range(num_types)]
    n_id[seed_type] = seeds.numpy().astype(np.int64)
    drawn: list[list[tuple[I64, I64, I64]]] = [[] for _ in relations]
    nodes_per_hop = [[len(ids)] for ids in n_id]
    known = [0] * num_types  # nodes of each type that the hops before the last found
    by_layer = config.options.layout == "blocks"
    for hop in range(config.num_hops):
        ends = [len(ids) for ids in n_id]
        for relation, options in zip(relations, config.relations, strict=True):
            type_ = relation.destination
            nodes = n_id[type_][0 if by_layer else known[type_] : ends[type_]]
            keys = rng.relation_keys(key, hop, relation.number, nodes)
            rows = relation.first_row + nodes * relation.stride
            counts, positions = draw_rows(types.rows, options, rows, options.fanouts[hop], keys)
            found = types.rows.indices.numpy()[positions].astype(np.int64) - relation.first_source
            n_id[relation.source], local = relabel(n_id[relation.source], found)
            drawn[relation.number].append((counts, local, positions))
        for type_ in range(num_types):
            nodes_per_hop[type_].append(len(n_id[type_]) - ends[type_])
        known = ends
    return TypedSampled(
        n_id=[torch.from_numpy(ids) for ids in n_id],
        edges=[
            [
                edges_of_hops(group, config.options)
                for group in ([[hop] for hop in hops] if by_layer else [hops])
            ]
            for hops in drawn
        ],
        nodes_per_hop=nodes_per_hop,
        edges_per_hop=[[len(local) for _, local, _ in hops] for hops in drawn],
    )

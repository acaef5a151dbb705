"""The reference of budget sampling; :mod:`graphbraid.sampling.reference` is the one of sampling by fanouts.

HGSampling of Hu et al., "Heterogeneous Graph Transformer" (2020), as PyG's ``HGTLoader`` has it. A node that
joins the sample gives each in-neighbour outside of it ``1 / d`` of budget, for each relation of ``d``
in-edges. Each hop draws a number of nodes of each type without replacement, with probability proportional to
the square of their budget. All edges between sampled nodes are then found. A node with more than
:data:`MOST_READ` in-edges in a relation reads only so many, drawn anew at each hop and for the edges.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from graphbraid.graph.types import Types
from graphbraid.sampling import rng
from graphbraid.sampling.config import MOST_READ, SamplerConfig
from graphbraid.sampling.reference import I64, draw_rows, edges_of_hops
from graphbraid.sampling.sample import Sampled

_DRAWN = SamplerConfig(fanouts=(MOST_READ,))


def sample_budget(types: Types, config: SamplerConfig, seed_type: int, seeds: Tensor, key: int) -> Sampled:
    """Sample one mini-batch: the twin of ``csrc/sampling/budget_sample.inl``, to the bit.

    Args:
        types: the graph.
        config: options with ``num_samples``.
        seed_type: number of the seeds' type.
        seeds: ``(batch,)`` int64 ids within the type. Each copy of a repeated seed keeps a row; edges from
            that node refer to the first.
        key: the batch's key.
    """
    assert config.num_samples is not None, "samples by a budget"
    num_types, relations = len(types.nodes), types.relations()
    names = [np.zeros(0, np.int64) for _ in range(num_types)]
    names[seed_type] = seeds.numpy().astype(np.int64)
    local: list[dict[int, int]] = [{} for _ in range(num_types)]
    for place, seed in enumerate(names[seed_type].tolist()):
        local[seed_type].setdefault(seed, place)
    budgets: list[dict[int, float]] = [{} for _ in range(num_types)]
    newest, nodes_per_hop = list(names), [[len(ids)] for ids in names]
    for hop in range(len(config.fanouts)):
        for relation in relations:
            nodes = newest[relation.destination]
            counts, _, sources = _read(types, relation.number, nodes, key, hop)
            shares = np.repeat(1.0 / np.maximum(counts, 1), counts)
            budget, known = budgets[relation.source], local[relation.source]
            for source, share in zip(sources.tolist(), shares.tolist(), strict=True):
                if source not in known:
                    budget[source] = budget.get(source, 0.0) + share
        for number in range(num_types):
            count = config.num_samples[number][hop]
            chosen = _drawn(budgets[number], count, key, hop, len(relations) + number)
            for place, node in enumerate(chosen.tolist(), len(names[number])):
                local[number][node] = place
                del budgets[number][node]
            newest[number] = chosen
            nodes_per_hop[number].append(len(chosen))
            names[number] = np.concatenate([names[number], chosen])
    edges = []
    for relation in relations:
        nodes, known = names[relation.destination], local[relation.source]
        counts, positions, sources = _read(types, relation.number, nodes, key, len(config.fanouts))
        found = np.array([known.get(source, -1) for source in sources.tolist()], dtype=np.int64)
        rows = np.repeat(np.arange(len(nodes)), counts)[found >= 0]
        counts = np.bincount(rows, minlength=len(nodes))
        edges.append([edges_of_hops([(counts, found[found >= 0], positions[found >= 0])], config)])
    return Sampled(
        n_id_by_type=[torch.from_numpy(ids) for ids in names],
        edges_by_relation=edges,
        nodes_by_type=nodes_per_hop,
        counts_by_relation=[[one.indices.numel(), *[0] * (len(config.fanouts) - 1)] for [one] in edges],
        by_hop=False,
    )


def _read(types: Types, number: int, nodes: I64, key: int, hop: int) -> tuple[I64, I64, I64]:
    """Return the in-edges that some destinations of a relation read.

    The result is their number by node, and the position and source of each edge.
    """
    relation = types.relations()[number]
    keys = rng.relation_keys(key, hop, number, nodes)
    at = relation.first_row + nodes * relation.stride
    counts, positions = draw_rows(types.rows, _DRAWN, at, MOST_READ, keys)
    sources = types.rows.indices.numpy()[positions].astype(np.int64) - relation.first_source
    return counts, positions, sources


def _drawn(budget: dict[int, float], count: int, key: int, hop: int, race: int) -> I64:
    """Return the first ``count`` nodes of an exponential race by squared budgets."""
    nodes = np.array(list(budget), dtype=np.int64)
    squared = np.array(list(budget.values()), dtype=np.float64) ** 2
    bits = rng.draws(rng.relation_keys(key, hop, race, nodes), 1)[:, 0]
    arrival = -rng.log_of_draw(bits) / squared
    chosen: I64 = nodes[np.lexsort((np.arange(len(nodes)), arrival))[:count]]
    return chosen

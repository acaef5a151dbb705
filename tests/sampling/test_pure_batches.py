"""Batches of each loader are a function of seed, epoch and step: threads, restarts, pickles change none."""

import pickle
from functools import partial

import pytest
import torch
from tests.beside_pyg import Data
from tests.graph.typed_cases import PAPERS, bibliography
from tests.sampling.graphs import drawn_data
from tests.sampling.test_shadow import make_data

from graphbraid.loader import (
    ClusterData,
    ClusterLoader,
    HGTLoader,
    LinkNeighborLoader,
    NeighborLoader,
    ShaDowKHopSampler,
)
from graphbraid.sampling import NegativeSampling

DATA = make_data(200, 1200)
TIMED = Data(
    **make_data(200, 1200).to_dict(),
    edge_time=torch.arange(1200) % 20,
    edge_weight=torch.arange(1200) % 7 + 0.5,
)
HETERO = drawn_data(
    {"author": 60, "paper": 200}, {("author", "to", "paper"): 700, ("paper", "to", "author"): 600}
)
NODES = partial(NeighborLoader, DATA, [4, 3], batch_size=16)
TIMES = partial(
    NeighborLoader, TIMED, [4, 3], batch_size=16, time_attr="edge_time", input_time=torch.arange(200) % 20
)
LINKS = partial(LinkNeighborLoader, DATA, [4, 3], DATA.edge_index[:, :300], batch_size=40)
NEGATIVES = {
    "no negatives": None,
    "binary": "binary",
    "triplet": NegativeSampling("triplet", 2, reject_edges=True),
}
LOADERS = {
    "nodes": NODES,
    "induced": partial(NODES, subgraph_type="induced"),
    "bidirectional": partial(NODES, subgraph_type="bidirectional"),
    "times": TIMES,
    "times, replaced": partial(TIMES, replace=True),
    "times, weighted": partial(TIMES, weight_attr="edge_weight"),
    "times, blocks": partial(TIMES, layout="blocks"),
    **{
        f"links, {name}, {options}": partial(LINKS, neg_sampling=how, **options)
        for name, how in NEGATIVES.items()
        for options in ({}, {"disjoint": True}, {"exclude_seed_edges": "reverse"})
    },
    "ego networks": partial(ShaDowKHopSampler, DATA, 2, 2, batch_size=16),
    "clusters": partial(ClusterLoader, ClusterData(DATA, 20, strategy="contiguous"), batch_size=2),
    "budget": partial(HGTLoader, HETERO, [12, 12], "paper", batch_size=24),
    "types": partial(NeighborLoader, bibliography(), [3, 2], ("paper", torch.arange(PAPERS)), batch_size=6),
}


def contents(batch):
    """All tensors of a batch by what they are called."""
    if "blocks" in getattr(batch, "layout", ""):
        return {"n_id": batch.n_id} | {number: one.indices for number, one in enumerate(batch.blocks)}
    found = {(getattr(one, "_key", None), name): value for one in batch.stores for name, value in one.items()}
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def are_same(batches, expected):
    pairs = list(zip(map(contents, batches), expected, strict=True))
    assert all(found.keys() == known.keys() != set() for found, known in pairs)
    return all(torch.equal(found[name], known[name]) for found, known in pairs for name in known)


@pytest.mark.parametrize("name", LOADERS)
def test_batches_depend_on_seed_epoch_and_step_alone(name):
    make = partial(LOADERS[name], shuffle=True)
    one, three = make(seed=7), make(seed=7, num_workers=3)
    expected = list(map(contents, one.batches(1)))
    assert are_same(three.batches(1), expected)
    assert are_same(three.batches(1, start_step=5), expected[5:])  # in the middle of an epoch
    assert are_same(three.batches(1, start_step=2, stop_step=3), expected[2:3])
    again = pickle.loads(pickle.dumps(one))
    assert type(again) is type(one)
    assert are_same(again.batches(1), expected)
    assert not are_same(three.batches(0), expected)
    assert not are_same(make(seed=8).batches(1), expected)
    torch.manual_seed(1)
    first = make(seed=None).seed
    torch.manual_seed(1)
    assert first == make(seed=None).seed

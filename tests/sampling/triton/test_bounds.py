"""What a batch can hold at most, against what batches hold."""

import importlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.extras import NO_TRITON
from tests.sampling.graphs import power_law_csc

from graphbraid.sampling import SamplerConfig, sample_batch


@pytest.fixture(scope="module")
def bounds():
    pytest.importorskip("triton", reason=NO_TRITON)
    return importlib.import_module("graphbraid.sampling.triton.relabel")


@given(data=st.data())
def test_no_batch_holds_more_than_its_bounds(bounds, data):
    nodes = data.draw(st.integers(1, 40))
    csc = power_law_csc(nodes, data.draw(st.integers(0, 300)), seed=data.draw(st.integers(0, 9)))
    replace = data.draw(st.booleans())
    fanouts = st.lists(st.integers(0 if replace else -1, 9), min_size=1, max_size=4)
    config = SamplerConfig(
        fanouts=tuple(data.draw(fanouts)),
        replace=replace,
        layout=data.draw(st.sampled_from(["subgraph", "blocks"])),
    )
    seeds = torch.tensor(data.draw(st.lists(st.integers(0, nodes - 1), min_size=1, max_size=12)))
    sampled = sample_batch(csc, config, seeds, data.draw(st.integers(0, 2**64 - 1)))
    seed_edges = int(csc.degrees()[seeds].sum())
    batch = bounds.BatchBounds(
        bounds.GraphBounds.of(csc, config), config, num_seeds=len(seeds), seed_edges=seed_edges
    )
    for hop, edges in enumerate(sampled.edges_per_hop):
        known = sum(sampled.nodes_per_hop[: hop + 1])
        rows = known if config.layout == "blocks" else sampled.nodes_per_hop[hop]
        assert rows <= batch.rows
        assert edges <= batch.edges
        batch.advance(batch.edges)
        assert known + sampled.nodes_per_hop[hop + 1] <= batch.nodes <= len(seeds) + nodes
    assert len(seeds) + sum(sampled.edges_per_hop) <= batch.positions


def test_all_neighbours_are_bounded_by_the_largest_rows(bounds):
    csc = power_law_csc(100, 1000)
    config = SamplerConfig(fanouts=(2, -1))
    batch = bounds.BatchBounds(bounds.GraphBounds.of(csc, config), config, num_seeds=3, seed_edges=0)
    assert batch.edges == 6
    batch.advance(6)
    assert batch.edges == int(csc.degrees().sort(descending=True).values[:6].sum())

"""The parts that draws are made of mean in Triton what they mean in Python; what a batch holds at most."""

import importlib

import numpy as np
import pytest
import torch
from hypothesis import given
from tests.extras import NO_TRITON
from tests.sampling.graphs import power_law_csc
from tests.sampling.triton.test_sampler import drawn_samples

from graphbraid.ops import rng
from graphbraid.sampling import SamplerConfig, sample_batch
from graphbraid.sampling.config import permuted


@pytest.fixture(scope="module")
def kernels(device):
    pytest.importorskip("triton", reason=NO_TRITON)
    return importlib.import_module("tests.sampling.triton.part_kernels")


@pytest.mark.parametrize("seed", [0, 2**62 + 5])
def test_a_million_draws_agree(device, kernels, seed):
    nodes = np.concatenate([np.arange(500), 2**31 + np.arange(250), 2**40 + np.arange(250)])
    draws = 1000 if seed == 0 else 250
    key = rng.batch_key(seed, 7, 123456)
    expected = rng.draws(rng.row_keys(key, 3, nodes), draws).astype(np.int64).ravel()
    out = torch.empty(len(expected), dtype=torch.int64, device=device)
    kernels.draws(torch.from_numpy(nodes).to(device), draws, key, 3, out)
    assert np.array_equal(out.cpu().numpy(), expected)


@pytest.mark.parametrize("bound", [1, 2, 7, 2**31, 2**32 - 1])
def test_bounded_draws_agree(device, kernels, bound):
    bits = np.concatenate([np.arange(5), 2**32 - 1 - np.arange(5)]).astype(np.int64)
    out = torch.empty(len(bits), dtype=torch.int64, device=device)
    kernels.bounded_draws(torch.from_numpy(bits).to(device), bound, out)
    assert out.tolist() == rng.bounded(bits.astype(np.uint64), np.uint64(bound)).tolist()


def test_the_logarithm_of_a_draw_has_the_same_bits(device, kernels):
    near = np.array([2**k for k in range(32)])
    draws = np.random.default_rng(0).integers(0, 2**32, 50_000)
    bits = np.concatenate([near, near - 1, [2**32 - 1, 2**32 - 2], draws])
    out = torch.empty(len(bits), dtype=torch.float64, device=device)
    kernels.logarithms(torch.from_numpy(bits).to(device), out)
    expected = rng.log_of_draw(bits.astype(np.uint64))
    assert np.array_equal(out.cpu().numpy().view(np.int64), expected.view(np.int64))


@pytest.mark.parametrize("n", [1, 2, 3, 100, 257, 2**33 + 1])
@pytest.mark.parametrize("key", [0, 2**63 + 12345])
def test_seeds_are_permuted_as_on_the_cpu(device, kernels, n, key):
    begin, count = max(0, n // 2 - 20), min(n, 40)
    count = min(count, n - begin)
    out = torch.empty(count, dtype=torch.int64, device=device)
    kernels.permute(begin, n, key, out)
    assert out.tolist() == permuted(np.arange(begin, begin + count), n, key).tolist()


def test_runners_arrive_in_order_and_ties_go_to_the_earlier_neighbour(device, kernels):
    arrival = torch.tensor([3.0, 1.0, 2.0, 1.0, 3.0, 1.0, torch.inf, 2.0], dtype=torch.float64, device=device)
    last, last_edge, order = -1.0, -1, []
    for _ in range(7):
        out = torch.empty(2, dtype=torch.float64, device=device)
        kernels.next_arrival(
            arrival, torch.tensor([last], dtype=torch.float64, device=device), last_edge, out
        )
        last, last_edge = out[0].item(), int(out[1])
        order.append(last_edge)
    assert order == [1, 3, 5, 2, 7, 0, 4]


# ---- bounds of batches


@pytest.fixture(scope="module")
def bounds():
    pytest.importorskip("triton", reason=NO_TRITON)
    return importlib.import_module("graphbraid.sampling.triton.relabel")


@given(drawn=drawn_samples(num_edges=300, most_hops=4))
def test_no_batch_holds_more_than_its_bounds(bounds, drawn):
    csc, config, seeds, key = drawn
    sampled = sample_batch(csc, config, seeds, key)
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
        assert known + sampled.nodes_per_hop[hop + 1] <= batch.nodes <= len(seeds) + csc.num_dst
    assert len(seeds) + sum(sampled.edges_per_hop) <= batch.positions


def test_all_neighbours_are_bounded_by_the_largest_rows(bounds):
    csc = power_law_csc(100, 1000)
    config = SamplerConfig(fanouts=(2, -1))
    batch = bounds.BatchBounds(bounds.GraphBounds.of(csc, config), config, num_seeds=3, seed_edges=0)
    assert batch.edges == 6
    batch.advance(6)
    assert batch.edges == int(csc.degrees().sort(descending=True).values[:6].sum())

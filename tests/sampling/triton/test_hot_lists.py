"""Hot adjacency lists on the device: the same bits for any of them, and what is read over the link."""

import importlib

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sampling.graphs import power_law_csc
from tests.sampling.test_sampler import assert_same
from tests.sampling.triton.test_sampler import drawn_samples, on_cpu
from tests.suites import examples

from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc
from graphbraid.sampling import SamplerConfig, sample_batch


@pytest.fixture(scope="module")
def pipeline(device):
    """``pipeline(csc, config, hot)`` on the device, the topology on the host."""
    module = importlib.import_module("graphbraid.sampling.triton")

    def make(csc, config, hot, topology="host"):
        return module.TritonPipeline(csc, config, None, device=device, topology=topology, hot_lists=hot)

    return make


def copy_of(csc):
    weight = None if csc.weight is None else csc.weight.clone()
    return Csc(csc.indptr.clone(), csc.indices.clone(), csc.num_src, weight)


def spoil(csc, nodes):
    """Change what the host has of these lists, unseen by torch: who reads it there gives other batches."""
    for node in nodes.tolist():
        here = slice(int(csc.indptr[node]), int(csc.indptr[node + 1]))
        csc.indices.data[here] = (csc.indices[here] + 1) % csc.num_dst
        if csc.weight is not None:
            csc.weight.data[here] = 0.5


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    drawn=drawn_samples(),
    share=st.floats(0, 1),
    is_first=st.booleans(),  # as in a store that was renumbered by score
    number=st.integers(0, 9),
)
def test_batches_do_not_depend_on_which_lists_are_hot(pipeline, drawn, share, is_first, number):
    csc, config, seeds, key = drawn
    order = torch.randperm(csc.num_dst, generator=torch.Generator().manual_seed(number))
    num_hot = round(share * csc.num_dst)
    hot = torch.arange(num_hot) if is_first else order[:num_hot]
    on_host = copy_of(csc)
    running = pipeline(on_host, config, hot)
    spoil(on_host, hot)  # the device's copies are what is read
    expected = sample_batch(csc, config, seeds, key)
    assert_same(on_cpu(running.sample(seeds, key)), expected)
    reads = running.list_reads()
    assert list(reads) == reads_of(expected, csc, hot)


def reads_of(sampled, csc, hot):
    """Lists that gave edges, and these edges, of the hot nodes and of the others."""
    counts, is_hot = [0, 0, 0, 0], torch.isin(torch.arange(csc.num_dst), hot)
    for edges in sampled.edges:
        drawn = edges.indptr.diff()
        hot_rows = is_hot[sampled.n_id[: drawn.numel()]]
        for kind, of_kind in enumerate((hot_rows, ~hot_rows)):
            counts[2 * kind] += int((of_kind & (drawn > 0)).sum())
            counts[2 * kind + 1] += int(drawn[of_kind].sum())
    return counts


def test_first_nodes_need_no_map(pipeline):
    csc = power_law_csc(60, 500)
    config = SamplerConfig(fanouts=(4, 3))
    assert pipeline(csc, config, torch.arange(20))._topology.first is None
    assert pipeline(csc, config, torch.arange(20).flip(0))._topology.first is None
    first = pipeline(csc, config, torch.arange(1, 20))._topology.first
    assert first.dtype == torch.int32
    assert (first >= 0).nonzero().flatten().tolist() == list(range(1, 20))


def test_without_hot_lists_nothing_is_counted(pipeline):
    running = pipeline(power_law_csc(60, 500), SamplerConfig(fanouts=(4, 3)), None)
    running.sample(torch.arange(9), 1)
    assert running.list_reads() is None


def test_what_cannot_be_hot_is_refused(pipeline):
    csc, config = power_law_csc(60, 500), SamplerConfig(fanouts=(4, 3))
    with pytest.raises(ConfigError, match="lists of a topology on the host; got topology='device'"):
        pipeline(csc, config, torch.arange(3), topology="device")
    with pytest.raises(DataError, match="hot lists"):
        pipeline(csc, config, torch.tensor([60]))
    with pytest.raises(DataError, match="hot lists name node 4 twice"):
        pipeline(csc, config, torch.tensor([4, 1, 4]))

"""Sums over own and peers' rows in Triton against the twin, and the bits that no knob but one changes."""

import importlib
import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.graphs import close, square, values
from tests.ops.peers import COEFFICIENTS, divided_maps, share_of, tables, with_coefficients

from graphbraid.ops import reference
from graphbraid.ops.peers import PeerTable, PipelineConfig, PipelinePlan

CONFIGS = [
    PipelineConfig(ps=ps, dist=dist, wpb=wpb)
    for ps, dist, wpb in itertools.product((1, 3, 16), (1, 2, 5), (1, 4))
]
SOME = [config for config in CONFIGS if config.ps > 1 and config.dist != 2]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
RANKS = 3
PART_OF = torch.arange(30) % 2  # the last rank owns nothing


def computed(plan, table, device, *, addend=None, out_dtype=None):
    """What the kernel writes, on the CPU."""
    kernels = importlib.import_module("graphbraid.ops.triton")
    there = PeerTable([part.to(device) for part in table.parts], table.rank)
    out = torch.full(
        (plan.edges.num_rows, table.width), torch.nan, dtype=out_dtype or table.dtype, device=device
    )
    kernels.pipelined_sum(plan.to(device), there, None if addend is None else addend.to(device), out)
    return out.cpu()


def assert_as_the_twin(plan, table, device, **options):
    out = computed(plan, table, device, **options)
    expected = torch.full_like(out, torch.nan)
    reference.pipelined_sum(plan, table, options.get("addend"), expected)
    close(out, expected)
    return out


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_kernel_equals_twin_with_every_configuration(device, config):
    how, x = with_coefficients(square(30), "all"), values(30, 5)
    for rank, table in enumerate(tables(x, PART_OF, RANKS)):
        edges, _ = share_of(how, PART_OF, rank, RANKS)
        assert_as_the_twin(PipelinePlan.of(edges, config), table, device)


@pytest.mark.slow
def test_kernel_equals_twin_on_any_divided_graph(device):
    @settings(max_examples=25)
    @given(
        case=divided_maps(most_ranks=3),
        ps=st.integers(1, 12),
        dist=st.integers(1, 4),
        wpb=st.sampled_from([1, 2, 8]),
    )
    def check(case, ps, dist, wpb):
        how, part_of, num_ranks = case
        for rank, table in enumerate(tables(values(how.csc.num_src, 3), part_of, num_ranks)):
            edges, _ = share_of(how, part_of, rank, num_ranks)
            assert_as_the_twin(
                PipelinePlan.of(edges, PipelineConfig(ps=ps, dist=dist, wpb=wpb)), table, device
            )

    check()


@pytest.mark.parametrize("wanted", COEFFICIENTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kernel_equals_twin_with_every_dtype_and_coefficient(device, dtype, wanted):
    how, x = with_coefficients(square(30), wanted), values(30, 6, dtype=dtype)
    edges, _ = share_of(how, PART_OF, 0, RANKS)
    plan, table = PipelinePlan.of(edges, PipelineConfig(ps=4, dist=2, wpb=2)), tables(x, PART_OF, RANKS)[0]
    assert_as_the_twin(plan, table, device)
    assert_as_the_twin(plan, table, device, addend=values(4, 6), out_dtype=torch.float32)


@pytest.mark.parametrize("width", [1, 7, 33, 64, 100, 257])
def test_kernel_equals_twin_at_every_width(device, width):
    edges, _ = share_of(with_coefficients(square(30), "plain"), PART_OF, 1, RANKS)
    table = tables(values(30, width), PART_OF, RANKS)[1]
    assert_as_the_twin(PipelinePlan.of(edges, PipelineConfig(ps=6)), table, device, addend=values(9, width))


@pytest.mark.slow
def test_bits_depend_on_the_size_of_a_partition_alone(device):
    edges, _ = share_of(with_coefficients(square(30), "all"), PART_OF, 0, RANKS)
    table, found = tables(values(30, 9), PART_OF, RANKS)[0], {}
    for config, turned in itertools.product(SOME, (False, True)):
        plan = PipelinePlan.of(edges, config)
        plan = replace(plan, work=plan.work.flip(0)) if turned else plan  # warps in another order
        out = computed(plan, table, device)
        assert torch.equal(out, found.setdefault(config.ps, out))
    assert not torch.equal(found[3], found[16])


def test_rows_of_a_wider_result_keep_what_stands_beside_them(device):
    edges, _ = share_of(with_coefficients(square(30), "scales"), PART_OF, 0, RANKS)
    plan, table = PipelinePlan.of(edges, PipelineConfig(ps=4)), tables(values(30, 5), PART_OF, RANKS)[0]
    wide, expected = torch.zeros(edges.num_rows, 11, device=device), torch.zeros(edges.num_rows, 11)
    kernels = importlib.import_module("graphbraid.ops.triton")
    there = PeerTable([part.to(device) for part in table.parts], 0)
    kernels.pipelined_sum(plan.to(device), there, None, wide[:, 3:8])
    reference.pipelined_sum(plan, table, None, expected[:, 3:8])
    close(wide.cpu(), expected)

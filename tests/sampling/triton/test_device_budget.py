"""Lists and rows share a device that does not hold them: what is there, and what the link then carries."""

import dataclasses
import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling.graphs import power_law_csc
from tests.suites import examples

from graphbraid import Graph
from graphbraid.collective.hardware.device_resident import divide
from graphbraid.collective.run.stages import Context
from graphbraid.features.scores import walks
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.sampling.rows.by_id import SECTOR_BYTES
from graphbraid.sampling.source import BatchSource

NUM_NODES, NUM_EDGES, WIDTH = 200, 3000, 16
NOTES = 8 * (NUM_NODES + 1) + 4 * NUM_NODES


def context_of(*, fanouts=(4, 3), width=WIDTH, **options):
    csc = power_law_csc(NUM_NODES, NUM_EDGES, weighted=True)
    graph = Graph(csc=csc, x=torch.randn(NUM_NODES, width))
    return Context(
        source=BatchSource(graph=graph),
        sampler=SamplerConfig(fanouts=fanouts, return_edge_id=False, **options),
        schedule=SeedSchedule(seeds=torch.arange(60), batch_size=10, shuffle=True),
        device=torch.device("cpu"),
    )


def bytes_of(context, found):
    degrees = context.source.graph.csc.degrees()
    by_weight = {(True, True): 8, (True, False): 4}.get(
        (context.sampler.weighted, context.sampler.replace), 0
    )
    lists = 0 if found.lists is None else NOTES + int(degrees[found.lists].sum()) * (4 + by_weight)
    rows = 0 if found.rows is None else 4 * NUM_NODES + len(found.rows) * context.source.graph.x[:1].nbytes
    return lists + rows


@settings(max_examples=examples(25))
@given(
    room=st.integers(-100, 40_000),
    weighted=st.booleans(),
    replace=st.booleans(),
    with_rows=st.booleans(),
    width=st.sampled_from([1, 16, 100]),
)
def test_a_budget_is_kept_and_full(room, weighted, replace, with_rows, width):
    context = context_of(weighted=weighted, replace=replace, width=width)
    found = divide(room, context, with_rows=with_rows)
    used = bytes_of(context, found)
    assert used <= max(room, 0)
    assert with_rows or found.rows is None
    for nodes in (found.lists, found.rows):
        assert nodes is None or nodes.unique().numel() == nodes.numel()
    has_all_rows = found.rows is not None and len(found.rows) == NUM_NODES
    if with_rows and found.rows is not None and not has_all_rows:
        assert used + 4 * width > room  # exact to the last row that fits


def test_everything_that_fits_is_there():
    context = context_of()
    found = divide(1 << 20, context, with_rows=True)
    assert len(found.rows) == NUM_NODES
    filled = context.source.graph.csc.degrees().nonzero().flatten()
    assert found.lists.sort().values.tolist() == filled.tolist()
    assert "100.0% of the expected bytes over the link" in found.reason


def test_rows_are_those_read_most_and_lists_those_drawn_most_per_byte():
    context = context_of()
    csc = context.source.graph.csc
    reads = walks.inclusion(csc, context.sampler, context.schedule)
    found = divide(NOTES + 4 * NUM_NODES + 4000, context, with_rows=True)
    least = reads[found.rows].min()
    others = torch.ones(NUM_NODES, dtype=torch.bool)
    others[found.rows] = False
    assert float(reads[others].max()) <= float(least)
    assert found.lists is not None
    drawn = sum(draws for _, draws in walks.expansions(csc, context.sampler, context.schedule))
    # Wide rows move more for each of their bytes than a list of which a few ids are drawn.
    per_byte = (drawn * SECTOR_BYTES / (4 * csc.degrees()).clamp(min=1))[found.lists]
    assert float(per_byte.min()) > 0


@pytest.mark.parametrize("room", [3000, 0, 8000, 14_000])
@pytest.mark.slow
def test_the_link_carries_less_by_what_is_held(device, room):
    """The expected share of reads of lists is what a sampler then counts."""
    context = context_of()
    csc = context.source.graph.csc
    found = divide(room, context, with_rows=False)
    hot = torch.empty(0, dtype=torch.int64) if found.lists is None else found.lists
    module = importlib.import_module("graphbraid.sampling.triton")
    pipeline = module.TritonPipeline(
        csc, context.sampler, None, device=device, topology="host", hot_lists=hot
    )
    for epoch in range(6):
        for _ in pipeline.run(context.schedule, epoch, 0, context.schedule.num_steps):
            pass
    reads = pipeline.list_reads()
    expected = sum(draws for _, draws in walks.expansions(csc, context.sampler, context.schedule))
    expected = expected * (csc.degrees() > 0)
    share = float(expected[hot].sum() / expected.sum())
    on_device = reads.device_lists / max(reads.device_lists + reads.host_lists, 1)
    assert on_device == pytest.approx(share, abs=0.04)
    assert (on_device > 0) == (found.lists is not None)


def test_a_graph_without_features_is_all_lists():
    context = context_of()
    source = BatchSource(graph=context.source.graph.replace(x=None))
    found = divide(9000, dataclasses.replace(context, source=source), with_rows=True)
    assert found.rows is None
    assert found.lists is not None

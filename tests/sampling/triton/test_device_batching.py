"""Route 1 by the Triton sampler inside the real executor: the same batches and losses as the CPU's route."""

import dataclasses
import importlib

import pytest
import torch
from benchmarks.common.emulated import weight_bytes_read
from tests.collective.cases import stage_times
from tests.sampling.graphs import power_law_csc

from graphbraid import Graph, ScaledFeatures
from graphbraid.collective import Profile, fixed_plan
from graphbraid.collective.hardware.cpu import CpuBatching, NoMarks, NoTransfer
from graphbraid.collective.hardware.cuda import DeviceBatching
from graphbraid.collective.hardware.device_resident import PARTS, DeviceSplit, choose_placement, part_bytes_of
from graphbraid.collective.run.executor import Executor
from graphbraid.collective.run.operators import Operators
from graphbraid.collective.run.profiler import Effort, measure
from graphbraid.collective.run.stages import Context, DeviceMemoryError, register
from graphbraid.datasets import open_store, save_store
from graphbraid.features import TieredFeatures
from graphbraid.features.rows.caches import MemoryRows
from graphbraid.graph.csc import degrees_and_loops
from graphbraid.nn import SAGEConv
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.sampling.minibatch.mini_batch import BatchSource
from graphbraid.sampling.rows.by_id import (
    SECTOR_BYTES,
    list_bytes_read,
    row_sectors,
)
from graphbraid.sampling.rows.shared_cache import PeerPlace, SharedDeviceCache

NUM_STEPS, BATCH_SIZE = 4, 8
PLAN = fixed_plan(Profile(times=(stage_times(0.02, 0.001, 0.001, 0.02, workers=2),)), NUM_STEPS, 0.5)


class Interpreted:
    """An accelerator whose kernels Triton's interpreter runs, with so many bytes for graph and features."""

    hardware, host = "interpreted", "cpu"

    def __init__(self, room=1 << 40):
        self.room, self.on_host, self.placements, self.fault = room, set(), [], None
        self.hot_lists = []

    def place(self, table, placement):
        copy = table.clone()  # batches are to read what was placed, not the caller's
        if placement == "host":
            self.on_host.add(copy.untyped_storage().data_ptr())
        return copy

    def make_pipeline(self, csc, config, x, *, device, topology, features, hot_lists):
        if self.fault is not None:
            self.fault()
        self.placements.append((topology, features))
        self.hot_lists.append(hot_lists)
        module = importlib.import_module("graphbraid.sampling.triton")
        return module.TritonPipeline(
            csc, config, x, device=device, topology=topology, features=features, hot_lists=hot_lists
        )


register("transfer", "interpreted")(NoTransfer)
register("model", "interpreted")(NoMarks)


@register("batching", "interpreted")
class InterpretedBatching(DeviceBatching):
    def __init__(self, context):
        npu = context.device
        super().__init__(
            context,
            torch.device("cpu"),
            room=lambda: npu.room,
            place=npu.place,
            make_pipeline=npu.make_pipeline,
        )


@pytest.fixture
def interpreted(device):
    if device.type == "cuda":
        pytest.skip("needs a machine without a CUDA device, where Triton's interpreter makes the accelerator")


@pytest.fixture
def make_device(device, monkeypatch):
    """``make_device(room)``; what lies on the host is read by the kernel that reads over the link."""
    if device.type == "cuda":
        return lambda room=1 << 40: device

    def make(room=1 << 40):
        npu = Interpreted(room)
        monkeypatch.setattr(
            "graphbraid.sampling.source.is_beside",
            lambda table, ids: table.untyped_storage().data_ptr() not in npu.on_host,
        )
        return npu

    return make


def make_context(device, *, layout="subgraph", replace=False, weighted=False, edges=True, **options):
    csc = power_law_csc(90, 700, weighted=weighted)
    draw = torch.Generator().manual_seed(0)
    # Drawn by weight, edges must have ids, as the loader sees to; blocks look their weights up by them.
    keep = edges or weighted
    degree, loop = degrees_and_loops(csc)
    graph = Graph(
        csc=csc,
        x=torch.randn(90, 5, generator=draw),
        y=torch.randint(0, 4, (90,), generator=draw),
        edge_id=torch.randperm(700, generator=draw),
        splits={"train": torch.randperm(90, generator=draw)[: NUM_STEPS * BATCH_SIZE - 3]},
    )
    return Context(
        source=BatchSource(
            graph=graph,
            node_attrs={
                "node": {
                    "train_mask": torch.rand(90, generator=draw) < 0.5,
                    "pos": torch.randn(90, 2, 3, generator=draw),
                }
            },
            edge_attrs={("node", "to", "node"): {"edge_attr": torch.randn(700, 2, generator=draw)}},
            src_degree=degree,
            src_loop=loop,
        ),
        sampler=SamplerConfig(
            fanouts=(4, 3), layout=layout, replace=replace, weighted=weighted, return_edge_id=keep
        ),
        schedule=SeedSchedule(seeds=graph.split("train"), batch_size=BATCH_SIZE, shuffle=True, seed=3),
        device=device,
        **options,
    )


def contents(batch):
    """Everything that can be read of a batch, as bytes."""
    found = {name: getattr(batch, name) for name in batch.keys()}  # noqa: SIM118
    found |= {"seed_y": batch.seed_y, "blocks": batch.blocks}
    return {name: as_bytes(value) for name, value in found.items()}


def as_bytes(value):
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.cpu().numpy().tobytes()
    if isinstance(value, list):
        return [as_bytes(part) for part in value]
    if dataclasses.is_dataclass(value):  # a block
        names = ("indptr", "indices", "weight", "src_degree", "src_loop")
        return [as_bytes(getattr(value, name)) for name in names]
    return value


def batches(context, plan=PLAN):
    with Executor(Operators.of(context), plan, num_steps=NUM_STEPS) as executor:
        found = [contents(batch) for batch in executor]
    return found, {op.step for op in executor.ops if op.stage == "uva"}


@pytest.mark.parametrize("room", [pytest.param(1 << 40, marks=pytest.mark.slow), 0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("layout", [pytest.param("subgraph", marks=pytest.mark.slow), "blocks"])
def test_a_braided_epoch_has_the_batches_of_the_cpu(make_device, layout, replace, weighted, room):
    options = {"layout": layout, "replace": replace, "weighted": weighted, "edges": not replace}
    found, by_device = batches(make_context(make_device(room), hot_bytes=room, **options))
    prepare = CpuBatching(make_context(torch.device("cpu"), **options))
    assert found == [contents(prepare(0, step)) for step in range(NUM_STEPS)]
    assert len(by_device) == NUM_STEPS // 2
    # edges without ids have no attributes of the caller's
    assert ("edge_attr" in found[0]) == (weighted or not replace)


@pytest.mark.slow
def test_losses_are_equal_to_the_bit_for_all_plans(make_device):
    def losses(share):
        torch.manual_seed(0)
        context = make_context(make_device(), layout="blocks")
        plan = fixed_plan(Profile(times=(PLAN.times,)), NUM_STEPS, share)
        conv = SAGEConv(5, 4).to("cpu" if isinstance(context.device, Interpreted) else context.device)
        optimizer = torch.optim.SGD(conv.parameters(), lr=0.5)
        found = []
        for batch in Executor(Operators.of(context), plan, num_steps=NUM_STEPS):
            outputs = conv(batch.x, batch.blocks[0])[: batch.batch_size]
            loss = torch.nn.functional.cross_entropy(outputs, batch.seed_y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
        return found

    cpu, gpu, braided = losses(1.0), losses(0.0), losses(0.5)
    assert len(set(cpu)) == NUM_STEPS
    assert cpu == gpu == braided


@pytest.mark.slow
def test_features_that_are_gathered_late_or_sparse_have_the_same_rows(make_device):
    late, _ = batches(make_context(make_device(0), hot_bytes=0, gather=False))
    gathered, _ = batches(make_context(make_device()))
    assert late == gathered
    context = make_context(make_device())
    graph = context.source.graph
    csr = importlib.import_module("graphbraid").SparseFeatures.from_dense(graph.x)
    sparse = dataclasses.replace(context.source, graph=graph.replace(x=csr))
    assert batches(dataclasses.replace(context, source=sparse))[0] == gathered


@pytest.mark.slow
def test_the_profiler_times_both_routes_and_knows_where_the_link_has_no_part(make_device):
    for room, is_resident in ((1 << 40, True), (0, False)):
        context = make_context(make_device(room), hot_bytes=room)
        profile = measure(context, [1], effort=Effort(warm_up=1, samples=2))
        assert profile.times[0].uva.seconds > 0
        assert profile.times[0].cpu.seconds > 0
        assert profile.times[0].gpu == (profile.times[0].uva if is_resident else None)


def test_the_next_batch_is_sampled_while_the_step_before_trains(make_device, monkeypatch):
    context = make_context(make_device())
    expected, _ = batches(context)
    sampler, seen = importlib.import_module("graphbraid.sampling.triton.sampler"), []
    for name in ("launch", "finish"):
        real = getattr(sampler.TritonPipeline, name)

        def spy(self, *arguments, real=real, name=name):
            seen.append((name, arguments[-1] if name == "launch" else arguments[0].step))
            return real(self, *arguments)

        monkeypatch.setattr(sampler.TritonPipeline, name, spy)
    operators = Operators.of(context)
    end = operators.model.end

    def end_of(batch):
        seen.append(("trained", batch.step))
        end(batch)

    operators.model.end = end_of
    plan = dataclasses.replace(fixed_plan(Profile(times=(PLAN.times,)), NUM_STEPS, 0.0), gbs=1)
    assert [contents(batch) for batch in Executor(operators, plan, num_steps=NUM_STEPS)] == expected
    assert seen == [
        ("launch", 0),
        ("finish", 0),
        *[(name, at + k) for at in range(3) for name, k in (("launch", 1), ("trained", 0), ("finish", 1))],
        ("trained", 3),
    ]


@pytest.mark.slow
def test_a_batch_that_was_begun_in_vain_costs_nothing_but_time(make_device):
    context = make_context(make_device())
    prepare = Operators.of(context).device_batching
    expected = [contents(prepare(0, step)) for step in range(NUM_STEPS)]
    for begun, asked in ((2, 1), (3, 3), (0, 2)):
        prepare.begin(0, begun)
        assert contents(prepare(0, asked)) == expected[asked]


ROW, TABLES = 5 * 4, 8 * 90 + 8 * 91 + 4 * 700  # of features; of local ids, and the topology


def scaled(context):
    x = ScaledFeatures.from_dense(context.source.graph.x)
    graph = context.source.graph.replace(x=x)
    rows = TieredFeatures(None, MemoryRows(x), score=None, lookahead=0)
    return dataclasses.replace(context, source=dataclasses.replace(context.source, graph=graph, rows=rows))


@pytest.mark.parametrize("num_hot", [None, 0, 30])
def test_rows_of_int8_are_widened_by_every_route(make_device, num_hot):
    """They lie on the device as a whole, on the host, or partly on both."""

    labels = part_bytes_of(make_context(torch.device("cpu")))["labels"]
    room = 1 << 40 if num_hot is None else num_hot and TABLES + labels + 4 * 90 + num_hot * (5 + 4)
    device = make_device(room)
    found, by_device = batches(scaled(make_context(device, hot_bytes=room)))
    prepare = CpuBatching(scaled(make_context(torch.device("cpu"))))
    assert found == [contents(prepare(0, step)) for step in range(NUM_STEPS)]
    assert found[0]["x"][0] == torch.float32
    assert len(by_device) == NUM_STEPS // 2


@pytest.mark.slow
@pytest.mark.parametrize("num_own", [0, 9])
@pytest.mark.parametrize("is_scaled", [False, True])
def test_rows_between_devices_give_the_same_batches_by_every_route(make_device, is_scaled, num_own):
    """One process is all of the peers, so that no memory has to be opened."""
    context = make_context(make_device(0), hot_bytes=0)
    context = scaled(context) if is_scaled else context
    plain, _ = batches(context)
    tiers = TieredFeatures.build(context.source.graph, hot="all")
    where = torch.device("cpu") if isinstance(context.device, Interpreted) else context.device
    place = PeerPlace(0, 1, torch.empty(0, device=where).device, lambda handle: [handle])
    shared = SharedDeviceCache(tiers.hot, torch.randperm(90)[:40], num_own, place)
    tiers.take_hot(shared, torch.ones(90))
    source = dataclasses.replace(context.source, rows=tiers)
    found, by_device = batches(dataclasses.replace(context, source=source))
    assert found == plain
    assert len(by_device) == NUM_STEPS // 2
    counts = tiers.counts
    assert (counts.hot_rows > 0) == (num_own > 0)
    assert counts.peer_rows > 0
    shared.close()


@pytest.mark.slow
@pytest.mark.parametrize("num_hot", [1, 37, 70])
@pytest.mark.usefixtures("interpreted")
def test_of_features_that_do_not_fit_the_rows_with_most_out_edges_do(make_device, num_hot):
    labels = part_bytes_of(make_context(torch.device("cpu")))["labels"]
    room = TABLES + labels + 4 * 90 + num_hot * ROW + ROW - 1
    npu = make_device(room)
    expected, _ = batches(make_context(make_device()))
    context = make_context(npu, hot_bytes=room)
    assert batches(context)[0] == expected
    table = InterpretedBatching(context)._placed().source.table
    assert table.bounds == (num_hot, num_hot + 90)
    degree = torch.bincount(context.source.graph.csc.indices.long(), minlength=90)
    is_hot = table.positions < num_hot
    assert degree[is_hot].min() >= degree[~is_hot].max()
    assert batches(make_context(make_device(room), hot_bytes=room, gather=False))[0] == expected  # at late


def tiered(context, **options):
    store = TieredFeatures.build(context.source.graph, **options)
    return dataclasses.replace(context, source=dataclasses.replace(context.source, rows=store))


@pytest.mark.parametrize("is_stored", [False, True], ids=["memory", "file"])
def test_tiers_with_hot_rows_give_the_same_batches(make_device, tmp_path, is_stored):
    expected, _ = batches(make_context(make_device()))
    context = make_context(make_device(0), hot_bytes=0)
    host = None
    if is_stored:
        host, graph = 0, context.source.graph
        x = open_store(save_store(graph, tmp_path / "store")).x
        context = dataclasses.replace(
            context, source=dataclasses.replace(context.source, graph=graph.replace(x=x))
        )
    for score in (torch.arange(90.0), -torch.arange(90.0)):
        found, by_device = batches(tiered(context, hot=4 * 90 + 30 * ROW, host=host, score=score))
        assert found == expected
        assert by_device


@pytest.mark.slow
@pytest.mark.parametrize("is_prefix", [True, False])
@pytest.mark.usefixtures("interpreted")
def test_a_device_that_samples_counts_the_rows_of_each_tier(make_device, device, is_prefix):
    score = torch.arange(90.0) * (-1 if is_prefix else 1)
    context = tiered(make_context(make_device(0)), hot=4 * 90 + 30 * ROW, score=score)
    prepare, tiers = InterpretedBatching(context), context.source.rows
    assert prepare.explain() == ""
    n_id = torch.cat([prepare(0, step).n_id for step in range(NUM_STEPS)])
    hits = int(torch.isin(n_id, tiers.hot.ids).sum())
    counts = tiers.counts
    assert (counts.hot_rows, counts.reads) == (hits, len(n_id))
    assert (counts.host_rows, counts.link_rows) == (len(n_id) - hits,) * 2
    assert counts.link_row_bytes == (len(n_id) - hits) * ROW
    x = context.source.graph.x
    missing = n_id[~torch.isin(n_id, tiers.hot.ids)]
    assert counts.link_sector_bytes == int(row_sectors(x, missing).sum()) * SECTOR_BYTES
    assert counts.link_sector_bytes > counts.link_row_bytes
    assert f"{SECTOR_BYTES} bytes that devices read for rows so far" in tiers.explain()
    said = prepare.explain()
    assert "holds no part as a whole and reads topology (3.4 KiB), labels" in said
    assert f"rows: {hits / len(n_id):.1%} of {len(n_id):,} reads on the device" in said
    csc, lists = context.source.graph.csc, 0
    for step in range(NUM_STEPS):  # with no list on the device
        lists += list_bytes_read(prepare(0, step).sampled, "subgraph", csc.indices)
    assert tiers.counts.since(counts).link_list_bytes == lists == counts.link_list_bytes > 0
    labels = prepare(0, 0).seed_y
    assert tiers.counts.link_label_bytes == labels.nbytes


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
def test_edges_that_a_device_reads_of_lists_on_the_host_are_among_what_travels(make_device, device):
    hot = 4 * 90 + 5 * ROW
    notes = 8 * 90 + 8 * 91 + 4 * 90  # local ids; indptr and the map of lists
    context = tiered(make_context(make_device(notes + hot + 700)), hot=hot)
    prepare, tiers = InterpretedBatching(context), context.source.rows
    for step in range(NUM_STEPS):
        prepare(0, step)
    reads = prepare._placed().pipeline.list_reads()
    assert reads.device_edges > 0
    assert tiers.counts.link_list_bytes == reads.host_edges * 4 > 0


@pytest.mark.slow
@pytest.mark.parametrize("lists", [False, True], ids=["none", "hot lists"])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.usefixtures("interpreted")
def test_weights_that_draws_read_of_the_host_are_among_what_travels(make_device, device, replace, lists):
    hot = 4 * 90 + 5 * ROW
    notes = 8 * 90 + 8 * 91 + 4 * 90 + hot + 1600
    context = tiered(make_context(make_device(notes * lists), replace=replace, weighted=True), hot=hot)
    prepare, tiers = InterpretedBatching(context), context.source.rows
    csc, expected, edges = context.source.graph.csc, 0, 0
    for step in range(NUM_STEPS):
        sampled = prepare(0, step).sampled
        expected += weight_bytes_read(sampled, context.sampler, csc)
        edges += list_bytes_read(sampled, "subgraph", csc.indices)
    pipeline = prepare._placed().pipeline
    weights = int(pipeline.weight_bytes)
    if not lists:
        assert pipeline.list_reads() is None
        assert weights == expected > 0
        assert tiers.counts.link_list_bytes == edges + weights
    else:
        assert pipeline.list_reads().device_edges > 0
        assert 0 < weights < expected  # lists on the device have their weights there
        assert tiers.counts.link_list_bytes == pipeline.list_reads().host_edges * 4 + weights


@pytest.mark.usefixtures("interpreted")
def test_a_topology_on_the_device_reads_no_weights_over_the_link(make_device, device):
    context = tiered(make_context(make_device(), weighted=True), hot=4 * 90 + 5 * ROW)
    prepare, tiers = InterpretedBatching(context), context.source.rows
    prepare(0, 0)
    assert prepare._placed().pipeline.weight_bytes is None
    assert tiers.counts.link_list_bytes == 0


def test_parts_are_resident_as_far_as_they_fit():
    sizes = {"topology": 50, "labels": 10, "features": 400}
    assert [choose_placement(sizes, room)[part] for room in (460, 459) for part in PARTS] == [
        *("device", "device", "device"),
        *("device", "device", "host"),
    ]
    assert list(choose_placement(sizes, 49).values()) == ["host", "device", "host"]
    assert set(choose_placement(sizes, -1).values()) == {"host"}
    context = make_context(torch.device("cpu"), weighted=True, replace=True)
    csc = context.source.graph.csc
    assert part_bytes_of(context)["topology"] == csc.nbytes - csc.weight.nbytes + 8 * 700  # running sums
    assert part_bytes_of(context)["features"] == 90 * 5 * 4


def make_batching(npu, **options):
    return InterpretedBatching(make_context(npu, **options))


@pytest.mark.usefixtures("interpreted")
def test_nothing_is_placed_before_it_is_used_and_what_was_placed_is_shared(device):
    npu = Interpreted(8 * 90 + 8 * 91 + 4 * 700)  # the table of local ids and the topology
    first = make_batching(npu)
    assert npu.placements == []
    first(0, 0)
    assert npu.placements == [("device", "host")]
    assert first.placement == {"topology": "device", "labels": "host", "features": "host"}
    InterpretedBatching(first.context)(0, 1)
    assert len(npu.placements) == 1
    assert first.stage_seconds()["batches"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"weighted": True}, {"weighted": True, "replace": True}, {"layout": "blocks"}]
)
@pytest.mark.usefixtures("interpreted")
def test_a_topology_that_does_not_fit_is_there_in_part(make_device, device, options):
    whole = InterpretedBatching(make_context(make_device(), **options))
    expected = [contents(whole(0, step)) for step in range(NUM_STEPS)]
    notes = 8 * 90 + 8 * 91 + 4 * 90 + 4 * 90  # local ids; indptr and the maps of lists and rows
    npu = make_device(notes + 1500)
    prepare = InterpretedBatching(make_context(npu, **options))
    assert [contents(prepare(0, step)) for step in range(NUM_STEPS)] == expected
    assert npu.placements == [("host", "host")]
    [lists] = npu.hot_lists
    assert 0 < len(lists) < 90
    reads = prepare._placed().pipeline.list_reads()
    assert reads.device_lists > 0
    assert reads.host_lists > 0
    split, listed, *_ = prepare.explain().splitlines()[1:]
    assert "adjacency lists" in split
    assert "by bytes saved per byte" in split
    assert listed.startswith(f"lists: {reads.device_share:.1%} of")
    assert listed.endswith("edges over the link")


@pytest.mark.usefixtures("interpreted")
def test_features_of_which_all_rows_are_chosen_need_no_map(make_device, device, monkeypatch):
    chosen = DeviceSplit(lists=torch.arange(3), rows=torch.randperm(90), reason="")
    monkeypatch.setattr("graphbraid.collective.hardware.device_resident.divide", lambda *_, **__: chosen)
    npu = make_device(2000)
    prepare = InterpretedBatching(make_context(npu))
    prepare(0, 0)
    assert prepare.placement["features"] == "device"
    assert npu.placements == [("host", "device")]
    assert npu.hot_lists[0] is chosen.lists


@pytest.mark.usefixtures("interpreted")
def test_a_device_that_is_fuller_than_it_said_leaves_all_on_the_host(device, caplog):
    npu = Interpreted()
    faults = [torch.OutOfMemoryError("full")]

    def fault():
        if faults:
            raise faults.pop()

    npu.fault = fault
    make_batching(npu)(0, 0)
    assert npu.placements == [("host", "host")]
    assert "no memory for topology (3.4 KiB), labels" in caplog.text


@pytest.mark.usefixtures("interpreted")
def test_no_memory_for_a_batch_is_a_device_memory_error_and_costs_no_step(make_device, monkeypatch, device):
    context = make_context(make_device())
    expected, _ = batches(context)
    sampler = importlib.import_module("graphbraid.sampling.triton.sampler")
    launch, seen = sampler.TritonPipeline._launch, []

    def full_once(self, *arguments, **options):
        seen.append(options["step"])
        if seen == [seen[0]]:
            raise torch.OutOfMemoryError("full")
        return launch(self, *arguments, **options)

    monkeypatch.setattr(sampler.TritonPipeline, "_launch", full_once)
    prepare = InterpretedBatching(context)
    with pytest.raises(DeviceMemoryError, match="step 3: full"):
        prepare(0, 3)
    seen.clear()
    plan = dataclasses.replace(PLAN, gbs=4)
    with Executor(Operators.of(context), plan, num_steps=NUM_STEPS) as executor:
        assert [contents(batch) for batch in executor] == expected
    assert seen[0] == seen[1]  # tried again
    assert "device memory ran out" in executor.events[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, whose waits it looks for")
def test_after_the_first_batch_nothing_but_the_sizes_is_waited_for(device):
    prepare = DeviceBatching(make_context(device), device, room=lambda: 0, place=placing_on(device))
    prepare(0, 0)
    torch.cuda.set_sync_debug_mode("error")  # an event's wait, as for the sizes, is not what this finds
    try:
        prepare(0, 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def placing_on(device):
    place = importlib.import_module("graphbraid.sampling.triton.topology").place
    return lambda table, placement: place(table, placement, device)

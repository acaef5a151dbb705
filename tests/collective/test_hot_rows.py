"""Hot rows on an emulated device: the same batches and losses by every route, as few bytes as foretold."""

import dataclasses
import json

import pytest
import torch
from benchmarks.common.emulated import (
    EmulatedAccelerator,
    EmulatedBatching,
    EmulatedModel,
    EmulatedTransfer,
)
from hypothesis import given
from hypothesis import strategies as st
from tests.collective.emulation import BATCH_SIZE, FAST, GRAPH, NUM_STEPS, Batch, contents, make_context
from tests.features.tables import stored_graph

import graphbraid
from graphbraid import Trainer
from graphbraid.collective import Profile, fixed_plan
from graphbraid.collective.run.executor import Executor
from graphbraid.collective.run.lookahead import RowBuffer
from graphbraid.collective.run.operators import Operators
from graphbraid.collective.run.stages import make_operator, register
from graphbraid.errors import ConfigError, ResourceError
from graphbraid.estimates import choose as modes
from graphbraid.features import DiskOptions, TieredFeatures, coverage, score
from graphbraid.features.tiers import device_sizing
from graphbraid.features.tiers.device_sizing import DeviceMemory
from graphbraid.files.writing import format_bytes
from graphbraid.loader import NeighborLoader
from graphbraid.sampling.rows import device_cache
from graphbraid.sampling.rows.by_id import row_sectors
from graphbraid.sampling.rows.device_cache import DeviceCache
from graphbraid.sampling.rows.shared_cache import PeerPlace, SharedDeviceCache
from graphbraid.train import Callback, TrainConfig

ROW = 9 * 4
INSTANT = dataclasses.replace(FAST, cpu=FAST.dma, model=FAST.dma, uva=FAST.dma)


@given(
    batches=st.lists(
        st.tuples(
            st.lists(st.integers(0, 29), min_size=1, max_size=12), st.sampled_from(["copied", "dropped"])
        ),
        max_size=14,
    ),
    kept=st.integers(0, 4),
    num_hot=st.integers(0, 30),
    claimed=st.booleans(),
    num_own=st.one_of(st.none(), st.integers(0, 30)),
)
def test_hot_rows_and_the_ring_give_every_batch_its_rows(batches, kept, num_hot, claimed, num_own):
    x, chosen = torch.randn(30, 3), torch.randperm(30)[:num_hot]
    hot = DeviceCache(chosen, 30, x.__getitem__)
    if num_own is not None:  # the others are between devices, of which this is the only one
        place = PeerPlace(0, 1, torch.device("cpu"), lambda handle: [handle])
        hot = SharedDeviceCache(hot, chosen, min(num_own, num_hot), place)
    buffer = RowBuffer(x, kept_batches=kept, hot=hot)
    for step, (ids, fate) in enumerate(batches):
        n_id = torch.tensor(ids)
        if claimed:
            buffer.claim(0, step)
        with buffer.preparing(0, step):
            found = buffer.look_up(0, step, n_id)
        assert found.missing.numel() <= int((~torch.isin(n_id, chosen)).sum())
        if fate == "copied":
            batch = Batch(buffer.part_of(found, n_id))
            buffer.admit(batch)
            buffer.complete(batch)
            assert batch.x is None or torch.equal(batch.x, x[n_id])


def reads_of(context):
    """How often each row is read in the epoch."""
    sampler, schedule = context.sampler, context.schedule
    return score(GRAPH, "lookahead", sampler=sampler, schedule=schedule).values


@pytest.fixture(scope="module")
def expected():
    prepare = make_operator("batching", "cpu", make_context(torch.device("cpu")))
    return [contents(prepare(0, step)) for step in range(NUM_STEPS)]


def executed(device, share, tiers, *, lookahead=False):
    context = make_context(device)
    source = dataclasses.replace(context.source, rows=tiers)
    context = dataclasses.replace(context, source=source, lookahead=lookahead)
    plan = fixed_plan(Profile(times=(INSTANT,)), NUM_STEPS, share)
    with Executor(Operators.of(context), plan, num_steps=NUM_STEPS) as executor:
        return [contents(batch) for batch in executor]


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.0, 0.5, 0.0], ids=["cpu", "both", "device"])
def test_as_many_bytes_travel_as_the_score_foretells(expected, share):
    reads = reads_of(make_context(torch.device("cpu")))
    for kept in (0.05, 0.25, 0.5, 1.0):
        num_hot = int(kept * 800)
        tiers = TieredFeatures.build(GRAPH, hot=4 * 800 + num_hot * ROW, score=reads)
        assert tiers.hot.num_rows == num_hot
        device = EmulatedAccelerator(INSTANT, emulate_cpu=False)
        assert executed(device, share, tiers) == expected
        [served] = coverage(reads, reads, (kept,))
        assert device.link_rows == round((1 - served) * int(reads.sum()))
        assert device.link_row_bytes == device.link_rows * ROW
        counts = tiers.counts
        assert counts.hot_rows == int(reads.sum()) - device.link_rows
        assert (counts.reads, counts.host_rows) == (int(reads.sum()), device.link_rows)
        assert (counts.link_rows, counts.link_row_bytes) == (device.link_rows, device.link_row_bytes)
        assert counts.link_bytes == device.link_bytes
        measured = [tier.measured_share for tier in tiers.report().tiers]
        assert measured == pytest.approx([served, 1 - served])


def test_look_ahead_leaves_out_more_than_hot_rows_alone(expected):
    tiers = TieredFeatures.build(
        GRAPH, hot=4 * 800 + 20 * ROW, score=reads_of(make_context(torch.device("cpu")))
    )
    alone, ahead = EmulatedAccelerator(INSTANT), EmulatedAccelerator(INSTANT)
    assert executed(alone, 1.0, tiers) == expected
    assert executed(ahead, 1.0, tiers, lookahead=True) == expected
    assert ahead.link_rows < alone.link_rows


def test_rows_of_a_batch_before_have_a_line_of_their_own(expected):
    tiers = TieredFeatures.build(
        GRAPH, hot=4 * 800 + 20 * ROW, score=reads_of(make_context(torch.device("cpu")))
    )
    before, device = tiers.counts, EmulatedAccelerator(INSTANT)
    assert executed(device, 1.0, tiers, lookahead=True) == expected
    tiers.note_epoch(before)
    reads, counts = sum(len(ids) for _, ids, *_ in expected), tiers.counts
    assert counts.reads == reads
    assert counts.ring_rows == reads - counts.hot_rows - device.link_rows > 0
    report = tiers.report()
    hot, ring, host = report.tiers
    assert [tier.name for tier in report.tiers] == ["device", "from the batch before", "host"]
    assert sum(tier.measured_share for tier in report.tiers) == pytest.approx(1.0)
    assert sum(tier.measured_bytes for tier in report.tiers) == reads * ROW
    assert (ring.measured_share, ring.measured_bytes) == (counts.ring_rows / reads, counts.ring_rows * ROW)
    assert sum(tier.rows for tier in (hot, host)) == 800
    assert f"from the batch before {' ' * 9}" in str(report), "they lie in no tier"


class MovingAccelerator(EmulatedAccelerator):
    """Copies each tensor of the batches that it is sent, and remembers the copies' bytes."""

    def __init__(self):
        super().__init__(INSTANT, emulate_cpu=False)
        self.moved = {"rows": 0, "labels": 0, "lists": 0}

    def copy_seconds(self, batch):
        def kind(copy):
            if copy.dtype == torch.float32:
                return "rows"
            is_labels = copy.shape == batch.seed_y.shape and bool((copy == batch.seed_y).all())
            return "labels" if is_labels else "lists"

        def moved(tensor):
            copy = torch.empty_like(tensor).copy_(tensor)
            self.moved[kind(copy)] += copy.nbytes
            return copy

        batch.apply(moved)
        return 0.0


@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("num_hot", [20, 800])
def test_all_that_travels_is_counted_by_its_kind(expected, num_hot, lookahead):
    tiers = TieredFeatures.build(GRAPH, hot=4 * 800 + num_hot * ROW)
    device = MovingAccelerator()
    assert executed(device, 1.0, tiers, lookahead=lookahead) == expected
    counts = tiers.counts
    found = (counts.link_row_bytes, counts.link_label_bytes, counts.link_list_bytes)
    assert found == tuple(device.moved.values())
    assert counts.link_bytes == sum(device.moved.values()) == device.link_bytes
    assert counts.link_label_bytes == 8 * NUM_STEPS * BATCH_SIZE


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
def test_a_device_that_samples_reads_lists_and_labels_over_the_link(layout):
    context = make_context(EmulatedAccelerator(INSTANT))
    tiers = TieredFeatures.build(GRAPH, hot=4 * 800 + 20 * ROW)
    sampler = dataclasses.replace(context.sampler, layout=layout)
    source = dataclasses.replace(context.source, rows=tiers)
    prepare = EmulatedBatching(dataclasses.replace(context, source=source, sampler=sampler))
    for step in range(3):
        before, batch = tiers.counts, prepare(0, step)
        nodes = batch.num_sampled_nodes[:-1]
        drawn_for = sum(nodes) if layout == "subgraph" else 2 * nodes[0] + nodes[1]
        read = tiers.counts.since(before)
        assert read.link_list_bytes == batch.num_edges * GRAPH.csc.indices.itemsize + 16 * drawn_for
        assert read.link_label_bytes == batch.seed_y.nbytes
        assert read.link_row_bytes == read.link_rows * ROW > 0
        missing = batch.n_id[tiers.hot.split(batch.n_id)[0]]
        assert read.link_sector_bytes == 32 * int(row_sectors(GRAPH.x, missing).sum()) > read.link_row_bytes


def test_a_loader_with_hot_rows_follows_a_plan_of_itself(expected):
    tiers = TieredFeatures.build(GRAPH, hot=4 * 800 + 200 * ROW)
    device = EmulatedAccelerator(INSTANT)
    options = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": 5, "return_edge_id": False}
    loader = NeighborLoader(GRAPH, [4, 3], "train", device=device, plan="cpu", tiers=tiers, **options)
    assert [contents(batch) for batch in loader.batches(0)] == expected
    assert device.link_rows > 0
    assert tiers.counts.hot_rows > 0
    loader.close()


def test_hot_rows_that_the_device_has_no_memory_for_end_the_epoch(monkeypatch):
    monkeypatch.setattr(device_cache, "free_bytes", lambda _: 1000)
    tiers = TieredFeatures.build(GRAPH, hot="all")
    with pytest.raises(ResourceError, match=r"800 hot rows take 28\.1 KiB on cpu, and 1000 B are free"):
        executed(EmulatedAccelerator(INSTANT), 1.0, tiers)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return stored_graph(tmp_path_factory.mktemp("g"))


OPTIONS = {"epochs": 2, "fanouts": (4, 3), "batch_size": 32, "seed": 1, "lr": 0.01}


def trained(graph, **options):
    torch.manual_seed(0)
    model = graphbraid.nn.GraphSAGE(graph.num_features, 16, graph.num_classes, num_layers=2)
    trainer = Trainer(model, graph, **(OPTIONS | options))
    result = trainer.fit()
    return [epoch["train_loss"] for epoch in result.history], result.test, trainer


@pytest.fixture(scope="module")
def plain(graph):
    return trained(graph)[:2]


@pytest.mark.parametrize("plan", ["cpu", "gpu"])
@pytest.mark.parametrize(
    "tiers", [{"hot": "10KB"}, {"hot": 9000, "host": "295KiB"}, {"hot": "all", "host": 0}], ids=str
)
def test_losses_do_not_depend_on_what_is_hot(graph, plain, plan, tiers):
    device = EmulatedAccelerator(INSTANT)
    *found, trainer = trained(graph, plan=plan, accelerator=device, **tiers)
    assert tuple(found) == plain
    assert trainer.tiers.counts.hot_rows > 0
    assert (device.link_rows == 0) == (tiers["hot"] == "all")


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["cpu", "gpu"])
def test_a_run_explains_what_its_last_epoch_moved_over_the_link(graph, plan):
    device, tiers = EmulatedAccelerator(INSTANT), TieredFeatures.build(graph, hot="10KB", score="degree")
    before, epochs = [], []

    class Looks(Callback):
        def on_epoch_start(self, trainer, epoch):
            before.append((device.link_row_bytes, device.link_bytes))

        def on_epoch_end(self, trainer, record):
            epochs.append((device.link_row_bytes - before[-1][0], device.link_bytes - before[-1][1]))

    options = {"plan": plan, "accelerator": device, "tiers": tiers, "callbacks": [Looks()], "eval_every": 0}
    *_, trainer = trained(graph, **options)
    report = tiers.report()
    row_bytes, whole = epochs[-1]
    assert report.epoch.link_bytes == whole > report.epoch.link_row_bytes == row_bytes > 0
    assert report.counts.link_bytes > sum(epoch[1] for epoch in epochs), (
        "the profile and the test brought some, too"
    )
    hot, *_, host = report.tiers  # and rows of batches before, where the profile found look-ahead to pay
    assert host.measured_bytes == row_bytes
    assert sum(tier.measured_bytes for tier in report.tiers) == report.epoch.reads * report.row_bytes
    assert hot.epoch_bytes == pytest.approx(hot.expected_share * report.epoch.reads * report.row_bytes)
    assert json.loads(json.dumps(report.to_json()))["epoch"]["hot_rows"] == report.epoch.hot_rows
    said = trainer.explain()
    assert f"{report.epoch.reads:,} reads in the last epoch" in said
    assert f"{format_bytes(whole)} over the link (rows {format_bytes(row_bytes)}, lists " in said
    assert json.loads(json.dumps(report.to_json()))["link_bytes"] == report.counts.link_bytes


def test_a_trainer_says_what_its_device_holds(graph):
    """Also where no tiers were asked for."""

    class Explaining(EmulatedBatching):
        def explain(self):
            return "the device that samples holds labels"

    register("batching", "explaining")(Explaining)
    register("transfer", "explaining")(EmulatedTransfer)
    register("model", "explaining")(EmulatedModel)
    device = EmulatedAccelerator(INSTANT)
    device.hardware = "explaining"
    *_, trainer = trained(graph, plan="gpu", accelerator=device, epochs=1)
    assert trainer.explain() == "the device that samples holds labels"
    *_, plain = trained(graph, epochs=1)
    assert plain.explain() == "rows and lists are read where the graph has them"


@pytest.mark.slow
def test_a_run_resumes_with_other_hot_rows(graph, plain, tmp_path):
    device = EmulatedAccelerator(INSTANT)
    trained(graph, plan="cpu", accelerator=device, hot="10KB", epochs=1, out_dir=tmp_path / "run")
    options = {"plan": "cpu", "out_dir": tmp_path / "run", "resume": True}
    losses, scores, _ = trained(graph, accelerator=device, hot="20KB", **options)
    assert (losses[-1:], scores) == (plain[0][-1:], plain[1])


@pytest.mark.slow
@pytest.mark.usefixtures("known_baseline")
def test_auto_tiers_keep_rows_on_a_device_as_far_as_they_fit(graph, plain, monkeypatch):
    """The store does not fit the host either: its other rows come from its file."""
    monkeypatch.setattr(device_sizing, "LEAST_RESERVE_BYTES", 0)
    monkeypatch.setattr(modes, "capacity_bytes", lambda: 320 << 20)
    model = graphbraid.nn.GraphSAGE(graph.num_features, 16, graph.num_classes, num_layers=2)
    whole = DeviceMemory(free_bytes=1 << 30, link_bytes_per_second=None)
    needed = modes.auto_tiers(model, graph, TrainConfig(plan="cpu", **OPTIONS), whole)[1].needed_bytes
    for rows in (100, 0):
        memory = round((needed + 4 * 300 + 148 * rows) / 0.9)
        device = EmulatedAccelerator(INSTANT, memory_bytes=memory)
        *found, trainer = trained(graph, accelerator=device, tiers="auto", plan="cpu")
        assert tuple(found) == plain
        assert trainer.config.host == 0
        assert "from the files" in trainer.tiers_reason
        if rows:
            assert abs(trainer.tiers.hot.num_rows - rows) <= 2  # bytes of a step vary a little
            assert f"{trainer.tiers.hot.num_rows:,} rows" in trainer.explain()
            assert trainer.tiers.counts.hot_rows > 0
        else:
            assert trainer.tiers.hot is None
            assert "there is no memory for them" in trainer.tiers_reason


@pytest.mark.slow
@pytest.mark.usefixtures("known_baseline")
def test_auto_tiers_leave_the_hot_rows_that_were_asked_for(graph):
    model = graphbraid.nn.GraphSAGE(graph.num_features, 16, graph.num_classes, num_layers=2)
    device = EmulatedAccelerator(INSTANT, memory_bytes=1 << 30)
    trainer = Trainer(model, graph, accelerator=device, tiers="auto", hot="10KB", **OPTIONS)
    assert trainer.tiers.hot.num_rows == (10_000 - 1200) // 148
    options = OPTIONS | {"accelerator": EmulatedAccelerator(INSTANT), "plan": "cpu"}
    unknown = Trainer(model, graph, tiers="auto", **options)
    assert unknown.tiers is None
    assert "its free memory is not known" in unknown.tiers_reason


def test_without_a_plan_hot_rows_bring_one(graph):
    model = graphbraid.nn.GraphSAGE(graph.num_features, 16, graph.num_classes, num_layers=2)
    trainer = Trainer(model, graph, hot="10KB", accelerator=EmulatedAccelerator(INSTANT))
    assert trainer.config.plan == "auto"


def test_hot_rows_without_a_device_are_refused(graph):
    model = graphbraid.nn.GraphSAGE(graph.num_features, 16, graph.num_classes, num_layers=2)
    with pytest.raises(ConfigError, match="device='cpu' is the host"):
        Trainer(model, graph, hot="1GiB")
    with pytest.raises(ConfigError, match="mode='full' reads all of it"):
        Trainer(model, graph, hot="1GiB", mode="full")
    tiers = TieredFeatures.build(graph, host=0, disk=DiskOptions(depth=2, longest_bytes=4096))
    with pytest.raises(ConfigError, match="tiers are given"):
        Trainer(model, graph, hot="1GiB", tiers=tiers, accelerator=EmulatedAccelerator(INSTANT))
    assert Trainer(model, graph, hot=0).tiers is None

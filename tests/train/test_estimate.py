"""What a run is estimated to need, and what it then takes; what the modes and tiers are chosen by."""

import contextlib
import copy
import gc
import json
import re

import pytest
import torch
from tests.kernels import needs_kernels
from tests.modules import module_of
from tests.train.communities import AsWritten, community_graph, random_graph
from tests.train.linked_communities import relations, rgcn
from tests.train.typed_communities import bibliography

import graphbraid
from graphbraid import Trainer
from graphbraid import nn as gnn
from graphbraid.collective.run.profiler import batch_bytes_of
from graphbraid.datasets import open_store, save_store
from graphbraid.errors import ConfigError, DataError, GraphbraidError, ResourceError, RunsAsWrittenWarning
from graphbraid.estimates import choose, limits
from graphbraid.estimates import sizes as batch_and_pass
from graphbraid.estimates.estimate import full_needs
from graphbraid.estimates.machine import allocation_of
from graphbraid.estimates.records import Need, Needs
from graphbraid.estimates.sizes import batch_sizes
from graphbraid.estimates.trial import Trial
from graphbraid.features.budgets import LEAST_RESERVE_BYTES, host_budget
from graphbraid.loader import BatchLoader, LoaderSettings, NeighborLoader
from graphbraid.ops.kernels import new_rows
from graphbraid.train import HardwareFile, TrainConfig
from graphbraid.train.step.runner import WholeGraph

GIB = 1 << 30


pytestmark = pytest.mark.usefixtures("known_baseline")


def sage(graph, hidden=32, layers=2):
    return gnn.GraphSAGE(graph.num_features, hidden, graph.num_classes, layers)


# ---- the parts


def test_garbage_of_one_run_is_not_given_back_by_the_next():
    def leave_garbage():
        cycle = [torch.zeros(1000)]
        cycle.append(cycle)

    gc.collect()  # what earlier tests left, the last run would find
    gc.disable()
    try:
        assert allocation_of(leave_garbage, torch.device("cpu")).kept >= 4000
        assert allocation_of(gc.collect, torch.device("cpu")) == (0, 0, 0, 0, 0)
    finally:
        gc.enable()


def test_garbage_that_was_long_in_use_is_not_given_back_by_a_run_that_collects():
    gc.freeze()  # few objects are left, of which some more are enough for a collection of all
    cycle = []
    cycle.append(cycle)
    # Of a block that was taken while nobody counted, nobody would see that it is given back.
    assert allocation_of(lambda: cycle.append(torch.zeros(1000)), torch.device("cpu")).kept >= 4000
    gc.collect()
    of_all, kept = [], []
    gc.callbacks.append(lambda _, info: of_all.append(info["generation"] == 2))
    thresholds = gc.get_threshold()
    try:
        cycle = None
        found = allocation_of(lambda: kept.extend([] for _ in range(100_000)), torch.device("cpu"))
        assert any(of_all) is False
        assert len(of_all) > 10
    finally:
        gc.callbacks.pop()
    assert gc.get_threshold() == thresholds
    assert found == (0, 0, 0, 0, 0)


def test_allocations_are_seen_at_their_peak_and_afterwards():
    kept = []

    def run():
        first = torch.empty(1000, dtype=torch.float64)
        kept.append(torch.empty(500, dtype=torch.float64))
        del first

    found = allocation_of(run, torch.device("cpu"))
    assert 12_000 <= found.peak <= 12_000 + 256
    assert 4000 <= found.kept <= 4000 + 128


def test_blocks_that_the_c_library_returns_are_no_heap():
    def run():
        returned = torch.empty(1 << 25, dtype=torch.uint8)
        kept = torch.empty(1 << 20, dtype=torch.uint8)
        del returned, kept

    found = allocation_of(run, torch.device("cpu"))
    assert found.peak >= (1 << 25) + (1 << 20)
    assert 1 << 20 <= found.heap < 1 << 21


@needs_kernels
def test_rows_of_the_kernels_pool_are_told_from_other_blocks():
    def run():
        rows, other = new_rows(torch.empty(0, 1), 1 << 18, 4), torch.empty(1 << 22, dtype=torch.uint8)
        assert (rows.shape, rows.stride(), rows._base) == ((1 << 18, 4), (4, 1), None)
        del rows, other

    found = allocation_of(run, torch.device("cpu"))
    assert found.pooled == (1 << 22) + 1
    assert found.resident == found.peak >= 2 << 22


@needs_kernels
def test_freed_rows_of_the_pool_leave_no_memory_for_other_blocks():
    def run():
        for _ in range(2):
            rows = new_rows(torch.empty(0, 1), 1 << 18, 4)
            del rows
            other = torch.empty(1 << 22, dtype=torch.uint8)
            del other

    found = allocation_of(run, torch.device("cpu"))
    assert found.peak < (1 << 22) + (1 << 20)
    assert 2 << 22 <= found.resident < (2 << 22) + (1 << 20)


def test_batches_are_counted_as_a_loader_holds_them():
    graph = random_graph(3000, 8, 16)
    config, nodes = TrainConfig(fanouts=(5, 3), batch_size=64), graph.split("train")
    sizes = batch_sizes(Trial(sage(graph), graph, config).runner, config, nodes)
    assert sizes.num_batches == -(-nodes.numel() // 64)
    settings = LoaderSettings(
        num_neighbors=(5, 3), batch_size=64, input_nodes=nodes, shuffle=True, return_edge_id=False
    )
    with BatchLoader(graph, settings) as loader:
        largest = max(batch_bytes_of(batch) for batch in loader.batches(0))
    assert sizes.nbytes == pytest.approx(largest, rel=0.1)


@pytest.mark.parametrize("kind", [gnn.GraphSAGE, gnn.GCN, gnn.GAT])
def test_a_pass_on_two_small_graphs_says_what_a_large_one_takes(kind, monkeypatch):
    graph = random_graph(6000, 10, 24)
    model = kind(24, 16, graph.num_classes, 2)
    trial = Trial(model, graph, TrainConfig())
    whole = batch_and_pass.forward_bytes(trial)
    monkeypatch.setattr(batch_and_pass, "SMALL", 0)
    monkeypatch.setattr(batch_and_pass, "_NODES", 600)
    assert batch_and_pass.forward_bytes(trial) == pytest.approx(whole, rel=0.1)


def test_needs_are_what_is_held_and_the_largest_phase():
    needs = Needs(
        held=(Need(name="graph", nbytes=10, mapped=True), Need(name="model", nbytes=5)),
        phases=(Need(name="step", nbytes=7), Need(name="test", nbytes=9)),
    )
    assert (needs.nbytes, needs.must_bytes, needs.bytes_of("model")) == (24, 14, 5)
    assert [name for name, _, _ in needs.rows()] == ["graph", "model", "(step)", "(test)"]


# ---- the whole


@pytest.mark.slow
def test_an_estimate_changes_neither_model_nor_random_state():
    graph = community_graph()
    model = sage(graph)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found = graphbraid.estimate(model, graph, fanouts=(4, 4), batch_size=32)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    sampled, full = found.of("sampled"), found.of("full")
    assert sampled.fits
    assert full.fits
    assert sampled.seconds.train.seconds > 0
    assert full.seconds.floor < full.seconds.train.seconds
    assert found.tiers.host is None
    assert "no store's file" in found.tiers.reason
    with pytest.raises(KeyError):
        found.of("auto")
    said = str(found)
    assert "mode auto: full, as the whole graph needs up to" in said
    assert json.loads(json.dumps(found.to_json()))["modes"][0]["host"]["nbytes"] == sampled.host.nbytes


def test_the_mode_is_the_one_that_the_trainer_chooses(monkeypatch):
    graph = community_graph()
    for free in (1 << 30, 100_000):
        with monkeypatch.context() as patched:
            patched.setattr("graphbraid.fullgraph.device.free_memory_bytes", lambda found=free: found)
            chosen, reason = choose.choose_mode(sage(graph), graph, TrainConfig())
            trainer = Trainer(sage(graph), graph, mode="auto", fanouts=(4, 4))
            assert (trainer.config.mode, trainer.mode_reason) == (chosen, reason)
    assert chosen == "sampled"


@pytest.mark.slow
def test_other_machines_are_estimated_by_what_a_file_says(tmp_path):
    graph = random_graph(3000, 8, 16)
    file = tmp_path / "small.json"
    HardwareFile(name="small", memory_bytes=310 << 20, multiply_flops=1e6).save(file)
    small = HardwareFile.load(file)
    here = graphbraid.estimate(sage(graph), graph, fanouts=(4, 4), batch_size=64)
    there = graphbraid.estimate(sage(graph), graph, fanouts=(4, 4), batch_size=64, hardware=small)
    assert there.hardware.name == "small"
    slower = there.of("sampled").seconds.train.seconds / here.of("sampled").seconds.train.seconds
    assert slower > 100
    assert "by the rates of the two machines" in there.of("sampled").seconds.train.how
    tiny = HardwareFile(memory_bytes=1 << 20)
    full = graphbraid.estimate(sage(graph), graph, fanouts=(4, 4), hardware=tiny, times=False)
    assert not full.of("sampled").fits
    assert "there is no room: it needs memory" in full.of("sampled").reason
    assert full.of("sampled").seconds is None


def test_a_device_s_memory_is_counted_where_a_machine_has_one():
    graph = random_graph(3000, 8, 16)
    machine = HardwareFile(memory_bytes=GIB, device_memory_bytes=50_000)
    found = graphbraid.estimate(sage(graph), graph, fanouts=(4, 4), hardware=machine, times=False)
    sampled = found.of("sampled")
    assert sampled.device.bytes_of("batches") > 0
    assert not sampled.fits
    assert "device" in sampled.reason


def on_a_device(graph, device_memory_bytes, **options):
    machine = HardwareFile(memory_bytes=GIB, device_memory_bytes=device_memory_bytes)
    options = {"fanouts": (4, 4), "batch_size": 64, "hardware": machine, "times": False} | options
    return graphbraid.estimate(sage(graph), graph, **options)


@pytest.mark.slow
def test_rows_and_parts_on_the_device_are_counted():
    graph = random_graph(3000, 8, 256)
    row, indices = 256 * 4, graph.csc.indptr.nbytes + graph.csc.indices.nbytes
    plain = on_a_device(graph, GIB).of("sampled").device
    hot = on_a_device(graph, GIB, hot="1MiB").of("sampled").device
    rows = ((1 << 20) - 4 * 3000) // row
    assert hot.bytes_of("hot rows") == rows * row + 4 * 3000
    assert (hot.bytes_of("topology"), hot.bytes_of("labels")) == (indices, graph.y.nbytes)
    assert hot.bytes_of("features") == 0, "but for the hot rows they are on the host"
    assert hot.bytes_of("local ids") == 8 * 3000
    sampler = indices + graph.y.nbytes + 8 * 3000
    assert hot.nbytes == plain.nbytes + hot.bytes_of("hot rows") + sampler
    by_cpu = on_a_device(graph, GIB, hot="1MiB", plan="cpu").of("sampled").device
    assert by_cpu.nbytes == plain.nbytes + hot.bytes_of("hot rows")
    whole = on_a_device(graph, GIB, plan="auto").of("sampled").device
    assert whole.bytes_of("features") == graph.x.nbytes
    small = on_a_device(graph, 2 * (8 * 3000 + 60_000) + 200_000, plan="gpu").of("sampled")
    assert small.device.bytes_of("lists") > 0
    assert small.device.bytes_of("topology") == 0
    assert not small.fits


@pytest.mark.slow
def test_an_estimate_chooses_rows_of_the_device_as_a_run_does(monkeypatch):
    monkeypatch.setattr("graphbraid.features.tiers.device_sizing.LEAST_RESERVE_BYTES", 0)
    graph = random_graph(3000, 8, 256)
    found = on_a_device(graph, 16 << 20, tiers="auto")
    assert found.device_tiers.hot is not None
    assert found.device_tiers.reason in str(found)
    device = found.of("sampled").device
    assert found.device_tiers.hot - 4 * 3000 < device.bytes_of("hot rows") <= found.device_tiers.hot
    assert found.of("sampled").fits
    assert on_a_device(graph, 16 << 20).of("sampled").device.bytes_of("hot rows") == 0


def test_rows_on_a_device_that_there_is_not_are_no_run():
    found = on_a_device(random_graph(3000, 8, 16), None, hot="1MiB").of("sampled")
    assert not found.fits
    assert "the machine has none" in found.reason


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"graphbraid": "hardware", "memory": 3}', "memory"),
        ('{"graphbraid": "hardware", "memory_bytes": "much"}', "memory_bytes"),
        ('{"graphbraid": "hardware", "memory_bytes": 0}', "memory_bytes must be a positive number; got 0"),
        ('{"graphbraid": "hardware", "multiply_flops": -1}', "multiply_flops must be a positive number"),
        ('{"graphbraid": "machine"}', "it holds a machine"),
        ("no json", "it is not JSON"),
    ],
)
def test_files_that_describe_no_machine_are_refused(tmp_path, content, said):
    file = tmp_path / "machine.json"
    file.write_text(content)
    with pytest.raises(DataError, match=said):
        HardwareFile.load(file)
    with pytest.raises(DataError, match="cannot read the hardware"):
        HardwareFile.load(tmp_path / "none.json")


def test_what_cannot_be_estimated_is_refused():
    graph = community_graph()
    with pytest.raises(ConfigError, match=r"must be a torch\.nn\.Module"):
        graphbraid.estimate("sage", graph)
    with pytest.raises(ConfigError, match="must be a HardwareFile"):
        graphbraid.estimate(sage(graph), graph, hardware={"memory_bytes": 1})
    with pytest.raises(ConfigError, match="one entry per layer"):
        graphbraid.estimate(sage(graph, layers=3), graph, fanouts=(4, 4))
    with pytest.raises(ConfigError, match="not an option of TrainConfig"):
        graphbraid.estimate(sage(graph), graph, fanout=(4, 4))
    with pytest.raises(DataError, match="labels"):
        graphbraid.estimate(sage(graph), graph.replace(y=None), fanouts=(4, 4))


@pytest.mark.slow
def test_a_model_without_a_lowered_form_is_tried_as_it_is_written():
    graph = community_graph()
    found = graphbraid.estimate(
        AsWritten(graph.num_features, graph.num_classes), graph, fanouts=(4, 4), batch_size=32
    ).of("full")
    assert "runs as it is written" in found.reason
    assert found.host.bytes_of("step") > 0
    assert found.seconds.floor is None


@pytest.mark.slow
@pytest.mark.parametrize("eval_mode", ["sampled", "exact"])
def test_a_run_on_links_is_estimated_on_mini_batches(eval_mode):
    graph = relations()
    options = {"task": "link", "negatives": "shared", "fanouts": (4,), "eval_mode": eval_mode}
    model = rgcn(graph)
    before = copy.deepcopy(model.state_dict())
    found = graphbraid.estimate(model, graph, batch_size=64, **options)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    sampled, full = found.of("sampled"), found.of("full")
    assert sampled.fits
    assert sampled.seconds.train.seconds > 0
    assert sampled.seconds.validation.seconds > 0
    for part in ("links", "step", "validation", "test"):
        assert sampled.host.bytes_of(part) > 0, part
    # Ranking holds the scores of all ends at once here, and what is compared of them.
    assert sampled.host.bytes_of("test") > 4 * 120 * 90
    assert (full.fits, full.host) == (False, None)
    assert "not links" in full.reason
    assert found.mode == "sampled"
    assert "batches of links" in found.tiers.reason
    assert "links" in str(found)
    unranked = graphbraid.estimate(model, graph, batch_size=64, metrics=("auc",), times=False, **options).of(
        "sampled"
    )
    assert unranked.host.bytes_of("test") < sampled.host.bytes_of("test")
    with pytest.raises(ConfigError, match="mode='full' does not go with task='link'"):
        graphbraid.estimate(model, graph, mode="full", **options)
    with pytest.raises(ConfigError, match="LinkModel"):
        graphbraid.estimate(model.encoder, graph, **options)


# ---- tiers


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return save_store(random_graph(4000, 8, 256), tmp_path_factory.mktemp("stored") / "graph")


def test_memory_for_rows_is_what_the_rest_leaves(stored):
    graph = open_store(stored)
    fits = host_budget(graph, free_bytes=4 * GIB, needed_bytes=GIB)
    assert fits.host is None
    assert "rows and lists fit" in fits.reason
    left = graph.x.nbytes * 3 // 4
    some = host_budget(graph, free_bytes=GIB, needed_bytes=GIB - LEAST_RESERVE_BYTES - left)
    assert some.host == left
    assert "for the rest of the run and a reserve of 256.0 MiB" in some.reason
    none = host_budget(graph, free_bytes=GIB, needed_bytes=GIB)
    assert none.host == 0
    assert "from the files" in none.reason
    assert host_budget(graph, free_bytes=None, needed_bytes=0).host is None
    in_memory = open_store(stored, mmap=False)
    assert "in memory" in host_budget(in_memory, free_bytes=GIB, needed_bytes=GIB).reason


def test_tiers_auto_of_a_trainer_takes_none_where_all_fits(stored):
    graph = open_store(stored)
    trainer = Trainer(sage(graph), graph, tiers="auto", fanouts=(4, 4), batch_size=64, epochs=1)
    assert trainer.tiers is None
    assert "fit" in trainer.tiers_reason


def test_tiers_auto_of_a_trainer_keeps_the_losses(stored, monkeypatch):
    def losses(**options):
        torch.manual_seed(0)
        graph = open_store(stored)
        batches = {"fanouts": (4, 4), "batch_size": 64, "epochs": 1, "eval_every": 0}
        trainer = Trainer(sage(graph), graph, **batches, **options)
        trainer.fit()
        return trainer, [row["train_loss"] for row in trainer.progress.history]

    _, plain = losses()
    monkeypatch.setattr(choose, "capacity_bytes", lambda: 320 << 20)
    tiered, found = losses(tiers="auto")
    assert found == plain
    assert tiered.tiers is not None
    assert tiered.config.host == 0
    assert tiered.tiers.counts.disk_rows > 0
    assert "from the files" in tiered.tiers_reason


def test_tiers_auto_of_a_loader(stored, monkeypatch):
    graph = open_store(stored)
    loader = NeighborLoader(graph, [4, 4], "train", batch_size=64, seed=0, tiers="auto")
    assert loader.tiers is None
    plain = [batch.x for batch in loader.batches(0)]
    monkeypatch.setattr("graphbraid.loader.auto_tiers.free_memory_bytes", lambda: 256 << 20)
    tiered = NeighborLoader(graph, [4, 4], "train", batch_size=64, seed=0, tiers="auto")
    assert tiered.tiers is not None
    assert tiered.tiers.cache.num_rows == 0
    for batch, x in zip(tiered.batches(0), plain, strict=True):
        assert torch.equal(batch.x, x)
    with pytest.raises(ConfigError, match="tiers must be 'auto'"):
        NeighborLoader(graph, [4, 4], "train", tiers="much")


@pytest.mark.slow
@pytest.mark.parametrize(("share", "kinds"), [(1e9, {"lookahead"}), (0.0, {"inclusion", "presampled"})])
def test_a_run_looks_ahead_where_that_is_little_of_it_and_its_estimate_does_too(
    stored, monkeypatch, share, kinds
):
    monkeypatch.setattr("graphbraid.features.scores.choice.MOST_OF_RUN", share)
    graph, options = open_store(stored), {"fanouts": (4, 4), "batch_size": 64, "epochs": 5}
    trainer = Trainer(sage(graph), graph, host="1MiB", **options)
    [said] = [line for line in trainer.tiers.explain().splitlines() if "filled by" in line]
    found = graphbraid.estimate(sage(graph), graph, host="1MiB", times=False, **options)
    assert found.tier_score in str(found)
    for line in (said, f"filled by the score {found.tier_score}"):
        assert line.removeprefix("filled by the score ").split(":")[0] in kinds
        assert "of the run's" in line
    counted = ("5 epochs looked ahead", "3 epochs looked ahead")  # an estimate counts no more
    for line, looked in zip((said, found.tier_score), counted, strict=True):
        assert (looked if share else "looking 1 epoch ahead would take about") in line


def test_a_model_whose_steps_fail_leaves_the_time_of_the_run_unknown(stored):
    graph = open_store(stored)
    wrong = gnn.GraphSAGE(3, 8, graph.num_classes, 2)
    trainer = Trainer(wrong, graph, host="1MiB", fanouts=(4, 4), batch_size=64)
    assert "how long the run is was not said" in trainer.tiers.explain()
    with pytest.raises(GraphbraidError, match="x of shape"):
        trainer.fit()


def test_tiers_auto_is_refused_beside_what_says_otherwise(stored):
    graph = open_store(stored)
    with pytest.raises(ConfigError, match="leave one out"):
        Trainer(sage(graph), graph, tiers="auto", host=0, fanouts=(4, 4))
    with pytest.raises(ConfigError, match="mode='full' reads all"):
        Trainer(sage(graph), graph, tiers="auto", mode="full")
    with pytest.raises(ConfigError, match="tiers must be 'auto'"):
        Trainer(sage(graph), graph, tiers="much", fanouts=(4, 4))


@pytest.mark.slow
def test_the_whole_graph_is_read_in_blocks_or_says_why_not(stored):
    graph = open_store(stored)
    found, plain = (
        graphbraid.estimate(sage(graph), graph, fanouts=(4, 4), times=False, **option).of("full")
        for option in ({"host": 0}, {})
    )
    assert found.reason.startswith("reads ")
    assert plain.reason == ""
    # Aggregated in a temporary file; some ways to lower leave out nodes that training does not reach.
    reached = graph.num_nodes - 10
    assert found.disk_bytes >= 4 * reached * graph.num_features
    assert (
        "takes no tiers" in graphbraid.estimate(sage(graph), graph, hot="1MiB", times=False).of("full").reason
    )
    with pytest.raises(ConfigError, match="reads all of it in every step"):
        graphbraid.estimate(sage(graph), graph, mode="full", hot="1MiB")


def test_the_memory_of_evaluations_is_counted_beside_that_of_steps():
    """A run tries the model in evaluation mode before its first step, whether it evaluates later or not."""
    graph = random_graph(3000, 8, 16)
    options = {"eval_every": 0, "test_at_end": False, "times": False}
    needs = graphbraid.estimate(sage(graph), graph, **options).of("full").host
    trainer = Trainer(sage(graph), graph, mode="full", epochs=1, eval_every=0, test_at_end=False)
    trainer.fit()
    engine = trainer.runner.engine
    outputs = 4 * graph.num_nodes * graph.num_classes
    assert engine.runner._evaluate.is_allocated
    assert engine.runner.training_step.is_allocated
    assert needs.bytes_of("evaluation") == engine.evaluation_nbytes + outputs


def test_a_step_as_written_on_edge_features_is_tried():
    graph = random_graph(300, 4, 16).replace(edge_attr=torch.rand(1200, 3))

    def forward(self, x, edge_index, edge_attr):
        sums = torch.zeros(x.shape[0], 3).index_add_(0, edge_index[1], edge_attr.abs())
        return self.map(x) + sums.sum(1, keepdim=True)

    reads = module_of(forward, map=torch.nn.Linear(16, 4))
    found = full_needs(Trial(reads, graph, TrainConfig(mode="full")))
    assert found.engine is None
    assert max(need.nbytes for need in found.host.phases) >= 4 * 1200 * 3


def test_what_graph_breaks_allocate_beside_the_arena_is_counted(monkeypatch):
    graph = random_graph(60_000, 4, 16)

    class ByValue(torch.nn.Module):
        def forward(self, x):
            return (x.sin() * x.cos()).exp() * x if x.abs().max() > 1e-3 else x

    broken = module_of(
        lambda self, x, edge_index: self.last(self.part(self.first(x + self.rows, edge_index)), edge_index),
        first=gnn.GCNConv(16, 32),
        part=ByValue(),
        last=gnn.GCNConv(32, 4),
        rows=torch.nn.Parameter(torch.rand(60_000, 16)),  # of the nodes: a part has the first ones
    )
    config = TrainConfig(mode="full")
    trial = Trial(broken, graph, config)
    with pytest.warns(RunsAsWrittenWarning):
        found = full_needs(trial)
    assert (len(found.engine.breaks), found.why) == (1, "")
    said = {need.name: need.nbytes for need in found.host.phases}["graph breaks"]
    trial.runner.engine = found.engine
    nodes = graph.split("train")
    batch = WholeGraph(nodes=nodes, seed_y=graph.y[nodes])
    for _ in range(2):  # the first takes the arena
        taken = allocation_of(lambda: trial.step(batch), trial.device).peak
    assert taken == pytest.approx(said, rel=0.02)
    for free in (found.engine.nbytes + found.engine.evaluation_nbytes + said // 2, 1 << 30):
        monkeypatch.setattr("graphbraid.fullgraph.device.free_memory_bytes", lambda free=free: free)
        refused = pytest.raises(ResourceError, match=r"parts of the model .* parts that run as written\. Use")
        with refused if free < 1 << 30 else contextlib.nullcontext():
            limits.require_as_written(trial.runner.model, graph, config, "", found.engine)


@pytest.mark.parametrize("why", ["", "too large"])
def test_mini_batches_that_fit_no_memory_are_refused_by_what_a_step_holds(why):
    graph = random_graph(3000, 8, 16)
    model = sage(graph, hidden=256)
    config = TrainConfig(fanouts=(4, 4), batch_size=256, eval_every=0, test_at_end=False)
    parts = limits._parts_to_come(model, graph, config)
    step = parts["the activations and gradients of a step"]
    assert step > 4 * 4 * 3000 * 16, "activations, and not rows alone, are counted"
    assert sum(parts.values()) < limits.most_bytes(model, graph, config), "the bound that saves the trial"
    needed = sum(parts.values()) + limits._RESERVE_BYTES // 2
    limits.require_sampled(model, graph, config, why, free_bytes=needed + 1_000_000)
    says = "neither way to train fits.*too large" if why else "training on mini-batches needs"
    with pytest.raises(
        ResourceError, match=rf"{says}.* for the activations and gradients of a step"
    ) as caught:
        limits.require_sampled(model, graph, config, why, free_bytes=needed - step // 2)
    # What it says to give does fit.
    given = re.search(r"Give batch_size=(\d+), eval_batch_size=(\d+), which fits", str(caught.value))
    assert given is not None
    smaller = config.updated(batch_size=int(given[1]), eval_batch_size=int(given[2]))
    limits.require_sampled(model, graph, smaller, why, free_bytes=needed - step // 2)
    with pytest.raises(ResourceError, match="Choose smaller fanouts, batch_size or model"):  # none is tried
        limits.require_sampled(model, graph, config, why, free_bytes=needed - sum(parts.values()) * 7 // 8)


def of_types(graph):
    return gnn.RGCN.of(graph, 64), {"fanouts": (4, 4), "batch_size": 64, "eval_mode": "exact"}


def of_links(graph):
    options = {"task": "link", "negatives": "shared", "fanouts": (4,), "batch_size": 64}
    return rgcn(graph), options


@pytest.mark.parametrize(("graph", "made"), [(bibliography, of_types), (relations, of_links)])
def test_a_run_on_several_node_types_or_relations_is_counted_as_one_on_one_is(graph, made, monkeypatch):
    graph = graph()
    model, options = made(graph)
    trainer = Trainer(model, graph, epochs=1, **options)
    parts = limits._parts_to_come(model, graph, trainer.config)
    for part in ("mini-batches under way", "the optimizer's state", "freed blocks that the process keeps"):
        assert parts[part] > 0, part
    assert sum(parts.values()) < limits.most_bytes(model, graph, trainer.config)
    free = sum(parts.values()) * 2 // 3
    for module in ("fullgraph.device", "train.run.setup"):
        monkeypatch.setattr(f"graphbraid.{module}.free_memory_bytes", lambda: free)
    under_way = "for mini-batches under way"
    with pytest.raises(ResourceError, match=rf"training on mini-batches needs .* {under_way}"):
        trainer.fit()
    with pytest.raises(ResourceError, match=rf"measuring a run's stages .* {under_way}.* without a plan"):
        trainer.profile()
    monkeypatch.undo()
    trainer.fit()


def test_a_profile_is_refused_where_only_a_run_fits(monkeypatch, tmp_path):
    """Threads and pools of tried arrangements take memory that a run does not."""
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path))
    graph = random_graph(3000, 8, 16)
    options = {"fanouts": (4, 4), "batch_size": 256, "eval_every": 0, "test_at_end": False}
    trainer = Trainer(sage(graph, hidden=256), graph, epochs=1, **options)
    parts = limits._parts_to_come(trainer.model, graph, trainer.config)
    free = sum(parts.values()) + limits._RESERVE_BYTES
    for module in ("fullgraph.device", "train.run.setup"):
        monkeypatch.setattr(f"graphbraid.{module}.free_memory_bytes", lambda: free)
    with pytest.raises(ResourceError, match=r"needs .* for threads and copies, which are kept free\. "):
        trainer.profile()
    trainer.fit()


def test_a_model_that_runs_as_it_is_written_on_too_large_a_graph_is_refused():
    graph = random_graph(3000, 8, 16)
    trial_free = type("Device", (), {"free_bytes": lambda self: 100_000})()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "device_named", lambda _: trial_free)
        with pytest.raises(ResourceError, match=r"as it is written \(it says so\), .*mode='sampled'"):
            limits.require_as_written(sage(graph, hidden=64), graph, TrainConfig(mode="full"), "it says so")


def test_less_memory_for_rows_is_what_fits_first():
    graph = random_graph(3000, 8, 1000)
    config = TrainConfig(host=16 << 20)
    said = limits._what_fits(sage(graph), graph, config, needed=5 << 20, free=2 << 20)
    assert said.startswith("Give host='13MiB' (--host 13MiB)")

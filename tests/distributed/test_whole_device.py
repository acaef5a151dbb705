"""Ranks on devices learn what one rank on the host does; the devices are the tests' stand-ins."""

import copy
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import warm
from tests.distributed import peers
from tests.distributed.ranks import environment, run
from tests.distributed.test_rank_part import assert_parts_suffice
from tests.distributed.test_whole_graph import divided_graphs, make_model
from tests.distributed.threads import run_threads
from tests.distributed.whole import as_processes, assert_as_one_rank, mixed, owners, trained
from tests.extras import NO_PYG, NO_TRITON
from tests.fullgraph.fake_device import FakeDevice
from tests.fullgraph.graphs import CHANNELS, CLASSES, NUM_NODES, make_graph
from tests.fullgraph.test_engine import GRAPHS, MODELS
from tests.modules import module_of
from tests.suites import every, few_of

from graphbraid import native
from graphbraid import nn as gnn
from graphbraid.distributed.peers import Peers
from graphbraid.errors import ConfigError
from graphbraid.fullgraph import ALL, NotLoweredError, Ranks
from graphbraid.fullgraph.device import DeviceLimits
from graphbraid.fullgraph.ranks import pipeline_tuner
from graphbraid.fullgraph.ranks.pipeline_tuner import MOST_TRIALS
from graphbraid.ops.peers import PipelineConfig
from graphbraid.train import TrainConfig

DIVISIBLE = sorted(MODELS.keys() - {"mlp"})
QUICK = ("gcn", "sage", "sage max", "gat", "batch norm, gelu")
SUMS = ("gcn", "sage", "gin, learned eps", "batch norm, gelu", "gat")
"""Models whose sums would read rows of peers, and one whose rows travel in any case."""
EPOCHS = 6


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    """Threads do as processes do, and the stand-in runs the twins, as no device has the host's kernels."""
    as_processes(monkeypatch)
    peers.share_in_threads(monkeypatch)
    monkeypatch.setattr(native, "kernels", lambda: None)


@pytest.fixture
def travel(monkeypatch):
    """Ranks cannot read each other's memory."""
    monkeypatch.setattr(Peers, "_why_not", lambda self: "rank 1 is on another machine than rank 0")


@pytest.fixture
def by_host(travel, monkeypatch):
    """Nor does a transport read a device's: rows travel by way of the host's."""
    monkeypatch.setattr(Peers, "by_host", property(lambda self: True))


class DeviceOfWarps(FakeDevice):
    """A stand-in that says what its multiprocessors hold, so that a configuration is searched."""

    def limits(self):
        return DeviceLimits(num_sms=1, warps_per_sm=4, shared_bytes_per_sm=1 << 16, blocks_per_sm=2)


def assert_devices_learn_alike(model, graph, partition, **options):
    options = {"epochs": EPOCHS, "device": FakeDevice} | options
    return assert_as_one_rank(model, graph, partition, **options)


@pytest.mark.parametrize("size", few_of((2, 3, 4), {3}))
@pytest.mark.parametrize("name", few_of(DIVISIBLE, QUICK))
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_losses_of_every_model_are_those_of_one_rank_on_the_host(name, size, dropout):
    assert_devices_learn_alike(make_model(name, dropout=dropout), make_graph(), mixed(size))


@pytest.mark.slow
@pytest.mark.parametrize("kind", every(3, GRAPHS))
@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_so_they_are_on_graphs_of_every_kind(name, kind):
    assert_devices_learn_alike(make_model(name, dropout=0.3), make_graph(**GRAPHS[kind]), mixed(3))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in SUMS else pytest.param(name, marks=pytest.mark.long) for name in DIVISIBLE]
)
def test_so_they_are_where_rows_travel(name, travel):
    assert_devices_learn_alike(make_model(name, dropout=0.3), make_graph(), mixed(3))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gcn", "sage max", "batch norm, gelu"])
def test_so_they_are_where_rows_go_by_way_of_the_host(name, by_host):
    assert_devices_learn_alike(make_model(name, dropout=0.3), make_graph(), mixed(3))


@pytest.mark.slow
@pytest.mark.parametrize("left_out", few_of(sorted(ALL), {"hoist"}))
def test_so_they_are_whatever_pass_is_left_out(left_out):
    model = gnn.GraphSAGE(CHANNELS, 16, CLASSES, 3, norm="layer", dropout=0.5)
    assert_devices_learn_alike(model, make_graph(), mixed(2), passes=ALL - {left_out})


@pytest.mark.slow
def test_so_they_are_where_a_rank_owns_nothing():
    nothing = owners(torch.arange(NUM_NODES) % 2, 3)
    assert_devices_learn_alike(make_model("gcn"), make_graph(), nothing)


@pytest.mark.slow
@given(divided=divided_graphs(), name=st.sampled_from(["gcn", "sage", "gin"]))
def test_so_they_are_on_any_graph_divided_in_any_way(divided, name):
    graph, parts = divided
    assert_devices_learn_alike(make_model(name), graph, parts, epochs=3)


def featured(first, second):
    """A model of two layers that read edge features, and a graph with some."""
    torch.manual_seed(3)

    def forward(self, x, edge_index, edge_attr):
        return self.second(self.first(x, edge_index, edge_attr).relu(), edge_index, edge_attr)

    graph = make_graph()
    attr = torch.randn(graph.num_edges, 3, generator=torch.Generator().manual_seed(2))
    return module_of(forward, first=first(), second=second()), graph.replace(edge_attr=attr)


@pytest.mark.slow
def test_edge_features_stay_with_their_edges():
    pyg = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)
    model, graph = featured(
        lambda: pyg.GINEConv(torch.nn.Linear(CHANNELS, 8), edge_dim=3),
        lambda: pyg.GINEConv(torch.nn.Linear(8, CLASSES), edge_dim=3),
    )
    assert_devices_learn_alike(model, graph, mixed(3))


def test_attention_to_edge_features_is_refused_as_on_one_device():
    pyg = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)
    model, graph = featured(
        lambda: pyg.GATv2Conv(CHANNELS, 8, edge_dim=3), lambda: pyg.GATConv(8, CLASSES, edge_dim=3)
    )
    with pytest.raises(NotLoweredError, match="attention to edge features has no kernel"):
        assert_devices_learn_alike(model, graph, mixed(2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_so_they_are_where_each_knows_its_part_alone(name, tmp_path):
    model = make_model(name, dropout=0.3)
    assert_parts_suffice(model, make_graph(), mixed(3), tmp_path / "p", epochs=EPOCHS, device=FakeDevice)


@pytest.mark.parametrize("name", ["gcn", "batch norm, gelu"])
def test_rows_may_be_rounded_on_their_way_by_the_host_too(name, by_host):
    graph, model = make_graph(), make_model(name)
    alone = trained(model, graph, None, epochs=EPOCHS)

    def run(comm):
        ranks = Ranks(comm=comm, partition=mixed(2), wire="bfloat16")
        return trained(model, graph, ranks, epochs=EPOCHS, device=FakeDevice())

    for found in run_threads(2, run):
        assert found["losses"] == pytest.approx(alone["losses"], rel=2e-2)
        assert found["losses"] != pytest.approx(alone["losses"], rel=1e-7)  # or nothing was rounded


# ---- how rows are read


def explained(found):
    return found[0]["engine"].explain()


@pytest.mark.slow
def test_sums_of_rows_read_them_where_peers_keep_them_and_others_have_them_travel():
    found = assert_devices_learn_alike(make_model("gcn"), make_graph(), mixed(2), epochs=2)
    step = found[0]["engine"].runner.training_step
    assert set(step.peer_reads) == set(step.exchanged_rows) != set()
    assert "read where peers keep them: " in explained(found)
    assert "partitions of 16 edges, 1 of a kind a warp, 4 warps a block" in explained(found)
    found = assert_devices_learn_alike(make_model("sage max"), make_graph(), mixed(2), epochs=2)
    assert not found[0]["engine"].runner.training_step.peer_reads
    assert "their reader is not a single sum of float32 rows" in explained(found)


def test_why_rows_travel_is_explained(travel):
    found = assert_devices_learn_alike(make_model("gcn"), make_graph(), mixed(2), epochs=1)
    assert not found[0]["engine"].runner.training_step.peer_reads
    assert ": rank 1 is on another machine than rank 0" in explained(found)


def learned_by(pipeline, device, *, wire="float32", epochs=2, **options):
    """What two ranks learn with sums of a given configuration, or a searched one."""
    graph, model = make_graph(), make_model("gcn")

    def run(comm):
        ranks = Ranks(comm=comm, partition=mixed(2), pipeline=pipeline, wire=wire)
        return trained(copy.deepcopy(model), graph, ranks, epochs=epochs, device=device(), **options)

    return run_threads(2, run)


def test_rows_that_are_rounded_travel():
    assert "rows are rounded to bfloat16 on their way" in explained(
        learned_by(None, FakeDevice, wire="bfloat16")
    )


@pytest.fixture
def quick_trials(monkeypatch, tmp_path):
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path))
    monkeypatch.setattr(pipeline_tuner, "MOST_SPREAD", float("inf"))
    monkeypatch.setattr(pipeline_tuner, "STEPS", 2)


@pytest.mark.slow
def test_a_configuration_is_found_in_the_first_steps_and_known_in_the_next_run(quick_trials):
    alone = trained(make_model("gcn"), make_graph(), None, epochs=2 * MOST_TRIALS + 2)
    found = learned_by("tuned", DeviceOfWarps, epochs=2 * MOST_TRIALS + 2)
    runners = [rank["engine"].runner for rank in found]
    first, steps = runners[0].tuned, [runner.training_step for runner in runners]
    assert all(runner.tuned == first for runner in runners)
    assert all(step.plan.exchanges.pipeline == first.config for step in steps)
    assert 1 < len(first.table) <= first.num_trials <= MOST_TRIALS
    assert first.table[first.chosen] <= next(iter(first.table.values()))
    assert explained(found).count(" ms\n") >= len(first.table)
    assert found[0]["losses"] == found[1]["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    again = learned_by("tuned", DeviceOfWarps, epochs=1)
    assert again[0]["engine"].runner.tuned == first
    assert "trials of ps, dist, wpb in an earlier run" in explained(again)


@pytest.mark.slow
def test_a_disturbed_search_is_used_but_not_kept_and_a_damaged_table_is_searched_anew(
    quick_trials, monkeypatch, tmp_path, caplog
):
    monkeypatch.setattr(pipeline_tuner, "MOST_SPREAD", -1.0)
    enough = 2 * MOST_TRIALS + 2
    assert learned_by("tuned", DeviceOfWarps, epochs=enough)[0]["engine"].runner.tuned is not None
    assert not list(tmp_path.glob("pipelines/*.json"))
    monkeypatch.setattr(pipeline_tuner, "MOST_SPREAD", float("inf"))
    learned_by("tuned", DeviceOfWarps, epochs=enough)
    (file,) = tmp_path.glob("pipelines/*.json")
    file.write_text(file.read_text().replace("chosen", "chase"))
    assert learned_by("tuned", DeviceOfWarps, epochs=1)[0]["engine"].runner.tuned is None
    assert "cannot be used" in caplog.text


def test_passes_without_backward_do_not_count(quick_trials, monkeypatch):
    monkeypatch.setattr(pipeline_tuner, "STEPS", 10)
    found = learned_by("tuned", DeviceOfWarps, epochs=3, before=lambda engine: engine())
    assert [len(rank["engine"].runner._tuner._seconds) for rank in found] == [
        2,
        2,
    ]  # not the last


def test_a_configuration_that_is_being_tried_is_said_to_be(quick_trials):
    assert "the kernel's configuration is being tried" in explained(
        learned_by("tuned", DeviceOfWarps, epochs=1)
    )


def test_without_limits_or_a_search_the_configuration_is_the_given_one(quick_trials):
    few = PipelineConfig(ps=4, dist=2)
    for pipeline, device in (("tuned", FakeDevice), (None, DeviceOfWarps), (few, DeviceOfWarps)):
        runner = learned_by(pipeline, device, epochs=1)[0]["engine"].runner
        assert runner.tuned is None
        assert runner.training_step.plan.exchanges.pipeline == (few if pipeline is few else PipelineConfig())


def test_other_words_for_a_pipeline_are_refused():
    with pytest.raises(ConfigError, match="pipeline must be"):
        learned_by("fast", FakeDevice)


def test_mini_batches_exchange_no_rows():
    with pytest.raises(ConfigError, match="exchange='fixed' is for rows that ranks exchange on the whole"):
        TrainConfig(mode="sampled", exchange="fixed")


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("kernel", ["twin", pytest.param("interpreted", marks=pytest.mark.slow)])
def test_processes_train_by_reading_each_others_rows(kernel):
    if kernel == "interpreted":
        pytest.importorskip("triton", reason=NO_TRITON)
    [alone] = run(1, peers.trained_in_processes, "host")
    for said in run(2, peers.trained_in_processes, kernel, TRITON_INTERPRET="1"):
        assert said.result["reads"] > 0
        assert said.result["losses"] == pytest.approx(alone.result["losses"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_so_do_processes_of_a_group_that_torch_made(method, tmp_path):
    [alone] = run(1, peers.trained_in_processes, "host")
    call = f"peers.train_on_one_card({str(tmp_path)!r}, 'twin', {method!r})"
    done = warm.run(["-c", f"from tests.distributed import peers; {call}"], environment=environment())
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        said = json.loads((tmp_path / f"{rank}.json").read_text())
        assert said["reads"] > 0
        assert said["losses"] == pytest.approx(alone.result["losses"], rel=1e-5)


@pytest.mark.gpu
@pytest.mark.distributed
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, which two processes share")
def test_processes_on_one_card_train_by_reading_each_others_rows(tmp_path):
    [alone] = run(1, peers.trained_in_processes, "host")
    for said in peers.run_on_one_card(2, tmp_path, peers.trained_in_processes, "compiled"):
        assert said["reads"] > 0
        assert said["losses"] == pytest.approx(alone.result["losses"], rel=1e-4)

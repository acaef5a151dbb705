"""Ranks on devices learn what one rank on the host does; the devices are the tests' stand-ins."""

import pytest
import torch
from tests.distributed import peers
from tests.distributed.test_rank_part import assert_parts_suffice
from tests.distributed.threads import run_threads
from tests.distributed.whole import as_processes, assert_as_one_rank, owners, trained
from tests.fullgraph.fake_device import FakeDevice
from tests.fullgraph.graphs import CHANNELS, CLASSES, NUM_NODES, make_graph
from tests.fullgraph.test_engine import GRAPHS, MODELS
from tests.suites import few_of

from graphbraid import native
from graphbraid import nn as gnn
from graphbraid.distributed.peers.group import Peers
from graphbraid.fullgraph import ALL, Ranks

DIVISIBLE = sorted(MODELS.keys() - {"mlp"})
QUICK = {"gcn", "sage", "sage max", "gat", "batch norm, gelu"}
EPOCHS = 6


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    """Threads do as processes do, and the stand-in runs the twins, as no device has the host's kernels."""
    as_processes(monkeypatch)
    peers.share_in_threads(monkeypatch)
    monkeypatch.setattr(native, "kernels", lambda: None)


@pytest.fixture
def by_host(monkeypatch):
    """Rows travel by way of the host's memory, as those of a device that no transport reads."""
    monkeypatch.setattr(Peers, "by_host", property(lambda self: True))


def make_model(name, **options):
    torch.manual_seed(3)
    return MODELS[name](**options)


def mixed(num_parts, num_nodes=NUM_NODES):
    """Neighbouring ids on different ranks."""
    return owners(torch.arange(num_nodes) * 7 % 11 % num_parts, num_parts)


def assert_devices_learn_alike(model, graph, partition, **options):
    options = {"epochs": EPOCHS, "device": FakeDevice} | options
    return assert_as_one_rank(model, graph, partition, **options)


@pytest.mark.parametrize("size", few_of((2, 3, 4), {3}))
@pytest.mark.parametrize("name", few_of(DIVISIBLE, QUICK))
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_losses_are_those_of_one_rank_on_the_host(name, size, dropout):
    assert_devices_learn_alike(make_model(name, dropout=dropout), make_graph(), mixed(size))


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_so_they_are_on_graphs_of_every_kind(name, kind):
    assert_devices_learn_alike(make_model(name, dropout=0.3), make_graph(**GRAPHS[kind]), mixed(3))


@pytest.mark.parametrize("name", ["gcn", "sage max", "batch norm, gelu"])
def test_so_they_are_where_rows_go_by_way_of_the_host(name, by_host):
    assert_devices_learn_alike(make_model(name, dropout=0.3), make_graph(), mixed(3))


@pytest.mark.parametrize("left_out", few_of(sorted(ALL), {"hoist"}))
def test_so_they_are_whatever_pass_is_left_out(left_out):
    model = gnn.GraphSAGE(CHANNELS, 16, CLASSES, 3, norm="layer", dropout=0.5)
    assert_devices_learn_alike(model, make_graph(), mixed(2), passes=ALL - {left_out})


def test_so_they_are_where_a_rank_owns_nothing():
    nothing = owners(torch.arange(NUM_NODES) % 2, 3)
    assert_devices_learn_alike(make_model("gcn"), make_graph(), nothing)


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

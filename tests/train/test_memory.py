"""A training run holds the graph and its features once."""

import json
import os
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import warm
from tests.extras import NO_PEAK
from tests.peaks import least_peak

from graphbraid.estimates import machine as rank_memory
from graphbraid.features.tiers.device_sizing import DeviceMemory

TRAIN = """
import json, sys, torch
from graphbraid import nn as gnn
from graphbraid.graph import Graph
from graphbraid.train import Trainer
from tests.peaks import rise

torch.set_num_threads(1)

def graph(n):
    edges = torch.randint(n, (2, 8 * n))
    ids = torch.arange(n)
    count = min(n // 10, 4096)  # eight batches: more of them take no more memory
    splits = {"train": ids[:count], "val": ids[count : 2 * count], "test": ids[-count:]}
    return Graph.from_edge_index(edges, n, x=torch.rand(n, 64), y=ids % 5, splits=splits, keep_edge_id=False)

def train(g):
    model = getattr(gnn, sys.argv[2])(64, 32, 5, 2)
    batches = {"fanouts": (5, 5), "batch_size": 512, "eval_batch_size": 512}
    Trainer(model, g, epochs=1, memory_budget_bytes=16 << 20, **batches).fit()

train(graph(2000))
g = graph(int(sys.argv[1]))
print(json.dumps([g.nbytes, rise(lambda: train(g))]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason=NO_PEAK)
@pytest.mark.parametrize("model", ["GraphSAGE", pytest.param("GCN", marks=pytest.mark.long)])
def test_training_adds_a_fifth_of_the_graph_and_a_constant_at_most(model, tmp_path):
    """The constant: 96 MiB for batches under way, the model, and exact inference under its 16 MiB."""
    for num_nodes in (50_000, 400_000):

        def above(num_nodes: int = num_nodes) -> float:
            environment = os.environ | {"TMPDIR": str(tmp_path)}
            done = warm.run(["-c", TRAIN, num_nodes, model], environment=environment)
            assert done.returncode == 0, done.stderr
            graph_bytes, grown = json.loads(done.stdout)
            return float(grown - 0.2 * graph_bytes)

        assert least_peak(above, 96 << 20) <= 96 << 20, num_nodes


RANKS = st.lists(
    st.tuples(
        st.sampled_from(["one", "other"]),
        st.none() | st.integers(1, 1 << 40),
        st.sampled_from(["", "card 0", "card 1"]),
        st.none() | st.integers(0, 1 << 40),
    ),
    min_size=1,
    max_size=5,
)


def parts_of(ranks):
    """What each rank is given, one after the other, by what all have found."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_memory, "own_anonymous_bytes", lambda: 0)
        for rank, (machine, free, name, there) in enumerate(ranks):
            patch.setattr(rank_memory, "machine_name", lambda machine=machine: machine)
            patch.setattr(rank_memory, "free_memory_bytes", lambda free=free: free)
            comm = SimpleNamespace(rank=rank, gather=lambda _: [list(given) for given in ranks])
            device = DeviceMemory(free_bytes=there, link_bytes_per_second=7.0)
            found.append(rank_memory.memory_of_rank(comm, device, name))
    return found


@given(RANKS)
def test_parts_of_one_memory_are_never_more_than_all_of_it(ranks):
    parts = parts_of(ranks)
    for rank, (machine, free, name, there) in enumerate(ranks):
        beside = [other for other, given in enumerate(ranks) if given[0] == machine]
        taken = [parts[other].host_bytes for other in beside]
        if None in taken:
            assert set(taken) == {None}
        else:
            assert sum(taken) <= max(free, len(beside))
        users = [other for other in beside if ranks[other][2] == name] if name else [rank]
        on_device = [parts[other].device.free_bytes for other in users]
        assert parts[rank].device.link_bytes_per_second == 7.0
        if len(users) == 1:
            assert on_device == [there]
        elif None not in on_device:
            assert sum(on_device) <= there
        said = f"{len(users)} ranks use one device" in parts[rank].reason
        assert said == (len(users) > 1 and None not in on_device)


def test_a_rank_without_a_device_divides_the_host_s_memory_alone():
    comm = SimpleNamespace(rank=0, gather=lambda given: [given, given])
    found = rank_memory.memory_of_rank(comm, None, "")
    assert found.device is None
    assert found.host_bytes > 0
    assert found.reason.startswith("2 ranks divide the ")


def test_a_device_is_told_by_the_name_of_its_memory():
    assert rank_memory.memory_name("cpu", None) == ""
    assert rank_memory.memory_name("cpu", SimpleNamespace()) == ""
    assert rank_memory.memory_name("cpu", SimpleNamespace(memory_name="a card")) == "a card"

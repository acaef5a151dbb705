"""Stores whose nodes are renumbered while they are written: what memory gives, with the ids kept."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import warm
from tests.datasets.helpers import small_graph
from tests.extras import NO_PEAK
from tests.features.cases import arrays, assert_same, full_graphs
from tests.graph.edge_cases import random_edges
from tests.kernels import needs_kernels
from tests.peaks import least_peak
from tests.suites import examples

from graphbraid import Csc, Graph
from graphbraid.datasets import NodeIds, open_names, open_store, save_store
from graphbraid.datasets.store import changed
from graphbraid.errors import DataError
from graphbraid.features import reorder

ORDER = torch.tensor([3, 0, 4, 2, 1])


@pytest.fixture
def parts(monkeypatch):
    """Parts of so many bytes."""

    def of(num_bytes):
        monkeypatch.setattr(changed, "part_bytes", lambda: num_bytes)

    return of


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graph=full_graphs(), data=st.data(), num_bytes=st.sampled_from((1, 16, 100, 1 << 20)))
def test_a_store_holds_what_reorder_gives(graph, data, num_bytes, parts, tmp_path_factory):
    order = torch.tensor(data.draw(st.permutations(range(graph.num_nodes))), dtype=torch.int64)
    parts(num_bytes)
    folder = tmp_path_factory.mktemp("stores")
    mapped = open_store(save_store(graph, folder / "before"))
    path = save_store(mapped, folder / "after", order=order)
    assert_same(open_store(path, verify=True), reorder(graph, order).graph)
    assert open_names(path).ids.values.tolist() == order.tolist()


def test_the_ids_of_before_are_those_of_the_beginning(tmp_path):
    names = NodeIds(np.array(["a", "b", "c", "d", "e"], object))
    path = save_store(small_graph(), tmp_path / "s", ids=names, class_names=["x", "y"], order=ORDER)
    assert open_names(path).ids.values.tolist() == ["d", "a", "e", "c", "b"]
    again = save_store(open_store(path), tmp_path / "t", ids=open_names(path).ids, order=ORDER)
    assert open_names(again).ids.values.tolist() == ["c", "d", "b", "e", "a"]
    numbers = save_store(small_graph(), tmp_path / "u", ids=NodeIds(np.arange(5) * 10), order=ORDER)
    assert open_names(numbers).ids.values.tolist() == [30, 0, 40, 20, 10]


@pytest.mark.parametrize("name", ["y.npy", "x.npy"])
def test_an_array_of_the_store_before_is_refused(tmp_path, name):
    """It has the same shape, dtype and times: labels would be those of other nodes."""
    before = save_store(small_graph(), tmp_path / "before")
    after = save_store(open_store(before), tmp_path / "after", order=ORDER)
    open_store(after)  # verified once, which is noted
    shutil.copy2(before / name, after / name)
    with pytest.raises(DataError, match=rf"{name} has changed .* from before its nodes were renumbered\?"):
        open_store(after)


def test_back_by_the_ids_gives_the_first_store(tmp_path):
    first = small_graph(sparse=True)
    there = save_store(first, tmp_path / "there", order=ORDER)
    back = torch.from_numpy(open_names(there).ids.values).argsort()
    again = save_store(open_store(there), tmp_path / "back", ids=open_names(there).ids, order=back)
    assert_same(open_store(again), first)
    assert open_names(again).ids.values.tolist() == [0, 1, 2, 3, 4]


def test_a_store_may_replace_the_one_it_is_made_of(tmp_path, parts):
    parts(8)
    path = save_store(small_graph(), tmp_path / "s")
    save_store(open_store(path), path, order=ORDER, if_exists="replace")
    assert_same(open_store(path, verify=True), reorder(small_graph(), ORDER).graph)


def test_what_is_no_order_leaves_nothing(tmp_path):
    with pytest.raises(DataError, match=r"order\[4\] is 3, as order\[3\] is, and node 4 is missing"):
        save_store(small_graph(), tmp_path / "s", order=torch.tensor([0, 1, 2, 3, 3]))
    assert list(tmp_path.iterdir()) == []


def test_a_failure_in_the_midst_leaves_nothing(tmp_path, parts, monkeypatch):
    parts(8)
    made = []
    rows = changed.Renumbering.rows

    def failing(self, *arguments):
        made.append(arguments)
        if len(made) == 4:
            raise KeyboardInterrupt
        return rows(self, *arguments)

    monkeypatch.setattr(changed.Renumbering, "rows", failing)
    with pytest.raises(KeyboardInterrupt):
        save_store(small_graph(), tmp_path / "s", order=ORDER)
    assert list(tmp_path.iterdir()) == []


def test_no_part_is_larger_than_was_asked_for_but_a_single_list(tmp_path, parts, monkeypatch):
    parts(4000)
    sizes = {}
    write = changed.ArrayParts

    def noting(dtype, shape, made):
        def parts():
            for part in made():
                sizes.setdefault(shape, []).append(part.nbytes)
                yield part

        return write(dtype, shape, parts)

    noting.whole = write.whole
    monkeypatch.setattr(changed, "ArrayParts", noting)
    src, dst = random_edges(500, 20_000)
    graph = Graph.from_edge_index(torch.stack((src, dst)), 500, x=torch.randn(500, 16), y=[0] * 500)
    save_store(graph, tmp_path / "s", order=torch.arange(500).flip(0))
    longest = int(graph.csc.degrees().max()) * 8  # edge ids
    assert sum(map(len, sizes.values())) > 30
    assert max(max(found) for found in sizes.values()) <= max(4000, longest)
    assert sum(sizes[500, 16]) == 500 * 16 * 4


def test_the_manifest_is_that_of_any_store(tmp_path):
    plain = json.loads((save_store(small_graph(), tmp_path / "s") / "graph.json").read_text())
    ordered = json.loads((save_store(small_graph(), tmp_path / "t", order=ORDER) / "graph.json").read_text())
    assert {*ordered["arrays"]} == {*plain["arrays"], "ids_int"}
    for name, entry in plain["arrays"].items():
        assert entry.keys() == ordered["arrays"][name].keys()
        assert entry["shape"] == ordered["arrays"][name]["shape"]
    assert set(arrays(open_store(tmp_path / "t"))) == set(arrays(small_graph()))


# Prints the peak of memory that is no file's, over what the process held before, in bytes.
MEASURE = """
import sys, threading
from pathlib import Path
import torch
from graphbraid import features
from graphbraid.datasets.store import changed
from graphbraid.datasets import open_store, save_store
from graphbraid.graph import Graph

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

def watch():
    while not done.wait(0.002):
        seen.append(anonymous())

features.reorder(Graph.from_edge_index([[0, 1], [1, 0]], 2, x=torch.zeros(2, 1)), "degree")  # loads kernels
graph = open_store(sys.argv[1], verify=False)
changed.part_bytes = lambda: int(sys.argv[3])
seen, done = [], threading.Event()
before = anonymous()
watcher = threading.Thread(target=watch)
watcher.start()
save_store(graph, sys.argv[2], order=torch.arange(graph.num_nodes).flip(0))
done.set()
watcher.join()
print(max(seen) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason=NO_PEAK)
@pytest.mark.slow
@needs_kernels
def test_memory_is_that_of_the_nodes_maps_and_some_parts(tmp_path):
    num_nodes, part = 200_000, 2 << 20
    indices = torch.randint(0, num_nodes, (20 * num_nodes,), dtype=torch.int32)
    csc = Csc(torch.arange(num_nodes + 1) * 20, indices, num_nodes)
    graph = Graph(csc=csc, x=torch.zeros(num_nodes, 64), edge_id=torch.arange(csc.num_edges))
    before = save_store(graph, tmp_path / "before")
    assert graph.nbytes > 90 << 20

    def peak():
        shutil.rmtree(tmp_path / "after", ignore_errors=True)
        done = warm.run(["-c", MEASURE, before, tmp_path / "after", part])
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    most = 40 * num_nodes + changed._PARTS_IN_FREE_MEMORY * part
    assert least_peak(peak, most) <= most

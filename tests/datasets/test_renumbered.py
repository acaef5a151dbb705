"""Stores renumbered while they are written, or taking features in parts: what memory gives, the ids kept."""

import dataclasses
import json
import shutil
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import warm
from tests.datasets.helpers import assert_same_graph, small_graph
from tests.extras import NO_PEAK
from tests.features.cases import arrays, assert_same, full_graphs
from tests.features.tables import same, table_of
from tests.graph.edge_cases import random_edges
from tests.kernels import needs_kernels
from tests.peaks import least_peak
from tests.suites import examples

from graphbraid import Csc, Graph
from graphbraid.datasets import NodeIds, open_names, open_store, save_store
from graphbraid.datasets.store import changed
from graphbraid.datasets.synthetic import BlockModel, generate, generate_in_parts
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.features import reorder
from graphbraid.features.reordering import Renumbering

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


# ---- rows by way of buckets on disk


GIB = 1 << 30


def order_of(num_rows):
    return torch.randperm(num_rows, generator=torch.Generator().manual_seed(num_rows))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("num_rows", "rows_in_part"), [(1, 1), (7, 1), (100, 33), (100, 100), (100, 999)])
def test_parts_are_the_rows_in_the_new_order(tmp_path, monkeypatch, dtype, num_rows, rows_in_part):
    monkeypatch.setattr(changed, "_CHUNK_BYTES", 11 * 5 * dtype.itemsize)  # 11 rows, or more than all
    table, order = table_of(num_rows, 5, dtype), order_of(num_rows)
    parts = list(changed.bucketed_rows(table, Renumbering(order), rows_in_part, tmp_path))
    assert [len(part) for part in parts[:-1]] == [rows_in_part] * (len(parts) - 1)
    assert same(torch.cat(parts), table[order])
    assert not list(tmp_path.iterdir())


@pytest.fixture
def little_memory(monkeypatch):
    """So little memory that features of a few KiB count as large."""
    monkeypatch.setattr(changed, "free_memory_bytes", lambda: 4000)
    monkeypatch.setattr(changed, "part_bytes", lambda: 1000)


def featured(num_nodes=400):
    graph = Graph.from_edge_index(torch.randint(num_nodes, (2, 900)), num_nodes, x=table_of(num_nodes, 6))
    return graph.replace(y=torch.arange(num_nodes) % 7)


def test_a_store_of_features_larger_than_memory_is_renumbered_to_the_same_files(tmp_path, little_memory):
    graph, order = featured(), order_of(400)
    assert changed.bucket_bytes(graph.x) == graph.x.nbytes
    stored = open_store(save_store(graph, tmp_path / "before"))
    save_store(stored, tmp_path / "buckets", order=order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changed, "free_memory_bytes", lambda: GIB)
        assert changed.bucket_bytes(graph.x) == 0
        save_store(stored, tmp_path / "parts", order=order)
    names = {path.name for path in (tmp_path / "parts").iterdir()}
    assert names == {path.name for path in (tmp_path / "buckets").iterdir()}
    for name in names:
        assert (tmp_path / "buckets" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"before", "buckets", "parts"}


def test_the_source_is_read_once(tmp_path, little_memory, monkeypatch):
    graph, read = featured(), []
    gather = changed.gather_rows

    def noted(rows, ids, **options):
        inside = rows.data_ptr() - graph.x.data_ptr()
        read.append(rows.nbytes if 0 <= inside < graph.x.nbytes else 0)
        return gather(rows, ids, **options)

    monkeypatch.setattr(changed, "gather_rows", noted)
    save_store(graph, tmp_path / "s", order=order_of(400))
    assert sum(read) == graph.x.nbytes


def test_a_disk_without_room_for_the_buckets_is_told_before(tmp_path, little_memory, monkeypatch):
    from graphbraid.datasets.store import on_disk as store

    needed = []
    monkeypatch.setattr(store, "require_free_space", lambda folder, size, what: needed.append(size))
    graph = featured()
    save_store(graph, tmp_path / "with", order=order_of(400))
    monkeypatch.setattr(changed, "free_memory_bytes", lambda: GIB)
    save_store(graph, tmp_path / "without", order=order_of(400))
    assert needed[0] - needed[1] == graph.x.nbytes


def test_a_failing_disk_is_a_clear_error(tmp_path, little_memory, monkeypatch):
    def full(file, data, offset):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(changed.os, "pwrite", full)
    with pytest.raises(ResourceError, match="the disk is full"):
        save_store(featured(), tmp_path / "s", order=order_of(400))
    assert not list(tmp_path.iterdir())


def test_features_that_memory_holds_take_no_buckets():
    assert changed.bucket_bytes(small_graph().x) == 0
    assert changed.bucket_bytes(None) == 0


# ---- features in parts


SPEC = BlockModel(num_nodes=1_003, num_edges=8_000, num_classes=5, blocks_per_class=3, num_features=7)


@pytest.mark.parametrize("rows_in_part", [1, 64, 1_003, 5_000])
def test_a_graph_generated_in_parts_is_the_same_to_the_bit(rows_in_part):
    spec = dataclasses.replace(SPEC, num_nodes=203, num_edges=900) if rows_in_part == 1 else SPEC
    graph, parts = generate_in_parts(spec, "g", rows_in_part=rows_in_part)
    assert graph.x is None
    assert_same_graph(graph.replace(x=torch.cat(list(parts))), generate(spec, "g"))


def test_parts_are_stored_as_the_whole_would_be(tmp_path):
    graph, parts = generate_in_parts(SPEC, "g", rows_in_part=100)
    save_store(graph, tmp_path / "parts", feature_parts=parts)
    save_store(generate(SPEC, "g"), tmp_path / "whole")
    for whole in sorted((tmp_path / "whole").iterdir()):
        parts_of, whole_of = (
            (folder / whole.name).read_bytes() for folder in (tmp_path / "parts", tmp_path / "whole")
        )
        if whole.suffix == ".json":
            parts_of, whole_of = json.loads(parts_of), json.loads(whole_of)
        assert parts_of == whole_of, whole.name
    assert_same_graph(open_store(tmp_path / "parts"), generate(SPEC, "g"))


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([], "the first is none"),
        ([torch.zeros(5)], r"the first is Tensor of torch.float32 and shape \(5,\)"),
        ([torch.zeros(1000, 2)], "must have 1003 rows together; they have 1000"),
        ([torch.zeros(1000, 2), torch.zeros(4, 2)], "part 1 goes up to 1004"),
        ([torch.zeros(1000, 2), torch.zeros(3, 3)], "float32 with 2 columns; part 1 is"),
        ([torch.zeros(1000, 2), torch.zeros(3, 2).half()], "part 1 is Tensor of torch.float16"),
        ([torch.zeros(1003, 2).long()], "must be float32, float16 or bfloat16; got torch.int64"),
    ],
)
def test_parts_that_do_not_fit_leave_no_store(tmp_path, parts, said):
    graph, _ = generate_in_parts(SPEC)
    with pytest.raises(DataError, match=said):
        save_store(graph, tmp_path / "s", feature_parts=parts)
    assert not (tmp_path / "s").exists()


def test_parts_beside_features_or_an_order_are_refused(tmp_path):
    graph, parts = generate_in_parts(SPEC)
    with pytest.raises(ConfigError, match="this graph has x"):
        save_store(generate(SPEC), tmp_path / "s", feature_parts=parts)
    with pytest.raises(ConfigError, match="give no order"):
        save_store(graph, tmp_path / "s", feature_parts=parts, order=torch.arange(1_003))

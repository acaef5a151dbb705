"""None"""

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import warm
from tests.datasets.helpers import assert_same_graph, small_graph, tensors
from tests.graph.typed_cases import CITES, PAPERS, WRITES, bibliography

from graphbraid.datasets import NodeIds, StoreNames, is_store, load, open_names, open_store, save_store
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.graph.csc import Csc


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_graph_comes_back_to_the_bit(tmp_path, mmap, dtype, sparse):
    graph = small_graph(dtype, sparse=sparse)
    path = save_store(graph, tmp_path / "s")
    assert is_store(path)
    assert_same_graph(open_store(path, mmap=mmap, verify=True), graph)


@pytest.mark.parametrize("y", ["multi", "target", None])
def test_all_kinds_of_labels_and_int64_ids_come_back(tmp_path, y):
    graph = small_graph(y=y, weight=False, index_dtype=torch.int64)
    assert_same_graph(open_store(save_store(graph, tmp_path / "s")), graph)


def test_graphs_without_edges_nodes_or_features_come_back(tmp_path):
    for number, nodes in enumerate((0, 3)):
        empty = Graph(
            csc=Csc(torch.zeros(nodes + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int32), nodes)
        )
        assert_same_graph(open_store(save_store(empty, tmp_path / str(number))), empty)


def test_the_arrays_are_plain_npy_files(tmp_path):
    graph = small_graph()
    path = save_store(graph, tmp_path / "s")
    np.testing.assert_array_equal(np.load(path / "indices.npy"), graph.csc.indices.numpy())
    np.testing.assert_array_equal(np.load(path / "x.npy"), graph.x.numpy())


def test_views_that_are_not_contiguous_are_stored_as_seen(tmp_path):
    graph = small_graph()
    graph = graph.replace(x=torch.arange(30.0).reshape(6, 5).T)
    assert_same_graph(open_store(save_store(graph, tmp_path / "s")), graph)


def test_writing_to_a_mapped_tensor_does_not_change_the_file(tmp_path):
    graph = small_graph()
    path = save_store(graph, tmp_path / "s")
    mapped = open_store(path)
    mapped.x.mul_(100)
    mapped.csc.indices.zero_()
    assert_same_graph(open_store(path, verify=True), graph)


@pytest.mark.slow
def test_opening_mapped_reads_nothing(tmp_path):
    graph = small_graph().replace(x=torch.zeros(5, 8 << 20))  # 160 MiB
    path = save_store(graph, tmp_path / "s")
    before = resident_bytes()
    mapped = open_store(path)
    assert resident_bytes() - before < 16 << 20
    assert float(mapped.x[4, -1]) == 0


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs Linux, which reserves no memory for a file"
)
def test_a_file_larger_than_memory_can_be_mapped(tmp_path):
    graph = small_graph()
    path = save_store(graph, tmp_path / "s")
    size = 4 << 40  # sparse: takes no disk; the header is made to agree
    rows, width = 5, size // 20
    with (path / "x.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
        )
        try:
            file.truncate(file.tell() + rows * width * 4)
        except OSError:
            pytest.skip("needs a file system with sparse files of 4 TiB, such as xfs; set TMPDIR")
    edit_manifest(
        path, lambda m: m["arrays"]["x"].update(shape=[rows, width], bytes=(path / "x.npy").stat().st_size)
    )
    try:
        mapped = open_store(path, verify=False)
    except OSError as error:
        pytest.skip(f"needs 4 TiB of address space; see ulimit -v ({error})")
    assert float(mapped.x[4, -1]) == 0


def test_ids_and_class_names_are_kept(tmp_path):
    names = NodeIds(np.array(["a", "", "ü\n", "d" * 50, "0"], object))
    path = save_store(small_graph(), tmp_path / "s", ids=names, class_names=["cat", "dog"])
    kept = open_names(path)
    assert kept.ids.values.tolist() == names.values.tolist()
    assert kept.class_names == ("cat", "dog")
    assert_same_graph(open_store(path), small_graph())
    numbers = NodeIds(np.array([-5, 7, 1 << 40, 0, 3]))
    path = save_store(small_graph(), tmp_path / "t", ids=numbers)
    assert open_names(path).ids.values.tolist() == numbers.values.tolist()
    nothing = open_names(save_store(small_graph(), tmp_path / "u"))
    assert nothing.ids is None
    assert nothing.class_names is None


def test_ids_must_cover_the_nodes(tmp_path):
    with pytest.raises(DataError, match=r"one entry per node \(5\); got 2"):
        save_store(small_graph(), tmp_path / "s", ids=NodeIds(np.array([1, 2])))


def test_an_existing_store_is_refused_or_replaced_and_other_folders_never(tmp_path):
    path = save_store(small_graph(), tmp_path / "s")
    other = small_graph(sparse=True)
    with pytest.raises(ResourceError, match="exists already"):
        save_store(other, path)
    save_store(other, path, if_exists="replace")
    assert_same_graph(open_store(path), other)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("")
    with pytest.raises(ResourceError, match="is not a graphbraid store, so it is not replaced"):
        save_store(other, tmp_path / "home", if_exists="replace")
    assert (tmp_path / "home" / "thesis.tex").exists()


def test_replacing_the_store_a_graph_is_mapped_from_works(tmp_path):
    path = save_store(small_graph(), tmp_path / "s")
    mapped = open_store(path)
    save_store(mapped.replace(x=mapped.x + 1), path, if_exists="replace")
    assert torch.equal(open_store(path).x, small_graph().x + 1)
    assert torch.equal(mapped.x, small_graph().x)


def test_a_disk_that_fills_while_writing_is_said_and_leaves_nothing(tmp_path):
    """The limit on file sizes stands in for the disk: the write fails in the middle of an array."""
    code = (
        "import resource, sys, torch; sys.path.insert(0, sys.argv[2])\n"
        "from tests.datasets.helpers import small_graph\n"
        "from graphbraid.datasets import save_store\n"
        "from graphbraid.errors import ResourceError\n"
        "graph = small_graph().replace(x=torch.zeros(5, 100_000))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: save_store(graph, sys.argv[1])\n"
        "except ResourceError as error: print(error)\n"
    )
    done = warm.run(["-c", code, tmp_path / "s", Path(__file__).parents[2]])
    assert "grew past the size this system allows" in done.stdout, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_killed_writer_leaves_no_store(tmp_path):
    code = (
        "import os, sys, torch; sys.path.insert(0, sys.argv[2]); print(os.getpid(), flush=True)\n"
        "from tests.datasets.helpers import small_graph\n"
        "from graphbraid.datasets import save_store\n"
        "from graphbraid.datasets.store import on_disk as store\n"
        "write = store.write_array\n"
        "def slow(path, tensor, *sums):\n"
        "    entry = write(path, tensor, *sums); print(path.name, flush=True)\n"
        "    if path.name == 'x.npy': sys.stdin.read()\n"
        "    return entry\n"
        "store.write_array = slow\n"
        "save_store(small_graph(), sys.argv[1])\n"
    )
    path = tmp_path / "s"
    command = [sys.executable, "-c", code, str(path), str(Path(__file__).parents[2])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        writer = int(child.stdout.readline())
        while child.stdout.readline() != "x.npy\n":
            assert child.poll() is None
        os.kill(writer, signal.SIGKILL)
    assert not path.exists()
    assert_same_graph(open_store(save_store(small_graph(), path)), small_graph())


def edit_manifest(path, change):
    file = path / "graph.json"
    manifest = json.loads(file.read_text())
    change(manifest)
    manifest.pop("checksum", None)  # as one may who edits it
    file.write_text(json.dumps(manifest))


def truncate(path, name="x.npy", by=1):
    data = (path / name).read_bytes()
    (path / name).write_bytes(data[:-by])


def flip(path, name, at):
    data = bytearray((path / name).read_bytes())
    data[at] ^= 1
    (path / name).write_bytes(data)


def array_entry(**fields):
    return lambda path: edit_manifest(path, lambda m: m["arrays"]["x"].update(fields))


BROKEN = {
    "truncated": (truncate, r"x\.npy is truncated: \d+ bytes, \d+ were written"),
    "longer": (lambda p: (p / "x.npy").write_bytes((p / "x.npy").read_bytes() + b"0"), "longer than written"),
    "header": (lambda p: flip(p, "x.npy", 0), r"x\.npy has no valid \.npy header"),
    "header text": (lambda p: flip(p, "x.npy", 12), r"x\.npy has no valid|x\.npy holds"),
    "shape": (array_entry(shape=[3, 5]), r"float32 of shape \(5, 3\), but graph\.json says .* \(3, 5\)"),
    "dtype": (array_entry(dtype="int32"), r"holds float32 .* but graph\.json says torch\.int32"),
    "unknown dtype": (array_entry(dtype="complex64"), r"graph\.json cannot be understood: arrays\.x\.dtype"),
    "no size": (
        lambda p: edit_manifest(p, lambda m: m["arrays"]["x"].pop("bytes")),
        r"cannot be understood: arrays\.x\.bytes: Field required",
    ),
    "outside": (array_entry(file="../x.npy"), "names a file outside the store"),
    "no arrays": (
        lambda p: edit_manifest(p, lambda m: m.pop("arrays")),
        "cannot be understood: arrays: Field required",
    ),
    "no indptr": (lambda p: edit_manifest(p, lambda m: m["arrays"].pop("indptr")), "describes no 'indptr'"),
    "no sums": (
        lambda p: edit_manifest(p, lambda m: m["arrays"].pop("indices_sums")),
        "lacks indices_sums, by which reads of indices are checked",
    ),
    "no count": (
        lambda p: edit_manifest(p, lambda m: m.pop("num_nodes")),
        "cannot be understood: num_nodes: Field required",
    ),
    "edited": (
        lambda p: (p / "graph.json").write_text(
            (p / "graph.json").read_text().replace('num_nodes": 5', 'num_nodes": 4')
        ),
        r"graph\.json has changed since it was written",
    ),
    "text for a number": (array_entry(bytes="many"), "arrays.x.bytes: Input should be a valid integer"),
    "a negative size": (array_entry(shape=[-5, -3]), "arrays.x.shape.0: Input should be greater"),
    "misfit": (lambda p: edit_manifest(p, lambda m: m.update(num_nodes=4)), "does not hold a valid graph"),
    "no manifest": (lambda p: (p / "graph.json").unlink(), r"it has no graph\.json"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_stores_say_what_is_wrong(tmp_path, case):
    path = save_store(small_graph(), tmp_path / "s")
    damage, message = BROKEN[case]
    damage(path)
    with pytest.raises(DataError, match=message):
        open_store(path)


def test_a_changed_value_is_found_by_verifying_and_by_reading(tmp_path):
    path = save_store(small_graph(), tmp_path / "s")
    flip(path, "x.npy", -1)
    open_store(path, verify=False)
    for options in ({"verify": True}, {"mmap": False}, {}):
        with pytest.raises(DataError, match=r"x\.npy has changed since it was written"):
            open_store(path, **options)


@pytest.mark.parametrize("names", [[7, 3, 9, 11, 5], ["u7", "u3", "u9", "u11", "u5"]])
def test_verifying_reads_the_original_ids_too(tmp_path, names):
    graph = small_graph()
    ids = NodeIds(np.array(names, dtype=np.int64 if isinstance(names[0], int) else object))
    path = save_store(graph, tmp_path / "s", ids=ids)
    open_store(path, verify=True)
    for file in path.glob("ids_*.npy"):
        flip(path, file.name, -1)
        with pytest.raises(DataError, match=rf"{file.name} has changed since it was written"):
            open_store(path, verify=True)
        flip(path, file.name, -1)
    assert open_names(path).ids.values.tolist() == names


def test_a_missing_folder_is_said(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        open_store(tmp_path / "nothing")


@pytest.mark.slow
def test_mapped_tensors_outlive_their_graph_and_cross_to_other_processes(tmp_path):
    x = open_store(save_store(small_graph(), tmp_path / "s")).x
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(float, (x[4, 2],)) == 5.0


def test_every_stored_tensor_has_a_dtype_the_store_knows(tmp_path):
    graph = small_graph().replace(splits={"a/b": torch.tensor([0])})
    with pytest.raises(DataError, match="letters, digits and _"):
        save_store(graph, tmp_path / "s")
    assert all(t is None or t.dtype != torch.complex64 for t in tensors(graph))
    assert list(tmp_path.iterdir()) == []


def tensors_by_type(graph):
    """All arrays of a graph with types by name; sparse features as their parts."""
    csc, types = graph.csc, graph.types
    found = {"indptr": csc.indptr, "indices": csc.indices, "weight": csc.weight, "edge_id": graph.edge_id}
    found["rows"] = types.rows.indptr
    for name, nodes in types.nodes.items():
        x = nodes.x
        parts = (
            {"": x} if not isinstance(x, SparseFeatures) else {"p": x.indptr, "i": x.indices, "v": x.values}
        )
        found |= {(name, "x" + key): value for key, value in parts.items()}
        found |= {(name, "y"): nodes.y, (name, "time"): nodes.time}
        found |= {(name, split): ids for split, ids in nodes.splits.items()}
    for one, edges in types.edges.items():
        found |= {(one, "attr"): edges.edge_attr, (one, "time"): edges.time}
        found |= {(one, split): ids for split, ids in edges.splits.items()}
    return found


def assert_same(a, b):
    """Equal to the bit: names and order of types, dtypes included."""
    assert (a.node_types, a.edge_types, a.name) == (b.node_types, b.edge_types, b.name)
    for one in a.node_types:
        assert a.nodes_of(one).num_nodes == b.nodes_of(one).num_nodes
    for one in a.edge_types:
        assert a.edges_of(one).num_edges == b.edges_of(one).num_edges
        assert a.edges_of(one).weighted == b.edges_of(one).weighted
    first, second = tensors_by_type(a), tensors_by_type(b)
    assert list(first) == list(second)
    for name, values in first.items():
        assert (values is None) == (second[name] is None), name
        if values is not None:
            assert values.dtype == second[name].dtype, name
            assert torch.equal(values, second[name]), name


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_a_graph_with_types_comes_back_to_the_bit(tmp_path, mmap, weighted):
    graph = bibliography(weighted=weighted)
    path = save_store(graph, tmp_path / "s")
    assert_same(open_store(path, mmap=mmap, verify=True), graph)
    assert_same(load(path), graph)


def test_sparse_features_splits_of_edges_and_any_names_come_back(tmp_path):
    dense = torch.tensor([[0.0, 2, 0], [1, 0, 0], [0, 0, 0]])
    graph = Graph.from_relations(
        {("a/b", "x_y", "ü z"): [[0, 1, 2], [1, 1, 0]], ("ü z", "../up", "a/b"): [[0], [2]]},
        {"a/b": 3, "ü z": 2, "no edges": 0},
        x={"a/b": SparseFeatures.from_dense(dense)},
        y={"ü z": torch.tensor([[0.5, 1.5], [2.5, 3.5]])},
        edge_splits={("a/b", "x_y", "ü z"): {"train": torch.tensor([0, 2]), "test": torch.tensor([1])}},
        node_time={"ü z": torch.tensor([0.5, 1.5], dtype=torch.float64)},
    )
    path = save_store(graph, tmp_path / "s")
    assert_same(open_store(path, verify=True), graph)
    assert sorted(p.parent.name for p in tmp_path.rglob("*.npy")) == ["s"] * len(list(path.glob("*.npy")))


def test_what_is_read_from_a_store_samples_the_same_bits(tmp_path):
    from graphbraid.loader import NeighborLoader

    graph = bibliography(weighted=True)
    stored = open_store(save_store(graph, tmp_path / "s"))
    for one, other in zip(
        *(NeighborLoader(g, [3, 2], ("paper", "train"), batch_size=7, seed=3) for g in (graph, stored)),
        strict=True,
    ):
        for edge_type in graph.edge_types:
            assert torch.equal(one[edge_type].edge_index, other[edge_type].edge_index)
        assert torch.equal(one["paper"].x, other["paper"].x)


def test_the_arrays_are_plain_npy_files_named_by_number(tmp_path):
    graph = bibliography()
    path = save_store(graph, tmp_path / "s")
    np.testing.assert_array_equal(np.load(path / "node0_x.npy"), graph.nodes_of("paper").x.numpy())
    np.testing.assert_array_equal(np.load(path / "edge0_time.npy"), graph.edges_of(WRITES).time.numpy())
    np.testing.assert_array_equal(np.load(path / "edge1_attr.npy"), graph.edges_of(CITES).edge_attr.numpy())
    described = json.loads((path / "graph.json").read_text())
    assert described["version"] == 4
    assert [one["name"] for one in described["types"]["nodes"]] == ["paper", "author", "field"]


def test_a_store_of_one_type_has_no_entry_for_types(tmp_path):
    path = save_store(small_graph(), tmp_path / "s")
    described = json.loads((path / "graph.json").read_text())
    assert described["version"] == 4
    assert list(described) == [
        "format",
        "version",
        "name",
        "num_nodes",
        "num_edges",
        "num_features",
        "class_names",
        "arrays",
        "checksum",
    ]
    assert list(described["arrays"]) == [
        "indptr",
        "indices",
        "indices_sums",
        "weight",
        "edge_id",
        "y",
        "x",
        "x_sums",
        "split_train",
        "split_val",
        "split_test",
    ]


def test_names_are_kept_by_type(tmp_path):
    papers = NodeIds(np.array([f"p{i}" for i in range(PAPERS)], object))
    authors = NodeIds(np.arange(25) * 7)
    names = {
        "paper": StoreNames(ids=papers, class_names=("a", "b", "c", "d")),
        "author": StoreNames(ids=authors),
    }
    path = save_store(bibliography(), tmp_path / "s", names=names)
    assert_same(open_store(path), bibliography())
    kept = open_names(path)
    assert kept.ids is None
    assert kept.class_names is None
    assert kept.types["paper"].ids.values.tolist() == papers.values.tolist()
    assert kept.types["paper"].class_names == ("a", "b", "c", "d")
    assert kept.types["author"].ids.values.tolist() == authors.values.tolist()
    assert kept.types["field"] == StoreNames()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ids": NodeIds(np.arange(71))}, ConfigError, "are by node type: give names"),
        ({"class_names": ["a"]}, ConfigError, "are by node type: give names"),
        ({"names": {"pape": StoreNames()}}, DataError, "no node type 'pape'.*paper"),
        (
            {"names": {"paper": StoreNames(ids=NodeIds(np.arange(3)))}},
            DataError,
            r"'paper' must have .* \(40\)",
        ),
        ({"order": torch.arange(71)}, DataError, "renumbering takes graphs of one node type"),
        ({"feature_parts": [torch.zeros(71, 1)]}, DataError, "feature_parts takes graphs of one node type"),
    ],
)
def test_arguments_that_do_not_fit_types_are_refused(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        save_store(bibliography(), tmp_path / "s", **options)
    assert list(tmp_path.iterdir()) == []


def test_names_by_type_of_a_graph_without_types_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="the graph has no types"):
        save_store(small_graph(), tmp_path / "s", names={})


def in_types(change):
    return lambda path: edit_manifest(path, lambda m: change(m["types"]))


BROKEN_TYPES = {
    "truncated": (lambda p: truncate(p, "node0_x.npy"), r"node0_x\.npy is truncated"),
    "missing": (lambda p: (p / "rows_indptr.npy").unlink(), r"rows_indptr\.npy of the store cannot be read"),
    "no rows": (
        lambda p: edit_manifest(p, lambda m: m["arrays"].pop("rows_indptr")),
        "describes no 'rows_indptr'",
    ),
    "no types": (lambda p: edit_manifest(p, lambda m: m.update(types={})), r"types\.nodes: Field required"),
    "fewer nodes": (in_types(lambda t: t["nodes"][2].update(num_nodes=5)), "does not hold a valid graph"),
    "far more nodes": (
        in_types(lambda t: t["nodes"][2].update(num_nodes=1 << 50)),
        "does not hold a valid graph: .* 71 nodes",
    ),
    "moved nodes": (
        in_types(lambda t: (t["nodes"][0].update(num_nodes=41), t["nodes"][1].update(num_nodes=24))),
        "does not hold a valid graph",
    ),
    "moved edges": (
        in_types(lambda t: (t["edges"][0].update(num_edges=149), t["edges"][1].update(num_edges=301))),
        "does not hold a valid graph",
    ),
    "a relation twice": (in_types(lambda t: t["edges"].append(t["edges"][0])), "stands there twice"),
    "an unknown end": (
        in_types(lambda t: t["edges"][0].update(source="autor")),
        "no node type 'autor'.*author",
    ),
    "other order": (in_types(lambda t: t["edges"].reverse()), "does not hold a valid graph"),
    "a number for a name": (
        in_types(lambda t: t["nodes"][0].update(name=3)),
        r"types\.nodes\.0\.name: Input",
    ),
    "edited": (
        lambda p: (p / "graph.json").write_text(
            (p / "graph.json").read_text().replace('"name": "author"', '"name": "writer"')
        ),
        r"graph\.json has changed since it was written",
    ),
    "newer": (lambda p: edit_manifest(p, lambda m: m.update(version=99)), "store version 99.*Upgrade"),
}


@pytest.mark.parametrize("case", BROKEN_TYPES)
def test_broken_stores_with_types_say_what_is_wrong(tmp_path, case):
    path = save_store(bibliography(), tmp_path / "s")
    damage, message = BROKEN_TYPES[case]
    damage(path)
    with pytest.raises(DataError, match=message):
        open_store(path)


def test_a_flipped_bit_in_any_array_is_found(tmp_path):
    names = {"paper": StoreNames(ids=NodeIds(np.arange(PAPERS)))}
    path = save_store(bibliography(weighted=True), tmp_path / "s", names=names)
    for file in sorted(path.glob("*.npy")):
        flip(path, file.name, -1)
        with pytest.raises(DataError, match=file.name):
            open_names(path) if "ids" in file.name else open_store(path, verify=True)
        flip(path, file.name, -1)
    assert_same(open_store(path, verify=True), bibliography(weighted=True))


def test_an_array_of_an_unknown_type_is_no_ids(tmp_path):
    names = {"field": StoreNames(ids=NodeIds(np.arange(6)))}
    path = save_store(bibliography(), tmp_path / "s", names=names)
    edit_manifest(path, lambda m: m["arrays"].update(node7_ids_int=m["arrays"].pop("node2_ids_int")))
    with pytest.raises(DataError, match="node7_ids_int is of a node type that does not exist"):
        open_names(path)


def test_rows_of_features_have_sums_of_their_blocks(tmp_path):
    path = save_store(bibliography(), tmp_path / "s")
    described = json.loads((path / "graph.json").read_text())["arrays"]
    assert {name for name in described if name.endswith("_sums")} == {
        "indices_sums",
        "node0_x_sums",
        "node1_x_sums",
    }

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

from graphbraid.datasets import NodeIds, is_store, open_names, open_store, save_store
from graphbraid.errors import DataError, ResourceError
from graphbraid.graph import Graph
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

"""Arrays in files that are damaged or meant to harm: refused by their header, before memory is taken."""

import io
import zipfile

import numpy as np
import pytest
from tests.datasets.helpers import EDGES, csr, write

from graphbraid.datasets import load_npz
from graphbraid.datasets.npy import read_npy, read_npz
from graphbraid.errors import DataError, ResourceError
from graphbraid.files.mapped import read_alone


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize("dtype", ["<f4", ">i8", "?", "<f2", "<U3", "S2", "<c8", "u1", "<M8[s]", "<f8"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_back_as_numpy_reads_them(tmp_path, dtype, shape, order):
    array = np.array(np.arange(int(np.prod(shape))).reshape(shape), dtype=dtype, order=order)
    np.savez_compressed(tmp_path / "a.npz", a=array)
    np.save(tmp_path / "a.npy", array)
    for found in (read_npz(tmp_path / "a.npz")["a"], read_npy(tmp_path / "a.npy")):
        assert found.dtype == array.dtype
        assert found.shape == array.shape
        assert found.tolist() == array.tolist()
        assert found.flags.writeable


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ("(1000000000000000,)", "4000000000000128 bytes"),
        ("(-3,)", "shape"),
        ("(99999999999, 99999999999)", "bytes"),
    ],
)
def test_a_header_that_says_more_than_is_there_takes_no_memory(tmp_path, shape, says):
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    header = text.ljust(117) + "\n"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(12)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", data)
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(DataError, match=says):
        read_npz(tmp_path / "a.npz")
    with pytest.raises(DataError, match=says):
        read_npy(tmp_path / "a.npy")


def test_more_than_the_free_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("graphbraid.datasets.npy.free_memory_bytes", lambda: 100_000)
    np.savez_compressed(tmp_path / "zeros.npz", x=np.zeros(100_000, np.float32))
    with pytest.raises(ResourceError, match=r"takes about 390.\d KiB of memory; 97.7 KiB are free"):
        read_npz(tmp_path / "zeros.npz")


def test_the_same_name_twice_and_an_empty_file_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("x.npy", npy(np.arange(3)))
        archive.writestr("x.npy", npy(np.arange(4)))
    with pytest.raises(DataError, match="it holds an array twice"):
        read_npz(tmp_path / "a.npz")
    (tmp_path / "b.npy").write_bytes(b"")
    with pytest.raises(DataError, match=r"no valid \.npy header"):
        read_npy(tmp_path / "b.npy")


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        (
            {"val_mask": np.ones((4, 2), bool)},
            r"val_mask must be 1-d; got shape \(4, 2\); choose one with split_index",
        ),
        ({"val_mask": np.array([0, 1, 2, 0])}, "val_mask must hold True and False; got int64"),
        ({"test_idx": np.array([0.0, 1.0])}, "test_idx must hold integer node ids; got float64"),
        (csr(x_indptr=np.array([0, 1, 1, 2, 2.0])), "x_indptr must be 1-d integers; got float64"),
        (csr(x_indptr=np.array([0, 2, 1, 2, 2])), "x_indptr must rise from 0 to 2"),
        (csr(x_indptr=np.array([1, 1, 1, 2, 2])), "x_indptr must rise from 0 to 2"),
        (csr(x_shape=np.array([4, -3])), "x_shape must be rows and columns"),
        (csr(x_shape=np.int64(4)), "x_shape must be 1-d integers"),
        (csr(x_data=np.array(["a", "b"])), "x_data must be 1-d numbers; got <U1"),
        (csr(x_data=np.ones(3, np.float32)), "x_data has 3 entries and x_indices 2"),
        ({"x": np.array(["a"] * 4)}, "x must hold numbers; got dtype <U1"),
        ({"x": np.float32(3)}, r"x must have shape"),
        ({"x": np.full((4, 1), 1 << 63, np.uint64)}, "x must be below 2..63; number 0 is 9223372036"),
        ({"y": np.full(4, (1 << 64) - 1, np.uint64)}, "y must be below 2..63"),
        ({"edge_index": EDGES.astype(complex)}, "edge_index must hold numbers; got dtype complex128"),
        ({"edge_index": np.int64(3)}, r"edge_index must have shape \(2, num_edges\)"),
        ({"edge_index": np.full((2, 3), 1 << 63, np.uint64)}, "edge_index must be below 2..63"),
        ({"num_nodes": np.array([4.0])}, "num_nodes must be one number"),
        ({"num_nodes": np.array([4, 5])}, "num_nodes must be one number"),
    ],
)
def test_arrays_of_a_kind_that_would_be_read_wrongly_are_refused(tmp_path, arrays, says):
    with pytest.raises(DataError, match=says):
        load_npz(write(tmp_path / "g.npz", **arrays))


def test_indices_of_some_splits_and_masks_of_others_go_together(tmp_path):
    masks = {"val_mask": np.array([False, True, False, False]), "test_mask": np.array([0, 0, 1, 1])}
    graph = load_npz(write(tmp_path / "g.npz", train_idx=np.array([0]), **masks))
    assert {name: ids.tolist() for name, ids in graph.splits.items()} == {
        "train": [0],
        "val": [1],
        "test": [2, 3],
    }


# ---- a parser that loses its count among threads is asked again


def failing(times):
    left = [times]

    def read(stream):
        found = stream.read()
        if left[0]:
            left[0] -= 1
            raise SystemError("AST constructor recursion depth mismatch")
        return found

    return read


def test_a_header_is_read_again_from_its_beginning():
    stream = io.BytesIO(b"before header")
    stream.seek(7)
    assert read_alone(failing(3), stream) == b"header"


def test_what_fails_for_good_fails():
    with pytest.raises(SystemError):
        read_alone(failing(4), io.BytesIO(b"header"))

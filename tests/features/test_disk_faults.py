"""A disk that gives less than was asked for, is interrupted, fails or fills up: right rows or an error."""

import errno
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from tests.extras import NO_KERNELS, PATIENCE, ran
from tests.features.tables import flip_a_byte, same, stored_graph

from graphbraid import Trainer, native, nn
from graphbraid.datasets import open_store, save_store
from graphbraid.datasets.store import on_disk as store
from graphbraid.errors import DataError, ResourceError
from graphbraid.features import DiskOptions, DiskRows, HostTiers, TieredFeatures

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The library that spoils reads, compiled."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler: reads are spoilt by a library that is loaded first")
    if "LD_PRELOAD" in os.environ:
        pytest.skip("another library is loaded first, such as a sanitizer's")
    if native.kernels() is None:
        pytest.skip(NO_KERNELS)
    path = tmp_path_factory.mktemp("library") / "faulty_disk.so"
    source = Path(__file__).with_name("faulty_disk.c")
    built = ran([compiler, "-O1", "-shared", "-fPIC", str(source), "-o", str(path), "-ldl"])
    if built.returncode:
        pytest.skip(f"the library does not compile here: {built.stderr.splitlines()[-1]}")
    return path


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A store whose rows are read by requests of many blocks."""
    folder = tmp_path_factory.mktemp("wide")
    stored_graph(folder, num_nodes=600, width=1500)
    return folder / "store"


@pytest.fixture(scope="module")
def found(library, wide):
    """What tests/features/faulty_run.py found, of rows and training, by kind of fault and reader."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = ran(
        [sys.executable, "-m", "tests.features.faulty_run", str(wide)],
        env=os.environ | {"PYTHONPATH": paths, "LD_PRELOAD": str(library)},
        cwd=ROOT,
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_reads_cut_short_are_continued_and_those_that_fail_name_file_and_place(found):
    rows = found["rows"]
    assert len(rows["short"]) == len(rows["fail"]) == 4
    for reader, got in rows["short"].items():
        assert got["same"], reader
        assert got["faults"] > 5, reader
        assert ("threads" in got["how"]) >= reader.startswith("threads"), reader
    for reader, got in rows["fail"].items():
        assert got["error"].startswith("ResourceError: "), (reader, got)
        assert "x.npy cannot be read at byte 4096 (row 0): " in got["error"], (reader, got)
        assert got["faults"] > 0, reader


@pytest.mark.slow
def test_a_run_over_reads_cut_short_learns_the_same(found):
    runs = found["train"]
    losses = [got["losses"] for kind in runs.values() for got in kind.values()]
    assert len(losses) == 8
    assert all(one == losses[0] for one in losses)
    assert all(got["faults"] > 0 for got in runs["short"].values())
    assert not any(got["faults"] for got in runs["none"].values())


def model_of(graph):
    torch.manual_seed(0)
    return nn.GraphSAGE(graph.num_features, 8, graph.num_classes, num_layers=2)


OPTIONS = {"epochs": 1, "fanouts": (4, 3), "batch_size": 32, "eval_every": 0, "test_at_end": False, "seed": 1}


def losses_of(graph, **options):
    result = Trainer(model_of(graph), graph, **OPTIONS | options).fit()
    return [row["train_loss"] for row in result.history]


def test_a_file_removed_while_it_is_open_is_read_on(tmp_path):
    """Its name is gone, and not the file, until the last reader closes it."""
    graph = stored_graph(tmp_path)
    expected = losses_of(open_store(tmp_path / "store", mmap=False))
    tiers = HostTiers.build(graph, host=0)
    trainer = Trainer(model_of(graph), graph, tiers=tiers.features, topology=tiers.topology, **OPTIONS)
    for name in ("x.npy", "indices.npy"):
        (tmp_path / "store" / name).unlink()
    assert [row["train_loss"] for row in trainer.fit().history] == expected
    with pytest.raises(DataError, match=r"x\.npy, from which x is mapped, cannot be read any more"):
        losses_of(graph, host=0)


@pytest.mark.parametrize("options", [DiskOptions(), DiskOptions(reader="threads", direct=False)])
def test_a_file_cut_off_or_damaged_during_a_run_ends_it(tmp_path, options):
    graph = stored_graph(tmp_path)
    path = tmp_path / "store" / "x.npy"

    def train():
        tiers = TieredFeatures.build(graph, host=0, disk=options)
        return Trainer(model_of(graph), graph, tiers=tiers, **OPTIONS)

    trainer = train()
    for row in range(300):
        flip_a_byte(path, 4096 + row * 37 * 4)
    with pytest.raises(DataError, match=r"x\.npy has changed since it was written: block"):
        trainer.fit()
    trainer = train()
    os.truncate(path, 4096)
    with pytest.raises(DataError, match=r"x\.npy was truncated while it was open"):
        trainer.fit()


def test_a_disk_that_fills_up_while_a_store_is_written_leaves_nothing(tmp_path, monkeypatch):
    graph = stored_graph(tmp_path)
    write, written = store.write_array, []

    def full(path, array, sums=None):
        if len(written) == 3:
            path.write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        written.append(path)
        return write(path, array, sums)

    monkeypatch.setattr(store, "write_array", full)
    before = sorted(tmp_path.iterdir())
    for given in ({}, {"features_dtype": "int8"}, {"order": torch.arange(299, -1, -1)}):
        written.clear()
        with pytest.raises(ResourceError, match=r"the disk is full|No space left"):
            save_store(graph, tmp_path / "new", **given)
        assert len(written) == 3
        assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(ResourceError):
        save_store(graph, tmp_path / "store", if_exists="replace")
    monkeypatch.undo()
    assert same(open_store(tmp_path / "store", verify=True).x, graph.x), "the store that was there is whole"


def test_what_is_read_never_depends_on_the_file_s_cache(tmp_path):
    """Past the page cache and through it the same bytes are there, also just written ones."""
    graph = stored_graph(tmp_path)
    for number in range(3):
        path = save_store(graph.replace(x=graph.x + number), tmp_path / str(number))
        x = open_store(path).x
        for direct in (True, False):
            assert same(DiskRows.behind(x, options=DiskOptions(direct=direct)).gather(torch.arange(300)), x)

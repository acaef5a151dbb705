"""A flipped bit or a missing end, anywhere in a file graphbraid wrote, is an error that names the file."""

import dataclasses
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import warm
from tests.kernels import needs_kernels
from tests.robustness.bad_plans import profile
from tests.robustness.workplace import graph
from tests.suites import few_of

from graphbraid.cli.run.saved_run import read_saved
from graphbraid.collective import Plan, Profile, make_plan
from graphbraid.datasets import open_names, open_store, save_store
from graphbraid.datasets.ids import NodeIds
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.files import checksums
from graphbraid.nn import GraphSAGE
from graphbraid.train import Trainer
from graphbraid.train.run_folder import checkpoint
from graphbraid.train.run_folder.folder import read_json

FLIPS, CUTS = 150, 20


@pytest.fixture(scope="module", autouse=True)
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAPHBRAID_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import numpy as np

    folder = tmp_path_factory.mktemp("written")
    torch.manual_seed(0)
    options = {"epochs": 1, "fanouts": (3, 3), "batch_size": 32, "test_at_end": False}
    info = {"settings": {"data": "x"}, "outputs": {"task": "single-label", "width": 3, "class_names": None}}
    Trainer(GraphSAGE(6, 8, 3), graph(), **options, out_dir=folder / "run", info=info).fit()
    make_plan(profile(), 10).save(folder / "plan.json")
    profile().save(folder / "profile.json")
    ids = NodeIds(np.array([f"n{i}" for i in range(90)], object))
    save_store(graph(), folder / "store", ids=ids, class_names=["a", "b", "c"])
    return folder


def everything_in(store: Path) -> Any:
    found = open_store(store)
    names = open_names(store)
    assert names.ids is not None
    tensors = [found.csc.indptr, found.csc.indices, found.x, found.y, *found.splits.values()]
    return [t.tolist() for t in tensors], names.ids.values.tolist(), names.class_names, found.name


FILES: dict[str, Callable[[Path], Any]] = {
    "run/checkpoints/last.pt": lambda path: str(checkpoint.read(path)),
    "run/config.json": lambda path: read_saved(path.parent),
    "run/environment.json": read_json,
    "run/result.json": read_json,
    "plan.json": lambda path: dataclasses.asdict(Plan.load(path)),
    "profile.json": lambda path: dataclasses.asdict(Profile.load(path)),
    "store/graph.json": lambda path: everything_in(path.parent),
    "store/x.npy": lambda path: everything_in(path.parent),
    "store/indptr.npy": lambda path: everything_in(path.parent),
    "store/ids_bytes.npy": lambda path: everything_in(path.parent),
    "store/split_train.npy": lambda path: everything_in(path.parent),
}
QUICK = {"run/checkpoints/last.pt", "run/config.json", "plan.json", "store/graph.json", "store/indptr.npy"}


@pytest.mark.parametrize("name", few_of(FILES, QUICK))
def test_no_damage_passes_unseen(written, name):
    path, read = written / name, FILES[name]
    data, good = path.read_bytes(), read(path)
    draw = random.Random(0)
    tail = range(max(0, len(data) - 60), len(data))  # where a checkpoint's checksum stands
    places = [*draw.sample(range(len(data)), min(FLIPS, len(data))), *tail]
    damaged = [flipped(data, at, draw.randrange(8)) for at in places]
    damaged += [data[:keep] for keep in draw.sample(range(len(data)), CUTS)]
    found = 0
    try:
        for content in damaged:
            path.write_bytes(content)
            try:
                # A space that became another one, or a reader's own name: nothing changed.
                assert read(path) == good
            except DataError as error:
                assert str(written) in str(error), error
                found += 1
            except checkpoint.ConfigError as error:  # a field that names what a file is
                assert str(written) in str(error), error
                found += 1
    finally:
        path.write_bytes(data)
    assert found >= 0.98 * len(damaged)


@pytest.mark.parametrize("name", few_of(FILES, QUICK))
def test_a_named_pipe_is_refused_and_not_waited_for(written, name):
    path, kept = written / name, written / "kept"
    path.rename(kept)
    os.mkfifo(path)
    try:
        with pytest.raises((DataError, ResourceError, ConfigError), match=str(path)):
            FILES[name](path)
    finally:
        kept.replace(path)


def flipped(data: bytes, at: int, bit: int) -> bytes:
    content = bytearray(data)
    content[at] ^= 1 << bit
    return bytes(content)


TRUNCATED = """
import os, sys
import torch
from graphbraid import datasets, native
native.kernels()
graph = datasets.open_store(sys.argv[1])
os.truncate(sys.argv[1] + "/x.npy", 100)
print(graph.x.sum())
"""


@needs_kernels
def test_a_store_that_is_truncated_while_it_is_read_is_named(tmp_path):
    store = save_store(graph().replace(x=torch.ones(90, 200)), tmp_path / "store")
    done = warm.run(["-c", TRUNCATED, store])
    assert done.returncode == -signal.SIGBUS
    assert done.stdout == ""
    assert f"{store / 'x.npy'} ended while it was being read: it was truncated" in done.stderr


def test_a_store_is_read_in_full_once_and_again_when_it_was_touched(tmp_path, monkeypatch):
    reads = []
    real = checksums.of_file
    monkeypatch.setattr(
        "graphbraid.datasets.store.arrays.of_file", lambda path: reads.append(path.name) or real(path)
    )
    store = save_store(graph(), tmp_path / "store")
    open_store(store)
    assert sorted(reads) == sorted(path.name for path in store.glob("*.npy"))
    reads.clear()
    open_store(store)
    assert reads == []
    open_store(store, verify=True)
    assert reads
    reads.clear()
    x = store / "x.npy"
    x.write_bytes(x.read_bytes())  # the same, but somebody wrote
    open_store(store)
    assert "x.npy" in reads
    reads.clear()
    (store / "x.npy").write_bytes(flipped(x.read_bytes(), -1, 0))
    with pytest.raises(DataError, match=r"x\.npy has changed since it was written"):
        open_store(store)
    with pytest.raises(DataError, match=r"x\.npy has changed since it was written"):
        open_store(store)  # a failed verification is not noted


def test_a_cache_that_cannot_be_written_costs_reading_again(tmp_path, monkeypatch, caplog):
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path / "cache"))
    store = save_store(graph(), tmp_path / "store")
    open_store(store)
    assert "every open repeats it" in caplog.text


def test_checksums_go_by_content_not_by_form():
    values = {"b": (1, 2.5), "a": {"10": None, "9": [True, "x"]}}
    written = checksums.sealed(values)
    again = json.loads(json.dumps(dict(reversed(written.items()))))
    assert checksums.unsealed(again, "file") == {"b": [1, 2.5], "a": {"10": None, "9": [True, "x"]}}
    assert checksums.unsealed({"a": 1}, "file") == {"a": 1}
    again["b"][0] = 2
    with pytest.raises(DataError, match="file has changed"):
        checksums.unsealed(again, "file")

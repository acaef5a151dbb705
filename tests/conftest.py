"""Settings and fixtures that every test shares."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import torch
from tests import shortcuts, suites

if not torch.cuda.is_available():
    # Triton's kernels run on the CPU through its interpreter. Whether a process interprets or compiles them
    # is decided as triton is imported, which not only their tests do.
    os.environ.setdefault("TRITON_INTERPRET", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background, a suite has Ctrl-C ignored and would hand that on to those it interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

suites.register_profiles()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what is imported and collected, which stays, out of the garbage collector's sight."""
    gc.disable()
    try:
        return (yield)
    finally:
        shortcuts.take()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow and as long what tests/suites.py says."""
    suites.mark(items)


NOBODY = 65534
"""The user that owns nothing."""


def shared_data_folder() -> Path | None:
    """Where the real graphs lie: ``$GRAPHBRAID_TEST_DATA``, else a ``shared/data`` above here."""
    if configured := os.environ.get("GRAPHBRAID_TEST_DATA"):
        return Path(configured)
    folders = (parent / "shared" / "data" for parent in Path(__file__).resolve().parents)
    return next((folder for folder in folders if folder.is_dir()), None)


@pytest.fixture(scope="session")
def shared_graph() -> Callable[[str], Path]:
    """The path of a real graph by name, as ``shared_graph("cora")``; skips the test where it is not there."""

    def find(name: str) -> Path:
        folder = shared_data_folder()
        if folder is None:
            pytest.skip("no shared/data folder above the repository; set GRAPHBRAID_TEST_DATA")
        path = folder / f"{name}.npz"
        if not path.is_file():
            pytest.skip(f"{path} is not there; put the graph {name} into the folder of GRAPHBRAID_TEST_DATA")
        return path

    return find


@pytest.fixture(scope="session", autouse=True)
def own_dataset_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep generated datasets of a test run out of the user's cache; its processes share one."""
    if "GRAPHBRAID_CACHE" not in os.environ:
        own = tmp_path_factory.getbasetemp()
        folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "cache"
        folder.mkdir(exist_ok=True)
        os.environ["GRAPHBRAID_CACHE"] = str(folder)


@pytest.fixture(autouse=True)
def keep_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what a test measured although the other tests, which run beside it, are other programs."""
    monkeypatch.setattr("graphbraid.machine.measurements.MOST_OTHERS", 1.0)


@pytest.fixture
def known_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no process to measure the memory that the software itself takes."""
    monkeypatch.setattr("graphbraid.estimates.memory.baseline_bytes", lambda *_: 300 << 20)


@pytest.fixture(autouse=True)
def own_operators() -> Iterator[None]:
    """Take back the operators of a caller's device that a test registers: they are not the next test's."""
    stages = sys.modules.get("graphbraid.collective.run.stages")
    kept = dict(stages._factories) if stages else {}
    yield
    if stages := sys.modules.get("graphbraid.collective.run.stages"):
        for key in [key for key in stages._factories if key[1] not in stages._MODULES]:
            del stages._factories[key]
        stages._factories.update(kept)


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """A folder that this process may not write to. Root, who may write anywhere, is nobody meanwhile."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    try:
        if is_root:
            os.seteuid(NOBODY)
    except PermissionError:
        pytest.skip("root may write anywhere, and may not become another user here: run as one")
    try:
        yield folder
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o700)
        shutil.rmtree(folder)

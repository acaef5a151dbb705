"""Workplace: a folder with a small sound graph in every form, from which the cases break one thing each."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.extras import ran

from graphbraid.datasets import save_store
from graphbraid.files.checksums import sealed
from graphbraid.graph import Graph
from graphbraid.train.run_folder import checkpoint

NUM_NODES, NUM_CLASSES, NUM_FEATURES = 90, 3, 6
QUICK = ("--hidden", 8, "--fanouts", "3,3", "--batch-size", 32, "--epochs", 1, "--quiet")


def arrays() -> dict[str, Any]:
    """The graph as the arrays of an ``.npz``."""
    random = np.random.default_rng(0)
    y = np.arange(NUM_NODES) % NUM_CLASSES
    return {
        "edge_index": random.integers(0, NUM_NODES, (2, 600)),
        "num_nodes": np.int64(NUM_NODES),
        "x": (random.normal(size=(NUM_NODES, NUM_FEATURES)) + y[:, None]).astype(np.float32),
        "y": y,
        "train_idx": np.arange(0, 30),
        "val_idx": np.arange(30, 60),
        "test_idx": np.arange(60, 90),
    }


def graph(**changes: Any) -> Graph:
    """The graph itself, some arrays replaced (None leaves one out)."""
    given = {name: array for name, array in (arrays() | changes).items() if array is not None}
    splits = {name: given[f"{name}_idx"] for name in ("train", "val", "test") if f"{name}_idx" in given}
    return Graph.from_edge_index(
        given["edge_index"],
        int(given["num_nodes"]),
        x=given.get("x"),
        y=given.get("y"),
        edge_weight=given.get("edge_weight"),
        splits=splits,
        name="small",
    )


class Workplace:
    """Makes inputs, sound and broken, in a folder of its own, and gives back what it changed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, trained: Callable[[], Path]) -> None:
        folder.mkdir()
        self.folder = folder
        self.monkeypatch = monkeypatch
        self._trained = trained
        self._undo: list[Callable[[], None]] = []

    def close(self) -> None:
        while self._undo:
            self._undo.pop()()

    def finally_(self, undo: Callable[[], None]) -> None:
        """Call ``undo`` when the case is over."""
        self._undo.append(undo)

    # ---- inputs

    def path(self, name: str) -> Path:
        return self.folder / name

    def file(self, name: str, content: str | bytes) -> Path:
        path = self.path(name)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def npz(self, **changes: Any) -> Path:
        """The graph as ``small.npz``, some arrays replaced (None leaves one out)."""
        kept = {name: array for name, array in (arrays() | changes).items() if array is not None}
        np.savez(self.path("small.npz"), **kept)
        return self.path("small.npz")

    def store(self, broken: Graph | None = None) -> Path:
        return save_store(broken or graph(), self.path("store"))

    def run(self) -> Path:
        """A copy of a finished run on a store beside it."""
        folder = self._trained()
        shutil.copytree(folder / "store", self.path("store"))
        shutil.copytree(folder / "run", self.path("run"))
        config = self.path("run") / "config.json"
        content = json.loads(config.read_text().replace(str(folder), str(self.folder)))
        config.write_text(json.dumps(sealed({k: v for k, v in content.items() if k != "checksum"})))
        return self.path("run")

    def run_with(self, **settings: Any) -> Path:
        """The same, some of the options in its ``config.json`` changed by hand."""
        config = self.run() / "config.json"
        content = json.loads(config.read_text())
        del content["checksum"]
        content["info"]["settings"] |= settings
        config.write_text(json.dumps(content))
        return config.parent

    def run_from(self, **changes: Callable[[Any], None]) -> Path:
        """The same, fields of its checkpoints changed in place as one might who knows the format."""
        run = self.run()
        for name in ("last.pt", "best.pt"):
            path = run / "checkpoints" / name
            contents = checkpoint.read(path)
            contents.pop("format")
            for field, change in changes.items():
                change(contents[field])
            checkpoint.write(path, contents)
        return run

    def edges(self, *rows: str, header: str = "source,destination", name: str = "edges.csv") -> Path:
        return self.file(name, "\n".join([header, *(rows or ("0,1", "1,2", "2,0"))]) + "\n")

    def nodes(self, *rows: str, header: str = "id,a,b,class,split") -> Path:
        good = ("0,0.5,1,red,train", "1,0.25,2,blue,val", "2,0.125,3,red,test")
        return self.file("nodes.csv", "\n".join([header, *(rows or good)]) + "\n")

    def yaml(self, text: str) -> Path:
        return self.file("run.yaml", text)

    # ---- commands

    def train(self, data: Any = None, *options: Any) -> tuple[Any, ...]:
        """Arguments of a quick training, of the sound graph by default."""
        return (
            "train",
            *("--data", self.store() if data is None else data),
            *("--out", self.path("out")),
            *QUICK,
            *options,
        )

    def config(self, text: str) -> tuple[Any, ...]:
        """Arguments of a training with this ``run.yaml``."""
        return "train", "--config", self.yaml(text), "--out", self.path("out"), "--quiet"

    def predict(self, *options: Any) -> tuple[Any, ...]:
        return "predict", "--run", self.run(), "--out", self.path("predictions.csv"), *options

    def predict_from(self, run: Path) -> tuple[Any, ...]:
        return "predict", "--run", run, "--out", self.path("p.csv")

    def resume(self, run: Path, *options: Any) -> tuple[Any, ...]:
        return "train", "--resume", "--out", run, "--epochs", 3, *options

    def convert(self, source: Any, *options: Any) -> tuple[Any, ...]:
        return "convert", source, self.path("made"), *options

    # ---- broken surroundings

    def block(self, *packages: str) -> None:
        """Make importing some packages fail as if they were not installed."""
        for package in packages:
            for module in [name for name in sys.modules if name.split(".")[0] == package]:
                self.monkeypatch.delitem(sys.modules, module)
            self.monkeypatch.setitem(sys.modules, package, None)

    def small_disk(self, num_bytes: int) -> Path:
        """A file system of this size, mounted where this process may do so."""
        disk = self.path("disk")
        disk.mkdir()
        done = ran(["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(disk)])
        if done.returncode:
            pytest.skip(f"needs the right to mount (CAP_SYS_ADMIN): {done.stderr.strip()}")
        # Lazily: after a failed write torch keeps its file open as long as the error is referred to.
        self.finally_(lambda: subprocess.run(["umount", "--lazy", str(disk)], check=True))
        return disk

    def lock(self, path: Path) -> None:
        """Take every right to ``path`` away, also from root."""
        path.chmod(0)
        self.finally_(lambda: path.chmod(0o700))
        if os.geteuid() == 0:
            for parent in path.resolve().parents:  # another user must come as far as the locked path
                mode = parent.stat().st_mode
                if mode & 0o011 != 0o011:
                    parent.chmod(mode | 0o011)  # and stays so: another test process may be on its way through
            os.seteuid(65534)
            self.finally_(lambda: os.seteuid(0))


def cut(path: Path, keep: float = 0.5) -> Path:
    """Cut a file off after a share of its bytes."""
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    return path


def features_with(value: float) -> np.ndarray:
    x = arrays()["x"]
    x[4, 2] = value
    return x

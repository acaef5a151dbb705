"""The kinds of files that commands leave and users bring."""

import gzip
import io
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from tests.fuzz import careful
from tests.fuzz.file_kinds import KINDS, FileKind, only
from tests.fuzz.world import NODES, World

from graphbraid import datasets
from graphbraid.errors import GraphbraidError


class CommandError(GraphbraidError):
    """A command that ended with a documented exit code."""


# ---- what the commands leave and read


def command(*words: object) -> str:
    """Run a command in this process; its standard output.

    Raises:
        CommandError: it ended with one of the documented exit codes.
        RuntimeError: it ended otherwise.
    """
    from graphbraid.cli.main import app

    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            app([str(word) for word in words], prog_name="graphbraid")
        except SystemExit as left:
            code = left.code
    if code in (0, None):
        return out.getvalue()
    said = f"exit {code}: {err.getvalue()[-700:]}"
    if code in (2, 3, 4, 5, 6, 7):
        raise CommandError(said)
    raise RuntimeError(said)


_TRAIN = ("--hidden", 8, "--fanouts", "3,3", "--batch-size", 32, "--threads", 1, "--quiet")


def _write_command_run(f: Path, w: World) -> None:
    datasets.save_store(w.graph, f / "data")
    here = Path.cwd()
    os.chdir(f)  # the run's own folder names its data by this path
    try:
        command("train", "--data", "data", "--out", "run", "--epochs", 2, *_TRAIN)
    finally:
        os.chdir(here)


def _moved(f: Path) -> Path:
    return f / "run"


def _resume_command(f: Path) -> Any:
    command("train", "--resume", "--out", _moved(f), "--epochs", 3, "--quiet")
    return command(
        "predict", "--run", _moved(f), "--data", f / "data", "--out", f / "p.csv", "--scores"
    ) and _csv(f)


def _predict(f: Path) -> Any:
    command("predict", "--run", _moved(f), "--data", f / "data", "--out", f / "p.csv", "--scores")
    return _csv(f)


def _csv(f: Path) -> Any:
    import pandas as pd

    return [pd.read_csv(f / "p.csv").to_numpy()]


def _run_file(path: Path) -> bool:
    return path.parent.name == "run" and path.name != ".lock"


KINDS["run folder"] = FileKind(
    _write_command_run,
    {"predict": _predict, "train --resume": lambda f: _resume_command(f) or [_csv(f)]},
    _run_file,
)


# ---- what users bring


def write_tables(f: Path, w: World) -> None:
    edges = [
        f"{u},{v},{weight:.4f}"
        for (u, v), weight in zip(w.edge_index.T.tolist(), w.edge_weight.tolist(), strict=True)
    ]
    (f / "edges.csv").write_text("\n".join(["source,destination,w", *edges[:80]]) + "\n")
    split = ["train", "val", "test"]
    nodes = [f"{v},{w.x[v, 0]:.4f},{w.x[v, 1]:.4f},{'abcd'[v % 4]},{split[v % 3]}" for v in range(NODES)]
    (f / "nodes.csv").write_text("\n".join(["id,a,b,label,split", *nodes]) + "\n")


def _tables(f: Path, suffix: str = "csv") -> Any:
    table = datasets.from_tables(
        f / f"edges.{suffix}",
        f / f"nodes.{suffix}",
        weight="w",
        features=["a", "b"],
        label="label",
        split="split",
    )
    return careful.of_table(table)


KINDS["csv"] = FileKind(write_tables, {"from_tables": _tables}, independent=careful.read_csv)


def _zip_tables(f: Path, w: World) -> None:
    write_tables(f, w)
    for name in ("edges.csv", "nodes.csv"):
        with gzip.open(f / f"{name}.gz", "wb") as out:
            out.write((f / name).read_bytes())
        (f / name).unlink()


KINDS["csv.gz"] = FileKind(
    _zip_tables, {"from_tables": lambda f: _tables(f, "csv.gz")}, independent=careful.read_csv
)


def _parquet(f: Path, w: World) -> None:
    import pandas as pd

    write_tables(f, w)
    for name in ("edges", "nodes"):
        pd.read_csv(f / f"{name}.csv").to_parquet(f / f"{name}.parquet")
        (f / f"{name}.csv").unlink()


KINDS["parquet"] = FileKind(
    _parquet, {"from_tables": lambda f: _tables(f, "parquet")}, independent=careful.read_parquet
)


def write_ogb(f: Path, w: World, *, binary: bool) -> None:
    raw, split = f / "ogbn_mine" / "raw", f / "ogbn_mine" / "split" / "time"
    raw.mkdir(parents=True)
    split.mkdir(parents=True)
    edges, x, y = w.edge_index.numpy(), w.x.numpy(), w.y.numpy()[:, None]
    counts = {"num-node-list": [[NODES]], "num-edge-list": [[edges.shape[1]]]}
    if binary:
        np.savez_compressed(
            raw / "data.npz",
            edge_index=edges,
            num_nodes_list=[NODES],
            num_edges_list=[edges.shape[1]],
            node_feat=x,
        )
        np.savez_compressed(raw / "node-label.npz", node_label=y.astype(float))
    else:
        for name, rows in {"edge": edges.T, "node-feat": x, "node-label": y, **counts}.items():
            _gz(raw / f"{name}.csv.gz", rows)
    for part, ids in {"train": w.splits["train"], "valid": w.splits["val"], "test": w.splits["test"]}.items():
        _gz(split / f"{part}.csv.gz", ids.numpy()[:, None])


def _gz(path: Path, rows: Any) -> None:
    text = "\n".join(",".join(str(cell) for cell in row) for row in np.asarray(rows).tolist()) + "\n"
    path.write_bytes(gzip.compress(text.encode()))


_LOAD_OGB = {"load_ogb": lambda f: datasets.load_ogb(f / "ogbn_mine")}
KINDS["ogb, text"] = FileKind(
    lambda f, w: write_ogb(f, w, binary=False),
    _LOAD_OGB,
    may_lack=("node-feat.csv.gz", "num-edge-list.csv.gz"),
)
KINDS["ogb, binary"] = FileKind(lambda f, w: write_ogb(f, w, binary=True), _LOAD_OGB)


def _write_yaml(f: Path, w: World) -> None:
    (f / "run.yaml").write_text(
        "data: nowhere\nmodel: gcn\nhidden_channels: 16\nnum_layers: 2\ndropout: 0.25\n"
        "epochs: 7\nfanouts: [5, 5]\n"
        "batch_size: 64\nlr: 0.01\nweight_decay: 5e-4\nclip: null\nseed: 3\nmodel_options: {improved: true}\n"
    )


def _yaml(f: Path) -> Any:
    from graphbraid.cli.run.settings import resolve
    from graphbraid.files.yaml_file import read_yaml

    return resolve({}, read_yaml(f / "run.yaml")) and None


KINDS["run.yaml"] = FileKind(_write_yaml, {"resolve": _yaml})


def write_ids(f: Path, w: World) -> None:
    _write_command_run(f, w)
    (f / "ids.txt").write_text("\n".join(map(str, range(0, 40, 3))) + "\n")
    np.save(f / "ids.npy", np.arange(0, 40, 3))


def _predict_ids(f: Path, name: str) -> Any:
    command("predict", "--run", _moved(f), "--data", f / "data", "--out", f / "p.csv", "--nodes", f / name)
    return _csv(f)[0][:, 0]


KINDS["ids.txt"] = FileKind(
    write_ids,
    {"predict": lambda f: _predict_ids(f, "ids.txt")},
    only("ids.txt"),
    independent=careful.read_ids_text,
)
KINDS["ids.npy"] = FileKind(
    write_ids,
    {"predict": lambda f: _predict_ids(f, "ids.npy")},
    only("ids.npy"),
    independent=careful.read_ids_npy,
)

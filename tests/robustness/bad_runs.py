"""Runs and the machine: folders, checkpoints, disk, memory, packages, kernels, losses."""

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from tests.modules import module_of
from tests.robustness.cases import call, command
from tests.robustness.workplace import NUM_NODES, Workplace, arrays, cut, graph

import graphbraid
from graphbraid import native, nn
from graphbraid.datasets import from_tables, save_store
from graphbraid.errors import ConfigError, KernelError, MissingPackageError, ResourceError, TrainingError
from graphbraid.files.checksums import seal_zip
from graphbraid.fullgraph.step.device_copies import Picker

RUNS = "Runs and checkpoints"
PLACES = "Folders, disk and memory"
PACKAGES = "Missing packages"
KERNELS = "Kernels"
TRAINING = "Training"


# ---- runs and checkpoints


command(RUNS, 2, "--resume needs --out")("Resume without a folder", lambda w: ("train", "--resume"))
command(RUNS, 2, "holds no run", "name the folder a run left")(
    "Resume in a folder that holds no run", lambda w: ("train", "--resume", "--out", w.folder)
)


@command(RUNS, 2, "last.pt does not exist", "the out_dir of a started run")
def resume_without_checkpoint(w: Workplace):
    """Resume after the checkpoint was deleted."""
    run = w.run()
    (run / "checkpoints" / "last.pt").unlink()
    return w.resume(run)


@command(RUNS, 3, "last.pt is damaged or not a checkpoint", "Take another checkpoint")
def truncated_checkpoint(w: Workplace):
    """A checkpoint that was cut off."""
    run = w.run()
    cut(run / "checkpoints" / "last.pt")
    return w.resume(run)


@command(RUNS, 3, "last.pt is not a checkpoint of this version of graphbraid")
def foreign_checkpoint(w: Workplace):
    """A checkpoint of another program."""
    run = w.run()
    torch.save({"weights": torch.zeros(3)}, run / "checkpoints" / "last.pt")
    return w.resume(run)


@command(RUNS, 3, "holds Python objects beside tensors", "trust_checkpoint")
def checkpoint_with_code(w: Workplace):
    """A checkpoint that would run code."""
    run = w.run()
    torch.save({"x": Path("a")}, run / "checkpoints" / "last.pt")
    seal_zip(run / "checkpoints" / "last.pt")
    return w.resume(run)


command(RUNS, 2, "last.pt holds another model", "its convs.0", "Build the model with the options")(
    "Resume with another model", lambda w: w.resume(w.run(), "--hidden", 16)
)
command(RUNS, 2, "was written with lr=0.003; this run has 0.5", "Give lr as it was")(
    "Resume with another learning rate", lambda w: w.resume(w.run(), "--lr", 0.5)
)


@command(RUNS, 3, "was written while training on another graph: its array")
def resume_other_data(w: Workplace):
    """Resume on changed data."""
    run = w.run()
    edges = arrays()["edge_index"]
    edges[0, 0] = (edges[0, 0] + 1) % NUM_NODES
    save_store(graph(edge_index=edges), w.path("store"), if_exists="replace")
    return w.resume(run)


@command(RUNS, 3, "config.json is damaged: it is not valid JSON")
def truncated_config(w: Workplace):
    """`config.json` cut off."""
    run = w.run()
    cut(run / "config.json")
    return "train", "--resume", "--out", run


@command(RUNS, 3, "config.json has changed since it was written", "take its field 'checksum' out")
def flipped_config(w: Workplace):
    """`config.json` with a value that changed on the disk."""
    config = w.run() / "config.json"
    config.write_text(config.read_text().replace('"dropout": 0.5', '"dropout": 0.1'))
    return w.resume(config.parent)


command(RUNS, 2, "run/config.json: hidden_channels must be a valid integer", "'wide'")(
    "`config.json` edited to hold text for a number",
    lambda w: w.predict_from(w.run_with(hidden_channels="wide")),
)


@command(RUNS, 3, "run/config.json: info.outputs.width: ")
def outputs_in_config(w: Workplace):
    """`config.json` edited to hold other outputs."""
    config = w.run() / "config.json"
    content = json.loads(config.read_text())
    del content["checksum"]
    content["info"]["outputs"]["width"] = "three"
    config.write_text(json.dumps(content))
    return w.predict_from(config.parent)


@command(RUNS, 3, "last.pt is damaged: it has changed since it was written")
def flipped_checkpoint(w: Workplace):
    """A checkpoint with a bit flipped."""
    run = w.run()
    path = run / "checkpoints" / "last.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return w.resume(run)


command(
    RUNS,
    3,
    "last.pt is no sound checkpoint: optimizer.state.0.exp_avg: must be (8, 6) torch.float32",
    "got (3,)",
)(
    "An optimizer's state of another shape than its parameter",
    lambda w: w.resume(w.run_from(optimizer=lambda o: o["state"][0].update(exp_avg=torch.zeros(3)))),
)
command(RUNS, 3, "optimizer.state.1.exp_avg_sq: must be", "got (8,) torch.int64")(
    "An optimizer's state of another dtype than its parameter",
    lambda w: w.resume(
        w.run_from(optimizer=lambda o: o["state"][1].update(exp_avg_sq=torch.zeros(8).long()))
    ),
)
command(RUNS, 3, "a generator does not take its state from the checkpoint")(
    "A random state of another length",
    lambda w: w.resume(w.run_from(random=lambda r: r.update(torch=torch.zeros(7, dtype=torch.uint8)))),
)
command(RUNS, 2, "already holds a run", "--resume", "--overwrite")(
    "A folder that already holds a run", lambda w: ("train", "--data", w.npz(), "--out", w.run(), "--quiet")
)


@command(
    RUNS, 2, "is not empty and no run of graphbraid (it holds 'thesis.txt')", "choose a new or empty folder"
)
def folder_of_the_users(w: Workplace):
    """A folder that is not empty and holds no run."""
    w.path("out").mkdir()
    w.file("out/thesis.txt", "years of work")
    return w.train(None, "--overwrite")


command(RUNS, 2, "run.yaml:1", "command line only", "--trust")(
    "Trust in a file that may come from elsewhere", lambda w: w.config("trust_checkpoint: true\n")
)
command(RUNS, 2, "--out", "a file or folder must be named")(
    "A folder without a name", lambda w: ("train", "--out", "")
)


@command(RUNS, 4, "is in use by another run")
def folder_in_use(w: Workplace):
    """A folder in which another process trains."""
    import fcntl

    run = w.run()
    lock = os.open(run / ".lock", os.O_RDWR | os.O_CREAT)
    w.finally_(lambda: os.close(lock))
    fcntl.flock(lock, fcntl.LOCK_EX)
    return w.resume(run)


command(RUNS, 2, "holds no run: there is no", "config.json")(
    "Predict from a folder that holds no run",
    lambda w: ("predict", "--run", w.folder, "--out", w.path("p.csv")),
)


@command(RUNS, 2, "holds another model", "Build the model", "(8, 6)")
def predict_other_width(w: Workplace):
    """Predict on data of another width."""
    run = w.run()
    return "predict", "--run", run, "--out", w.path("p.csv"), "--data", w.npz(x=arrays()["x"][:, :5])


@command(RUNS, 3, "the run's data", "store is not there any more", "--data")
def predict_without_data(w: Workplace):
    """Predict after the run's data went away."""
    arguments = w.predict()
    w.path("store").rename(w.path("elsewhere"))
    return arguments


command(RUNS, 2, "there is no checkpoint", "third.pt")(
    "Predict from a checkpoint that does not exist", lambda w: w.predict("--checkpoint", w.path("third.pt"))
)


# ---- places


command(PLACES, 4, "cannot write to out_dir", "Not a directory", "choose a folder")(
    "An output folder inside a file",
    lambda w: ("train", "--data", w.npz(), "--out", w.file("file", "") / "run", "--quiet"),
)


@command(PLACES, 2, "would replace a file of --nodes; choose another name")
def predictions_over_ids(w: Workplace):
    """Predictions in place of what they are made from."""
    ids = w.file("ids.csv", "3\n")
    return "predict", "--run", w.run(), "--nodes", ids, "--out", ids


@command(PLACES, 4, "locked", "Permission denied")
def locked_out(w: Workplace):
    """An output folder without the right to write."""
    data = w.npz()
    w.path("locked").mkdir()
    w.lock(w.path("locked"))
    return "train", "--data", data, "--out", w.path("locked") / "run", "--quiet"


command(PLACES, 4, "/proc/made")(
    "A store where nothing can be written", lambda w: ("convert", w.npz(), "/proc/made")
)
command(PLACES, 4, "cannot write /proc/predictions.csv")(
    "Predictions where nothing can be written",
    lambda w: ("predict", "--run", w.run(), "--out", "/proc/predictions.csv"),
)


@command(PLACES, 4, "p.csv", "it is a folder")
def predict_over_folder(w: Workplace):
    """Predictions over a folder."""
    w.path("p.csv").mkdir()
    return "predict", "--run", w.run(), "--out", w.path("p.csv")


@command(PLACES, 4, "the disk is full", "free some space")
def disk_full_training(w: Workplace):
    """A disk that fills up while training."""
    arguments = w.train(w.npz())
    _no_space_at_sync(w)
    return arguments


@command(PLACES, 4, "predictions.csv: the disk is full")
def disk_full_predicting(w: Workplace):
    """A disk that fills up while predictions are written."""
    arguments = w.predict()
    _no_space_at_sync(w)
    return arguments


command(PLACES, 4, "storing the graph in", "needs", "are free")(
    "A disk that is too small for a store", lambda w: ("convert", w.npz(), w.small_disk(100 << 10) / "store")
)
command(PLACES, 4, "checkpoints/last.pt", "is the disk full? (0 B free)")(
    "A disk that is really full",
    lambda w: (
        "train",
        "--data",
        w.npz(),
        "--out",
        w.small_disk(20 << 10) / "run",
        "--quiet",
        "--fanouts",
        "3,3",
    ),
)
command(PLACES, 4, "the system does not give the 7.3 TiB of an indptr for 1,000,000,000,000 nodes")(
    "Too little memory for the graph", lambda w: w.train(w.npz(num_nodes=np.int64(10**12), x=None, y=None))
)


@call(PLACES, ResourceError, "memory_budget_bytes", "needs")
def budget_too_small(w: Workplace):
    """A memory budget that exact inference cannot keep."""
    import torch_geometric.nn as pyg

    edges = torch.stack([torch.arange(20_000) % 500, torch.arange(20_000) // 40])
    large = graphbraid.Graph.from_edge_index(edges, 500, x=torch.randn(500, 400), y=torch.zeros(500).long())
    model = pyg.GraphSAGE(400, 64, 2, out_channels=1, norm="PairNorm")  # of all rows
    graphbraid.Trainer(model, large, memory_budget_bytes=1 << 16, fanouts=(3, 3)).predict()


def _no_space_at_sync(w: Workplace) -> None:
    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    w.monkeypatch.setattr(os, "fsync", no_space)


# ---- packages


@command(PACKAGES, 5, "needs pyarrow", "pip install 'graphbraid[tabular]'")
def tables_without_pyarrow(w: Workplace):
    """CSV and Parquet without pyarrow."""
    w.block("pyarrow")
    return w.convert(w.edges())


@command(PACKAGES, 5, "needs the package pyarrow", "or choose .csv or .npz")
def parquet_without_pyarrow(w: Workplace):
    """Parquet predictions without pyarrow."""
    w.block("pyarrow")
    return "predict", "--run", w.run(), "--out", w.path("p.parquet")


@command(PACKAGES, 5, "pip install 'graphbraid[tensorboard]'")
def tensorboard_missing(w: Workplace):
    """TensorBoard that is not installed."""
    arguments = w.train(None, "--tensorboard")
    w.block("tensorboard")
    w.monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    return arguments


@call(PACKAGES, MissingPackageError, "needs PyTorch Geometric", "pip install torch-geometric")
def pyg_missing(w: Workplace):
    """PyTorch Geometric that is not installed."""
    w.block("torch_geometric")
    graph().to_pyg()


@call(PACKAGES, MissingPackageError, "dgl")
def dgl_missing(w: Workplace):
    """DGL that is not installed."""
    w.block("dgl")
    graph().to_dgl()


@call(PACKAGES, MissingPackageError, "pip install 'graphbraid[tabular]'")
def frame_without_pyarrow(w: Workplace):
    """Data frames without pyarrow."""
    w.block("pyarrow")
    from_tables(w.edges())


# ---- kernels


@command(KERNELS, 6, "GRAPHBRAID_KERNELS='avx1024' names no kernel variant; choose one of avx512")
def unknown_variant(w: Workplace):
    """An unknown variant."""
    w.monkeypatch.setenv("GRAPHBRAID_KERNELS", "avx1024")
    _choose_anew(w)
    return w.train(w.npz())


def _offer(w: Workplace, is_supported: Callable[[str], bool], is_compiled: Callable[[str], bool]) -> None:
    """Let the kernels say which variants the processor has and which were compiled."""
    kernels = SimpleNamespace(is_supported=is_supported, is_compiled=is_compiled)
    w.monkeypatch.setattr(native, "_load", lambda: (kernels, ""))


@call(KERNELS, KernelError, "GRAPHBRAID_KERNELS=avx512 cannot run here: this processor does not have avx512")
def unsupported_variant(w: Workplace):
    """A variant that this processor does not have."""
    _offer(w, lambda variant: variant == "portable", lambda variant: True)
    w.monkeypatch.setenv("GRAPHBRAID_KERNELS", "avx512")
    _choose_anew(w)
    native.active()


@call(
    KERNELS,
    KernelError,
    "GRAPHBRAID_KERNELS=avx2 cannot run here: avx2 is not compiled in this build; rebuild with "
    "GB_VARIANTS=all in the environment",
)
def uncompiled_variant(w: Workplace):
    """A variant that was not compiled."""
    _offer(w, lambda variant: True, lambda variant: variant == "portable")
    w.monkeypatch.setenv("GRAPHBRAID_KERNELS", "avx2")
    _choose_anew(w)
    native.active()


@call(
    KERNELS, KernelError, "GRAPHBRAID_KERNELS=avx2 cannot run here: the compiled kernels could not be loaded"
)
def uncompiled_kernels(w: Workplace):
    """Kernels that were not compiled."""
    w.monkeypatch.setattr(native, "_load", lambda: (None, "the compiled kernels could not be loaded"))
    w.monkeypatch.setenv("GRAPHBRAID_KERNELS", "avx2")
    _choose_anew(w)
    native.active()


@call(KERNELS, ConfigError, "GRAPHBRAID_SPMM='cublas' names no kernel; choose 'graphbraid' or 'torch.sparse'")
def unknown_spmm(w: Workplace):
    """An unknown kernel for aggregations on a device."""
    w.monkeypatch.setenv("GRAPHBRAID_SPMM", "cublas")
    Picker(lambda run: 0.0)


def _choose_anew(w: Workplace) -> None:
    for chosen in (native.active, native.kernels):
        chosen.cache_clear()
        w.finally_(chosen.cache_clear)


# ---- training


command(TRAINING, 7, "the loss is", "at epoch 0, step", "Lower lr", "clip")(
    "A loss that is not finite", lambda w: w.train(w.npz(x=np.full((90, 6), 3e38, np.float32)), "--epochs", 3)
)


@call(TRAINING, TrainingError, "the gradients' norm is nan at epoch 0, step 0", "Lower lr")
def gradients_not_finite(w: Workplace):
    """Gradients that are not finite."""

    def forward(self, x, edge_index):
        return self.linear(x) + (self.linear.weight.sum() * 0).sqrt()

    graphbraid.Trainer(module_of(forward, linear=torch.nn.Linear(6, 3)), graph(), fanouts=(3, 3)).fit()


command(TRAINING, 7, "batch normalisation met a single node at epoch 0, step 2", "batch_size")(
    "A lone node for batch normalisation",
    lambda w: w.train(
        w.npz(train_idx=np.arange(65), val_idx=np.arange(65, 75), test_idx=np.arange(75, 90)),
        "--model",
        "gin",
    ),
)
call(TRAINING, ConfigError, "the model has parameters on meta, but is to run on cpu; move it there first")(
    "Full-graph training where the model is not",
    lambda w: graphbraid.compile(nn.GCN(6, 8, 3).to("meta"), graph(), device="cpu"),
)


@call(TRAINING, graphbraid.errors.ConfigError, "no parameter that requires gradients")
def nothing_to_train(w: Workplace):
    """A model with nothing to train."""
    model = nn.GraphSAGE(6, 8, 3)
    model.requires_grad_(False)
    graphbraid.Trainer(model, graph(), fanouts=(3, 3)).fit()

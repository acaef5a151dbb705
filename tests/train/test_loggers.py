"""Callbacks that write to loggers of other libraries: what they get, and that runs do not change by them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.communities import community_graph

from graphbraid import nn
from graphbraid.errors import ConfigError
from graphbraid.train import LogTo, Trainer


def trainer(*callbacks: Any, **options: Any) -> Trainer:
    graph = community_graph(200)
    torch.manual_seed(0)
    model = nn.GraphSAGE(graph.num_features, 8, graph.num_classes, 2)
    settings = {"epochs": 2, "fanouts": (3, 3), "batch_size": 32, "seed": 0}
    return Trainer(model, graph, callbacks=callbacks, info={"note": "a run"}, **settings | options)


class Recorded:
    """A logger that keeps what it gets."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.params: dict[str, Any] = {}
        self.ends: list[str] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append((step, metrics))

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        self.params = params

    def finalize(self, status: str) -> None:
        self.ends.append(status)


def test_a_logger_gets_every_number_at_its_step() -> None:
    logger = Recorded()
    run = trainer(LogTo(logger))
    result = run.fit()
    losses = [step for step, values in logger.rows if "train/loss" in values]
    assert losses == list(range(result.global_step))
    found = {name: value for _, values in logger.rows for name, value in values.items()}
    last = run.progress.history[-1]
    assert {name: found[f"val/{name}"] for name in ("loss", "accuracy")} == {
        "loss": last["val_loss"],
        "accuracy": last["val_accuracy"],
    }
    assert found["test/accuracy"] == result.test["accuracy"]
    assert all(step < result.global_step for step, _ in logger.rows)
    assert logger.params["epochs"] == 2
    assert logger.params["note"] == "a run"
    assert "lr" not in logger.params, "it has its default"
    assert logger.ends == ["success"]
    plain = trainer()
    plain.fit()
    assert [row["train_loss"] for row in plain.progress.history] == [
        row["train_loss"] for row in run.progress.history
    ]


def test_a_run_that_fails_ends_as_failed_and_what_is_no_logger_is_refused() -> None:
    logger = Recorded()
    with pytest.raises(Exception, match="the loss is nan"):
        trainer(LogTo(logger), lr=1e30, optimizer="sgd", epochs=9).fit()
    assert logger.ends == ["failed"]
    with pytest.raises(ConfigError, match="logger must have log_metrics"):
        LogTo(object())


def test_lightning_s_loggers_write_their_files(tmp_path: Path) -> None:
    loggers = pytest.importorskip("pytorch_lightning.loggers", reason="needs pytorch-lightning")
    logger = loggers.CSVLogger(str(tmp_path))
    result = trainer(LogTo(logger)).fit()
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["test/accuracy"]) for row in rows if row["test/accuracy"]] == [result.test["accuracy"]]


def test_runs_are_written_to_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the package wandb")
    loggers = pytest.importorskip("pytorch_lightning.loggers", reason="needs pytorch-lightning")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = loggers.WandbLogger(project="communities", offline=True, save_dir=str(tmp_path))
    result = trainer(LogTo(logger)).fit()
    assert logger.experiment.summary["test/accuracy"] == result.test["accuracy"]
    logger.experiment.finish()
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_runs_are_written_to_mlflow_s_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs the package mlflow")
    loggers = pytest.importorskip("pytorch_lightning.loggers", reason="needs pytorch-lightning")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = loggers.MLFlowLogger("communities", tracking_uri=f"file:{tmp_path}/runs")
    result = trainer(LogTo(logger)).fit()
    run = mlflow.tracking.MlflowClient(f"file:{tmp_path}/runs").get_run(logger.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["test/accuracy"] == pytest.approx(result.test["accuracy"])
    assert run.data.params["epochs"] == "2"

"""Callbacks that write to loggers of other libraries: what they get, and that runs do not change by them."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tests.train.communities import AsWritten, community_graph, new_model

from graphbraid import nn
from graphbraid.errors import ConfigError
from graphbraid.train import LogTo, Trainer
from graphbraid.train.progress import ProgressDisplay


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


def test_a_logger_gets_every_number_at_its_step():
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


def test_a_run_that_fails_ends_as_failed_and_what_is_no_logger_is_refused():
    logger = Recorded()
    with pytest.raises(Exception, match="the loss is nan"):
        trainer(LogTo(logger), lr=1e30, optimizer="sgd", epochs=9).fit()
    assert logger.ends == ["failed"]
    with pytest.raises(ConfigError, match="logger must have log_metrics"):
        LogTo(object())


def test_lightning_s_loggers_write_their_files(tmp_path):
    loggers = pytest.importorskip("pytorch_lightning.loggers", reason="needs pytorch-lightning")
    logger = loggers.CSVLogger(str(tmp_path))
    result = trainer(LogTo(logger)).fit()
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["test/accuracy"]) for row in rows if row["test/accuracy"]] == [result.test["accuracy"]]


def test_runs_are_written_to_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs the package wandb")
    loggers = pytest.importorskip("pytorch_lightning.loggers", reason="needs pytorch-lightning")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = loggers.WandbLogger(project="communities", offline=True, save_dir=str(tmp_path))
    result = trainer(LogTo(logger)).fit()
    assert logger.experiment.summary["test/accuracy"] == result.test["accuracy"]
    logger.experiment.finish()
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_runs_are_written_to_mlflow_s_files(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="needs the package mlflow")
    loggers = pytest.importorskip("pytorch_lightning.loggers", reason="needs pytorch-lightning")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = loggers.MLFlowLogger("communities", tracking_uri=f"file:{tmp_path}/runs")
    result = trainer(LogTo(logger)).fit()
    run = mlflow.tracking.MlflowClient(f"file:{tmp_path}/runs").get_run(logger.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["test/accuracy"] == pytest.approx(result.test["accuracy"])
    assert run.data.params["epochs"] == "2"


def shown(*, terminal: bool, quiet: bool = False, as_written: bool = False, **options: object) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=140, color_system=None)
    graph = community_graph()
    options = {"epochs": 3, "batch_size": 100, "fanouts": (5, 5), "threads": 1, "compiled": False} | options
    model = AsWritten(graph.num_features, graph.num_classes) if as_written else new_model(graph)
    Trainer(model, graph, **options, callbacks=[ProgressDisplay(console, quiet=quiet)]).fit()
    return text.getvalue()


def test_lines_in_a_file_show_loss_metric_and_stage_times():
    baseline, *lines = shown(terminal=False).splitlines()
    assert baseline.startswith("baseline  always predicting class ")
    heading = "epoch loss val loss val accuracy sample gather wait model eval epoch (seconds)"
    assert lines[0].split() == heading.split()
    assert [line.split()[0] for line in lines[1:4]] == ["0", "1", "2"]
    assert all(len(line.removesuffix("  best").split()) == 10 for line in lines[1:4])
    assert any(line.endswith("  best") for line in lines[1:4])
    assert lines[4].startswith("finished after 3 epochs, 6 steps")
    assert any(line.startswith("test loss") for line in lines)
    assert "\x1b" not in "".join(lines)


def test_a_model_that_runs_as_written_is_shown():
    assert shown(terminal=False, as_written=True, compiled=True).startswith("uncompiled  ")


def test_epoch_without_evaluation_shows_a_dash():
    lines = shown(terminal=False, eval_every=2).splitlines()[1:]
    assert lines[1].split()[2:4] == ["-", "-"]
    assert "-" not in lines[2].split()


def test_terminal_gets_a_bar_and_keeps_the_lines():
    text = shown(terminal=True)
    assert "epoch 0 of 3" in text
    assert "val accuracy" in text
    assert "finished after 3 epochs" in text
    assert text.endswith("\n")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")  # the cursor is shown again


def test_cursor_comes_back_after_an_error():
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120)
    graph = community_graph()
    display = ProgressDisplay(console)

    class Fail(ProgressDisplay):
        def on_step_end(self, trainer: Trainer, record: object) -> None:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        Trainer(new_model(graph), graph, fanouts=(5, 5), callbacks=[display, Fail(quiet=True)]).fit()
    assert text.getvalue().count("\x1b[?25l") == text.getvalue().count("\x1b[?25h") == 1


def test_quiet_says_nothing():
    assert shown(terminal=False, quiet=True) == ""
    assert shown(terminal=True, quiet=True) == ""

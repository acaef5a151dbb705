"""Rare classes: the baseline of the largest one, the warning, and thresholds, beside scikit-learn."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from tests.train.communities import community_graph, new_model

from graphbraid import Graph
from graphbraid.errors import ConfigError, DataError
from graphbraid.train import TrainConfig, Trainer
from graphbraid.train.run_folder.folder import read_json

OPTIONS: dict[str, Any] = {"epochs": 1, "batch_size": 64, "fanouts": (5, 5), "threads": 1}


def rare_graph(every: int) -> Graph:
    """Two classes, of which the second has one node in ``every``; the features tell it."""
    graph = community_graph()
    y = torch.zeros(graph.num_nodes, dtype=torch.int64)
    for ids in graph.splits.values():
        y[ids[::every]] = 1
    x = graph.dense_x().clone()
    x[:, 3] += 1.5 * y
    return graph.replace(x=x, y=y)


@pytest.mark.parametrize(
    ("every", "options", "warns"),
    [
        (20, {}, True),
        (20, {"monitor": "f1_macro"}, False),
        (20, {"metrics": ("average_precision",)}, False),
        (20, {"monitor": "loss"}, False),
        (5, {}, False),
    ],
)
def test_a_class_that_accuracy_rewards_alone_is_warned_of(
    every: int, options: dict[str, Any], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    graph = rare_graph(every)
    trainer = Trainer(new_model(graph), graph, **OPTIONS, **options)
    assert trainer.baseline == ""
    trainer.fit()
    share = float((graph.y[graph.splits["val"]] == 0).double().mean())
    assert trainer.baseline == f"always predicting class 0, the largest, has an accuracy of {share:.4f}"
    assert ("choose monitor='f1_macro', or metrics=('average_precision'" in caplog.text) == warns


def test_the_metrics_that_the_warning_names_can_be_monitored() -> None:
    graph = rare_graph(20)
    result = Trainer(new_model(graph), graph, **OPTIONS, metrics=("average_precision", "f1_macro")).fit()
    assert result.monitor == "average_precision"


def test_a_split_for_training_alone_has_its_baseline_and_other_tasks_have_none() -> None:
    graph = rare_graph(5)
    alone = graph.replace(splits={"train": graph.splits["train"]})
    trainer = Trainer(new_model(alone), alone, **OPTIONS)
    trainer.fit()
    assert "class 0" in trainer.baseline
    targets = graph.replace(y=torch.randn(graph.num_nodes, 2))
    trainer = Trainer(new_model(graph), targets, **OPTIONS)
    trainer.fit()
    assert trainer.baseline == ""


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("form", ["classes", "one label"])
def test_no_other_threshold_has_a_larger_score(form: str, beta: float) -> None:
    graph = rare_graph(8)
    assert graph.y is not None
    if form == "one label":
        y = graph.y[:, None].float()
        y[graph.splits["val"][1]] = torch.nan  # without a label
        graph = graph.replace(y=y)
    torch.manual_seed(0)
    trainer = Trainer(new_model(graph), graph, **OPTIONS | {"epochs": 4})
    trainer.fit()
    threshold = trainer.best_threshold(beta=beta)
    nodes = graph.splits["val"] if form == "classes" else graph.splits["val"][torch.arange(200) != 1]
    scores = trainer.predict(nodes, probabilities=True)[:, -1].numpy()
    labels = graph.y.reshape(-1)[nodes].long().numpy()
    of_each = {t: sk.fbeta_score(labels, scores >= t, beta=beta, zero_division=0) for t in np.unique(scores)}
    assert of_each[np.float32(threshold)] == pytest.approx(max(of_each.values()), abs=1e-6)


def test_a_threshold_needs_two_classes_with_nodes_of_both() -> None:
    graph = community_graph()
    with pytest.raises(ConfigError, match="two classes or one label; this is a single-label task of width 3"):
        Trainer(new_model(graph), graph, **OPTIONS).best_threshold()
    rare = rare_graph(8)
    trainer = Trainer(new_model(rare), rare, **OPTIONS)
    for beta in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="beta must be a positive number"):
            trainer.best_threshold(beta=beta)
    with pytest.raises(DataError, match="no split 'later'"):
        trainer.best_threshold("later")
    y = rare.y.clone()
    y[rare.splits["val"]] = 0
    one = rare.replace(y=y)
    with pytest.raises(DataError, match="all labels of 'val' are the same"):
        Trainer(new_model(one), one, **OPTIONS).best_threshold()


def test_a_run_keeps_the_threshold_that_it_chose(tmp_path) -> None:
    graph = rare_graph(8)
    torch.manual_seed(0)
    options = OPTIONS | {"epochs": 3, "threshold": "f1", "out_dir": tmp_path / "run"}
    trainer = Trainer(new_model(graph), graph, **options)
    result = trainer.fit()
    assert result.threshold == trainer.best_threshold("val")
    assert read_json(tmp_path / "run" / "result.json")["threshold"] == result.threshold
    given = Trainer(new_model(graph), graph, **OPTIONS | {"epochs": 1, "threshold": 0.3}).fit()
    assert given.threshold == 0.3
    assert Trainer(new_model(graph), graph, **OPTIONS | {"epochs": 1}).fit().threshold is None


def test_a_threshold_that_a_run_cannot_keep_is_refused_before_its_first_step() -> None:
    graph = community_graph()
    for threshold in ("f1", 0.3):
        trainer = Trainer(new_model(graph), graph, **OPTIONS | {"threshold": threshold})
        with pytest.raises(ConfigError, match="two classes or one label; this is a single-label task of"):
            trainer.fit()
        assert trainer.progress.global_step == 0
    rare = rare_graph(8)
    alone = rare.replace(splits={"train": rare.splits["train"]})
    with pytest.raises(DataError, match="no split 'val'"):
        Trainer(new_model(alone), alone, **OPTIONS | {"threshold": "f1"}).fit()
    with pytest.raises(ConfigError, match="threshold='f1' is chosen for the weights of the best epoch"):
        TrainConfig(threshold="f1", restore_best=False)
    for threshold in (0.0, 1.0, "best", True):
        with pytest.raises(ConfigError, match="threshold must be"):
            TrainConfig(threshold=threshold)

"""Labels in every form that people bring them in; rare classes: the baseline, the warning, and thresholds."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as sk
from tests.train.communities import Sage, community_graph, new_model
from tests.train.recorded import losses
from torch import Tensor

from graphbraid import Graph
from graphbraid.datasets import random_share_split
from graphbraid.errors import ConfigError, DataError
from graphbraid.train import TrainConfig, Trainer
from graphbraid.train.inference.metrics import METRICS, Scores
from graphbraid.train.run_folder.folder import read_json
from graphbraid.train.task import check_own_loss, labelled, task_of, with_class_weights, with_own_loss

STEPS = 2
GRAPH = community_graph()
TRAIN = GRAPH.split("train")
Y, X = GRAPH.y, GRAPH.dense_x()
assert Y is not None
HOT = F.one_hot(Y, 3)
BITS = HOT.float()
TWICE, CPU = BITS[:, [0, 0]], torch.device("cpu")
ALL, HALF = slice(None), slice(1, None, 2)
Loss = Callable[[Tensor, Tensor], Tensor]


def squared(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean squared error, whatever the shape of a single target."""
    return F.mse_loss(outputs, labels.reshape(outputs.shape))


def marked(y: Tensor, mark: float) -> Tensor:
    """Labels without those of every other training node."""
    y = y.clone()
    y[TRAIN[::2]] = mark
    return y


def squared_of_known(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean squared error of the cells that are not NaN."""
    known = ~labels.isnan()
    return F.mse_loss(outputs[known], labels[known])


def binary_of_known(outputs: Tensor, labels: Tensor) -> Tensor:
    """Binary cross entropy of the cells that are not NaN."""
    known = ~labels.isnan()
    return F.binary_cross_entropy_with_logits(outputs[known], labels[known])


def without_cells(y: Tensor) -> Tensor:
    """Targets without a third of their cells; every row keeps its second."""
    missing = torch.rand(y.shape, generator=torch.Generator().manual_seed(5)) < 0.3
    missing[:, 1] = False
    return y.masked_fill(missing, torch.nan)


MISSING_TARGETS, MISSING_BITS = without_cells(X[:, :2]), without_cells(BITS)
ENTROPY, BINARY, NAN = F.cross_entropy, F.binary_cross_entropy_with_logits, float("nan")
FORMS: dict[str, tuple[Tensor, Loss, Tensor, slice]] = {
    "int32": (Y.int(), ENTROPY, Y, ALL),
    "uint8": (Y.to(torch.uint8), ENTROPY, Y, ALL),
    "a column of int16": (Y.short()[:, None], ENTROPY, Y, ALL),
    "bool": (Y == 1, ENTROPY, (Y == 1).long(), ALL),
    "a column of bool": (HOT[:, 1:2] == 1, ENTROPY, HOT[:, 1], ALL),
    "-1": (marked(Y, -1), ENTROPY, Y, HALF),
    "-100 of int32": (marked(Y.int(), -100), ENTROPY, Y, HALF),
    "classes that no node has": (Y * 2, ENTROPY, Y * 2, ALL),
    "bits of int64": (HOT, BINARY, BITS, ALL),
    "bits of bool": (HOT.bool(), BINARY, BITS, ALL),
    "bits of float64": (HOT.double(), BINARY, BITS, ALL),
    "bits, rows of -1": (marked(HOT, -1), BINARY, BITS, HALF),
    "bits, rows of -100": (marked(BITS, -100), BINARY, BITS, HALF),
    "bits, rows of NaN": (marked(BITS, NAN), BINARY, BITS, HALF),
    "a bit, or NaN": (marked(BITS[:, :1], NAN), BINARY, BITS[:, :1], HALF),
    "targets": (X[:, 0].double(), squared, X[:, 0], ALL),
    "a column of targets": (X[:, :1], squared, X[:, :1], ALL),
    "targets, or NaN": (marked(X[:, 0], NAN), squared, X[:, 0], HALF),
    "rows of targets, cells of NaN": (MISSING_TARGETS, squared_of_known, MISSING_TARGETS, ALL),
    "bits, cells of NaN": (MISSING_BITS, binary_of_known, MISSING_BITS, ALL),
    "rows of targets": (X[:, :2], squared, X[:, :2], ALL),
    "signs": (X[:, :2].sign(), squared, X[:, :2].sign(), ALL),
    "one sign": (Y[:, None] - 1.0, squared, Y[:, None] - 1.0, ALL),
}
"""What is brought, the loss, the labels that it is of, and the training nodes that have any."""
AT_ONCE = (
    "bool",
    "-1",
    "bits, rows of -1",
    "bits, rows of NaN",
    "a bit, or NaN",
    "targets",
    "bits, cells of NaN",
)
"""Those that are not slow: each kind of loss, with and without marks."""


def brought(y: Tensor) -> Graph:
    """The graph as it comes with these labels."""
    return Graph.from_edge_index(GRAPH.to_edge_index(), x=X, y=y, splits=GRAPH.splits)


def plain_losses(graph: Graph, width: int, loss: Loss, y: Tensor, nodes: Tensor) -> list[float]:
    """Steps of SGD on the whole graph, in PyTorch alone."""
    torch.manual_seed(3)
    model, found = Sage(graph.num_features, width, dropout=0.0), []
    optimizer, edges = torch.optim.SGD(model.parameters(), lr=0.1), graph.to_edge_index()
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = loss(model(graph.dense_x(), edges)[nodes], y[nodes])
        value.backward()
        optimizer.step()
        found.append(float(value.detach()))
    return found


@pytest.mark.parametrize("mode", ["full", "sampled"])
@pytest.mark.parametrize(
    "form", [pytest.param(f, marks=() if f in AT_ONCE else pytest.mark.slow) for f in FORMS]
)
def test_losses_are_those_of_a_plain_loop(form, mode):
    y, loss, labels, known = FORMS[form]
    graph = brought(y)
    width = graph.num_classes
    torch.manual_seed(3)
    trainer = Trainer(
        Sage(graph.num_features, width, dropout=0.0),
        graph,
        mode=mode,
        epochs=STEPS,
        fanouts=(-1, -1),
        batch_size=10_000,
        optimizer="sgd",
        lr=0.1,
        threads=1,
    )
    expected = plain_losses(graph, width, loss, labels, TRAIN[known])
    assert losses(trainer) == pytest.approx(expected, rel=1e-4)


def test_one_label_has_the_metrics_of_several():
    """Those of the same label twice, which average to the same."""
    one, two = (Scores(task_of(brought(y)), METRICS["multi-label"], CPU) for y in (BITS[:, :1], TWICE))
    outputs = X[:, :1]
    one.update(outputs, BITS[:, :1])
    two.update(outputs.expand(-1, 2), TWICE)
    assert one.compute() == pytest.approx(two.compute())


@pytest.mark.parametrize("mark", [-1.0, -100.0])
def test_a_node_with_some_of_its_labels_is_named(mark):
    y = BITS.clone()
    y[7, 0] = mark
    graph = brought(y)
    assert graph.task == "regression"
    with pytest.raises(
        DataError, match=r"mark nodes without any of their labels of 0 and 1; y\[7\] is.*Write NaN"
    ):
        task_of(graph)


def test_a_checked_split_has_no_rows_without_labels():
    graph = brought(marked(HOT, -1))
    assert graph.task == "multi-label"
    with pytest.raises(DataError, match="every node of a split needs a label"):
        graph.validate()
    drawn = random_share_split(graph).splits
    unlabelled = TRAIN[::2].tolist()
    assert not set(unlabelled) & set(torch.cat(list(drawn.values())).tolist())


def test_missing_labels_have_no_part_in_metrics():
    """Those of each label's known rows, by scikit-learn; a label that is known of no row has none."""
    torch.manual_seed(4)
    y = torch.cat((MISSING_BITS, torch.full((len(MISSING_BITS), 1), NAN)), 1)
    task, outputs = task_of(brought(y)), torch.randn(y.shape)
    assert (task.name, task.width, task.misses_cells) == ("multi-label", 4, True)
    scores = Scores(task, METRICS["multi-label"], CPU)
    for rows in torch.arange(len(y)).split(97):
        scores.update(outputs[rows], y[rows])
    found, known = scores.compute(), ~y.isnan()
    assert found["loss"] == pytest.approx(float(binary_of_known(outputs, y)))
    bits, predicted = y[known], outputs[known] > 0
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(bits, predicted))
    assert found["f1_micro"] == pytest.approx(sk.f1_score(bits, predicted))
    of_each = [(y[known[:, k], k], outputs[known[:, k], k]) for k in range(3)]
    for name, by in (("auroc", sk.roc_auc_score), ("average_precision", sk.average_precision_score)):
        assert found[name] == pytest.approx(sum(by(*one) for one in of_each) / 3, abs=1e-5)


def test_missing_targets_have_no_part_in_metrics():
    task, outputs = task_of(brought(MISSING_TARGETS)), torch.randn(len(X), 2)
    scores = Scores(task, METRICS["regression"], CPU)
    for rows in torch.arange(len(X)).split(97):
        scores.update(outputs[rows], MISSING_TARGETS[rows])
    found, known = scores.compute(), ~MISSING_TARGETS.isnan()
    assert found["loss"] == pytest.approx(float(squared_of_known(outputs, MISSING_TARGETS)), rel=1e-5)
    assert found["mae"] == pytest.approx(
        sk.mean_absolute_error(MISSING_TARGETS[known], outputs[known]), rel=1e-5
    )
    assert found["r2"] == pytest.approx(sk.r2_score(MISSING_TARGETS[known], outputs[known]), rel=1e-4)


def test_weights_of_labels_count_the_known_ones():
    y = torch.tensor([[1.0, NAN], [1.0, 0.0], [0.0, 1.0], [1.0, NAN]])
    weighted = with_class_weights(task_of(brought(MISSING_BITS[:, :2])), "balanced", y)
    assert weighted.class_weights is not None
    assert weighted.class_weights.tolist() == pytest.approx([1 / 3, 1.0])
    outputs, known = torch.randn(4, 2), ~y.isnan()
    each = F.binary_cross_entropy_with_logits(
        outputs, y.nan_to_num(), pos_weight=weighted.class_weights, reduction="none"
    )
    assert float(weighted.loss(outputs, y)) == pytest.approx(float(each[known].mean()))


def test_an_infinite_target_is_refused_and_nodes_without_any_are_left_out():
    y = without_cells(X[:, :2])
    y[TRAIN[0]] = NAN
    assert labelled(brought(y), TRAIN).tolist() == TRAIN[1:].tolist()
    y[TRAIN[2], 0] = torch.inf
    with pytest.raises(DataError, match=r"must be finite, or NaN for none; y\[\d+\] is \[inf"):
        labelled(brought(y), TRAIN)
    with pytest.raises(DataError, match="every node of a split needs a label"):
        brought(y).validate()


def test_an_own_loss_must_leave_missing_cells_out():
    task = task_of(brought(MISSING_TARGETS))
    check_own_loss(with_own_loss(task, squared_of_known), MISSING_TARGETS[TRAIN], num_ranks=1)
    with pytest.raises(ConfigError, match="loss= is not finite where a target is NaN"):
        check_own_loss(with_own_loss(task, F.mse_loss), MISSING_TARGETS[TRAIN], num_ranks=1)


# ---- rare classes


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
def test_a_class_that_accuracy_rewards_alone_is_warned_of(every, options, warns, caplog):
    graph = rare_graph(every)
    trainer = Trainer(new_model(graph), graph, **OPTIONS, **options)
    assert trainer.baseline == ""
    trainer.fit()
    share = float((graph.y[graph.splits["val"]] == 0).double().mean())
    assert trainer.baseline == f"always predicting class 0, the largest, has an accuracy of {share:.4f}"
    assert ("choose monitor='f1_macro', or metrics=('average_precision'" in caplog.text) == warns


def test_the_metrics_that_the_warning_names_can_be_monitored():
    graph = rare_graph(20)
    result = Trainer(new_model(graph), graph, **OPTIONS, metrics=("average_precision", "f1_macro")).fit()
    assert result.monitor == "average_precision"


@pytest.mark.parametrize(("scale", "mean", "warns"), [(1.0, 0.0, False), (1.0, 40.0, True), (1e4, 0.0, True)])
def test_targets_far_from_0_are_warned_of_and_errors_of_their_mean_are_shown(scale, mean, warns, caplog):
    graph = rare_graph(5)
    y = torch.randn(graph.num_nodes, 2, generator=torch.Generator().manual_seed(0)) * scale + mean
    y[::3, 0] = float("nan")
    trainer = Trainer(new_model(graph), graph.replace(y=y), **OPTIONS)
    trainer.fit()
    error = y[graph.splits["val"]].double() - y[graph.splits["train"]].double().nanmean(0)
    error = error[~error.isnan()]
    assert trainer.baseline == (
        f"always predicting the mean of the training targets has an mae of {error.abs().mean():.4f} and an "
        f"rmse of {error.square().mean().sqrt():.4f}"
    )
    assert ("scale the targets to mean 0 and deviation 1" in caplog.text) == warns


def test_a_split_for_training_alone_has_its_baseline_and_several_labels_have_none():
    graph = rare_graph(5)
    alone = graph.replace(splits={"train": graph.splits["train"]})
    trainer = Trainer(new_model(alone), alone, **OPTIONS)
    trainer.fit()
    assert "class 0" in trainer.baseline
    several = graph.replace(y=torch.eye(2)[graph.y])
    trainer = Trainer(new_model(graph), several, **OPTIONS)
    trainer.fit()
    assert trainer.baseline == ""


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("form", ["classes", "one label"])
def test_no_other_threshold_has_a_larger_score(form, beta):
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


def test_a_threshold_needs_two_classes_with_nodes_of_both():
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


def test_a_run_keeps_the_threshold_that_it_chose(tmp_path):
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


def test_a_threshold_that_a_run_cannot_keep_is_refused_before_its_first_step():
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

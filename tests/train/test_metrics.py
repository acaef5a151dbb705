"""Losses and metrics, against scikit-learn and by hand, over chunks."""

import math

import pytest
import torch
from sklearn import metrics as sk
from tests.train.communities import community_graph

from graphbraid.errors import ConfigError, DataError
from graphbraid.nn import GraphSAGE
from graphbraid.train import Trainer
from graphbraid.train.inference.metrics import METRICS, Scores, metric_kinds, monitored
from graphbraid.train.task import Task, labelled, task_of, with_class_weights

CPU = torch.device("cpu")


def in_chunks(
    task: Task, names: tuple[str, ...], outputs: torch.Tensor, labels: torch.Tensor
) -> dict[str, float]:
    scores = Scores(task, metric_kinds(task, names), CPU)
    for part, rows in zip(outputs.split(17), labels.split(17), strict=True):  # 17 leaves a short last chunk
        scores.update(part, rows)
    return scores.compute()


def test_single_label_metrics_equal_scikit_learns() -> None:
    torch.manual_seed(0)
    outputs, labels = torch.randn(100, 4), torch.randint(4, (100,))
    task = Task(name="single-label", width=4)
    found = in_chunks(task, tuple(METRICS["single-label"]), outputs, labels)
    predicted = outputs.argmax(dim=1)
    assert found["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(outputs, labels)), rel=1e-5)
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(labels, predicted))
    assert found["f1_macro"] == pytest.approx(sk.f1_score(labels, predicted, average="macro"))
    assert found["f1_micro"] == pytest.approx(sk.f1_score(labels, predicted, average="micro"))
    assert found["accuracy_macro"] == pytest.approx(sk.balanced_accuracy_score(labels, predicted))
    auroc = sk.roc_auc_score(labels, outputs.softmax(1), multi_class="ovr")
    assert found["auroc"] == pytest.approx(auroc, abs=1e-5)


def test_multi_label_metrics_equal_scikit_learns() -> None:
    torch.manual_seed(1)
    outputs, labels = torch.randn(100, 3), (torch.rand(100, 3) < 0.4).float()
    task = Task(name="multi-label", width=3)
    found = in_chunks(task, tuple(METRICS["multi-label"]), outputs, labels)
    predicted = (outputs > 0).int()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(outputs, labels)
    assert found["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert found["f1_micro"] == pytest.approx(sk.f1_score(labels, predicted, average="micro"))
    assert found["f1_macro"] == pytest.approx(sk.f1_score(labels, predicted, average="macro"))
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(labels, outputs, average="macro"), abs=1e-5)


def test_auroc_counts_the_classes_that_it_is_defined_for() -> None:
    torch.manual_seed(1)
    outputs, labels = torch.randn(100, 3), torch.randint(2, (100,))  # none of class 2
    rows = torch.nn.functional.one_hot(labels, 3).float()
    single, multi = (Task(name=name, width=3) for name in ("single-label", "multi-label"))
    for task, y, given in ((single, labels, outputs.softmax(1)), (multi, rows, outputs)):
        expected = [sk.roc_auc_score(labels == k, given[:, k]) for k in (0, 1)]
        assert in_chunks(task, ("auroc",), outputs, y)["auroc"] == pytest.approx(sum(expected) / 2, abs=1e-5)
        assert math.isnan(in_chunks(task, ("auroc",), outputs, y[:1].expand(y.shape))["auroc"])
    one = Task(name="multi-label", width=1)
    assert math.isnan(in_chunks(one, ("auroc",), outputs[:, :1], torch.ones(100, 1))["auroc"])
    graph = community_graph(60)
    of_val = graph.y.clone()
    of_val[graph.splits["val"]] = 1
    model = GraphSAGE(graph.num_features, 4, graph.num_classes, num_layers=2)
    trainer = Trainer(model, graph.replace(y=of_val), metrics=("auroc",), fanouts=(3, 3))
    with pytest.raises(ConfigError, match="monitor='auroc' is not defined on the split 'val'"):
        trainer.fit()
    assert trainer.progress.global_step == 0


def test_what_is_learned_otherwise_than_may_be_meant_is_said(caplog: pytest.LogCaptureFixture) -> None:
    graph = community_graph(60)
    task_of(graph.replace(y=torch.rand(60)))
    assert caplog.text == ""
    task_of(graph.replace(y=(torch.rand(60) < 0.5).float()))
    assert "float labels 0 and 1 are learned as numbers" in caplog.text
    model = GraphSAGE(graph.num_features, 4, graph.num_classes, num_layers=2)
    Trainer(model, graph, fanouts=(0, 0), epochs=1, test_at_end=False).fit()
    assert "fanouts [0, 0] draw no neighbours" in caplog.text


@pytest.mark.parametrize("width", [1, 3])
def test_regression_metrics_equal_scikit_learns(width: int) -> None:
    torch.manual_seed(2)
    labels = torch.randn(100, width) if width > 1 else torch.randn(100)
    outputs = labels.reshape(100, width) + 0.3 * torch.randn(100, width)
    found = in_chunks(Task(name="regression", width=width), tuple(METRICS["regression"]), outputs, labels)
    flat, predicted = labels.reshape(-1), outputs.reshape(-1)
    assert found["loss"] == pytest.approx(sk.mean_squared_error(flat, predicted), rel=1e-5)
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(flat, predicted), rel=1e-5)
    assert found["rmse"] == pytest.approx(sk.mean_squared_error(flat, predicted) ** 0.5, rel=1e-5)
    assert found["r2"] == pytest.approx(sk.r2_score(flat, predicted), rel=1e-4)


def test_weighted_loss_over_chunks_is_the_loss_at_once() -> None:
    torch.manual_seed(3)
    outputs, labels = torch.randn(100, 3), torch.randint(3, (100,))
    task = with_class_weights(Task(name="single-label", width=3), (1.0, 5.0, 0.1), labels)
    assert in_chunks(task, ("accuracy",), outputs, labels)["loss"] == pytest.approx(
        float(task.loss(outputs, labels))
    )


def test_balanced_weights_make_classes_count_alike() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    single = with_class_weights(Task(name="single-label", width=3), "balanced", labels).class_weights
    assert single is not None
    assert single.tolist() == pytest.approx([4 / 9, 4 / 3, 4 / 3])  # class 2 does not occur: as if once
    hot = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    multi = with_class_weights(Task(name="multi-label", width=2), "balanced", hot).class_weights
    assert multi is not None
    assert multi.tolist() == pytest.approx([1 / 3, 3.0])


@pytest.mark.parametrize(
    ("task", "weights", "message"),
    [
        ("single-label", (1.0, 2.0), r"one weight per class \(3\); got 2"),
        ("regression", "balanced", "needs classes"),
    ],
)
def test_weights_that_do_not_fit_are_refused(task: str, weights: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_class_weights(Task(name=task, width=3), weights, torch.zeros(4))  # type: ignore[arg-type]


@pytest.mark.parametrize("none", [-1, -100])
def test_unlabelled_nodes_have_no_part_in_the_loss(none: int) -> None:
    outputs, labels = torch.randn(6, 3), torch.tensor([0, none, 2, 1, none, 0])
    known = labels >= 0
    for weights in (None, torch.tensor([0.5, 1.0, 2.0])):
        task = Task(name="single-label", width=3, class_weights=weights)
        torch.testing.assert_close(task.loss(outputs, labels), task.loss(outputs[known], labels[known]))
        if weights is not None:
            assert task.mass(labels) == task.mass(labels[known])


@pytest.mark.parametrize("none", [-1, -100])
def test_unlabelled_nodes_are_left_out_of_a_split(none: int) -> None:
    graph = community_graph(60)
    assert graph.y is not None
    y = graph.y.clone()
    y[::3] = none
    kept = labelled(graph.replace(y=y), torch.arange(60))
    assert torch.equal(kept, (torch.arange(60) % 3 > 0).nonzero().flatten())
    y[5] = -7
    with pytest.raises(DataError, match=r"-1 or -100 for none; y\[5\] is -7"):
        labelled(graph.replace(y=y), torch.arange(60))


def test_target_that_is_not_finite_is_named() -> None:
    graph = community_graph(60)
    y = torch.randn(60, 2)
    y[7, 1] = float("inf")
    with pytest.raises(DataError, match=r"y\[7\] is \[.*inf\]"):
        labelled(graph.replace(y=y), torch.arange(60))


def test_metric_that_a_task_lacks_is_refused() -> None:
    task = task_of(community_graph(60))
    with pytest.raises(ConfigError, match=r"a single-label task has accuracy.*got 'mae'"):
        metric_kinds(task, ["mae"])
    with pytest.raises(ConfigError, match="monitor must be one of accuracy, f1_macro, loss; got 'auroc'"):
        monitored(metric_kinds(task, ("accuracy", "f1_macro")), "auroc")
    assert monitored(metric_kinds(task, ("accuracy",)), "val_accuracy") == ("accuracy", True)
    assert monitored(metric_kinds(task, ("accuracy",)), "loss") == ("loss", False)


@pytest.mark.parametrize("mode", ["sampled", "full"])
def test_labels_of_one_class_are_refused_before_the_first_step(mode: str) -> None:
    graph = community_graph(num_nodes=600)
    graph = graph.replace(y=torch.zeros(600, dtype=torch.int64))
    model = GraphSAGE(graph.num_features, 4, graph.num_classes, num_layers=2)
    trainer = Trainer(model, graph, mode=mode)
    with pytest.raises(DataError, match="all labels are class 0"):
        trainer.fit()
    assert trainer.progress.global_step == 0

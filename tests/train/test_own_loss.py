"""A caller's own loss and metrics, beside PyTorch, torchmetrics and scikit-learn."""

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as sk
from tests.train.communities import community_graph, new_model
from tests.train.recorded import losses
from tests.train.test_metrics import in_chunks
from torch import Tensor, nn
from torchmetrics import MeanAbsoluteError, MetricCollection
from torchmetrics.classification import BinaryFBetaScore, MulticlassAccuracy, MulticlassConfusionMatrix

from graphbraid import distributed
from graphbraid.errors import ConfigError
from graphbraid.nn import GCN
from graphbraid.train import TrainConfig, Trainer
from graphbraid.train.task import LOSSES, Task, check_own_loss, with_own_loss

OPTIONS: dict[str, Any] = {"epochs": 3, "batch_size": 64, "fanouts": (5, 5), "lr": 0.02, "threads": 1}


def entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


def entropy_of_rows(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize("mode", ["sampled", "full"])
@pytest.mark.parametrize("loss", [entropy, entropy_of_rows, nn.CrossEntropyLoss()])
def test_the_usual_loss_given_as_a_function_is_learned_as_the_usual_one(mode, loss):
    graph = community_graph()
    usual = losses(Trainer(new_model(graph), graph, **OPTIONS, mode=mode))
    trainer = Trainer(new_model(graph), graph, **OPTIONS, mode=mode, loss=loss)
    assert losses(trainer) == pytest.approx(usual, rel=1e-4)
    expected = F.cross_entropy(trainer.predict(graph.splits["test"]), graph.y[graph.splits["test"]])
    assert trainer.evaluate("test")["loss"] == pytest.approx(float(expected), rel=1e-4)


def test_targets_of_a_regression_have_the_shape_of_its_outputs():
    """``(n,)`` beside ``(n, 1)`` would be broadcast to ``(n, n)``."""
    outputs, targets = torch.randn(5, 1), torch.randn(5)
    task = with_own_loss(Task(name="regression", width=1), nn.HuberLoss(delta=0.5))
    assert float(task.loss(outputs, targets)) == pytest.approx(
        float(F.huber_loss(outputs[:, 0], targets, delta=0.5))
    )


@pytest.mark.parametrize("none", [-1, -100])
def test_unlabelled_rows_do_not_reach_an_own_loss(none):
    outputs, labels = torch.randn(4, 3), torch.tensor([0, none, 2, 1])
    task = with_own_loss(Task(name="single-label", width=3), entropy_of_rows)
    assert float(task.loss(outputs, labels)) == pytest.approx(
        float(F.cross_entropy(outputs[labels >= 0], labels[labels >= 0]))
    )


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.scale * F.cross_entropy(outputs, targets)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (F.mse_loss, r"loss= failed on outputs \(8, 3\) float32 beside targets of dtype torch.int64"),
        (lambda outputs, targets: outputs, r"scalar tensor, or one loss per row, \(8,\); got shape \(8, 3\)"),
        (lambda outputs, targets: 1.0, "got float"),
        (lambda outputs, targets: (0 * targets.float().requires_grad_()).sum(), "gives them no gradient"),
        (lambda outputs, targets: outputs.detach().sum(), "loss= failed"),
        (Learned(), "loss= has parameters"),
        ("package.huber", "loss='package.huber' is none of torch.nn.functional's cross_entropy, "),
    ],
)
def test_a_loss_that_does_not_fit_is_refused_before_the_first_step(loss, message):
    graph = community_graph()
    with pytest.raises(ConfigError, match=message):
        Trainer(new_model(graph), graph, **OPTIONS, loss=loss).fit()


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_by_name_is_torchs_function(name):
    graph = community_graph()
    if name in ("binary_cross_entropy_with_logits", "multilabel_soft_margin_loss"):
        graph = graph.replace(y=F.one_hot(graph.y, 3).float())
    elif name not in ("cross_entropy", "multi_margin_loss"):
        graph = graph.replace(y=graph.x[:, 0].clone())
    found = []
    for loss in (name, getattr(F, name)):
        width = graph.num_classes if graph.task != "regression" else 1
        torch.manual_seed(0)
        model = GCN(graph.num_features, 8, width, 2)
        found.append(losses(Trainer(model, graph, **OPTIONS, loss=loss)))
    assert found[0] == found[1]


def test_options_that_go_against_an_own_loss_are_refused():
    with pytest.raises(ConfigError, match="weigh the task's own loss, and loss= replaces it"):
        TrainConfig(loss=entropy, class_weights="balanced")
    with pytest.raises(ConfigError, match="loss must be"):
        TrainConfig(loss=3)  # type: ignore[arg-type]


def test_several_ranks_refuse_a_loss_whose_shares_do_not_add_up():
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    task = Task(name="single-label", width=3)
    for fits in (entropy, entropy_of_rows):
        check_own_loss(with_own_loss(task, fits), labels, num_ranks=2)
    sums = with_own_loss(task, functools.partial(F.cross_entropy, reduction="sum"))
    check_own_loss(sums, labels, num_ranks=1)
    with pytest.raises(ConfigError, match="the shares of 2 ranks do not add up"):
        check_own_loss(sums, labels, num_ranks=2)


def test_checking_a_loss_leaves_the_random_state(monkeypatch):
    def noisy(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) + 0 * torch.rand(3).sum()

    graph = community_graph()
    assert distributed.current() is None
    first, second = (Trainer(new_model(graph), graph, **OPTIONS, loss=one) for one in (noisy, entropy))
    assert losses(first)[0] == losses(second)[0]


# ---- resuming


def test_a_run_with_an_own_loss_resumes_with_the_same_one_alone(tmp_path):
    graph = community_graph()
    own = functools.partial(F.cross_entropy, label_smoothing=0.1)
    metric = BinaryFBetaScore(beta=2.0)

    def run(folder: str, epochs: int, loss: Any, **more: Any) -> list[float]:
        options = OPTIONS | {"epochs": epochs, "out_dir": tmp_path / folder, "loss": loss} | more
        return [row["train_loss"] for row in Trainer(new_model(graph), graph, **options).fit().history]

    whole = run("whole", 3, own)
    assert run("cut", 2, own) == whole[:2]
    assert run("cut", 3, own, resume=True) == whole
    for other in (entropy, functools.partial(F.cross_entropy, label_smoothing=0.2), None):
        with pytest.raises(ConfigError, match=r"was written with loss='torch\.nn\.functional\.cross_entropy"):
            run("cut", 3, other, resume=True)
    assert "label_smoothing=0.1" in (tmp_path / "cut" / "config.json").read_text()
    described = {
        TrainConfig(metrics=(one,)).to_json()["metrics"][0] for one in (metric, BinaryFBetaScore(3.0))
    }
    assert len(described) == 2
    weighted = [nn.CrossEntropyLoss(weight=torch.tensor(one)) for one in ([1.0, 2.0], [2.0, 1.0])]
    assert len({TrainConfig(loss=one).to_json()["loss"] for one in weighted}) == 2


# ---- metrics


@pytest.mark.parametrize("width", [2, 4])
def test_average_precision_of_classes_equals_scikit_learns(width):
    torch.manual_seed(0)
    outputs, labels = torch.randn(100, width), torch.randint(width, (100,))
    found = in_chunks(Task(name="single-label", width=width), ("average_precision",), outputs, labels)
    shares = outputs.softmax(1)
    each = [sk.average_precision_score(labels == k, shares[:, k]) for k in range(width)]
    expected = each[1] if width == 2 else sum(each) / width
    assert found["average_precision"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("width", [1, 3])
def test_average_precision_of_labels_counts_those_that_occur(width):
    torch.manual_seed(1)
    outputs, labels = torch.randn(100, width), (torch.rand(100, width) < 0.3).float()
    labels[:, 1:2] = 0
    found = in_chunks(Task(name="multi-label", width=width), ("average_precision",), outputs, labels)
    each = [sk.average_precision_score(labels[:, k], outputs[:, k]) for k in range(width) if k != 1]
    assert found["average_precision"] == pytest.approx(sum(each) / len(each), abs=1e-5)


def test_own_metrics_equal_torchmetrics():
    torch.manual_seed(2)
    outputs, labels = torch.randn(100, 2), torch.randint(2, (100,))
    own = MetricCollection({"top1": MulticlassAccuracy(2), "recall": MulticlassAccuracy(2, average="micro")})
    found = in_chunks(
        Task(name="single-label", width=2), ("accuracy", own, BinaryFBetaScore(2.0)), outputs, labels
    )
    assert list(found) == ["loss", "accuracy", "recall", "top1", "BinaryFBetaScore"]
    predicted = outputs.argmax(1)
    assert found["BinaryFBetaScore"] == pytest.approx(sk.fbeta_score(labels, predicted, beta=2.0), abs=1e-6)
    assert found["recall"] == pytest.approx(found["accuracy"])
    assert found["top1"] == pytest.approx(sk.balanced_accuracy_score(labels, predicted))
    targets = torch.randn(100)
    error = in_chunks(Task(name="regression", width=1), (MeanAbsoluteError(),), outputs[:, :1], targets)
    assert error["MeanAbsoluteError"] == pytest.approx(
        sk.mean_absolute_error(targets, outputs[:, 0]), rel=1e-5
    )


def test_an_own_metric_decides_which_epoch_is_best():
    graph = community_graph()
    trainer = Trainer(
        new_model(graph), graph, **OPTIONS, metrics=(MulticlassAccuracy(3, average="micro"), "accuracy")
    )
    result = trainer.fit()
    assert trainer.metrics == ("MulticlassAccuracy", "accuracy")
    assert result.monitor == "MulticlassAccuracy"
    assert result.best_value == max(row["val_accuracy"] for row in result.history)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ((MulticlassAccuracy(3, average="none"), "accuracy"), "MulticlassAccuracy must return a number"),
        (("accuracy", MulticlassAccuracy(7)), "MulticlassAccuracy failed on a single-label task of width 3"),
        ((MulticlassAccuracy(3), MulticlassAccuracy(3)), "several are named 'MulticlassAccuracy'"),
        ((MulticlassConfusionMatrix(3),), "higher_is_better is None"),
        ((3,), "metrics must be entry 0: the name of a metric, or a metric of torchmetrics"),
        ("accuracy,average_precison", "Did you mean 'average_precision'"),
    ],
)
def test_metrics_that_do_not_fit_are_refused_before_the_first_step(metrics, message):
    graph = community_graph()
    with pytest.raises(ConfigError, match=message):
        Trainer(new_model(graph), graph, **OPTIONS, metrics=metrics).fit()


def test_names_of_metrics_may_be_one_text():
    assert TrainConfig(metrics="accuracy, auroc").metrics == ("accuracy", "auroc")  # type: ignore[arg-type]
    assert TrainConfig(metrics=MulticlassAccuracy(3)).metrics is not None  # type: ignore[arg-type]

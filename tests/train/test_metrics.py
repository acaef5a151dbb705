"""Losses and metrics, against scikit-learn, their definition and by hand, in chunks of any size."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk
from sklearn.metrics import roc_auc_score
from tests.train.communities import community_graph

from graphbraid.errors import ConfigError, DataError
from graphbraid.nn import GraphSAGE
from graphbraid.train import Ranking, Trainer, link_auc, rank_links
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


def test_single_label_metrics_equal_scikit_learns():
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


def test_multi_label_metrics_equal_scikit_learns():
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


def test_auroc_counts_the_classes_that_it_is_defined_for():
    torch.manual_seed(1)
    outputs, labels = torch.randn(100, 3), torch.randint(2, (100,))  # none of class 2
    rows = torch.nn.functional.one_hot(labels, 3).float()
    single, multi = (Task(name=name, width=3) for name in ("single-label", "multi-label"))
    for task, y, scores in ((single, labels, outputs.softmax(1)), (multi, rows, outputs)):
        expected = [sk.roc_auc_score(labels == k, scores[:, k]) for k in (0, 1)]
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


def test_what_is_learned_otherwise_than_may_be_meant_is_said(caplog):
    graph = community_graph(60)
    task_of(graph.replace(y=torch.rand(60)))
    assert caplog.text == ""
    task_of(graph.replace(y=(torch.rand(60) < 0.5).float()))
    assert "float labels 0 and 1 are learned as numbers" in caplog.text
    model = GraphSAGE(graph.num_features, 4, graph.num_classes, num_layers=2)
    Trainer(model, graph, fanouts=(0, 0), epochs=1, test_at_end=False).fit()
    assert "fanouts [0, 0] draw no neighbours" in caplog.text


@pytest.mark.parametrize("width", [1, 3])
def test_regression_metrics_equal_scikit_learns(width):
    torch.manual_seed(2)
    labels = torch.randn(100, width) if width > 1 else torch.randn(100)
    outputs = labels.reshape(100, width) + 0.3 * torch.randn(100, width)
    found = in_chunks(Task(name="regression", width=width), tuple(METRICS["regression"]), outputs, labels)
    flat, predicted = labels.reshape(-1), outputs.reshape(-1)
    assert found["loss"] == pytest.approx(sk.mean_squared_error(flat, predicted), rel=1e-5)
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(flat, predicted), rel=1e-5)
    assert found["rmse"] == pytest.approx(sk.mean_squared_error(flat, predicted) ** 0.5, rel=1e-5)
    assert found["r2"] == pytest.approx(sk.r2_score(flat, predicted), rel=1e-4)


def test_weighted_loss_over_chunks_is_the_loss_at_once():
    torch.manual_seed(3)
    outputs, labels = torch.randn(100, 3), torch.randint(3, (100,))
    task = with_class_weights(Task(name="single-label", width=3), (1.0, 5.0, 0.1), labels)
    assert in_chunks(task, ("accuracy",), outputs, labels)["loss"] == pytest.approx(
        float(task.loss(outputs, labels))
    )


def test_balanced_weights_make_classes_count_alike():
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
def test_weights_that_do_not_fit_are_refused(task, weights, message):
    with pytest.raises(ConfigError, match=message):
        with_class_weights(Task(name=task, width=3), weights, torch.zeros(4))  # type: ignore[arg-type]


@pytest.mark.parametrize("none", [-1, -100])
def test_unlabelled_nodes_have_no_part_in_the_loss(none):
    outputs, labels = torch.randn(6, 3), torch.tensor([0, none, 2, 1, none, 0])
    known = labels >= 0
    for weights in (None, torch.tensor([0.5, 1.0, 2.0])):
        task = Task(name="single-label", width=3, class_weights=weights)
        torch.testing.assert_close(task.loss(outputs, labels), task.loss(outputs[known], labels[known]))
        if weights is not None:
            assert task.mass(labels) == task.mass(labels[known])


@pytest.mark.parametrize("none", [-1, -100])
def test_unlabelled_nodes_are_left_out_of_a_split(none):
    graph = community_graph(60)
    assert graph.y is not None
    y = graph.y.clone()
    y[::3] = none
    kept = labelled(graph.replace(y=y), torch.arange(60))
    assert torch.equal(kept, (torch.arange(60) % 3 > 0).nonzero().flatten())
    y[5] = -7
    with pytest.raises(DataError, match=r"-1 or -100 for none; y\[5\] is -7"):
        labelled(graph.replace(y=y), torch.arange(60))


def test_target_that_is_not_finite_is_named():
    graph = community_graph(60)
    y = torch.randn(60, 2)
    y[7, 1] = float("inf")
    with pytest.raises(DataError, match=r"y\[7\] is \[.*inf\]"):
        labelled(graph.replace(y=y), torch.arange(60))


def test_metric_that_a_task_lacks_is_refused():
    task = task_of(community_graph(60))
    with pytest.raises(ConfigError, match=r"a single-label task has accuracy.*got 'mae'"):
        metric_kinds(task, ["mae"])
    assert monitored(metric_kinds(task, ("accuracy",)), "val_accuracy") == ("accuracy", True)
    assert monitored(metric_kinds(task, ("accuracy",)), "loss") == ("loss", False)


@pytest.mark.parametrize("mode", ["sampled", "full"])
def test_labels_of_one_class_are_refused_before_the_first_step(mode):
    graph = community_graph(num_nodes=600)
    graph = graph.replace(y=torch.zeros(600, dtype=torch.int64))
    model = GraphSAGE(graph.num_features, 4, graph.num_classes, num_layers=2)
    trainer = Trainer(model, graph, mode=mode)
    with pytest.raises(DataError, match="all labels are class 0"):
        trainer.fit()
    assert trainer.progress.global_step == 0


# ---- metrics of links


def rank_by_definition(scores, source, target, known):
    """One more than the candidates above the target, and half of those alike."""
    others = [node for node in range(scores.shape[1]) if node != target and (source, node) not in known]
    own = scores[source, target]
    return (
        1 + sum(scores[source, o] > own for o in others) + sum(scores[source, o] == own for o in others) / 2
    )


@given(st.data())
def test_ranks_are_those_of_the_definition(data):
    num_nodes = data.draw(st.integers(1, 9))
    numbers = np.random.default_rng(data.draw(st.integers(0, 999)))
    scores = torch.from_numpy(numbers.integers(-2, 3, (num_nodes, num_nodes))).float()  # many are equal
    scores[numbers.random((num_nodes, num_nodes)) < 0.1] = -torch.inf
    links = torch.from_numpy(numbers.integers(0, num_nodes, (2, data.draw(st.integers(0, 8)))))
    known = torch.from_numpy(numbers.integers(0, num_nodes, (2, data.draw(st.integers(0, 30)))))
    filtered = data.draw(st.booleans())
    found = rank_links(
        lambda src: scores[src],
        links,
        num_nodes,
        known=known if filtered else None,
        most_scores=data.draw(st.sampled_from([1, 20, 10**6])),
    )
    out = set(map(tuple, known.t().tolist())) if filtered else set()
    expected = [rank_by_definition(scores, s, t, out) for s, t in links.t().tolist()]
    assert found.ranks.tolist() == [float(rank) for rank in expected]


def test_the_scores_of_the_caller_stay_as_they_are():
    scores = torch.rand(4, 4)
    before = scores.clone()
    links = torch.tensor([[0, 1], [2, 3]])
    rank_links(lambda src: scores[: len(src)], links, 4, known=links)
    assert torch.equal(scores, before)


def test_a_link_of_the_lowest_score_is_ranked_among_those_that_are_not_left_out():
    scores = torch.tensor([[-torch.inf, -torch.inf, 1.0, 2.0]])
    links, known = torch.tensor([[0], [0]]), torch.tensor([[0], [2]])
    found = rank_links(lambda src: scores[src], links, 4, known=known)
    assert found.ranks.tolist() == [2.5]


def test_scores_may_be_whole_numbers():
    scores = torch.tensor([[3, 1, 2, 2]])
    links, known = torch.tensor([[0], [2]]), torch.tensor([[0], [0]])
    assert rank_links(lambda src: scores[src], links, 4, known=known).ranks.tolist() == [1.5]


def test_summaries_of_ranks():
    ranking = Ranking(torch.tensor([1.0, 2.0, 4.5, 10.0], dtype=torch.float64))
    assert ranking.mrr == pytest.approx((1 + 1 / 2 + 1 / 4.5 + 1 / 10) / 4)
    assert [ranking.hits(k) for k in (1, 3, 5, 10)] == [0.25, 0.5, 0.75, 1.0]
    assert Ranking(torch.zeros(0)).mrr == Ranking(torch.zeros(0)).hits(1) == 0.0
    with pytest.raises(ConfigError, match="k must be"):
        ranking.hits(0)


def test_auc_is_that_of_scikit_learn():
    numbers = np.random.default_rng(0)
    positive, negative = numbers.integers(0, 12, 300) + 2, numbers.integers(0, 12, 500)
    expected = roc_auc_score([1] * 300 + [0] * 500, np.concatenate([positive, negative]))
    assert link_auc(torch.from_numpy(positive), torch.from_numpy(negative)) == pytest.approx(expected)
    assert link_auc(torch.ones(3), torch.ones(5)) == 0.5


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"links": torch.tensor([[0], [4]])}, DataError, "destinations of links must be node ids in"),
        ({"links": torch.tensor([0, 1])}, DataError, r"links must have shape \(2, num_links\); got \(2,\)"),
        ({"known": torch.tensor([[9], [0]])}, DataError, "sources of known must be node ids in"),
        ({"num_nodes": 0}, ConfigError, "num_nodes must be"),
        ({"most_scores": 0}, ConfigError, "most_scores must be"),
        ({"score": lambda src: torch.zeros(4)}, ConfigError, r"got \(4,\)"),
        ({"score": lambda src: torch.full((len(src), 4), torch.nan)}, DataError, "NaN is among"),
    ],
)
def test_what_cannot_be_ranked_is_refused(change, error, message):
    sound = {
        "score": lambda src: torch.zeros(len(src), 4),
        "links": torch.tensor([[0, 1], [1, 2]]),
        "num_nodes": 4,
    }
    assert rank_links(**sound).ranks.tolist() == [2.5, 2.5]
    with pytest.raises(error, match=message):
        rank_links(**sound | change)


@pytest.mark.parametrize("name", ["positive", "negative"])
@pytest.mark.parametrize("wrong", [torch.zeros(0), torch.tensor([torch.nan]), torch.zeros(2, 2)])
def test_scores_without_an_auc_are_refused(name, wrong):
    with pytest.raises(DataError, match=name):
        link_auc(**{"positive": torch.zeros(1), "negative": torch.zeros(1)} | {name: wrong})


def rank_of(scores, own, others):
    left = [node for node in range(len(scores)) if node != own and node not in others]
    return 1 + sum(scores[o] > scores[own] for o in left) + sum(scores[o] == scores[own] for o in left) / 2


@given(st.data())
def test_ranks_of_both_ends_are_filtered_by_relation(data):
    num_nodes, num_kinds = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 3))
    numbers = np.random.default_rng(data.draw(st.integers(0, 999)))
    table = torch.from_numpy(numbers.integers(-2, 3, (num_kinds, num_nodes, num_nodes))).float()

    def triples(count):
        ends = torch.from_numpy(numbers.integers(0, num_nodes, (2, count)))
        return ends, torch.from_numpy(numbers.integers(0, num_kinds, count))

    (links, kind), (known, known_kind) = triples(6), triples(data.draw(st.integers(0, 30)))
    found = rank_links(
        lambda src, kind: table[kind, src],
        links,
        num_nodes,
        relation=kind,
        score_sources=lambda dst, kind: table[kind, :, dst],
        known=known,
        known_relation=known_kind,
        most_scores=data.draw(st.sampled_from([1, 20, 10**6])),
    )
    true = list(zip(*known.tolist(), known_kind.tolist(), strict=True))
    expected = [
        rank_of(table[r, s].tolist(), d, {b for a, b, k in true if (a, k) == (s, r)})
        for (s, d), r in zip(links.t().tolist(), kind.tolist(), strict=True)
    ] + [
        rank_of(table[r, :, d].tolist(), s, {a for a, b, k in true if (b, k) == (d, r)})
        for (s, d), r in zip(links.t().tolist(), kind.tolist(), strict=True)
    ]
    assert found.ranks.tolist() == [float(rank) for rank in expected]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"relation": None}, ConfigError, "relation is not given"),
        ({"known_relation": None}, ConfigError, "known_relation is not given"),
        (
            {"relation": torch.tensor([0])},
            DataError,
            "relation must have an entry for each of 2 links; got 1",
        ),
        ({"known_relation": torch.tensor([0, -1])}, DataError, r"known_relation must be in \[0, 65536\)"),
    ],
)
def test_relations_that_do_not_fit_are_refused(change, error, message):
    links = torch.tensor([[0, 1], [1, 2]])
    sound = {"relation": torch.tensor([0, 1]), "known": links, "known_relation": torch.tensor([0, 1])}
    with pytest.raises(error, match=message):
        rank_links(lambda src, kind: torch.zeros(len(src), 4), links, 4, **sound | change)


def test_sources_of_another_type_have_ids_of_their_own():
    draw = torch.Generator().manual_seed(0)
    table = torch.randn(7, 4, generator=draw)
    links, known = torch.tensor([[6, 0, 3], [1, 3, 3]]), torch.tensor([[6, 6, 1, 3], [1, 2, 1, 3]])
    found = rank_links(
        lambda src: table[src],
        links,
        4,
        num_sources=7,
        score_sources=lambda dst: table.t()[dst],
        known=known,
        most_scores=5,
    )
    pairs = links.t().tolist()
    forth = [rank_by_definition(table, s, d, set(map(tuple, known.t().tolist()))) for s, d in pairs]
    back = [
        rank_by_definition(table.t(), d, s, set(map(tuple, known.flip(0).t().tolist()))) for s, d in pairs
    ]
    assert found.ranks.tolist() == [*map(float, forth), *map(float, back)]
    with pytest.raises(DataError, match="destinations of links"):
        rank_links(lambda src: table[src], links.flip(0), 4, num_sources=7)
    with pytest.raises(ConfigError, match="num_sources must be"):
        rank_links(lambda src: table[src], links, 4, num_sources=0)

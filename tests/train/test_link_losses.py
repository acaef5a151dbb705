"""Losses over all nodes and of self-adversarial negatives are their formulas, with any model of links."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.train.linked_communities import NODES, one_relation, relations, rgcn
from tests.train.recorded import losses
from torch import Tensor

from graphbraid.errors import ConfigError
from graphbraid.estimates.plan import plan_run
from graphbraid.graph import Graph
from graphbraid.loader.gather_ahead import RowBuffers
from graphbraid.nn import (
    RGCN,
    ComplEx,
    DistMult,
    DotProduct,
    LinkModel,
    LinkPredictor,
    MLPPredictor,
    NodeEmbedding,
    RGCNEncoder,
    RotatE,
    TransE,
)
from graphbraid.sampling.links.link_seeds import ANSWERS, COUNTS, GIVEN, KIND, LinkEnds, QuestionSeeds
from graphbraid.train import TrainConfig, Trainer
from graphbraid.train.inference import infer
from graphbraid.train.step.links import encoder
from graphbraid.train.step.links.data import LinkData
from graphbraid.train.step.links.runner import alike, choices
from graphbraid.train.step.step import make_loader
from graphbraid.train.task import Task, self_adversarial

CHANNELS, RELATIONS = 6, 3
PREDICTORS: dict[str, Any] = {
    "dot": DotProduct,
    "mlp": lambda: MLPPredictor(CHANNELS, 8),
    "distmult": lambda: DistMult(RELATIONS, CHANNELS),
    "complex": lambda: ComplEx(RELATIONS, CHANNELS),
    "complex, reciprocal": lambda: ComplEx(RELATIONS, CHANNELS, reciprocal=True),
    "transe": lambda: TransE(RELATIONS, CHANNELS, reciprocal=True),
    "rotate": lambda: RotatE(RELATIONS, CHANNELS),
}
OPTIONS: dict[str, Any] = {"task": "link", "epochs": 3, "fanouts": (0,), "lr": 0.02, "threads": 1}
ALL = OPTIONS | {"negatives": "one-vs-all", "batch_size": 100}


def rows_and(predictor: LinkPredictor, num_nodes: int = NODES, channels: int = CHANNELS) -> LinkModel:
    return LinkModel(NodeEmbedding(num_nodes, channels), predictor)


# ---- one-vs-all


def twin(model: LinkModel, links: Tensor, relation: Tensor, n3: float) -> Tensor:
    """The mean over links and both ends of the cross entropy among all nodes, and of N3, in plain PyTorch."""
    rows, predictor = model.encoder.rows, model.predictor
    kind = relation if predictor.num_relations else None
    src, dst = rows[links[0]], rows[links[1]]
    total = F.cross_entropy(predictor.with_all(src, rows, kind), links[1], reduction="sum")
    total = total + F.cross_entropy(predictor.all_with(dst, rows, kind), links[0], reduction="sum")
    for number in range(2) if n3 else ():
        second = number * predictor.num_relations * predictor.reciprocal
        factors = torch.stack([src, dst, predictor.relations[relation + second]])
        if isinstance(predictor, ComplEx):
            factors = torch.complex(*factors.chunk(2, -1))
        total = total + n3 * (factors.abs() ** 3).sum()
    return total / (2 * links.shape[1])


@pytest.mark.parametrize("kind", list(PREDICTORS))
@pytest.mark.parametrize("at_once", [1, 700, 1 << 21])
def test_the_loss_of_all_questions_is_the_mean_cross_entropy_of_the_links(kind, at_once, monkeypatch):
    monkeypatch.setattr(encoder, "_SCORES", at_once)
    torch.manual_seed(0)
    graph, n3 = relations(), 0.03 if kind in ("distmult", "complex", "complex, reciprocal") else 0.0
    model = rows_and(PREDICTORS[kind]()).double()
    data = LinkData.of(graph, TrainConfig(task="link"))
    at = data.links.splits["train"].repeat(2)[:-7]  # some links stand twice, and count twice
    links, relation = data.links.ends[:, at], data.links.relations_at(at)
    assert relation is not None
    known = relation if model.predictor.num_relations else None
    questions = QuestionSeeds(links, known, data.ends)
    seeds = questions.seeds_of(torch.arange(questions.num_inputs), 0, 0)
    batch = type("Batch", (), dict(seeds.attributes))
    assert torch.equal(seeds.nodes, torch.arange(NODES))
    expected = twin(model, links, relation, n3)
    found = encoder.one_vs_all(model, model.encoder.rows, batch, data.ends, n3=n3)
    torch.testing.assert_close(found, expected)
    inputs = list(model.parameters())
    wanted = torch.autograd.grad(expected, inputs)
    for mine, other in zip(torch.autograd.grad(3 * found, inputs), wanted, strict=True):
        torch.testing.assert_close(mine, 3 * other)

    parts = torch.randperm(questions.num_inputs).split(37)  # batches of an epoch
    means = []
    for part in parts:
        batch = type("Batch", (), dict(questions.seeds_of(part, 0, 0).attributes))
        means.append(encoder.one_vs_all(model, model.encoder.rows, batch, data.ends, n3=n3) * part.numel())
    torch.testing.assert_close(torch.stack(means).sum() / questions.num_inputs, expected)


def test_confident_and_impossible_answers_have_finite_losses_and_gradients():
    given = torch.tensor([[200.0], [-200.0]], requires_grad=True)
    rows = torch.tensor([[1.0], [-1.0]])
    answers = torch.tensor([[0, 1], [0, 0]])
    found = encoder.softmax_over_all(lambda a, b, _part: a @ b.t(), given, rows, answers, [])
    assert found.tolist() == 400.0  # the first answer is certain, the second off by 400
    torch.autograd.backward(found)
    assert given.grad is not None
    assert given.grad.flatten().tolist() == [0.0, -2.0]


def test_questions_have_all_their_answers_once_each_with_repeated_links_counted():
    links = torch.tensor([[0, 0, 1, 0, 0], [2, 3, 2, 2, 2]])
    relation = torch.tensor([1, 1, 1, 1, 0])
    ends = LinkEnds(types=("n", "n"), first=(0, 0), counts=(4, 4))
    questions = QuestionSeeds(links, relation, ends)
    seeds = questions.seeds_of(torch.arange(questions.num_inputs), 0, 0)
    names = (GIVEN, KIND, COUNTS)
    given, kind, counts = (seeds.attributes[name].tolist() for name in names)
    parts = seeds.attributes[ANSWERS].split(counts)
    found = {(node, one): sorted(part.tolist()) for node, one, part in zip(given, kind, parts, strict=True)}
    assert found == {(0, 2): [2, 2, 3], (1, 2): [2], (0, 0): [2], (2, 3): [0, 0, 1], (3, 3): [0], (2, 1): [0]}


def test_the_links_that_answer_a_batchs_questions_carry_no_messages_in_it():
    graph = relations().with_reverse_relations()
    trainer = Trainer(rgcn(graph), graph, **ALL | {"fanouts": (-1,)})
    nodes = trainer.runner.labels.split("train")
    with make_loader(trainer.runner, trainer.config, nodes) as loader:
        for batch in loader.batches(0):
            assert torch.equal(batch.n_id[:NODES], torch.arange(NODES))
            given = getattr(batch, GIVEN).repeat_interleave(getattr(batch, COUNTS))
            pairs = torch.stack([given, getattr(batch, ANSWERS)])
            asked = {tuple(sorted(pair)) for pair in pairs.t().tolist()}
            edges = {tuple(sorted(pair)) for pair in batch.n_id[batch.edge_index].t().tolist()}
            assert edges
            assert not asked & edges


def test_one_vs_all_goes_with_an_encoder_of_neighbours_and_with_types():
    graph = relations().with_reverse_relations()
    trainer = Trainer(rgcn(graph), graph, **ALL | {"fanouts": (8,), "epochs": 4, "n3": 1e-3})
    before = trainer.evaluate("val")["mrr"]
    best = trainer.fit().best_value
    assert best is not None
    assert best > 1.3 * before


def test_ranks_are_of_float32_scores_with_any_precision():
    """In bfloat16 scores of 1.000 and 1.003 are one, and their nodes would share a rank."""
    torch.manual_seed(0)
    graph, model = relations(), rows_and(ComplEx(RELATIONS, 64), channels=64)
    trainers = [Trainer(model, graph, **ALL, precision=name) for name in ("float32", "bfloat16")]
    found = [one.evaluate("test")["mrr"] for one in trainers]
    assert found[0] == found[1]
    assert trainers[1].fit().test["mrr"] > 1.25 * found[0]


def bipartite() -> Graph:
    draw = torch.Generator().manual_seed(0)
    user = torch.arange(40).repeat_interleave(10)
    item = (torch.randint(10, (400,), generator=draw) * 3 + user % 3) % 30
    pairs = torch.stack([user, item]).unique(dim=1)  # items of a user leave the same rest by 3
    lists = {("user", "buys", "item"): pairs, ("item", "bought_by", "user"): pairs.flip(0)}
    return Graph.from_relations(lists, {"user": 40, "item": 30})


def test_answers_are_nodes_of_the_type_that_the_relation_joins():
    graph = bipartite()
    torch.manual_seed(0)
    encoder = RGCN({"user": 0, "item": 0}, 16, 16, graph.edge_types, num_nodes={"user": 40, "item": 30})
    options = ALL | {"link_relation": ("user", "buys", "item"), "fanouts": (5, 5), "epochs": 12}
    trainer = Trainer(LinkModel(encoder, DotProduct()), graph, **options)
    nodes = trainer.runner.labels.split("train")
    with make_loader(trainer.runner, trainer.config, nodes) as loader:
        batch = next(iter(loader.batches(0)))
        is_source = (getattr(batch, KIND) % 2 == 1).repeat_interleave(getattr(batch, COUNTS))
        assert int(getattr(batch, ANSWERS)[is_source].max()) < 40
        assert int(getattr(batch, ANSWERS)[~is_source].max()) < 30
    before = trainer.evaluate("val")["mrr"]
    best = trainer.fit().best_value
    assert best is not None
    assert best > before


def test_a_run_of_questions_resumes_to_the_bit(tmp_path):
    def run(folder: Path, epochs: int, **more: Any) -> dict[str, Tensor]:
        torch.manual_seed(0)
        options = ALL | {"epochs": epochs, "out_dir": folder, "n3": 0.01, "restore_best": False}
        trainer = Trainer(
            rows_and(ComplEx(RELATIONS, CHANNELS, reciprocal=True)), relations(), **options, **more
        )
        trainer.fit()
        return {name: one.clone() for name, one in trainer.model.state_dict().items()}

    whole = run(tmp_path / "whole", 4)
    run(tmp_path / "parts", 2)
    parts = run(tmp_path / "parts", 4, resume=True)
    for name, one in whole.items():
        assert torch.equal(one, parts[name]), name


# ---- self-adversarial negatives


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_self_adversarial_losses_are_the_formula(temperature):
    """PyKEEN's NSSALoss, with the margin already in the scores."""
    torch.manual_seed(0)
    scores = (3 * torch.randn(9, 6, dtype=torch.float64)).requires_grad_()
    own, others = scores[:, 0], scores[:, 1:]
    share = (others.detach() * temperature).softmax(-1)
    expected = -F.logsigmoid(own).mean() / 2 - (share * F.logsigmoid(-others)).sum(-1).mean() / 2
    found = self_adversarial(scores, temperature)
    torch.testing.assert_close(found, expected)
    wanted, mine = (torch.autograd.grad(one, scores)[0] for one in (expected, found))
    torch.testing.assert_close(mine, wanted)
    task = Task(name="link", width=2, temperature=temperature)
    torch.testing.assert_close(task.loss(scores, torch.zeros(9).long()), expected.float())


def test_hidden_negatives_play_no_part():
    torch.manual_seed(0)
    scores = torch.randn(4, 6, dtype=torch.float64)
    scores[0, 2], scores[3, 1:] = -torch.inf, -torch.inf  # one is the link's own end, then all are
    scores.requires_grad_()
    rows = [row[row > -torch.inf] for row in scores]
    expected = torch.stack([self_adversarial(row[None], 1.0) for row in rows]).mean()
    found = self_adversarial(scores, 1.0)
    torch.testing.assert_close(found, expected)
    slope = torch.autograd.grad(found, scores)[0]
    assert slope.isfinite().all()
    assert slope[0, 2] == 0
    assert slope[3, 1:].abs().max() == 0


# ---- what does not go together


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adversarial_temperature": 0.5, "negatives": "shared"}, "and they are 'shared'"),
        ({"negatives": "one-vs-all", "num_negatives": 2}, "takes all nodes; leave one out"),
        ({"negatives": "one-vs-all", "temporal_strategy": "last"}, "choose 'binary' or 'triplet'"),
        ({"negatives": "self-adversarial", "temporal_strategy": "last"}, "choose 'binary' or 'triplet'"),
    ],
)
def test_options_of_other_losses_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig(task="link", **options)


def test_n3_needs_rows_of_relations():
    with pytest.raises(ConfigError, match="DotProduct has none; leave n3 out"):
        Trainer(rows_and(DotProduct()), one_relation(), **ALL | {"n3": 0.1})


@pytest.mark.parametrize("negatives", ["binary", "triplet"])
def test_reciprocal_relations_need_questions_for_sources(negatives):
    """Their second rows would stay as they were drawn, and rank the sources all the same."""
    model = rows_and(ComplEx(RELATIONS, CHANNELS, reciprocal=True))
    with pytest.raises(ConfigError, match="never asks for the sources of links"):
        Trainer(model, relations(), **OPTIONS | {"negatives": negatives})


@pytest.mark.parametrize("kind", [ComplEx, DistMult, TransE, RotatE])
@pytest.mark.parametrize("reciprocal", [False, True])
def test_links_among_shared_negatives_have_the_scores_of_both_questions(kind, reciprocal):
    torch.manual_seed(0)
    model = rows_and(kind(RELATIONS, CHANNELS, reciprocal=reciprocal))
    trainer = Trainer(model, relations(), **OPTIONS | {"negatives": "shared", "batch_size": 50})
    nodes, rows, predictor = trainer.runner.labels.split("train"), model.encoder.rows, model.predictor
    with make_loader(trainer.runner, trainer.config, nodes) as loader:
        batch = next(iter(loader.batches(0)))
        found = trainer.runner.on_batch(batch)
        src, dst = (batch.n_id[one] for one in batch.edge_label_index[:, : batch.batch_size])
        kinds, each = batch.link_relation, torch.arange(batch.batch_size)
        asked = [
            predictor.with_all(rows[src], rows, kinds)[each, dst],
            predictor.all_with(rows[dst], rows, kinds)[each, src],
        ]
        torch.testing.assert_close(found[:, 0], torch.cat(asked))
        wanted = torch.autograd.grad(torch.cat(asked).square().sum(), list(model.parameters()))
        mine = torch.autograd.grad(found[:, 0].square().sum(), list(model.parameters()))
        torch.testing.assert_close(mine, wanted)


def test_plans_count_batches_of_questions():
    trainer = Trainer(rows_and(ComplEx(RELATIONS, CHANNELS)), relations(), **ALL | {"plan": "cpu"})
    nodes = trainer.runner.labels.split("train")
    plan = plan_run(trainer.runner, trainer.runner.task(), trainer.config, nodes)
    assert plan is not None
    with make_loader(trainer.runner, trainer.config, nodes) as loader:
        assert plan.num_batches == len(loader)
        assert len(loader) != -(-nodes.numel() // trainer.config.batch_size)


def test_a_batch_of_questions_is_estimated_and_counted():
    graph = relations()
    trainer = Trainer(rows_and(ComplEx(RELATIONS, CHANNELS)), graph, **ALL)
    nodes = trainer.runner.labels.split("train")
    with make_loader(trainer.runner, trainer.config, nodes) as loader:
        sizes = [batch.batch_size for batch in loader.batches(0)]
    assert sum(sizes) < 2 * nodes.numel()  # several links ask some questions
    assert sizes[:-1] == [100] * (len(sizes) - 1)
    assert dataclasses.replace(trainer.runner.task()).width == 2


OPTIONS_OF_CHOICES: dict[str, Any] = {
    "task": "link",
    "negatives": "shared",
    "epochs": 2,
    "batch_size": 128,
    "lr": 0.02,
    "threads": 1,
}


def joined(own: Tensor, others: list[Tensor], masks: list[Tensor]) -> Tensor:
    """What `choices` is to give, by a copy for each step."""
    shown = [one.masked_fill(mask, -torch.inf) for one, mask in zip(others, masks, strict=True)]
    return torch.cat([own.repeat(len(others)).unsqueeze(1), torch.cat(shown)], 1)


@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 99), st.booleans())
def test_choices_are_scores_joined_and_masked(num_links, num_negatives, seed, through_softmax):
    draw = torch.Generator().manual_seed(seed)
    own = torch.randn(num_links, generator=draw).requires_grad_()
    others = [torch.randn(num_links, num_negatives, generator=draw).requires_grad_() for _ in range(2)]
    ends = [torch.randint(3, (num_links,), generator=draw) for _ in range(2)]
    drawn = [torch.randint(3, (num_negatives,), generator=draw) for _ in range(2)]
    masks = [one.unsqueeze(1) == two for one, two in zip(ends, drawn, strict=True)]
    found = choices(own, others, [alike(one, two) for one, two in zip(ends, drawn, strict=True)])
    expected = joined(own, others, masks)
    assert torch.equal(found, expected)
    to = torch.randn(found.shape, generator=draw)
    leaves = [own, *others]
    if through_softmax:
        found, expected = found.softmax(1), expected.softmax(1)
    grads, wanted = (torch.autograd.grad(one, leaves, to) for one in (found, expected))
    torch.testing.assert_close(grads, wanted)


def test_scores_of_two_precisions_are_joined_in_the_wider_one():
    own, others = (
        torch.ones(2, requires_grad=True),
        torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True),
    )
    nowhere = alike(torch.zeros(2), torch.ones(3))
    found = choices(own, [others], [nowhere])
    assert found.dtype == torch.float32
    found.sum().backward()
    assert others.grad is not None
    assert others.grad.dtype == torch.bfloat16


def test_memory_is_lent_again_once_the_scores_are_gone():
    own, others = torch.ones(3), [torch.zeros(3, 4)]
    nowhere, memory = [alike(torch.zeros(3), torch.ones(4))], RowBuffers(1)
    first = choices(own, others, nowhere, memory)
    place, expected = first.data_ptr(), first.clone()
    kept = choices(own, others, nowhere, memory)
    assert kept.data_ptr() != place
    assert torch.equal(kept, expected)
    del first
    again = choices(own + 1, others, nowhere, memory)
    assert again.data_ptr() == place
    assert torch.equal(again[:, 0], own + 1)


def layers(graph: Graph, count: int) -> LinkModel:
    torch.manual_seed(0)
    inner = RGCNEncoder(16, 16, 16, len(graph.edge_types), count, num_bases=2)
    return LinkModel(NodeEmbedding(NODES, 16, inner, dropout=0.1), DistMult(len(graph.edge_types), 16))


@pytest.mark.parametrize("fanouts", [(4,), (4, 3)])
def test_an_encoder_on_blocks_learns_what_it_learns_on_all_edges(fanouts, monkeypatch):
    graph = relations()
    options = OPTIONS_OF_CHOICES | {"fanouts": fanouts}
    by_block = losses(Trainer(layers(graph, len(fanouts)), graph, **options))
    monkeypatch.setattr(RGCNEncoder, "takes_typed_blocks", False)
    trainer = Trainer(layers(graph, len(fanouts)), graph, **options)
    assert not trainer.runner.encoder_runner().by_blocks  # type: ignore[attr-defined]
    torch.testing.assert_close(by_block, losses(trainer), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
def test_rows_by_block_are_those_of_the_whole_graph(layout, monkeypatch):
    graph = relations()
    trainer = Trainer(layers(graph, 2), graph, **OPTIONS_OF_CHOICES, fanouts=(-1, -1), layout=layout)
    links, kind = torch.tensor([[3, 4, 90], [4, 3, 3]]), [0, 1, 0]
    whole = trainer.predict_links(links, kind)
    torch.testing.assert_close(trainer.predict_links(links, kind, mode="sampled"), whole)
    monkeypatch.setattr(infer, "whole_bytes", lambda _: 1 << 60)
    torch.testing.assert_close(trainer.predict_links(links, kind), whole)


def test_a_pass_of_relational_layers_is_counted_without_a_row_for_each_edge():
    lists = {("node", "to", "node"): torch.randint(NODES, (2, 50_000))}
    graph = Graph.from_relations(lists, {"node": NODES}, edge_splits=None)
    runner = Trainer(layers(graph, 1), graph, **OPTIONS_OF_CHOICES, fanouts=(4,)).runner
    encoder = runner.encoder_runner()  # type: ignore[attr-defined]
    model = encoder.model
    assert model.edge_bytes == 64 + 2 * 16
    rows = 3 * NODES * 4 * model.widest
    assert infer.whole_bytes(encoder) == rows + encoder.graph.num_edges * model.edge_bytes


def test_a_link_set_gives_the_same_labels_to_batches_of_one_size():
    graph = relations()
    trainer = Trainer(layers(graph, 1), graph, **OPTIONS_OF_CHOICES, fanouts=(4,))
    runner = trainer.runner

    class Batch:
        batch_size = 5

    first = runner.labels_of(Batch())  # their memory is what the loss keeps its gradient's by
    assert torch.equal(first, torch.zeros(10, dtype=torch.int64))
    assert runner.labels_of(Batch()) is first
    Batch.batch_size = 2
    assert runner.labels_of(Batch()).numel() == 4

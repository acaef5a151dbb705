"""PyG's HGTConv in the encoder of a model of links: run fused, equal to the run as written; or as written."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.beside_pyg import pyg
from tests.train.linked_types import RATES, films
from tests.train.recorded import losses
from torch import Tensor, nn

from graphbraid.fullgraph.reading import relational
from graphbraid.graph import Graph
from graphbraid.nn import DotProduct, LinkModel
from graphbraid.train import Trainer
from graphbraid.train.step.links import encoder as link_encoder
from graphbraid.train.step.step import make_loader

GRAPH = films()
OPTIONS: dict[str, Any] = {
    "task": "link",
    "link_relation": RATES,
    "epochs": 2,
    "batch_size": 256,
    "fanouts": (5, 5),
    "lr": 0.02,
    "threads": 1,
}
LINKS = torch.tensor([[3, 40, 3, 88], [4, 50, 59, 0]])
SECOND_HEADS = 4


class Transformer(nn.Module):
    """Two layers over a learned row of each node."""

    def __init__(self, graph: Graph, kind: type[pyg.HGTConv] = pyg.HGTConv, *, turned: bool = False) -> None:
        super().__init__()
        relations = list(reversed(graph.edge_types)) if turned else list(graph.edge_types)
        metadata = (list(graph.node_types), relations)
        counts = {one: graph.nodes_of(one).num_nodes for one in graph.node_types}
        self.rows = nn.ModuleDict({one: nn.Embedding(count, 8) for one, count in counts.items()})
        self.first, self.second = pyg.HGTConv(8, 12, metadata, 2), kind(12, 8, metadata, SECOND_HEADS)

    def forward(self, x_dict: Any, edge_index_dict: Any, n_id_dict: Any) -> dict[str, Tensor]:
        rows = {one: self.rows[one](ids) for one, ids in n_id_dict.items()}
        rows = {one: out.relu() for one, out in self.first(rows, edge_index_dict).items()}
        found: dict[str, Tensor] = self.second(rows, edge_index_dict)
        return found


class OwnLayer(pyg.HGTConv):
    """A subclass, which may do anything."""


def trainer_of(change: Callable[[Transformer], object] | None = None, **options: Any) -> Trainer:
    torch.manual_seed(0)
    made = {name: options.pop(name) for name in ("kind", "turned") if name in options}
    encoder = Transformer(GRAPH, **made)
    if change is not None:
        change(encoder)
    return Trainer(LinkModel(encoder, DotProduct()), GRAPH, **OPTIONS | options)


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of heads of each call of our attention."""
    calls: list[int] = []
    own = relational.dot_attention
    monkeypatch.setattr(relational, "dot_attention", lambda *given: calls.append(given[-1]) or own(*given))
    return calls


def as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyG's own layers run from here on."""
    monkeypatch.setattr(link_encoder, "fused_layers", lambda _: contextlib.nullcontext())


def first_step(trainer: Trainer) -> tuple[Tensor, dict[str, Tensor]]:
    """Scores of the first batch, and the gradients that its loss gives."""
    runner = trainer.runner
    with make_loader(runner, trainer.config, runner.labels.split("train")) as loader:
        batch = next(loader.batches(0))
        outputs = runner.on_batch(batch)
        runner.task().loss(outputs, runner.labels_of(batch)).backward()
    grads = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
    return outputs.detach(), grads


@pytest.mark.parametrize("negatives", ["binary", "triplet", "shared"])
def test_scores_and_gradients_of_a_batch_are_those_as_written(negatives, heads, monkeypatch):
    fused = first_step(trainer_of(negatives=negatives))
    assert heads == [2] * 3 + [SECOND_HEADS] * 3  # a call for each type
    as_written(monkeypatch)
    written = first_step(trainer_of(negatives=negatives))
    assert len(heads) == 6
    torch.testing.assert_close(fused, written, rtol=1e-4, atol=1e-5)
    assert {"encoder.rows.user.weight", "encoder.second.k_rel.weight"} <= set(fused[1])


@pytest.mark.slow
def test_a_run_is_the_run_as_written(heads, monkeypatch):
    trainer = trainer_of()
    fused = losses(trainer)
    scores = trainer.predict_links(LINKS)  # of the whole graph
    assert set(heads) == {2, SECOND_HEADS}
    count = len(heads)
    as_written(monkeypatch)
    own = trainer_of()
    torch.testing.assert_close(fused, losses(own), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(scores, own.predict_links(LINKS), rtol=1e-2, atol=1e-3)
    assert len(heads) == count


@pytest.mark.slow
def test_links_are_learned_and_scores_are_the_same_on_all_neighbours(heads):
    trainer = trainer_of(epochs=20, batch_size=64, lr=0.005)
    before = trainer.evaluate("test")
    result = trainer.fit()
    assert result.test["auc"] > 0.7
    assert result.test["mrr"] > before["mrr"]
    whole = trainer_of(fanouts=(-1, -1))
    exact, sampled = (whole.predict_links(LINKS, mode=mode) for mode in ("exact", "sampled"))
    torch.testing.assert_close(exact, sampled, rtol=1e-4, atol=1e-5)
    assert heads


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "fused"),
    [
        # PyG itself takes the stacked relations as sorted by their number.
        pytest.param({"turned": True}, set[int](), marks=pytest.mark.slow),
        ({"precision": "bfloat16"}, set[int]()),
        ({"kind": OwnLayer}, {2}),
        ({"change": lambda encoder: encoder.second.register_forward_hook(lambda *_: None)}, {2}),
        ({"change": lambda encoder: encoder.first.k_rel.register_forward_hook(lambda *_: None)}, {4}),
    ],
    ids=["relations in another order", "autocast", "a subclass", "a hook", "a hook on its maps"],
)
def test_what_is_not_known_to_be_equal_runs_as_written(options, fused, heads, monkeypatch):
    found = losses(trainer_of(**options))
    assert set(heads) == fused
    as_written(monkeypatch)
    again = losses(trainer_of(**options))
    torch.testing.assert_close(found, again, rtol=1e-3 if fused else 0, atol=1e-4 if fused else 0)


@pytest.mark.slow
def test_a_batch_without_an_edge_still_gives_rows(heads, monkeypatch):
    fused = first_step(trainer_of(fanouts=(0, 0)))
    assert set(heads) == {2, SECOND_HEADS}
    as_written(monkeypatch)
    torch.testing.assert_close(fused, first_step(trainer_of(fanouts=(0, 0))), rtol=1e-4, atol=1e-5)

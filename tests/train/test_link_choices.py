"""Scores beside those of negatives are what joining and masking gives; encoders by block give the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.train.linked_communities import NODES, relations
from tests.train.recorded import losses
from torch import Tensor

from graphbraid.graph import Graph
from graphbraid.loader.gather_ahead import RowBuffers
from graphbraid.nn import DistMult, LinkModel, NodeEmbedding, RGCNEncoder
from graphbraid.train import Trainer
from graphbraid.train.inference import infer
from graphbraid.train.step.links.runner import alike, choices

OPTIONS: dict[str, Any] = {
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
def test_choices_are_scores_joined_and_masked(
    num_links: int, num_negatives: int, seed: int, through_softmax: bool
) -> None:
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


def test_scores_of_two_precisions_are_joined_in_the_wider_one() -> None:
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


def test_memory_is_lent_again_once_the_scores_are_gone() -> None:
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
def test_an_encoder_on_blocks_learns_what_it_learns_on_all_edges(
    fanouts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = relations()
    options = OPTIONS | {"fanouts": fanouts}
    by_block = losses(Trainer(layers(graph, len(fanouts)), graph, **options))
    monkeypatch.setattr(RGCNEncoder, "takes_typed_blocks", False)
    trainer = Trainer(layers(graph, len(fanouts)), graph, **options)
    assert not trainer.runner.encoder_runner().by_blocks  # type: ignore[attr-defined]
    torch.testing.assert_close(by_block, losses(trainer), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
def test_rows_by_block_are_those_of_the_whole_graph(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = relations()
    trainer = Trainer(layers(graph, 2), graph, **OPTIONS, fanouts=(-1, -1), layout=layout)
    links, kind = torch.tensor([[3, 4, 90], [4, 3, 3]]), [0, 1, 0]
    whole = trainer.predict_links(links, kind)
    torch.testing.assert_close(trainer.predict_links(links, kind, mode="sampled"), whole)
    monkeypatch.setattr(infer, "whole_bytes", lambda _: 1 << 60)
    torch.testing.assert_close(trainer.predict_links(links, kind), whole)


def test_a_pass_of_relational_layers_is_counted_without_a_row_for_each_edge() -> None:
    lists = {("node", "to", "node"): torch.randint(NODES, (2, 50_000))}
    graph = Graph.from_relations(lists, {"node": NODES}, edge_splits=None)
    runner = Trainer(layers(graph, 1), graph, **OPTIONS, fanouts=(4,)).runner
    encoder = runner.encoder_runner()  # type: ignore[attr-defined]
    model = encoder.model
    assert model.edge_bytes == 64 + 2 * 16
    rows = 3 * NODES * 4 * model.widest
    assert infer.whole_bytes(encoder) == rows + encoder.graph.num_edges * model.edge_bytes


def test_a_link_set_gives_the_same_labels_to_batches_of_one_size() -> None:
    graph = relations()
    trainer = Trainer(layers(graph, 1), graph, **OPTIONS, fanouts=(4,))
    runner = trainer.runner

    class Batch:
        batch_size = 5

    first = runner.labels_of(Batch())  # their memory is what the loss keeps its gradient's by
    assert torch.equal(first, torch.zeros(10, dtype=torch.int64))
    assert runner.labels_of(Batch()) is first
    Batch.batch_size = 2
    assert runner.labels_of(Batch()).numel() == 4

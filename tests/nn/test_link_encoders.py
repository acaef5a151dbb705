"""Encoders of nodes for links: equal to RGCNConv by bases, learned rows by id, clear refusals."""

import pytest
import torch
from torch import Tensor, nn

from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.nn import (
    BasisRGCNConv,
    DistMult,
    DotProduct,
    GraphSAGE,
    LinkModel,
    MLPPredictor,
    NodeEmbedding,
    RGCNConv,
    RGCNEncoder,
)

NODES, RELATIONS = 9, 5


def edges(count: int = 60) -> tuple[Tensor, Tensor]:
    """Return edges, several of them alike, of which one node and one relation have none."""
    draw = torch.Generator().manual_seed(0)
    ends = torch.randint(NODES - 1, (2, count), generator=draw)
    return ends, torch.randint(RELATIONS - 1, (count,), generator=draw)


@pytest.mark.parametrize("widths", [(7, 3), (3, 7), (1, 1)])
@pytest.mark.parametrize("count", [60, 0])
def test_sums_by_basis_are_those_of_the_layer_by_relation(widths, count):
    edge_index, edge_type = edges(count)
    torch.manual_seed(0)
    ours = BasisRGCNConv(*widths, RELATIONS, 2).double()
    other = RGCNConv(*widths, RELATIONS, num_bases=2).double()
    other.load_state_dict(ours.state_dict())
    x = torch.randn(NODES, widths[0], dtype=torch.float64, requires_grad=True)
    again = x.detach().clone().requires_grad_()
    out, expected = ours(x, edge_index, edge_type), other(again, edge_index, edge_type)
    torch.testing.assert_close(out, expected)
    weight = torch.randn_like(out)
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(x.grad, again.grad)
    for (name, one), two in zip(ours.named_parameters(), other.parameters(), strict=True):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in (one, two)]
        torch.testing.assert_close(*grads, msg=lambda text, name=name: f"{name}: {text}")


def test_rows_are_those_of_the_ids():
    model = NodeEmbedding(NODES, 4)
    assert (model.num_layers, model.widest, model.takes_blocks) == (0, 4, False)
    assert not model.takes_typed_blocks
    assert torch.equal(model(None, None), model.rows)
    assert torch.equal(model(None, None, torch.tensor([3, 3, 0])), model.rows[[3, 3, 0]])
    edge_index, _ = edges()
    inner = GraphSAGE(4, 8, 6, 2, dropout=0.0)
    stacked = NodeEmbedding(NODES, 4, inner)
    assert (stacked.num_layers, stacked.takes_blocks) == (2, True)
    torch.testing.assert_close(stacked(None, edge_index), inner(stacked.rows, edge_index))
    dropped = NodeEmbedding(NODES, 400, dropout=0.5)
    assert 0.3 < float((dropped(None, None) == 0).float().mean()) < 0.7
    assert torch.equal(dropped.eval()(None, None), dropped.rows)


def test_a_stack_of_relational_layers():
    edge_index, edge_type = edges()
    model = RGCNEncoder(4, 8, 6, RELATIONS, 2, num_bases=3, dropout=0.5).eval()
    first, second = model.convs
    x = torch.randn(NODES, 4)
    expected = second(first(x, edge_index, edge_type).relu(), edge_index, edge_type)
    torch.testing.assert_close(model(x, edge_index, edge_type), expected)
    shuffled = torch.randperm(edge_type.numel())
    torch.testing.assert_close(model(x, edge_index[:, shuffled], edge_type[shuffled]), expected)


def test_blocks_give_the_rows_that_the_next_layer_reads():
    edge_index, edge_type = edges()
    model = RGCNEncoder(4, 8, 6, RELATIONS, 2, num_bases=3)
    csc, perm = coo_to_csc(edge_index[0], edge_index[1], NODES, NODES)
    assert perm is not None
    kinds, x = edge_type[perm], torch.randn(NODES, 4)
    whole = model(x, edge_index, edge_type)
    torch.testing.assert_close(model(x, csc, kinds), whole)
    last = int(csc.indptr[3])
    block = Csc(csc.indptr[:4], csc.indices[:last], NODES)
    torch.testing.assert_close(model(x, [csc, block], [kinds, kinds[:last]]), whole[:3])
    with pytest.raises(DataError, match=r"2 layers needs as many blocks, .* got 1 and 2"):
        model(x, [csc], [kinds, kinds])
    with pytest.raises(DataError, match=r"edge_type must have one relation per edge \(60\); got 59"):
        model(x, csc, kinds[1:])
    with pytest.raises(DataError, match="x must have one row per source node"):
        model(x[1:], csc, kinds)


def test_a_model_of_links_scores_pairs_of_rows():
    edge_index, edge_type = edges()
    encoder = NodeEmbedding(NODES, 4, RGCNEncoder(4, 4, 4, RELATIONS))
    model = LinkModel(encoder, DistMult(RELATIONS, 4))
    rows = encoder(None, edge_index, edge_type=edge_type)
    pairs, kind = torch.tensor([[0, 1], [2, 3]]), torch.tensor([4, 0])
    expected = (rows[pairs[0]] * model.predictor.relations[kind] * rows[pairs[1]]).sum(1)
    torch.testing.assert_close(model(None, edge_index, pairs, kind, edge_type=edge_type), expected)
    assert (model.num_layers, model.takes_blocks) == (1, False)
    assert LinkModel(NodeEmbedding(3, 2), DotProduct()).num_layers is None
    torch.testing.assert_close(
        model.predictor.all_with(rows[:2], rows, kind), model.predictor.with_all(rows[:2], rows, kind)
    )


class Difference(MLPPredictor):
    """A predictor of a user's, whose scores depend on the direction."""

    def _pairs(self, src: Tensor, dst: Tensor, relation: Tensor | None) -> Tensor:
        return super()._pairs(src - 2 * dst, torch.ones_like(dst), relation)


def test_a_predictor_whose_directions_differ_ranks_no_sources_by_the_other():
    rows = torch.randn(30, 4)
    predictor = Difference(4, 8, dropout=0.5)
    predictor.layers[0].eval()
    with pytest.raises(DataError, match="Difference scores a pair otherwise in the other direction"):
        predictor.all_with(rows[:3], rows)
    assert predictor.training
    assert not predictor.layers[0].training
    MLPPredictor(4, 8, dropout=0.5).all_with(rows[:3], rows)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: NodeEmbedding(0, 4), ConfigError, "num_nodes must be"),
        (lambda: NodeEmbedding(3, 4, dropout=1.0), ConfigError, "dropout must be"),
        (
            lambda: NodeEmbedding(3, 4, model=3),
            ConfigError,
            r"model must be a torch.nn.Module or None; got 3",
        ),
        (lambda: NodeEmbedding(3, 4)(None, None, torch.tensor([3])), DataError, "n_id must be"),
        (lambda: BasisRGCNConv(4, 4, 0, 2), ConfigError, "num_relations must be"),
        (lambda: RGCNEncoder(4, 4, 4, 2, num_bases=0), ConfigError, "num_bases must be"),
        (lambda: RGCNEncoder(4, 4, 4, 2, act="no"), ConfigError, "act must be"),
        (lambda: LinkModel(3, DotProduct()), ConfigError, "encoder must be a torch.nn.Module; got 3"),
        (lambda: LinkModel(nn.Identity(), nn.Identity()), ConfigError, "predictor must be"),
    ],
)
def test_options_that_cannot_be_meant_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(NODES, 5)}, r"x must have 4 columns \(in_channels\)"),
        (
            {"edge_index": torch.zeros(2, 3, dtype=torch.int64)},
            r"edge_type must have one relation per edge \(3\)",
        ),
        ({"edge_index": torch.full((2, 60), NODES)}, "sources of edge_index must be"),
        ({"edge_type": torch.full((60,), RELATIONS)}, r"edge_type must be in \[0, 5\).*edge_type\[0\] is 5"),
        ({"edge_type": torch.zeros(60)}, "edge_type must be integers; got torch.float32"),
    ],
)
def test_edges_that_do_not_fit_are_named(change, message):
    edge_index, edge_type = edges()
    given = {"x": torch.ones(NODES, 4), "edge_index": edge_index, "edge_type": edge_type}
    with pytest.raises(DataError, match=message):
        BasisRGCNConv(4, 4, RELATIONS, 2)(**given | change)

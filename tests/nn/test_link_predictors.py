"""Link predictors: PyG's scores, the same scores for pairs and for all, and use with ranking."""

from typing import Any

import pytest
import torch
from tests.extras import NO_PYG

from graphbraid.errors import ConfigError, DataError
from graphbraid.nn import ComplEx, DistMult, DotProduct, MLPPredictor, RotatE, TransE
from graphbraid.nn import link_predictors as module
from graphbraid.train import rank_links

NUM_NODES, CHANNELS, RELATIONS = 11, 6, 3
PREDICTORS = {
    "dot": DotProduct,
    "distmult": lambda: DistMult(RELATIONS, CHANNELS),
    "complex": lambda: ComplEx(RELATIONS, CHANNELS),
    "complex, reciprocal": lambda: ComplEx(RELATIONS, CHANNELS, reciprocal=True),
    "transe": lambda: TransE(RELATIONS, CHANNELS),
    "transe, norm 2": lambda: TransE(RELATIONS, CHANNELS, norm=2, margin=1),
    "rotate": lambda: RotatE(RELATIONS, CHANNELS),
    "rotate, norm 2": lambda: RotatE(RELATIONS, CHANNELS, norm=2, reciprocal=True),
    "mlp": lambda: MLPPredictor(CHANNELS, 8, 3, dropout=0.5).eval(),
}


def drawn(kind: str) -> tuple[Any, torch.Tensor, torch.Tensor | None]:
    """A predictor in float64, rows of all nodes, and a relation for each node if it knows some."""
    torch.manual_seed(0)
    predictor = PREDICTORS[kind]().double()
    relation = torch.arange(NUM_NODES) % RELATIONS if predictor.num_relations else None
    return predictor, torch.randn(NUM_NODES, CHANNELS, dtype=torch.float64), relation


@pytest.mark.parametrize("kind", list(PREDICTORS))
@pytest.mark.parametrize("pairs_at_a_time", [1, 25, 1 << 16])
def test_scores_with_all_are_those_of_the_pairs(kind, pairs_at_a_time, monkeypatch):
    monkeypatch.setattr(module, "_PAIRS", pairs_at_a_time)
    predictor, rows, relation = drawn(kind)
    found = predictor.with_all(rows, rows, relation)
    src = torch.arange(NUM_NODES).repeat_interleave(NUM_NODES)
    dst = torch.arange(NUM_NODES).repeat(NUM_NODES)
    pairs = predictor(rows[src], rows[dst], None if relation is None else relation[src])
    torch.testing.assert_close(found, pairs.view(NUM_NODES, NUM_NODES), atol=1e-12, rtol=1e-10)


def pyg_model(kind: str, norm: int = 1) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """PyG's model in float64, and the rows and the relations of ours that stand for its own."""
    kge = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)
    torch.manual_seed(0)
    width = CHANNELS // 2 if kind in ("ComplEx", "RotatE") else CHANNELS
    more = {"p_norm": float(norm)} if kind == "TransE" else {"margin": 2.5} if kind == "RotatE" else {}
    theirs = getattr(kge, kind)(NUM_NODES, RELATIONS, width, **more).double()
    rows, relations = theirs.node_emb.weight, theirs.rel_emb.weight
    if width != CHANNELS:
        rows = torch.cat([rows, theirs.node_emb_im.weight], 1)
    if kind == "ComplEx":
        relations = torch.cat([relations, theirs.rel_emb_im.weight], 1)
    return theirs, rows, relations


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (DistMult, {}),
        (ComplEx, {}),
        (TransE, {"norm": 1, "margin": 0}),
        (TransE, {"norm": 2, "margin": 0}),
        (RotatE, {"margin": 2.5, "norm": 2}),
    ],
)
def test_scores_and_gradients_are_pyg_s(kind, options):
    norm = options.get("norm", 1)
    theirs, rows, relations = pyg_model(kind.__name__, norm)
    ours = kind(RELATIONS, CHANNELS, **options).double()
    ours.load_state_dict({"relations": relations})
    head, tail = torch.randint(NUM_NODES, (2, 20))
    relation = torch.randint(RELATIONS, (20,))
    source, destination = rows[head], rows[tail]
    if kind is TransE:  # PyG's rows have length 1 by its norm, ours have any
        source, destination = (torch.nn.functional.normalize(one, p=norm) for one in (source, destination))
    scores, expected = ours(source, destination, relation), theirs(head, relation, tail)
    torch.testing.assert_close(scores, expected)
    weights = torch.randn(20, dtype=torch.float64)
    mine = torch.autograd.grad((scores * weights).sum(), [theirs.node_emb.weight, ours.relations])
    wanted = torch.autograd.grad((expected * weights).sum(), [theirs.node_emb.weight, theirs.rel_emb.weight])
    torch.testing.assert_close(mine[0], wanted[0])
    torch.testing.assert_close(mine[1][:, : wanted[1].shape[1]], wanted[1])


@pytest.mark.parametrize("kind", [name for name in PREDICTORS if name not in ("dot", "mlp")])
def test_sources_are_asked_for_by_the_same_score_or_by_the_second_row(kind):
    predictor, rows, relation = drawn(kind)
    found = predictor.all_with(rows, rows, relation)
    for source in range(NUM_NODES):
        asked = rows[source].expand_as(rows), rows
        if predictor.reciprocal:  # the destination is then the source of a link of the second relation
            other = type(predictor)(2 * RELATIONS, CHANNELS).double()
            other.load_state_dict(predictor.state_dict())
            other.norm = getattr(predictor, "norm", None)
            expected = other(asked[1], asked[0], relation + RELATIONS)
        else:
            expected = predictor(*asked, relation)
        torch.testing.assert_close(found[:, source], expected)


@pytest.mark.parametrize("kind", [name for name in PREDICTORS if name != "dot"])
def test_gradients_of_scores_with_all_are_those_of_the_pairs(kind):
    predictor, rows, relation = drawn(kind)
    src = torch.arange(NUM_NODES).repeat_interleave(NUM_NODES)
    dst = torch.arange(NUM_NODES).repeat(NUM_NODES)
    weights = torch.randn(NUM_NODES, NUM_NODES, dtype=torch.float64)
    rows.requires_grad_()
    of_pairs = predictor(rows[src], rows[dst], None if relation is None else relation[src])
    inputs = [rows, *predictor.parameters()]
    wanted = torch.autograd.grad((of_pairs * weights.flatten()).sum(), inputs)
    found = torch.autograd.grad((predictor.with_all(rows, rows, relation) * weights).sum(), inputs)
    for mine, other in zip(found, wanted, strict=True):
        assert mine.isfinite().all()  # also where a row is its own candidate, at a distance of 0
        torch.testing.assert_close(mine, other)


def test_rotate_sums_moduli_as_its_paper_does():
    torch.manual_seed(0)
    predictor = RotatE(RELATIONS, CHANNELS, margin=3.0).double()
    source, destination = torch.randn(2, 20, CHANNELS, dtype=torch.float64)
    relation = torch.randint(RELATIONS, (20,))
    a, b = (torch.complex(*one.chunk(2, 1)) for one in (source, destination))
    turn = torch.polar(torch.ones_like(predictor.relations), predictor.relations)[relation]
    expected = 3.0 - torch.linalg.vector_norm(a * turn - b, ord=1, dim=-1)  # PyKEEN's with p=1, and a margin
    torch.testing.assert_close(predictor(source, destination, relation), expected)


def test_a_distance_of_zero_has_no_gradient():
    predictor = RotatE(1, 4).double()
    torch.nn.init.zeros_(predictor.relations)
    rows = torch.ones(2, 4, dtype=torch.float64, requires_grad=True)
    for scores in (
        predictor(rows, rows.detach(), torch.zeros(2).long()),
        predictor.with_all(rows, rows.detach(), torch.zeros(2).long()),
    ):
        assert (scores == predictor.margin).all()
        assert torch.autograd.grad(scores.sum(), rows)[0].abs().max() == 0


def test_cubes_are_those_of_moduli():
    torch.manual_seed(0)
    rows = torch.randn(5, CHANNELS, dtype=torch.float64)
    torch.testing.assert_close(DistMult(1, CHANNELS).cubes(rows), (rows.abs() ** 3).sum(1))
    numbers = torch.complex(*rows.chunk(2, 1))
    for kind in (ComplEx, RotatE):
        torch.testing.assert_close(kind(1, CHANNELS).cubes(rows), (numbers.abs() ** 3).sum(1))
    assert RotatE(1, CHANNELS).cubes(rows[:, :3]).tolist() == [0.0] * 5  # of a relation's angles
    zero = torch.zeros(1, CHANNELS, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.grad(ComplEx(1, CHANNELS).cubes(zero).sum(), zero)[0].abs().max() == 0


def test_the_dot_product_is_the_sum_of_products():
    src, dst = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0, 6.0], [7.0, -8.0]])
    assert DotProduct()(src, dst).tolist() == [17.0, -11.0]


def test_a_predictor_learns_links_and_ranks_them_first():
    """Each node of a ring is linked to the next; the rows of both ends are learned."""
    torch.manual_seed(0)
    rows = torch.nn.Embedding(2 * NUM_NODES, 16)
    predictor = MLPPredictor(16, 32)
    links = torch.stack([torch.arange(NUM_NODES), (torch.arange(NUM_NODES) + 1) % NUM_NODES])
    optimizer = torch.optim.Adam([*rows.parameters(), *predictor.parameters()], 0.05)
    for _ in range(60):
        optimizer.zero_grad()
        scores = predictor.with_all(rows.weight[:NUM_NODES], rows.weight[NUM_NODES:])
        torch.nn.functional.cross_entropy(scores, links[1]).backward()
        optimizer.step()
    found = rank_links(
        lambda src: predictor.with_all(rows.weight[src], rows.weight[NUM_NODES:]), links, NUM_NODES
    )
    assert found.hits(1) == 1.0


@pytest.mark.parametrize("kind", list(PREDICTORS))
def test_what_does_not_fit_is_named(kind):
    predictor, rows, relation = drawn(kind)
    with pytest.raises(DataError, match="dst must have the shape of src"):
        predictor(rows, rows[1:], relation)
    with pytest.raises(DataError, match=r"rows must be torch\.float64 as src is"):
        predictor.with_all(rows, rows.float(), relation)
    with pytest.raises(DataError, match="rows must have 6 columns"):
        predictor.with_all(rows, rows[:, 1:], relation)
    if relation is None:
        with pytest.raises(DataError, match="knows no relations"):
            predictor(rows, rows, torch.zeros(NUM_NODES, dtype=torch.int64))
    else:
        with pytest.raises(DataError, match=r"needs the relation of each link, in \[0, 3\)"):
            predictor(rows, rows)
        with pytest.raises(DataError, match="relation"):
            predictor(rows, rows, relation + 1)
        with pytest.raises(DataError, match="relation must have 11 entries"):
            predictor(rows, rows, relation[1:])
    if kind != "dot":
        with pytest.raises(DataError, match=r"src must have 6 columns \(channels\)"):
            predictor(rows[:, 1:], rows[:, 1:], relation)


def test_wrong_sizes_are_refused():
    with pytest.raises(ConfigError, match="num_relations"):
        DistMult(0, 3)
    with pytest.raises(ConfigError, match="channels must be even for ComplEx"):
        ComplEx(2, 3)
    with pytest.raises(ConfigError, match="norm"):
        TransE(2, 3, norm=3)
    with pytest.raises(ConfigError, match="margin"):
        RotatE(2, 4, margin=-1.0)
    with pytest.raises(ConfigError, match="dropout"):
        MLPPredictor(3, 4, dropout=1.0)
    with pytest.raises(ConfigError, match="num_layers"):
        MLPPredictor(3, 4, 0)

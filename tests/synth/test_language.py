"""Programs become the recipes that they describe, and train as the same models written by hand."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.fullgraph.graphs import CHANNELS, CLASSES, make_graph
from tests.synth.programs import LISTING, program

import graphbraid
from graphbraid import nn
from graphbraid.errors import DataError
from graphbraid.fullgraph import NotLoweredError
from graphbraid.fullgraph.program import same_program
from graphbraid.synth import (
    EarlyStop,
    OptimizerRecipe,
    Place,
    Recipe,
    from_model,
    from_program,
    parse_program,
    train,
)
from graphbraid.synth.language.syntax import ATTENTION

LAYERS = (CHANNELS, 16, CLASSES)


def made(text: str, layers: tuple[int, ...] = LAYERS, **settings: float):
    return from_program(parse_program(text), layers, settings)


def test_the_papers_listing_as_printed():
    function = parse_program(LISTING)
    ((place, note),) = function.notes
    assert place == Place(6, 5)
    assert 'the loop over "l" at line 6 is not closed' in note
    synthesis = from_program(function, LAYERS, {"totalEpoch": 7})
    assert isinstance(synthesis.model, nn.GraphSAGE)
    assert [conv.aggr for conv in synthesis.model.convs] == ["max", "max"]
    assert replace(synthesis.recipe, script=None) == Recipe(
        name="SAGE",
        optimizer=OptimizerRecipe(kind="adam", learning_rate=0.01, betas=(0.9, 0.999)),
        epochs=7,
    )
    assert len(train(synthesis, make_graph(train=30)).losses) == 7


def test_every_word_of_a_program_reaches_its_recipe():
    text = program(
        "GAT",
        "Sum",
        before='gnn.heads(4); gnn.seed(9); gnn.trainOn("val"); gnn.earlyStop("test", 3);',
        after_layer='if (l < layers - 1) { gnn.dropout(l, 0.25); gnn.activation(l, "elu"); }',
        after_epoch='if (epoch % 2 == 1) { gnn.evaluate("test"); }',
        optimizer='"adamw", 0.1, 0.8, 0.9, 0.3',
    )
    synthesis = made(text, (CHANNELS, 16, 16, CLASSES), totalEpoch=4)
    model, recipe = synthesis.model, synthesis.recipe
    assert (model.num_layers, model.dropout, model.act, model.convs[0].heads) == (3, 0.25, "elu", 4)
    assert recipe.optimizer == OptimizerRecipe(
        kind="adamw", learning_rate=0.1, betas=(0.8, 0.9), weight_decay=0.3
    )
    assert (recipe.seed, recipe.train_split, recipe.early_stop) == (
        9,
        "val",
        EarlyStop(split="test", patience=3),
    )
    accuracies = train(synthesis, make_graph(train=30)).accuracies
    assert [list(epoch) for epoch in accuracies] == [[], ["test"], [], ["test"]]


def test_loops_conditions_and_numbers_decide_as_in_c():
    text = program(
        optimizer='"sgd", rate, layers[1] / 32.0 - 0.1',
        after_epoch="if (epoch == limit) { break; } else if (epoch > 99) { continue; }",
    )
    text = text.replace("String dataset", "String dataset, float rate, int limit")
    graph = make_graph(train=30)
    synthesis = made(text, rate=1, limit=-7 // 2 + 6)
    assert len(train(synthesis, graph).losses) == 3
    assert synthesis.recipe.optimizer.learning_rate == 1.0
    assert synthesis.recipe.optimizer.momentum == pytest.approx(0.4)
    for expression, epochs in {
        "-7 / 2 + 5": 2,
        "-7 % 2 + 5": 4,
        "1 + 2 * 3 - 4": 3,
        "(1 + 2) * 3 / 4": 2,
    }.items():
        counted = program().replace("epoch < totalEpoch", f"epoch < {expression}")
        assert len(train(made(counted), graph).losses) == epochs


def test_initialisers_draw_within_their_bounds():
    largest = {}
    for name in ("xaviers", "kaiming", "uniform"):
        weight = made(program(initialiser=name)).model.convs[0].lin.weight
        largest[name] = weight.abs().max().item()
    bounds = {"xaviers": (6 / (16 + CHANNELS)) ** 0.5, "kaiming": CHANNELS**-0.5, "uniform": 0.05}
    for name, bound in bounds.items():
        assert 0.9 * bound < largest[name] <= bound


def test_a_seed_gives_the_same_weights_and_leaves_torchs_state_alone():
    state = torch.get_rng_state()
    first, same, other = (made(program(before=f"gnn.seed({seed});")).model for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.convs[0].lin.weight, same.convs[0].lin.weight)
    assert not torch.equal(first.convs[0].lin.weight, other.convs[0].lin.weight)


MODELS = [
    *(("GCN", "Sum"), ("SAGE", "Sum"), ("SAGE", "Mean"), ("SAGE", "Max"), ("GIN", "Sum"), ("GAT", "Sum")),
    ("GATv2", "Sum"),
]


@pytest.mark.parametrize(("model", "aggregation"), MODELS)
def test_a_program_trains_as_the_same_model_written_by_hand(model, aggregation):
    graph = make_graph(train=30)
    synthesis = made(
        program(model, aggregation, before="gnn.heads(4);" if model in ATTENTION else ""), totalEpoch=8
    )
    classes = {"GCN": nn.GCN, "SAGE": nn.GraphSAGE, "GIN": nn.GIN, "GAT": nn.GAT, "GATv2": nn.GATv2}
    options = {"heads": 4} if model in ATTENTION else {"aggr": aggregation.lower()}
    options = {} if model in ("GCN", "GIN") else options
    by_hand = classes[model](CHANNELS, 16, CLASSES, 2, dropout=0.0, **options)
    by_hand.load_state_dict(synthesis.model.state_dict())
    optimizer = torch.optim.Adam(by_hand.parameters(), lr=0.01)
    losses, nodes = [], graph.split("train")
    for _ in range(8):
        optimizer.zero_grad()
        loss = F.cross_entropy(by_hand(graph.x, graph.csc)[nodes], graph.y[nodes])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert train(synthesis, graph).losses == pytest.approx(losses, rel=1e-4)
    assert losses[-1] < losses[0]


def test_programs_and_models_come_to_the_same_program():
    graph = make_graph()
    synthesis = made(program("SAGE", "Mean"))
    from_python = from_model(synthesis.model)
    assert same_program(synthesis.program(graph), from_python.program(graph))
    engine = graphbraid.compile(synthesis.model, graph)
    assert same_program(engine.program, synthesis.lower(graph).program)


def test_evaluations_and_an_early_stop():
    graph = make_graph(train=30)
    text = program(
        before='gnn.earlyStop("val", 2);', after_epoch='gnn.evaluate("val");', optimizer='"sgd", 0.0'
    )
    trained = train(made(text, totalEpoch=9), graph)
    assert len(trained.losses) == len(trained.accuracies) == 3  # the first and two that are no better
    nodes, model = graph.split("val"), made(text).model.eval()
    right = (model(graph.x, graph.csc).argmax(1) == graph.y)[nodes].double().mean().item()
    assert trained.accuracies[-1] == {"val": right}


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ('"sgd", 0.1, 0.9, 0.01', torch.optim.SGD),
        ('"adam", 0.1, 0.8, 0.9, 0.01', torch.optim.Adam),
        ('"adamw", 0.1, 0.8, 0.9, 0.01', torch.optim.AdamW),
    ],
)
def test_optimizers_are_pytorchs(optimizer, expected):
    from graphbraid.synth.training import make_optimizer

    made_of = make_optimizer(made(program(optimizer=optimizer)).recipe.optimizer, [torch.zeros(1)])
    assert type(made_of) is expected
    (group,) = made_of.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.1, 0.01)
    assert group.get("betas", (0.8, 0.9)) == (0.8, 0.9)
    assert group.get("momentum", 0.9) == 0.9


def test_a_graph_that_does_not_fit_is_refused():
    graph, synthesis = make_graph(), made(program())
    with pytest.raises(DataError, match="the first layer takes 12 columns of features; the graph has 7"):
        train(synthesis, graph.replace(x=graph.x[:, :7].contiguous()))
    with pytest.raises(DataError, match="the last layer has 3 columns; the graph has 5 classes"):
        train(made(program(), (CHANNELS, 8, 3)), graph)
    with pytest.raises(DataError, match="the graph has no y"):
        train(synthesis, graph.replace(y=None))
    text = program(after_epoch='gnn.evaluate("test");')
    with pytest.raises(DataError, match="test"):
        train(made(text), graph.replace(splits={"train": graph.split("train")}))


def test_a_model_without_a_lowered_form_is_refused_by_name():
    from tests.fullgraph.graphs import unlowerable

    with pytest.raises(NotLoweredError, match="Sine"):
        from_model(unlowerable()).program(make_graph())


def test_a_models_own_recipe_is_followed():
    recipe = Recipe(name="mine", optimizer=OptimizerRecipe(kind="sgd", learning_rate=0.1), epochs=3)
    graph, model = make_graph(train=30), nn.GCN(CHANNELS, 8, CLASSES, 2)
    losses = [
        train(from_model(model_, replace(recipe, seed=4)), graph).losses for model_ in _two_alike(model)
    ]
    assert losses[0] == losses[1]  # the masks of dropout come from the recipe's seed
    assert len(losses[0]) == 3


def _two_alike(model: torch.nn.Module) -> tuple[torch.nn.Module, torch.nn.Module]:
    import copy

    return model, copy.deepcopy(model)

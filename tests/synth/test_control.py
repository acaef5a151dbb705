"""What a program decides while it trains: the engine in this process and the programs decide alike."""

import copy
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.distributed.whole import owners
from tests.fullgraph.graphs import NUM_NODES, make_graph
from tests.kernels import needs_kernels
from tests.synth.building import (
    EXAMPLES,
    GRAPH,
    LABELLED,
    SETTINGS,
    Together,
    Wanted,
    graph_of,
    losses_of,
    of_example,
    openmp_programs,
    run,
    store_of,
)
from tests.synth.on_host import HostPrograms
from tests.synth.programs import program
from tests.synth.ranks import rank_programs, run_ranks, tool

from graphbraid.errors import ConfigError, DataError
from graphbraid.synth import OptimizerRecipe, ProgramError, Recipe, Synthesis, from_model, train

pytestmark = needs_kernels
NUMBERS = """
function int log(int x) { return x; }
function int run(int x) { while (true) { if (x > 5) { return log(x); } x++; } }
function int half(int x) { return x / 2; }
function float mixed(int a, float b, bool c) {
  float found = a;
  while (found < 9) { found += b; if (c && found > 5) { break; } }
  return found;
}
function bool odd(int x) { if (x % 2 == 1) { return true; } else { return false; } }
function Train(Graph g, GNN gnn, container<int>& layers, String d, int class, float _rate, bool NULL) {
  gnn.load(g, d);
  gnn.initializeLayers(layers, "xavier");
  int unused = 3;
  int negative = -7;
  int large = 4611686018427387904;
  int total = 0;
  for (int i = 0; i < 5; i++) { total += layers[1] * i; }
  for (int epoch = 0; epoch < totalEpoch; epoch += 2) {
    for (int l = 0; l < layers; l++) { gnn.forwardPass(l, "GCN"); if (l == 0) { gnn.activation(l, "elu"); } }
    for (int l = layers.size() - 2; l >= 0; --l) { gnn.backPropagation(l); }
    gnn.optimizer("sgd", _rate / (epoch + 1), 0.5);
    print("numbers", epoch, half(epoch + 7), half(negative), negative % 4, negative * -2 - 3 - (2 - 1));
    print(total);
    print(mixed(epoch, 1.5, odd(epoch + 1)), mixed(1, 0.25, false), 7 / 2 + 0.5, 100000 * 100000, 1 / 3.0);
    print(odd(class) || NULL && !odd(2), (1 < 2) == (epoch < 3), "a \\ ? \t é");
    print(large - 1 + large, true, -0.5);
    if (epoch == 2 || odd(epoch)) { continue; } else if (gnn.loss() < 0) { print("never"); }
    int class_ = 0;
    do_nothing(class_);
    for (; class_ < 2; ++class_) { if (class_ == 1) { print("inner", class_ - epoch, 2.0 * epoch); } }
  }
}
function int seconds() { for (;;) { return run(2); } return 1; }
function int do_nothing(int unread) { return seconds(); }
"""
NUMBERS = NUMBERS.replace("    do_nothing(class_);\n", "    print(do_nothing(class_));\n")


def lines_of(said: str) -> list[str]:
    """What a program's own statements print: all lines but those of the runtime."""
    own = r"epoch \d+ (loss|train|val|test) |(accuracy|error|seconds|bytes|peak|input|kernels|memory) "
    return [line for line in said.splitlines() if not re.match(own, line)]


def assert_alike(said: str, synthesis: Synthesis, name: str) -> None:
    """A program printed the losses, the accuracies and the lines of the engine."""
    trained = train(synthesis, graph_of(name))
    assert losses_of(said) == pytest.approx(trained.losses, rel=1e-5)
    found = re.findall(r"^epoch (\d+) (train|val|test) (\S+)", said, re.MULTILINE)
    expected = [(e, s, a) for e, of_epoch in enumerate(trained.accuracies) for s, a in of_epoch.items()]
    assert [(int(e), s) for e, s, _ in found] == [(e, s) for e, s, _ in expected]
    assert [float(a) for *_, a in found] == pytest.approx([a for *_, a in expected], rel=1e-4, abs=1e-6)
    for line, ours in zip(lines_of(said), trained.said, strict=True):
        assert line == ours or (name == "regression" and line.split()[:-1] == ours.split()[:-1])


TEXTS = EXAMPLES | {"numbers": NUMBERS}
SETTINGS["numbers"] = {"class": 3, "_rate": 0.5, "NULL": False}
LIKE_OTHERS = {"choice", "cycles", "gat", "listing1", "mixed", "schedule"}
"""Long on ranks and GPUs: statements are written once for all targets, by code that knows no target."""
OF_RANKS = [pytest.param(name, marks=[pytest.mark.long] * (name in LIKE_OTHERS)) for name in TEXTS]
ON_GPU = [one for one in OF_RANKS if one.values != ("own",)]
OWNERS = owners([(node * 7) % 2 for node in range(NUM_NODES)], 2)
EARLY = program().replace(
    "    for (int l = 0;", "    if (epoch == 0) { print(gnn.loss()); }\n    for (int l = 0;", 1
)
WRONG = {
    "rate": (program(optimizer='"sgd", 0.1 - epoch'), "line 13: the learning rate of epoch 1 is -0.9"),
    "zero": (program(after_epoch="int x =\n6 / (3 - epoch);"), "line 15: division by zero"),
    "rest": (program(after_epoch="int x =\n7 % (epoch - 2);"), "line 15: division by zero"),
    "real": (program(after_epoch="float x = 1.5 / (epoch - 1);"), "line 14: division by zero"),
    "large": (
        program(before="int x = 9;", after_epoch="x =\nx * x;"),
        "line 15: the integer is too large: at most",
    ),
    "stuck": (
        program(after_epoch="float l = gnn.loss();\nwhile (l > 0) { l *= 1.0; }"),
        "line 15: the loop goes on after 1,000,000 rounds without training: does it end?",
    ),
    "early": (EARLY, "line 6: the loss is asked for before the first forward pass"),
    "lost": (program(optimizer='"sgd", 1e30'), "line 7: the loss of epoch 1 is nan: the features or the"),
}
THREE_EPOCHS = program().replace("epoch < totalEpoch", "epoch < 3")
WEIGHTED = make_graph(train=30, weighted=True)


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Together:
    wanted = {one: Wanted(partial(of_example, text, one), graph_of(one)) for one, text in TEXTS.items()}
    wanted |= {one: Wanted(partial(of_example, text)) for one, (text, _) in WRONG.items()}
    wanted |= {
        "weighted": Wanted(partial(of_example, TEXTS["mixed"], "mixed"), WEIGHTED),
        "three epochs": Wanted(partial(of_example, THREE_EPOCHS)),
    }
    return openmp_programs(tmp_path_factory, "control", wanted)


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory) -> Together:
    tool("mpirun")
    wanted = {
        name: Wanted(
            partial(of_example, text, name), graph_of(name), {"partition": OWNERS}, name in LIKE_OTHERS
        )
        for name, text in TEXTS.items()
    }
    return rank_programs(tmp_path_factory, "control-ranks", wanted)


@pytest.fixture(scope="module")
def on_host(tmp_path_factory) -> Together:
    wanted = {
        name: Wanted(partial(of_example, text, name, 12), graph_of(name), is_alone=name in LIKE_OTHERS)
        for name, text in TEXTS.items()
        if name != "own"
    }
    return HostPrograms(tmp_path_factory).together("control-host", wanted)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.slow
def test_openmp_programs_decide_as_the_engine(name, programs):
    folder = programs[name]
    assert_alike(run(folder, "--data", str(store_of(folder))), of_example(TEXTS[name], name), name)


@pytest.mark.parametrize("name", OF_RANKS)
@pytest.mark.slow
def test_ranks_decide_as_the_engine(name, of_ranks):
    assert_alike(run_ranks(of_ranks[name], 2), of_example(TEXTS[name], name), name)


@pytest.mark.parametrize("name", ON_GPU)
@pytest.mark.slow
def test_programs_for_a_gpu_decide_as_the_engine(name, on_host):
    folder = on_host[name]
    said = run(folder, "--data", str(store_of(folder)))
    assert_alike(said, of_example(TEXTS[name], name, 12), name)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_layers_of_any_kind_train_as_by_hand(is_weighted):
    """PyTorch runs the same modules; the weights of edges go to GCN alone."""
    graph, text = make_graph(train=30, weighted=is_weighted), TEXTS["mixed"].replace("0.4", "0.0")
    synthesis = of_example(text, "mixed", epochs=8)
    assert [type(conv).__name__ for conv in synthesis.model.convs] == ["GCNConv", "GATConv", "SAGEConv"]
    by_hand = copy.deepcopy(synthesis.model).double()
    optimizer, nodes = torch.optim.SGD(by_hand.parameters(), lr=0.05, momentum=0.9), graph.split("train")
    edges = torch.stack([graph.csc.indices.long(), graph.csc.destinations().long()])
    weight = None if graph.csc.weight is None else graph.csc.weight.double()
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = F.cross_entropy(by_hand(graph.x.double(), edges, weight)[nodes], graph.y[nodes])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert train(synthesis, graph).losses == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize("kind", ["GCN", "SAGE", "GIN", "GAT", "GATv2"])
@pytest.mark.parametrize("normalization", ["batch", "layer"])
def test_hidden_layers_that_are_alike_make_a_model_of_their_kind(kind, normalization):
    behind = f'if (l < layers - 1) {{ gnn.normalization(l, "{normalization}"); }}'
    model = of_example(program(kind, after_layer=behind)).model
    assert type(model).__name__ == {"SAGE": "GraphSAGE"}.get(kind, kind)
    assert type(model.norms[0]).__name__ == {"batch": "BatchNorm1d", "layer": "LayerNorm"}[normalization]


@pytest.mark.slow
def test_weights_of_edges_reach_the_layers_that_take_them(programs):
    folder, text = programs["weighted"], TEXTS["mixed"]
    losses = losses_of(run(folder, "--data", str(store_of(folder))))
    assert losses == pytest.approx(train(of_example(text, "mixed"), WEIGHTED).losses, rel=1e-5)
    assert losses != pytest.approx(train(of_example(text, "mixed"), GRAPH).losses, rel=1e-2)


def test_a_loop_of_many_epochs_is_no_endless_one():
    assert of_example(program(), epochs=100_000).recipe.epochs == 100_000


def test_a_schedule_sets_the_rate_of_each_epoch():
    halved = of_example(program(optimizer='"sgd", 0.4 / (epoch + 1)'), epochs=3)
    by_hand = of_example(program(optimizer='"sgd", 0.4'), epochs=1)
    losses = []
    for rate in (0.4, 0.2, 0.4 / 3):
        recipe = Recipe(name="one", optimizer=OptimizerRecipe(kind="sgd", learning_rate=rate), epochs=1)
        losses += train(from_model(by_hand.model, recipe), GRAPH).losses
    assert train(halved, GRAPH).losses == tuple(losses)


@pytest.mark.parametrize("name", LABELLED)
def test_losses_of_numbers_are_pytorchs(name):
    graph, text = LABELLED[name], TEXTS[name].replace("0.2", "0.0")
    synthesis = of_example(text, epochs=8)
    by_hand = copy.deepcopy(synthesis.model).double()
    loss_of = F.mse_loss if name == "regression" else F.binary_cross_entropy_with_logits
    kind = torch.optim.AdamW if name == "regression" else torch.optim.Adam
    optimizer, nodes, losses = kind(by_hand.parameters(), lr=0.01), graph.split("train"), []
    for _ in range(8):
        optimizer.zero_grad()
        loss = loss_of(by_hand(graph.x.double(), graph.csc)[nodes], graph.y[nodes].double())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    trained = train(synthesis, graph)
    assert trained.losses == pytest.approx(losses, rel=1e-4)
    out, val = by_hand.eval()(graph.x.double(), graph.csc), graph.split("val")
    right = (out > 0) == (graph.y > 0.5) if name == "labels" else (out - graph.y).square()
    assert trained.accuracies[-1]["val"] == pytest.approx(right[val].double().mean().item(), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "y", "message"),
    [
        ("labels", GRAPH.y, "binary cross entropy needs labels of floats; the graph's are torch.int64"),
        ("labels", 2 * LABELLED["labels"].y, "binary cross entropy needs labels that are 0 to 1"),
        ("regression", LABELLED["regression"].y / 0, "mean squared needs labels that are finite"),
        ("regression", LABELLED["regression"].y[:, :2], "layer has 5 columns; the graph has 2 targets"),
        ("schedule", LABELLED["labels"].y, "training needs one class per node.*gnn.minimize"),
    ],
)
def test_labels_that_do_not_fit_a_loss_are_refused(name, y, message):
    with pytest.raises(DataError, match=message):
        train(of_example(TEXTS[name]), GRAPH.replace(y=y.contiguous()))


def test_a_recipe_of_python_says_when_which_splits_are_evaluated():
    adam = OptimizerRecipe(kind="adam", learning_rate=0.01)
    recipe = Recipe(name="some", optimizer=adam, epochs=7, evaluated=("val", "test"), evaluate_every=3)
    found = train(from_model(of_example(program()).model, recipe), GRAPH).accuracies
    assert [tuple(of_epoch) for of_epoch in found] == [(), (), ("val", "test"), (), (), ("val", "test"), ()]
    with pytest.raises(ConfigError, match="evaluate_every"):
        replace(recipe, evaluate_every=0)


def test_a_loss_that_is_not_finite_ends_training_here_too():
    with pytest.raises(ConfigError, match=r"program:7:7: the loss of epoch 1 is nan: .* rate is too large"):
        train(of_example(program(optimizer='"sgd", 1e30')), GRAPH)


@pytest.mark.slow
def test_a_program_refuses_what_goes_wrong_while_it_trains(programs, monkeypatch):
    monkeypatch.setattr("graphbraid.synth.running.MOST_ROUNDS", 1000)  # those in C++ are quick
    for name, (text, message) in WRONG.items():
        folder = programs[name]
        assert f"train: {message}" in run(folder, "--data", str(store_of(folder)), code=1)
        with pytest.raises(ProgramError) as raised:
            train(of_example(text), GRAPH)
        at, said = re.fullmatch(r"line (\d+): (.*)", message).groups()
        assert raised.value.place.line == int(at)
        assert said.startswith(raised.value.message[:20])
    folder = programs["three epochs"]
    data = ("--data", str(store_of(folder)))
    assert len(losses_of(run(folder, *data))) == 3
    assert "--epochs sets totalEpoch" in run(folder, *data, "--epochs", "5", code=2)

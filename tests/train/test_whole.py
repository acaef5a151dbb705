"""Mode ``full`` compiles what it can and says what it cannot; ``auto`` chooses by memory and says why."""

import pytest
import torch
from tests.extras import NO_PYG
from tests.fullgraph.graphs import CHANNELS, CLASSES, make_graph, unlowerable
from tests.modules import module_of
from tests.train.recorded import losses as losses_of_steps
from tests.train.test_typed_trainer import OPTIONS, rgcn, with_venue_features
from tests.train.typed_communities import bibliography
from torch import nn

from graphbraid import Trainer
from graphbraid import nn as gnn
from graphbraid.errors import ConfigError, ResourceError, TrainingError
from graphbraid.fullgraph.device import HOST
from graphbraid.train import runtime


def losses(trainer):
    trainer.fit()
    return [row["train_loss"] for row in trainer.progress.history]


def make(graph=None, **options):
    torch.manual_seed(0)
    options = {"mode": "full", "epochs": 8, "lr": 0.01, "eval_every": 0} | options
    return Trainer(gnn.GCN(CHANNELS, 16, CLASSES, 2, dropout=0.4), graph or make_graph(), **options)


def of_several_labels():
    labels = (torch.arange(80)[:, None] % 7 < torch.arange(5)).float()
    trainer = make(make_graph(train=40).replace(y=labels))
    assert trainer.task.name == "multi-label"
    return trainer


def of_edge_weights():
    pyg = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)

    def forward(self, x, edge_index, edge_weight=None):
        return self.second(self.first(x, edge_index, edge_weight).relu(), edge_index, edge_weight)

    torch.manual_seed(0)
    weighted = module_of(forward, first=pyg.GCNConv(CHANNELS, 16), second=pyg.GCNConv(16, CLASSES))
    return Trainer(weighted, make_graph(weighted=True), mode="full", epochs=8, eval_every=0)


COMPILED = {
    "labels of one class": make,
    "several labels": of_several_labels,
    "edge weights": of_edge_weights,
    "clip": lambda: make(clip=0.5),
    "class weights": lambda: make(class_weights="balanced"),
    "accumulate": lambda: make(accumulate=2),
}


@pytest.mark.parametrize("what", COMPILED)
def test_compiled_training_has_the_losses_of_the_model_itself(what, monkeypatch):
    compiled = COMPILED[what]()
    first = losses(compiled)
    assert compiled.runner.engine is not None, compiled.uncompiled_reason
    assert compiled.uncompiled_reason == ""
    monkeypatch.setattr("graphbraid.train.step.whole.compile_for", lambda *_: (None, "switched off"))
    plain = COMPILED[what]()
    assert losses(plain) == pytest.approx(first, rel=1e-5)
    assert plain.uncompiled_reason == "switched off"
    assert plain.evaluate("test") == pytest.approx(compiled.evaluate("test"), rel=1e-4)


@pytest.mark.parametrize(("spare", "spare_bytes"), [(None, None), (0, 0), ("1MiB", 1 << 20)])
def test_spare_memory_is_what_the_program_may_take_to_save_time(spare, spare_bytes):
    trainer = make(spare=spare, epochs=1)
    trainer.fit()
    assert trainer.runner.engine.runner.lowered.options.spare_bytes == spare_bytes


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (unlowerable, {}, "norms.0: no operation stands for Sine"),
        (lambda: gnn.GCN(CHANNELS, 8, CLASSES, 2), {"precision": "bfloat16"}, "bfloat16"),
    ],
)
def test_what_is_not_compiled_trains_and_says_why(model, options, reason):
    trainer = Trainer(model(), make_graph(), mode="full", epochs=2, eval_every=0, **options)
    trainer.fit()
    assert trainer.runner.engine is None
    assert reason in trainer.uncompiled_reason


def test_a_lazily_built_model_is_compiled_after_its_first_run():
    pyg = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)
    trainer = Trainer(pyg.GCNConv(-1, CLASSES), make_graph(), mode="full", epochs=2, eval_every=0)
    trainer.fit()
    assert trainer.runner.engine is not None


@pytest.mark.parametrize(
    ("free", "mode", "words"), [(1 << 30, "full", "within"), (1000, "sampled", "more than")]
)
def test_auto_chooses_by_the_free_memory(monkeypatch, free, mode, words):
    monkeypatch.setattr("graphbraid.fullgraph.device.free_memory_bytes", lambda: free)
    trainer = make(mode="auto")
    assert trainer.config.mode == mode
    assert words in trainer.mode_reason


def test_auto_refuses_where_neither_way_fits(monkeypatch):
    for module in ("fullgraph.device", "train.run.setup"):
        monkeypatch.setattr(f"graphbraid.{module}.free_memory_bytes", lambda: 1000)
    trainer = make(mode="auto")
    with pytest.raises(ResourceError, match=r"neither way to train fits .* more than half of the 1000 B"):
        trainer.fit()
    with pytest.raises(ResourceError, match=r"training on mini-batches needs .* where 1000 B are free"):
        make(mode="sampled").fit()  # the system would kill the process in the middle of it


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_the_device_of_a_configuration_is_the_engine_s():
    assert runtime.device_named("auto") is runtime.device_named("cpu") is HOST
    with pytest.raises(ConfigError, match="'cuda:1' is not here"):
        runtime.device_named("cuda:1")


def test_auto_samples_what_cannot_be_lowered():
    trainer = Trainer(unlowerable(), make_graph(), mode="auto")
    assert trainer.config.mode == "sampled"
    assert "no operation stands for Sine" in trainer.mode_reason


def test_a_loss_that_is_not_finite_names_layer_and_node():
    graph = make_graph(train=60)
    graph.x[5] = torch.inf
    torch.manual_seed(0)
    trainer = Trainer(gnn.GCN(CHANNELS, 16, CLASSES, 2), graph, mode="full", epochs=2, eval_every=0)
    with pytest.raises(TrainingError, match=r"epoch 0, step 0.*layer 1 .* at node \d+"):
        trainer.fit()


# ---- graphs with types


@pytest.mark.slow
def test_rgcn_learns_on_the_whole_graph_by_the_engine():
    graph = bibliography()
    trainer = Trainer(rgcn(graph), graph, **OPTIONS | {"mode": "full", "epochs": 40})
    result = trainer.fit()
    assert trainer.uncompiled_reason == ""
    assert trainer.runner.engine is not None
    assert result.test["accuracy"] > 0.75  # a third by chance
    outputs = trainer.predict()
    model = trainer.model.eval()
    x = {name: graph.nodes_of(name).x for name in ("author", "paper")}
    with torch.no_grad():
        expected = model(x, {one: graph.relation(one) for one in graph.edge_types})
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_whole_graph_run_resumes_to_the_same_losses(tmp_path):
    graph = bibliography()
    options = OPTIONS | {"mode": "full", "patience": None}
    whole = losses_of_steps(Trainer(rgcn(graph), graph, **options | {"epochs": 4}))
    first = Trainer(rgcn(graph), graph, **options | {"epochs": 2, "out_dir": tmp_path / "run"})
    begun = losses_of_steps(first)
    more = Trainer(rgcn(graph), graph, **options | {"epochs": 4, "out_dir": tmp_path / "run", "resume": True})
    assert begun + losses_of_steps(more) == whole


def test_a_model_of_ones_own_trains_on_the_whole_graph_as_it_is_written():
    graph = with_venue_features(bibliography())
    model = module_of(
        lambda self, x_dict, edge_index_dict: {"paper": self.paper(x_dict["paper"])}, paper=nn.Linear(12, 3)
    )
    trainer = Trainer(model, graph, **OPTIONS | {"mode": "full"})
    assert trainer.fit().status == "finished"
    assert "its outputs of 'paper' read no edges" in trainer.uncompiled_reason

"""Copies by to_pyg() are exported and explained; compiled models give PyG's explanations, masks included."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.beside_pyg import Data
from torch import Tensor
from torch_geometric import backend
from torch_geometric.explain import AttentionExplainer, Explainer, GNNExplainer, PGExplainer
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks

import graphbraid
from graphbraid import nn

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*:DeprecationWarning",
    "ignore:.*:FutureWarning",
    "ignore:Converting a tensor with requires_grad:UserWarning",  # PGExplainer's own
    "ignore::graphbraid.errors.RunsAsWrittenWarning",  # while a model's layers are masked
)
MODELS = ("gcn", "sage", "gin", "gat", "gatv2")
MANY = torch.export.Dim.DYNAMIC


def given(num_nodes: int, num_edges: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(num_nodes)
    edges = torch.randint(num_nodes, (2, num_edges), generator=draw)
    return torch.randn(num_nodes, 6, generator=draw), edges.unique(dim=1) if num_edges else edges


def copy_of(name: str) -> Any:
    torch.manual_seed(0)
    model = nn.MODELS[name](6, 16, 3, 2, norm="batch", dropout=0.5, input_dropout=0.2)
    return model.to_pyg().eval()


def in_onnxruntime(program: Any, path: Path, *sets: Any) -> list[Tensor]:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime, of the extra `onnx`")
    pytest.importorskip("onnxscript", reason="needs onnxscript, of the extra `onnx`")
    torch.onnx.export(program, dynamo=True, verbose=False).save(path)
    session = onnxruntime.InferenceSession(path)
    names = [one.name for one in session.get_inputs()]
    leaves = (torch.utils._pytree.tree_leaves(one) for one in sets)
    runs = (dict(zip(names, (leaf.numpy() for leaf in one), strict=True)) for one in leaves)
    return [torch.from_numpy(session.run(None, one)[0]) for one in runs]


@pytest.mark.parametrize("name", MODELS)
def test_a_copy_is_exported_for_any_number_of_nodes_and_edges(name):
    model = copy_of(name)
    program = torch.export.export(model, given(40, 200), dynamic_shapes=({0: MANY}, {1: MANY}))
    for other in (given(23, 70), given(2, 0), given(90, 900)):
        torch.testing.assert_close(program.module()(*other), model(*other), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_copy_runs_in_onnxruntime(name, tmp_path):
    model = copy_of(name)
    program = torch.export.export(model, given(40, 200), dynamic_shapes=({0: MANY}, {1: MANY}))
    others = given(23, 70), given(2, 0)
    found = in_onnxruntime(program, tmp_path / "model.onnx", *others)
    for rows, other in zip(found, others, strict=True):
        torch.testing.assert_close(rows, model(*other).detach(), rtol=1e-4, atol=1e-5)


def typed(num_nodes: int) -> tuple[dict[str, Tensor], dict[tuple[str, str, str], Tensor]]:
    draw = torch.Generator().manual_seed(num_nodes)
    x = {
        "user": torch.randn(num_nodes, 4, generator=draw),
        "item": torch.randn(num_nodes + 3, 5, generator=draw),
    }
    edges = torch.randint(num_nodes, (2, 3 * num_nodes), generator=draw)
    return x, {("user", "buys", "item"): edges, ("item", "like", "item"): edges + 2}


@pytest.mark.slow
def test_a_copy_of_a_typed_model_is_exported(tmp_path, monkeypatch):
    monkeypatch.setattr(
        backend, "use_segment_matmul", False
    )  # else PyG's layer looks at the relations' sizes
    x, edges = typed(20)
    model = nn.RGCN({"user": 4, "item": 5}, 8, 3, list(edges), node_type="item").to_pyg().eval()
    shapes = {one: {0: MANY} for one in x}, {one: {1: MANY} for one in edges}
    program = torch.export.export(model, (x, edges), dynamic_shapes=shapes)
    other = typed(11)
    torch.testing.assert_close(program.module()(*other), model(*other), rtol=1e-5, atol=1e-6)
    (rows,) = in_onnxruntime(program, tmp_path / "model.onnx", other)
    torch.testing.assert_close(rows, model(*other).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_models_own_layers_are_exported_for_torch_and_refused_for_onnx(tmp_path):
    model = nn.GCN(6, 16, 3, 2).eval()
    program = torch.export.export(model, given(40, 200), dynamic_shapes=({0: MANY}, {1: MANY}))
    torch.testing.assert_close(program.module()(*given(23, 70)), model(*given(23, 70)))
    with pytest.raises(Exception, match="csc_of_edges"):
        in_onnxruntime(program, tmp_path / "model.onnx", given(23, 70))


@pytest.mark.parametrize("name", MODELS)
def test_edge_masks_change_the_messages_of_compiled_models_as_of_pyg_s(name, monkeypatch):
    programs = "graphbraid.fullgraph.batches.fusing.BatchProgram.takes_longer"
    monkeypatch.setattr(programs, lambda *_, **__: False)  # also on so few edges
    model, (x, edges) = copy_of(name), given(40, 200)
    batches = graphbraid.compile(model)
    engine = graphbraid.compile(model, Data(x=x, edge_index=edges), nodes=range(40))
    before = model(x, edges)
    for made in (batches(x, edges), engine()):
        torch.testing.assert_close(made, before, rtol=1e-4, atol=1e-5)
    mask = torch.nn.Parameter(torch.randn(edges.shape[1]))
    set_masks(model, mask, edges, apply_sigmoid=True)
    masked = model(x, edges)
    assert not torch.allclose(masked, before)
    (wanted,) = torch.autograd.grad(masked.square().sum(), mask)
    for made in (batches(x, edges), engine()):
        torch.testing.assert_close(made, masked, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(torch.autograd.grad(made.square().sum(), mask)[0], wanted)
    clear_masks(model)
    for made in (batches(x, edges), engine()):
        torch.testing.assert_close(made, before, rtol=1e-4, atol=1e-5)
    assert batches.why is None, "it is compiled again"


def explained(model: torch.nn.Module, make: Any, **options: Any) -> Any:
    x, edges = given(40, 200)
    torch.manual_seed(1)
    algorithm = make()
    config = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    explainer = Explainer(model, algorithm, model_config=config, edge_mask_type="object", **options)
    target = torch.zeros(40, dtype=torch.long) if options["explanation_type"] == "phenomenon" else None
    if isinstance(algorithm, PGExplainer):
        for epoch in range(3):
            algorithm.train(epoch, model, x, edges, target=target, index=5)
    return explainer(x, edges, index=5, target=target)


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_compiled_models_give_pyg_s_explanations(name):
    torch.manual_seed(0)
    own = nn.MODELS[name](6, 16, 3, 2, dropout=0.0)
    model = own.to_pyg().eval()
    ways: list[tuple[Any, dict[str, str]]] = [
        (lambda: GNNExplainer(epochs=8), {"node_mask_type": "attributes", "explanation_type": "model"}),
        (lambda: PGExplainer(epochs=3), {"explanation_type": "phenomenon"}),
    ]
    ways += [(AttentionExplainer, {"explanation_type": "model"})] * (name == "gat")
    for algorithm, options in ways:
        wanted = explained(model, algorithm, **options)
        found = explained(graphbraid.compile(model), algorithm, **options)
        torch.testing.assert_close(found.edge_mask, wanted.edge_mask, rtol=1e-4, atol=1e-5)
        if "node_mask_type" in options:
            torch.testing.assert_close(found.node_mask, wanted.node_mask, rtol=1e-4, atol=1e-5)
        with pytest.raises((ValueError, IndexError, UserWarning)):  # there are no layers of PyG's to mask
            explained(own, algorithm, **options)

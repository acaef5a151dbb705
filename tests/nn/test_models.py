"""Models: blocks against the whole graph, options, sparse input, names."""

import copy

import pytest
import torch
from tests.nn.cases import blocks
from tests.ops.graphs import square, values

from graphbraid.errors import ConfigError
from graphbraid.graph.csc import Csc
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.nn import MODELS, make_model, model_options

NAMES = list(MODELS)


def small(name, **options):
    defaults = {"hidden_channels": 8, "num_layers": 2}
    if name in ("gat", "gatv2"):
        defaults["heads"] = 2
    torch.manual_seed(0)
    return make_model(name, 5, 3, **(defaults | options))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_model_runs_on_the_whole_graph_and_on_blocks(name, num_layers):
    model = small(name, num_layers=num_layers)
    assert model.takes_blocks
    assert model(values(50, 5), square()).shape == (50, 3)
    layers = blocks(num_layers)
    out = model(values(layers[0].num_src, 5), layers)
    assert out.shape == (layers[-1].num_dst, 3)
    out.sum().backward()
    if name != "mlp":
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def full_neighbour_blocks(csc, seeds, num_layers):
    """Blocks of all in-neighbours, under the graph's own ids; the last has the first ``seeds`` nodes."""
    return [
        Csc(csc.indptr[: n + 1], csc.indices[: int(csc.indptr[n])], csc.num_src)
        for n in [csc.num_dst] * (num_layers - 1) + [seeds]
    ]


@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_all_neighbours_give_the_whole_graphs_rows(name):
    csc, x = square(), values(50, 5)
    model = small(name).eval()
    layers = full_neighbour_blocks(csc, 20, 2)
    if name == "gcn":  # a block knows its own degrees only, unless it carries the graph's
        loops = csc.indices == csc.destinations()
        layers[1].src_degree = (
            csc.degrees() - torch.bincount(csc.indices[loops].long(), minlength=50)
        ).float()
    torch.testing.assert_close(model(x, layers), model(x, csc)[:20], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_layer_by_layer_equals_the_whole_forward(name):
    csc, x = square(), values(50, 5)
    model = small(name, norm="layer").eval()
    rows = x
    for i in range(model.num_layers):
        rows = model.forward_layer(i, rows, csc)
    assert torch.equal(rows, model(x, csc))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{"norm": "batch"}, {"norm": "layer"}, {"act": "elu"}, {"act": "gelu"}])
def test_options_of_all_models_train(name, options):
    model, csc, x = small(name, dropout=0.0, **options), square(), values(50, 5)
    y = torch.arange(50) % 3
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x, csc), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_sparse_input_equals_dense_input(name):
    csc = square()
    dense = values(50, 5) * (values(50, 5, seed=2) > 0.5)
    model = small(name).eval()
    sparse = SparseFeatures.from_dense(dense)
    torch.testing.assert_close(model(sparse, csc), model(dense, csc), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_dropout_acts_in_training_only_and_follows_the_seed(name):
    csc, dense = square(), values(50, 5)
    for x in (dense, SparseFeatures.from_dense(dense)):
        model = small(name, dropout=0.5, input_dropout=0.5)
        torch.manual_seed(3)
        first = model(x, csc)
        torch.manual_seed(3)
        assert torch.equal(model(x, csc), first)
        assert not torch.equal(model(x, csc), first)
        model.eval()
        assert torch.equal(model(x, csc), model(x, csc))


@pytest.mark.parametrize("name", NAMES)
def test_models_can_be_copied_saved_and_reset(name):
    csc, x = square(), values(50, 5)
    model = small(name, norm="batch").eval()
    twin = copy.deepcopy(model)
    twin.reset_parameters()
    assert not torch.equal(twin(x, csc), model(x, csc))
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(x, csc), model(x, csc))


@pytest.mark.parametrize("name", NAMES)
def test_autocast_trains_in_bfloat16(name):
    csc, x = square(), values(50, 5)
    model = small(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x, csc)
        loss = torch.nn.functional.cross_entropy(out.float(), torch.arange(50) % 3)
    loss.backward()
    assert all(
        p.grad is None or (p.grad.dtype == torch.float32 and p.grad.isfinite().all())
        for p in model.parameters()
    )


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_features_train_a_float32_model(name):
    model = small(name)
    out = model(values(50, 5, dtype=torch.bfloat16), square())
    assert out.dtype == torch.float32
    out.sum().backward()


@pytest.mark.parametrize("name", NAMES)
def test_every_option_of_a_model_is_taken(name):
    rows = {
        "dropout": 0.1,
        "input_dropout": 0.1,
        "act": "elu",
        "norm": "layer",
        "num_layers": 3,
        "hidden_channels": 16,
    }
    layer = {
        "aggr": "max", "heads": 4, "out_heads": 2, "attention_dropout": 0.1, "negative_slope": 0.1,
        "eps": 0.5, "train_eps": True, "improved": True, "add_self_loops": False, "normalize": True,
        "root_weight": False, "project": True, "bias": False, "residual": True,
        "share_weights": True, "row_dropout": 0.1,
    }  # fmt: skip
    options = {option: (rows | layer)[option] for option in model_options(name)}
    assert make_model(name, 5, 3, **options)(values(50, 5), square()).shape == (50, 3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sag", {}, "no model is called 'sag'; choose one of .*Did you mean 'sage'"),
        ("xyz", {}, "no model is called 'xyz'"),
        ("sage", {"drpout": 0.1}, "no option 'drpout'. Did you mean 'dropout'"),
        ("sage", {"dropout": 1.0}, r"dropout must be a number in \[0, 1\); got 1.0"),
        ("sage", {"num_layers": 0}, r"num_layers must be a whole number in \[1, 4096\]; got 0"),
        ("sage", {"hidden_channels": 2.5}, "hidden_channels must be a whole number"),
        ("sage", {"act": "tanh"}, "act must be one of .* got 'tanh'"),
        ("sage", {"norm": "instance"}, "norm must be one of .* got 'instance'"),
        ("gat", {"attention_dropout": -1}, "attention_dropout must be a number in"),
    ],
)
def test_wrong_names_and_options_are_named(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make_model(name, 5, 3, **options)

"""What notebooks show of objects: true counts, well-formed HTML, hostile names escaped, nothing computed."""

import pickle
import re

import pytest
import torch
from tests.figures.pages import check_html
from torch.utils._python_dispatch import TorchDispatchMode

import graphbraid
from graphbraid import Graph, NeighborLoader, Trainer, nn
from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.plan.times import Duration, StageTimes
from graphbraid.graph import ScaledFeatures, SparseFeatures
from graphbraid.loader import BatchLoader, LoaderSettings

EVIL = "<script>alert('&')</script><b1>"


@pytest.fixture(scope="module")
def graph():
    return graphbraid.datasets.load("braid-10k")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.SAGEConv(32, 4)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index).relu()


Net.__name__ = EVIL


def html(value):
    """What a notebook shows, checked, without its style."""
    text = value._repr_html_()
    check_html(text)
    assert EVIL not in text
    style = re.search("<style>(.*?)</style>", text, re.DOTALL)[1]
    assert style.startswith(".graphbraid{"), "the rest of the notebook keeps its style"
    assert style.endswith("}")
    return text.replace(f"<style>{style}</style>", "")


def rows(text):
    """Cells of each row of all tables."""
    return [re.findall("<t[dh]>(.*?)</t[dh]>", row) for row in re.findall("<tr>(.*?)</tr>", text)]


def typed_graph():
    return Graph.from_relations(
        {("user", EVIL, "item"): torch.tensor([[0, 1, 2], [0, 0, 1]])},
        num_nodes={"user": 3, "item": 2},
        x={"user": torch.zeros(3, 4, dtype=torch.float16)},
        y={"item": torch.tensor([0, 4])},
        splits={"item": {"train": torch.tensor([0])}},
        name=EVIL,
    )


def test_a_graph_shows_counts_by_type(graph):
    found = rows(html(graph))
    assert found[1][:5] == ["node", "1,000", "32 float32", "4 classes", "196 train, 103 val, 701 test"]
    assert found[3][:3] == ["node to node", f"{graph.num_edges:,}", ""]
    found = rows(html(typed_graph()))
    assert ["user", "3", "4 float16"] in [row[:3] for row in found]
    assert ["item", "2", "", "5 classes", "1 train"] in [row[:5] for row in found]
    assert found[-1][1] == "3"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"x": SparseFeatures.from_dense(torch.eye(1000))}, "1,000 sparse float32"),
        ({"x": ScaledFeatures.from_dense(torch.eye(1000))}, "1,000 int8"),
        ({"y": torch.zeros(1000, 3)}, "3 float32"),
        ({"y": torch.zeros(1000)}, "1 float32"),
        ({"x": None, "y": None, "splits": {}}, "1,000"),
    ],
)
def test_every_kind_of_features_and_labels_is_told(graph, fields, told):
    assert told in rows(html(graph.replace(**fields)))[1]


def test_a_graph_without_nodes_is_shown():
    empty = Graph.from_edge_index(
        torch.zeros(2, 0, dtype=torch.int64), 0, y=torch.zeros(0, dtype=torch.int64)
    )
    assert rows(html(empty))[1][:4] == ["node", "0", "", "0 classes"]


def test_no_pass_over_edges_is_made(graph):
    class NoEdges(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert all(a.numel() < graph.num_edges for a in args if isinstance(a, torch.Tensor)), func
            return func(*args, **(kwargs or {}))

    attributes = {"edge_attr": torch.ones(graph.num_edges, 2)}
    graph = graph.replace(**attributes)
    with NoEdges():
        assert "2 float32" in html(graph)


def test_a_batch_shows_hops_and_computes_nothing(graph):
    batch = next(iter(NeighborLoader(graph, [4, 3], "train", batch_size=32)))
    found = rows(html(batch))
    drawn = batch.sampled
    assert found[0] == ["nodes, edges", "drawn", "seeds", "hop 1", "hop 2"]
    assert found[1] == ["node", *(f"{n:,}" for n in (drawn.num_nodes, *batch.num_sampled_nodes))]
    assert found[2] == ["node to node", f"{drawn.num_edges:,}", "", *map(str, batch.num_sampled_edges)]
    assert "edge_index" not in [row[0] for row in found]
    batch.y = torch.zeros(7, dtype=torch.int16)
    assert ["y", "(7,)", "torch.int16", "cpu"] in rows(html(batch)), "what the user set is shown"
    assert "epoch 0, step 0, batch size 32" in html(drawn)


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
def test_a_batch_with_types_is_shown(layout):
    settings = LoaderSettings(num_neighbors=[2, 2], input_nodes=("item", None), batch_size=2, layout=layout)
    batch = next(BatchLoader(typed_graph(), settings).batches(0))
    found = rows(html(batch))
    assert ["item", "2", "2", "0", "0"] in found
    assert ["user x", "(3, 4)", "torch.float16", "cpu"] in found
    batch.y_dict  # noqa: B018  (a dict of tensors is computed, and shown type by type)
    html(batch)
    html(pickle.loads(pickle.dumps(batch)))


def test_edges_that_join_any_nodes_have_no_hops(graph):
    loader = NeighborLoader(graph, [4, 3], "train", batch_size=32, subgraph_type="induced")
    batch = next(iter(loader))
    assert rows(html(batch))[0] == ["nodes, edges", "drawn"]


def test_a_run_shows_its_result_and_curves(graph):
    result = Trainer(nn.GCN(32, 4, 4), graph, epochs=3).fit()
    text = html(result)
    assert ["status", "finished"] in rows(text)
    assert f"<td>test accuracy</td><td>{result.test['accuracy']:.4g}</td>" in text
    assert text.count("<svg") >= 2
    result.test[EVIL] = float("nan")
    result.history[0][f"val_{EVIL}"] = 0.5
    result.history[1]["train_loss"] = float("inf")
    html(result)


def test_engines_plans_and_estimates_show_their_text(graph):
    model = Net()
    assert "Program\n" in html(graphbraid.compile(model, graph))
    with pytest.warns(UserWarning, match="the whole model runs"):
        as_written = graphbraid.compile(type(EVIL, (nn.GCN,), {})(32, 4, 4), graph)
    assert "runs as written" in html(as_written)
    engine = graphbraid.compile(model)
    assert "Nothing has run yet" in html(engine)
    engine(next(iter(NeighborLoader(graph, [4, 3], "train", batch_size=32))))
    assert "aggregate" in html(engine)
    times = StageTimes(
        cpu=Duration(seconds=1e-3), dma=Duration(seconds=0), model=Duration(seconds=2e-3), workers=2
    )
    plan = Plan(
        num_batches=9,
        num_cpu=9,
        cbs=2,
        gbs=2,
        times=times,
        predicted_seconds=1,
        bound_seconds=1,
        limit="device",
    )
    assert "9 batches on the CPU" in html(plan)
    assert "mode sampled: fits" in html(graphbraid.estimate(model, graph))

"""Reports of runs: numbers are scikit-learn's and PyG's, pages ask nothing of the net, runs are hostile."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, confusion_matrix, roc_auc_score
from torch_geometric.utils import homophily as pyg_homophily
from typer.testing import CliRunner

import graphbraid
from graphbraid.cli.main import app
from graphbraid.errors import ConfigError, DataError
from graphbraid.files.checksums import sealed
from graphbraid.report import predictions
from graphbraid.report.charts import line_chart, thinned, ticks
from graphbraid.report.graph_section import homophily
from graphbraid.report.run_report import RunFiles, report

CHOSEN = ("--data", "braid-10k", "--epochs", "2", "--seed", "1", "--quiet")


def run(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


class Closed(HTMLParser):
    """Finds elements that are not closed, or closed in the wrong order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.wrong = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "rect", "path", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in ("rect", "path", "polyline"):
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def check_page(text):
    page = Closed(text)
    assert not page.wrong
    assert not page.open
    assert "http" not in text.replace("http-equiv", ""), "a page asks nothing of the net"
    assert len(text) < 300_000


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run("train", *CHOSEN, "--model", "gcn", "--mode", "full", "--out", folder / "gcn")
    run("train", *CHOSEN, "--hidden", "16", "--lr", "0.02", "--out", folder / "sage")
    return folder


def test_a_report_has_every_section(runs):
    run("report", runs / "sage")
    text = (runs / "sage" / "report.html").read_text()
    check_page(text)
    heads = re.findall("<h2>(.*?)</h2>", text)
    assert heads[:5] == [
        "Result",
        "Epochs",
        "Where the time went",
        "Predictions of the test split",
        "Graph",
    ]
    test = json.loads((runs / "sage" / "result.json").read_text())["test"]["accuracy"]
    assert f"<td>test accuracy</td><td>{test:.4g}</td>" in text
    assert "homophily" in text
    told = re.findall(r"taken for \d+: ([\d,]+),", text)
    graph = graphbraid.datasets.load("braid-10k")
    assert sum(int(n.replace(",", "")) for n in told) == graph.split("test").numel()


def test_the_command_trains_the_same_again(runs, tmp_path):
    run("report", runs / "sage", "--out", tmp_path / "page.html", "--without-predictions")
    text = (tmp_path / "page.html").read_text()
    assert "Predictions" not in text
    words = re.search("<pre>graphbraid (.*)</pre>", text)[1].split()
    run(*words, "--out", tmp_path / "again", "--quiet")
    first, again = (
        RunFiles.read(folder).line("train_loss") for folder in (runs / "sage", tmp_path / "again")
    )
    assert list(first) == list(again)


def test_runs_are_compared(runs, tmp_path):
    out = run("compare", runs / "gcn", runs / "sage", "--out", tmp_path / "both.html")
    assert "finished" in out
    text = (tmp_path / "both.html").read_text()
    check_page(text)
    options = text[text.index("Options that differ") :]
    assert re.search("<td>hidden_channels</td><td>128</td><td>16</td>", options)
    assert "<td>epochs</td>" not in options, "both have two"


def test_what_was_not_told_is_told_as_such(runs, tmp_path):
    files = RunFiles.read(runs / "gcn")
    nameless = RunFiles(path=tmp_path, settings={}, environment={}, result={}, epochs=[])
    text = report(nameless)
    check_page(text)
    assert "has not ended; 0 epochs so far" in text
    evil = "<script>alert(1)</script>"
    settings = files.settings | {"model": evil, "target": evil}
    named = RunFiles(tmp_path, settings, files.environment, files.result | {"status": evil}, files.epochs)
    assert evil not in report(named)


def test_a_run_of_python_or_without_its_data_says_so(tmp_path):
    graph = graphbraid.datasets.load("braid-10k")
    model = graphbraid.nn.GCN(graph.num_features, 8, graph.num_classes)
    graphbraid.Trainer(model, graph, epochs=1, out_dir=tmp_path / "python").fit()
    run("report", tmp_path / "python")
    assert "the run was not made by `graphbraid train`" in (tmp_path / "python" / "report.html").read_text()

    run("convert", "braid-10k", tmp_path / "store")
    run("train", "--data", tmp_path / "store", *CHOSEN[2:], "--out", tmp_path / "moved")
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    run("report", tmp_path / "moved")
    assert "is not there any more" in (tmp_path / "moved" / "report.html").read_text()


def test_folders_that_hold_no_run_are_refused(tmp_path, runs):
    with pytest.raises(ConfigError, match="holds no run"):
        RunFiles.read(tmp_path)
    for name in ("config.json", "result.json"):
        (tmp_path / name).write_bytes((runs / "gcn" / name).read_bytes())
    changed = json.loads((tmp_path / "result.json").read_text()) | {"seconds": 1.0}
    (tmp_path / "result.json").write_text(json.dumps(changed))
    with pytest.raises(DataError, match=r"result\.json"):
        RunFiles.read(tmp_path)
    (tmp_path / "result.json").write_text(json.dumps(sealed({"a": 1})))
    assert CliRunner().invoke(app, ["report", str(tmp_path / "nowhere")]).exit_code == 2


@given(st.integers(2, 6), st.integers(0, 2**32 - 1), st.booleans())
def test_scores_are_scikit_learns(classes, seed, rounded):
    numbers = np.random.default_rng(seed)
    labels = np.r_[np.arange(classes), numbers.integers(0, classes, 60)]
    scores = numbers.random((len(labels), classes))
    scores = scores.round(1) + 0.1 if rounded else scores  # many ties
    scores /= scores.sum(axis=1, keepdims=True)
    names = [f"class{c}" for c in range(classes)]
    page = predictions.of_classes(scores, labels, names)
    counts = confusion_matrix(labels, scores.argmax(axis=1), labels=range(classes))
    told = re.findall(r"(class\d) taken for (class\d): ([\d,]+),", page)
    assert [int(n) for _, _, n in told] == counts.reshape(-1).tolist()
    for name in names if classes <= 5 and classes > 2 else names[1:2] if classes == 2 else []:
        mine = labels == int(name[5:]), scores[:, int(name[5:])]
        assert f"{name}: average precision {average_precision_score(*mine):.3f}" in page
        assert f"{name}: area {roc_auc_score(*mine):.3f}" in page


def test_other_tasks_have_pictures():
    numbers = np.random.default_rng(0)
    labels = (numbers.random((50, 3)) < 0.3).astype(np.float32)
    assert predictions.of_labels(numbers.random((50, 3)), labels).count("<figure>") == 3
    targets = numbers.normal(size=(50, 2))
    assert predictions.of_targets(targets + 0.1, targets).count("<figure>") == 2
    one = np.ones((4, 2)) / 2
    assert "<figure>" in predictions.of_classes(one, np.zeros(4, np.int64), ["a", "b"]), "no node of class b"


@given(st.integers(2, 40), st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_homophily_is_pygs(nodes, edges, seed):
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(nodes, (2, edges), generator=generator)
    y = torch.randint(3, (nodes,), generator=generator)
    graph = graphbraid.Graph.from_edge_index(pairs, nodes, y=y)
    assert homophily(graph, y) == pytest.approx(float(pyg_homophily(pairs, y, method="edge")), abs=1e-6)


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
def test_ticks_cover_their_range(one, other):
    low, high = min(one, other), max(one, other)
    found = ticks(low, high)
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert 2 <= len(found) <= 8
    assert found == sorted(set(found))


def test_charts_leave_out_what_is_no_number():
    assert line_chart({"a": [(0.0, float("nan"))]}, x="x", y="y") == ""
    assert "polyline" in line_chart({"a": [(0.0, 1.0)]}, x="x", y="y")
    many = [(float(i), 1.0) for i in range(1000)]
    assert len(thinned(many)) == 200
    assert thinned(many)[-1] == many[-1]

"""Reports of runs: numbers are scikit-learn's and PyG's, pages ask nothing of the net, runs are hostile."""

import json
import re
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, confusion_matrix, roc_auc_score
from tests.figures.pages import check_html
from torch_geometric.utils import homophily as pyg_homophily
from typer.testing import CliRunner

import graphbraid
from graphbraid.cli.commands.report import _command as command
from graphbraid.cli.main import app
from graphbraid.collective import Duration, Profile, StageTimes, make_plan
from graphbraid.errors import ConfigError, DataError
from graphbraid.figures import line, line_chart, thinned, ticks
from graphbraid.files.checksums import sealed
from graphbraid.files.writing import format_bytes
from graphbraid.report import (
    RunFiles,
    differing_options,
    homophily,
    of_classes,
    of_labels,
    of_targets,
    plan_section,
    report,
)

CHOSEN = ("--data", "braid-10k", "--epochs", "2", "--seed", "1", "--quiet")


def run(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run("train", *CHOSEN, "--model", "gcn", "--mode", "full", "--out", folder / "gcn")
    run("train", *CHOSEN, "--hidden", "16", "--lr", "0.02", "--out", folder / "sage")
    return folder


def test_a_report_has_every_section(runs):
    run("report", runs / "sage")
    text = (runs / "sage" / "report.html").read_text()
    check_html(text)
    heads = re.findall("<h2>(.*?)</h2>", text)
    assert heads[:7] == [
        "Result",
        "Epochs",
        "Where the time went",
        "Memory",
        "Where feature rows and lists lay",
        "Predictions of the test split",
        "Graph",
    ]
    test = json.loads((runs / "sage" / "result.json").read_text())["test"]["accuracy"]
    assert f"<td>test accuracy</td><td>{test:.4g}</td>" in text
    assert "homophily" in text
    told = re.findall(r"taken for \d+: ([\d,]+),", text)
    graph = graphbraid.datasets.load("braid-10k")
    assert sum(int(n.replace(",", "")) for n in told) == graph.split("test").numel()


@pytest.fixture(scope="module")
def planned(runs):
    """A run by a plan, with rows on disk and a trace."""
    run("convert", "braid-10k", runs / "store")
    options = ["--plan", "auto", "--batch-size", "16", "--host", "330KiB", "--trace", runs / "trace.json"]
    run("train", "--data", runs / "store", *CHOSEN[2:], *options, "--out", runs / "planned")
    return runs / "planned"


@pytest.mark.slow
def test_a_report_tells_memory_tiers_and_plan(planned, runs):
    taken = json.loads((planned / "result.json").read_text())["resources"]
    run("report", planned, "--without-predictions")
    text = (planned / "report.html").read_text()
    check_html(text)
    peak = taken["host_peak_bytes"]
    assert peak > 100 << 20
    assert f"<td>peak of the process</td><td>{format_bytes(peak)}</td>" in text
    served = {name: taken["reads"][name] for name in ("host_rows", "disk_rows")}
    assert all(f">{count:,}</text>" in text for count in served.values())
    assert "330.0 KiB" in text
    batches = taken["plan"]["num_batches"]
    assert batches == 13
    drawn = text[text.index("<h3>Predicted") :].partition("</svg>")[0]
    assert drawn.count(">batching, batch ") == drawn.count(">model, batch ") == batches
    out = run("compare", planned, runs / "sage", "--out", runs / "planned.html")
    assert f"{served['disk_rows'] / sum(served.values()):.1%}" in out
    assert format_bytes(peak) in out
    check_html((runs / "planned.html").read_text())


def test_a_long_epoch_is_drawn_in_part(tmp_path):
    times = StageTimes(
        cpu=Duration(seconds=1e-3), dma=Duration(seconds=0), model=Duration(seconds=2e-3), workers=2
    )
    plan = asdict(make_plan(Profile(times=(times,)), 5000))
    result = {"resources": {"plan": plan}}
    page = plan_section(RunFiles(tmp_path, {}, {}, result, []))
    check_html(page)
    assert "The first 100 of 5,000 batches" in page
    assert len(page) < 100_000
    result["resources"]["plan"]["num_cpu"] = -1
    with pytest.raises((DataError, ConfigError), match="num_cpu"):
        plan_section(RunFiles(tmp_path, {}, {}, result, []))


def test_the_command_trains_the_same_again(runs, tmp_path):
    run("report", runs / "sage", "--out", tmp_path / "page.html", "--without-predictions")
    text = (tmp_path / "page.html").read_text()
    assert "Predictions" not in text
    words = re.search("<pre>graphbraid (.*)</pre>", text)[1].split()
    run(*words, "--out", tmp_path / "again", "--quiet")
    first, again = (
        line(RunFiles.read(folder).epochs, "train_loss") for folder in (runs / "sage", tmp_path / "again")
    )
    assert list(first) == list(again)


def test_runs_are_compared(runs, tmp_path):
    out = run("compare", runs / "gcn", runs / "sage", "--out", tmp_path / "both.html")
    assert "finished" in out
    text = (tmp_path / "both.html").read_text()
    check_html(text)
    options = text[text.index("Options that differ") :]
    assert re.search("<td>hidden_channels</td><td>128</td><td>16</td>", options)
    assert "<td>epochs</td>" not in options, "both have two"


def test_what_was_not_told_is_told_as_such(runs, tmp_path):
    files = RunFiles.read(runs / "gcn")
    nameless = RunFiles(path=tmp_path, settings={}, environment={}, result={}, epochs=[])
    text = report(nameless)
    check_html(text)
    assert "has not ended; 0 epochs so far" in text
    evil = "<script>alert(1)</script>"
    settings = files.settings | {"model": evil, "target": evil}
    named = RunFiles(tmp_path, settings, files.environment, files.result | {"status": evil}, files.epochs)
    text = report(named, command=["graphbraid", "train", "--data", evil])
    check_html(text)
    assert evil not in text


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
    page = of_classes(scores, labels, names)
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
    assert of_labels(numbers.random((50, 3)), labels).count("<figure>") == 3
    targets = numbers.normal(size=(50, 2))
    assert of_targets(targets + 0.1, targets).count("<figure>") == 2
    one = np.ones((4, 2)) / 2
    assert "<figure>" in of_classes(one, np.zeros(4, np.int64), ["a", "b"]), "no node of class b"


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
    assert line_chart({"a": [(0.0, float("nan")), (1.0, float("inf"))]}, x="x", y="y") == ""
    assert "polyline" in line_chart({"a": [(0.0, 1.0)]}, x="x", y="y")
    many = [(float(i), 1.0) for i in range(1000)]
    assert len(thinned(many)) == 200
    assert thinned(many)[-1] == many[-1]


def test_labels_and_targets_that_are_known_in_part_count_cell_by_cell():
    numbers = np.random.default_rng(0)
    labels = (numbers.random((80, 3)) < 0.4).astype(np.float32)
    scores, missing = numbers.random((80, 3)), numbers.random((80, 3)) < 0.6
    assert missing.any(axis=1).mean() > 0.8, "few rows are known throughout"
    page = of_labels(scores, np.where(missing, np.nan, labels))
    for c in range(3):
        known = ~missing[:, c]
        mine = labels[known, c], scores[known, c]
        assert f"label {c}: average precision {average_precision_score(*mine):.3f}" in page
        assert f"label {c}: area {roc_auc_score(*mine):.3f}" in page
    targets = np.where(missing, np.nan, labels)
    targets[:, 2] = np.nan
    assert of_targets(targets + 1, targets).count("<figure>") == 2


def test_the_share_of_errors_ends_at_one():
    page = of_targets(np.array([[1.0]]), np.array([[3.0]]))
    y = re.search(r'<polyline points="[\d.]+,([\d.]+)"', page)[1]
    at_one = [y for y, text in re.findall(r'y="([\d.]+)" text-anchor="end">([\d.]+)<', page) if text == "1"]
    assert float(at_one[0]) - 4 == float(y)


def test_a_kept_threshold_decides_the_confusion():
    scores = np.array([[0.7, 0.3], [0.4, 0.6], [0.9, 0.1]])
    page = of_classes(scores, np.array([1, 1, 0]), ["no", "yes"], threshold=0.25)
    assert "yes taken for yes: 2," in page
    assert "yes is predicted from a probability of 0.25 on" in page
    assert "yes taken for yes: 1," in of_classes(scores, np.array([1, 1, 0]), ["no", "yes"])


def test_the_line_of_perfect_calibration_is_where_both_axes_are_equal():
    page = line_chart({"right": [(0.3, 0.9), (0.4, 0.7)]}, x="x", y="y", diagonal=True)
    axes = re.findall(r'text-anchor="(end|middle)">([^<]*)<', page)
    for side in ("end", "middle"):
        shown = [float(text) for where, text in axes if where == side and text != "x"]
        assert (shown[0], shown[-1]) == (0, 1)


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), 1e308, float("nan")])
def test_numbers_without_a_place_on_paper_are_left_out(value):
    points = [(0.0, 1.0), (1.0, value), (2.0, -value), (3.0, 2.0)]
    assert line_chart({"a": points}, x="x", y="y").count("polyline") == 1


def test_damaged_metrics_are_refused_by_name(runs, tmp_path):
    for name in ("config.json", "metrics.csv"):
        (tmp_path / name).write_bytes((runs / "gcn" / name).read_bytes())
    whole = (tmp_path / "metrics.csv").read_bytes()
    for damaged in (whole + b"x,y\n", b"\xff\xfe\x00" + whole):
        (tmp_path / "metrics.csv").write_bytes(damaged)
        with pytest.raises(DataError, match=r"metrics\.csv is damaged"):
            RunFiles.read(tmp_path)
    (tmp_path / "metrics.csv").write_bytes(whole + b"3")
    assert len(RunFiles.read(tmp_path).epochs) == 3


@pytest.mark.parametrize("file", ["config.json", "metrics.csv", "checkpoints/best.pt"])
def test_a_page_replaces_no_file_of_a_run(runs, file):
    before = (runs / "gcn" / file).read_bytes()
    for words in (["report", runs / "gcn"], ["compare", runs / "gcn", runs / "sage"]):
        done = CliRunner().invoke(app, [*map(str, words), "--out", str(runs / "gcn" / file)])
        assert done.exit_code == 2
        assert "its name ends in .html" in done.output
    assert (runs / "gcn" / file).read_bytes() == before


def test_names_of_folders_are_text(runs, tmp_path):
    odd = tmp_path / "[red]a[/b] <i>"
    odd.mkdir(parents=True)
    for name in ("config.json", "metrics.csv"):
        (odd / name).write_bytes((runs / "gcn" / name).read_bytes())
    assert "[red]a[/b]" in run("compare", odd, runs / "sage", "--out", tmp_path / "page.html").replace(
        "\n", ""
    )
    check_html((tmp_path / "page.html").read_text())


def test_ranks_are_told(runs, tmp_path):
    files = RunFiles.read(runs / "sage")
    assert files.environment["ranks"] == 1
    two = RunFiles(tmp_path, files.settings, files.environment | {"ranks": 2}, files.result, files.epochs)
    assert command(two)[:4] == ["graphbraid", "train", "--ranks", "2"]
    assert "--ranks" not in command(files)
    assert differing_options([files, two]) == [["ranks", 1, 2]]

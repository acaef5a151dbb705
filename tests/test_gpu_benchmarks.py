"""The GPU benchmarks' logic, on the CPU at tiny sizes: contenders agree, and what is missing is said."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks.common.rows import read_lines
from benchmarks.gpu import batches as gpu_batches
from benchmarks.gpu import card as gpu_card
from benchmarks.gpu import collective as gpu_collective
from benchmarks.gpu import fullgraph as gpu_fullgraph
from benchmarks.gpu import kernels as gpu_kernels
from benchmarks.gpu import peers as gpu_peers
from benchmarks.gpu import pipeline as gpu_pipeline
from benchmarks.gpu import suite as gpu_suite
from benchmarks.gpu import tiers as gpu_tiers
from benchmarks.graphs import generated
from benchmarks.tables import gpu as gpu_table
from tests.extras import NO_PYG, PATIENCE

ROOT = Path(__file__).parents[1]
TABLES = ("kernels", "fullgraph", "batches", "collective", "tiers", "pipeline", "sampling")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch calls its CSR a beta, PyG has deprecations of its own
@pytest.mark.parametrize("with_pyg", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_table_s_contenders_have_one_loss(tmp_path, monkeypatch, capsys, with_pyg):
    if with_pyg:
        pytest.importorskip("torch_geometric", reason=NO_PYG)
    monkeypatch.setattr(gpu_peers, "has_pyg", lambda: with_pyg)
    out = tmp_path / "table.jsonl"
    graphs = ["dense"] if with_pyg else ["dense", "sparse"]
    arguments = ["--smoke", "--epochs", "1", "--repeats", "1", "--names", *graphs, "--out", str(out)]
    results = gpu_fullgraph.main(arguments)
    assert [row["problem"] for row in results["rows"]] == [""] * 4 * len(graphs)
    row, *_, last = read_lines(out)
    assert last["row"] == "goals"
    assert (last["goals"]["times as fast as PyG"]["got"] is None) != with_pyg
    peers = ({"pyg", "pyg-csr", "pyg-compiled"} if with_pyg else set()) | {"scatter", "torch.sparse"}
    assert {name for name, cell in row.items() if isinstance(cell, dict) and "loss" in cell} == {
        "graphbraid",
        *peers,
    }
    assert ("PyG is not installed" in capsys.readouterr().err) != with_pyg


def test_a_loss_that_differs_is_a_problem():
    row = {"graphbraid": {"loss": 1.0}, "pyg": {"loss": 1.001}, "scatter": {"failed": "out of memory"}}
    assert "1.0 and pyg's 1.001" in gpu_fullgraph.problem_of(row, ["scatter", "pyg"])
    assert gpu_fullgraph.problem_of(row, ["scatter"]) == ""
    nan = {"graphbraid": {"loss": float("nan")}, "pyg": {"loss": 1.0}}
    assert "differ" in gpu_fullgraph.problem_of(nan, ["pyg"])


def test_rows_beyond_the_budget_are_named(tmp_path, capsys):
    results = gpu_fullgraph.main(["--smoke", "--budget", "0", "--out", str(tmp_path / "table.jsonl")])
    assert results["rows"] == []
    assert {one.partition(":")[0] for one in results["left_out"]} == {
        f"{graph}, {kind}" for graph in generated.SMOKE for kind in gpu_peers.KINDS
    }
    assert not any(goal["met"] for goal in results["goals"].values())
    assert "for want of time" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_batches_of_lowered_models_have_the_losses_of_pyg(tmp_path, monkeypatch):
    pytest.importorskip("torch_geometric", reason=NO_PYG)
    arguments = ["--smoke", "--models", "GraphSAGE", "a message", "--out", str(tmp_path / "batches.jsonl")]
    rows = gpu_batches.main(arguments)["rows"]
    assert [row["problem"] for row in rows] == ["", ""]
    ways = {gpu_batches.OURS, gpu_batches.NOT_RECORDED, gpu_batches.WRITTEN}
    assert all(ways <= set(row) for row in rows)
    monkeypatch.setattr(gpu_batches, "TOLERANCE", -1.0)
    assert "the losses differ" in gpu_batches.main(arguments)["rows"][0]["problem"]
    assert gpu_batches.main([*arguments, "--budget", "0"])["rows"] == []


@pytest.mark.filterwarnings("ignore")
def test_every_kernel_has_its_bandwidth(tmp_path, monkeypatch):
    rows = gpu_kernels.main(["--smoke", "--out", str(tmp_path / "kernels.jsonl")])
    assert {row["width"] for row in rows} == {16, 32}
    assert all(row["gb_per_s"] > 0 for row in rows), rows
    assert {"spmm", "spmm by torch.sparse", "gat backward"} <= {row["kernel"] for row in rows}
    monkeypatch.setattr(gpu_kernels, "multiply", lambda matrix, x, addend, out: out.zero_())
    monkeypatch.setattr(gpu_kernels, "binary_cases", lambda *_: [])
    monkeypatch.setattr(gpu_kernels, "measure", lambda case, *_: {"kernel": case.name, "failed": ""})
    rows = gpu_kernels.main(["--smoke", "--out", str(tmp_path / "wrong.jsonl")])
    assert "spmm by torch.sparse differs from spmm" in rows[0]["failed"]


@pytest.mark.slow
def test_the_contenders_of_collective_batching_have_one_loss(tmp_path):
    out = tmp_path / "collective.jsonl"
    before = os.sched_getaffinity(0), torch.get_num_threads()
    results = gpu_collective.main(
        ["--smoke", "--cores", "1", "9999", "--hot", "1", "0.25", "--grid", "0.5", "--out", str(out)]
    )
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == before
    assert results["left_out"] == ["9999 cores", "9999 cores, 25% hot"]
    row, capped = read_lines(out)
    assert row["problem"] == capped["problem"] == ""
    assert (row["hot"], capped["hot"]) == (1.0, 0.25)
    assert {"cpu", "gpu", "naive 0.5", "braided"} <= set(row["plans"])
    for plan in row["plans"].values():
        assert all(0 <= share <= 1 for share in plan["busy"].values()), plan
    assert row["plans"]["gpu"]["busy"]["cpu"] == 0 < row["plans"]["cpu"]["busy"]["cpu"]


@pytest.mark.slow
def test_hot_tiers_train_alike_and_less_travels(tmp_path):
    row = gpu_tiers.main(["--smoke", "--hot", "0.1", "0.5", "--out", str(tmp_path / "tiers.jsonl")])
    ways = row["ways"]
    assert set(ways) == {"copies", "zero-copy", "hot 0.1", "hot 0.5", "copies, hot 0.1", "copies, hot 0.5"}
    assert all(not way["problem"] for way in ways.values())
    assert ways["copies"]["link_bytes"] == ways["zero-copy"]["link_bytes"]
    assert ways["zero-copy"]["link_bytes"] > ways["hot 0.1"]["link_bytes"] > 2 * ways["hot 0.5"]["link_bytes"]
    assert row["speedup_over_zero_copy"]["zero-copy"] == 1.0
    alone = row["gathers"]
    assert not any(gather["problem"] for gather in alone.values())
    bytes_by_link = {share: round(gather["link"] * gather["seconds"]) for share, gather in alone.items()}
    assert bytes_by_link["0"] == 500 * 8 * 4
    assert bytes_by_link["0"] > bytes_by_link["0.1"] > bytes_by_link["0.5"] > bytes_by_link["1"] == 0


@pytest.mark.slow
@pytest.mark.distributed
def test_sums_over_peers_rows_are_alike_in_every_way_and_a_table_is_recorded(tmp_path):
    out, tables = tmp_path / "pipeline.jsonl", tmp_path / "tables.json"
    row = gpu_pipeline.main(["--smoke", "--record", str(tables), "--out", str(out)])
    assert row["problem"] == ""
    assert set(row["ways"]) == {"exchange", "pipelined", "apart", "whole rows", "tuned"}
    assert read_lines(out)[0]["ways"] == row["ways"]
    [table] = json.loads(tables.read_text()).values()
    assert set(row["trials"]) <= set(table)
    assert all(len(setting.split(",")) == 3 and seconds > 0 for setting, seconds in table.items())
    assert all(rows > 0 for rows in row["halo_rows"])


def test_losses_that_differ_are_a_problem_of_collective_batching():
    losses = {"cpu": [1.0, 0.5], "gpu": [1.0, 0.5 + 1e-4]}
    assert gpu_collective.problem_of(losses, exactly=False) == ""
    assert "at step 1 the loss of gpu is 0.5001 and that of cpu 0.5" in gpu_collective.problem_of(
        losses, exactly=True
    )
    assert "nan" in gpu_collective.problem_of(losses | {"gpu": [1.0, float("nan")]}, exactly=False)


def test_limits_are_those_of_the_card_and_goals_are_met_or_missed(capsys):
    assert gpu_card.advertised("NVIDIA H100 80GB HBM3")["hbm"] == 3.35e12
    assert gpu_card.advertised("NVIDIA H200")["hbm"] == 4.8e12
    assert gpu_card.advertised("NVIDIA GH200 480GB")["link"] == 450e9  # its name holds another card's
    assert gpu_card.advertised("NVIDIA T4") == {}
    limits = {"advertised": {"hbm": 4e12}, "measured": {"hbm": 2e12, "link": 1e9}}
    assert gpu_card.share_of(1e12, "hbm", limits) == 0.25
    assert gpu_card.share_of(5e8, "link", limits) == 0.5
    assert gpu_card.beside(1e12, "hbm", limits) == "1,000.0 GB/s (25% of advertised, 50% of a copy)"
    goals = gpu_card.goals_of(("a", 2.0, 1.5, True), ("b", 2.0, 1.5, False), ("c", None, 1.5, True))
    assert [goal["met"] for goal in goals.values()] == [True, False, None]
    assert "goal: b: at most 1.5: 2, missed" in capsys.readouterr().out


def test_graphs_are_what_their_specs_say():
    for name, spec in generated.SMOKE.items():
        graph = generated.make(name, spec).validate()
        assert graph.num_nodes == spec.num_nodes
        assert graph.num_features == spec.num_features
        assert abs(graph.num_edges / spec.num_edges - 1) < 0.3
        assert abs(len(graph.split("train")) / spec.num_nodes - spec.train_share) < 0.1
        assert torch.equal(generated.make(name, spec).csc.indices, graph.csc.indices)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
@pytest.mark.parametrize("module", TABLES)
def test_without_a_device_a_benchmark_says_what_to_do(module):
    with pytest.raises(SystemExit, match="there is no CUDA device here; --smoke"):
        importlib.import_module(f"benchmarks.gpu.{module}").main([])


def test_the_suite_names_tests_that_there_are_and_options_that_benchmarks_have(tmp_path, capsys):
    named = gpu_suite.FAMILIES | gpu_suite.ROUTES
    assert all(f"def {name}" in (ROOT / path).read_text() for path, name in named.values())
    found = gpu_suite.cases(smoke=False, config=tmp_path / "pytest.ini", out=tmp_path)
    paths = [word for case in found for word in case.command if word.startswith("tests/")]
    assert all((ROOT / path).exists() for path in paths)
    benchmarks = {case.name: case.command[3:] for case in found if case.tier == "c"}
    assert set(benchmarks) == set(TABLES)
    seconds = {case.name: case.seconds for case in found if case.tier == "c"}
    assert sum(seconds.values()) <= gpu_suite.TIERS["c"][0]
    assert all(
        float(given[given.index("--budget") + 1]) < seconds[name] for name, given in benchmarks.items()
    )
    for name, given in benchmarks.items():
        with pytest.raises(SystemExit):
            importlib.import_module(f"benchmarks.gpu.{name}").main([*given, "--no-such-option"])
        assert capsys.readouterr().err.endswith("unrecognized arguments: --no-such-option\n"), name


@pytest.mark.parametrize(
    ("code", "said", "status", "by"),
    [
        (0, "3 passed in 2 s", "passed", ""),
        (0, "3 skipped in 2 s", "skipped", ""),
        (5, "3 deselected", "skipped", ""),
        (-11, "", "crash", "signal 11"),
        (139, "", "crash", "signal 11"),
        (86, "========= Invalid __global__ read of size 4", "memory error", "========= Invalid"),
        (1, "E  triton.compiler.errors.CompilationError: at 3:4", "compile error", "CompilationError: at 3"),
        (1, "E  Greatest absolute difference: 0.5 at\nE  Greatest relative", "wrong", "difference: 0.5"),
        (1, "E   RuntimeError: no such stream", "error", "RuntimeError: no such stream"),
        (3, "", "error", "exit code 3"),
    ],
)
def test_the_suite_tells_what_came_of_a_case(code, said, status, by):
    found = gpu_suite.status_of(code, said)
    assert found[0] == status
    assert by in found[1]


def planted(name: str, tier: str, program: str) -> gpu_suite.Case:
    return gpu_suite.Case(name, tier, 20, (sys.executable, "-c", program))


def test_the_suite_keeps_each_row_ends_tiers_in_time_and_goes_on(tmp_path, monkeypatch, capsys):
    made = [
        planted("good", "a", "pass"),
        planted("dead", "a", "import os; os.abort()"),
        planted("endless", "c", "import time; time.sleep(60)"),
        planted("late", "c", "pass"),
    ]
    monkeypatch.setattr(gpu_suite, "cases", lambda **_: made)
    monkeypatch.setattr(gpu_suite, "TIERS", {"a": (20, 1), "b": (20, 1), "c": (2, 1)})
    assert gpu_suite.main(["--out", str(tmp_path)]) == 1
    rows = {row["row"]: row["status"] for row in read_lines(tmp_path / "gpu_suite.jsonl")}
    assert rows == {"good": "passed", "dead": "crash", "endless": "timeout", "late": "left out"}
    made[1], made[2] = planted("dead", "a", "pass"), planted("endless", "c", "pass")
    again = ["--out", str(tmp_path / "again"), "--resume", str(tmp_path / "gpu_suite.jsonl")]
    assert gpu_suite.main(again) == 0
    rows = {row["row"]: row["status"] for row in read_lines(tmp_path / "again" / "gpu_suite.jsonl")}
    assert rows == {"dead": "passed", "endless": "passed", "late": "passed"}
    with pytest.raises(SystemExit, match="no such cases: nope"):
        gpu_suite.main(["--out", str(tmp_path), "--only", "nope"])
    assert "1 timeout" in capsys.readouterr().out


def test_the_page_says_what_ran_and_what_did_not(monkeypatch):
    row = {
        "row": "spmm",
        "status": "wrong",
        "by": "0.5",
        "card": "H100",
        "commit": "abc",
        "date": "2026-11-26",
    }
    monkeypatch.setattr(gpu_table, "read_rows", lambda name: [row] if name == "gpu_suite" else [])
    lines = gpu_table.proven().splitlines()
    assert "| spmm | a | wrong 0.5 | H100 | abc | 2026-11-26 |" in lines
    assert any(line.startswith("| braided epoch | a | not run |") for line in lines)


@pytest.mark.slow
def test_a_suite_that_is_killed_keeps_its_rows_and_leaves_no_process(tmp_path):
    program = (
        "import sys; from benchmarks.gpu import suite; from tests.test_gpu_benchmarks import planted\n"
        "made = [planted('good', 'a', 'pass'), planted('endless', 'a', 'import time; time.sleep(987)')]\n"
        "suite.cases = lambda **_: made\n"
        f"suite.main(['--out', {str(tmp_path)!r}])"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "good" in process.stdout.readline()
        process.terminate()
        assert process.wait(PATIENCE) == 143
    assert [row["row"] for row in read_lines(tmp_path / "gpu_suite.jsonl")] == ["good"]
    assert subprocess.run(["pgrep", "-f", "time.sleep.987"], capture_output=True).returncode == 1

"""``python -m benchmarks.all``: what it refuses, that it goes on where it stopped, what it publishes."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest
from benchmarks import all as run_all
from benchmarks import parts as parts_module
from benchmarks.common import quiet, rows
from benchmarks.parts import PARTS, Part, Places
from tests.extras import PATIENCE

BENCHMARKS = Path(run_all.__file__).parent
QUICK = Part(
    name="dispatch", module="kernels.dispatch", results="dispatch", minutes=1, options=("--calls", "2")
)
BROKEN = Part(
    name="broken", module="kernels.dispatch", results="dispatch", minutes=1, options=("--nonsense",)
)


STAND_IN = """
import json, os, sys

if "--nonsense" in sys.argv:
    sys.exit(2)
with open(sys.argv[sys.argv.index("--out") + 1], "a") as file:
    for row in ("surrounding", "autograd function", "custom op"):
        file.write(json.dumps({"row": row, "remark": os.environ.get(sys.argv[1], "")}) + "\\n")
"""
"""What a part's process does, without importing torch."""


@pytest.fixture
def stood_in(monkeypatch):
    """Parts run :data:`STAND_IN`."""
    command = [sys.executable, "-c", STAND_IN, rows.REMARK]
    monkeypatch.setattr(parts_module, "ours", lambda _, *options: [*command, *options])


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Two parts, a clean tree, a quiet machine, results and stage in a folder of the test's."""
    chosen = (QUICK, BROKEN)
    for module in (run_all, parts_module):
        monkeypatch.setattr(module, "PARTS", chosen)
    monkeypatch.setattr(run_all, "BUILD", tmp_path / "build")
    monkeypatch.setattr(rows, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(run_all, "write_pages", lambda: None)
    monkeypatch.setattr(rows, "changed_files", lambda: [])
    monkeypatch.setattr(quiet, "others_share", lambda *_: 0.0)
    monkeypatch.setattr(run_all.native, "kernels", object)
    return tmp_path


@pytest.mark.slow
def test_a_part_runs_once_and_its_rows_and_minutes_are_published(project, capsys):
    assert run_all.main(["--parts", "dispatch"]) == 0
    published = rows.read_lines(project / "results" / "dispatch.jsonl")
    assert [row["row"] for row in published] == ["surrounding", "autograd function", "custom op"]
    [durations] = rows.read_lines(project / "results" / "durations.jsonl")
    assert durations["row"] == "dispatch"
    assert "estimated" in capsys.readouterr().out
    (project / "results" / "dispatch.jsonl").unlink()
    assert run_all.main(["--parts", "dispatch"]) == 0
    shown = capsys.readouterr().out
    assert "measured" in shown
    assert "0 of 1 parts to run" in shown
    assert rows.read_lines(project / "results" / "dispatch.jsonl") == published


@pytest.mark.usefixtures("stood_in")
def test_a_part_that_fails_is_named_and_tried_again_and_the_others_count(project, capsys):
    assert run_all.main([]) == 1
    assert "broken ended with 2" in capsys.readouterr().err
    rows.put_rows(project / "results" / "dispatch.jsonl", [{"row": "of another commit"}])
    assert run_all.main([]) == 1
    assert "1 of 2 parts to run" in capsys.readouterr().out
    assert len(rows.read_lines(project / "results" / "dispatch.jsonl")) == 4  # not all parts: others stay


@pytest.mark.usefixtures("stood_in")
def test_rows_of_other_commits_go_where_all_parts_were_run(project, monkeypatch):
    monkeypatch.setattr(run_all, "PARTS", (QUICK,))
    rows.put_rows(project / "results" / "dispatch.jsonl", [{"row": "of another commit"}])
    assert run_all.main([]) == 0
    assert len(rows.read_lines(project / "results" / "dispatch.jsonl")) == 3


def test_the_plan_runs_nothing(project, capsys):
    assert run_all.main(["--plan"]) == 0
    assert "2 of 2 parts to run, about 2 minutes" in capsys.readouterr().out
    assert not (project / "build").exists()


def test_a_tree_with_changes_is_refused(project, monkeypatch):
    monkeypatch.setattr(rows, "changed_files", lambda: ["src/graphbraid/loader.py"])
    with pytest.raises(SystemExit, match=r"commit or undo first.*loader\.py"):
        run_all.main(["--parts", "dispatch"])


def test_a_commit_that_moves_is_refused(project, monkeypatch):
    commits = iter(["aaa", "aaa", "bbb"])
    monkeypatch.setattr(rows, "commit", lambda: next(commits, "bbb"))
    with pytest.raises(SystemExit, match="the commit moved from aaa to bbb"):
        run_all.main(["--parts", "dispatch"])


@pytest.mark.usefixtures("stood_in")
def test_a_busy_machine_is_refused_or_said_in_every_row(project, monkeypatch):
    monkeypatch.setattr(quiet, "others_share", lambda *_: 0.4)
    monkeypatch.setattr(run_all, "WAIT_SECONDS", 0.0)
    with pytest.raises(SystemExit, match="other programs had 40% of the cores"):
        run_all.main(["--parts", "dispatch"])
    monkeypatch.setenv(rows.REMARK, "")
    assert run_all.main(["--parts", "dispatch", "--although-busy"]) == 0
    for row in rows.read_lines(project / "results" / "dispatch.jsonl"):
        assert row["remark"] == "other programs had 40% of the cores"


def test_what_is_missing_is_left_out_with_what_to_do(tmp_path):
    places = Places(graphs=tmp_path, data=None, peer_python=str(tmp_path / "python"))
    said = {part.name: run_all.missing(part, places) for part in PARTS}
    assert said["dispatch"] == said["kernels"] == ""
    assert "make peers" in said["sampling"]
    assert "cora.npz" in said["accuracy"]
    np.savez(tmp_path / "web_cnr2000.npz")
    (tmp_path / "python").touch()
    places = Places(graphs=tmp_path, data=tmp_path, peer_python=str(tmp_path / "python"))
    assert run_all.missing(next(part for part in PARTS if part.name == "sampling"), places) == ""


def test_a_part_that_hangs_is_stopped_with_what_it_started(tmp_path):
    started = tmp_path / "started"
    script = f"sleep 600 & echo $! > {started}.part; mv {started}.part {started}; wait"
    for seconds in (0.2, 2.0, PATIENCE):  # on a busy machine it has not begun at once
        with (tmp_path / "log").open("w") as log:
            assert run_all.run_group(["bash", "-c", script], log.fileno(), seconds) is None
        if started.exists():
            break
    number, deadline = int(started.read_text()), time.monotonic() + PATIENCE
    while is_running(number):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(number):
    try:
        stat = Path(f"/proc/{number}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_part_s_options_are_its_module_s(part, tmp_path):
    places = Places(graphs=tmp_path, data=tmp_path, peer_python="python")
    command = part.command(places, tmp_path / "out.jsonl")
    assert "{" not in " ".join(command)
    module = BENCHMARKS / f"{part.module.replace('.', '/')}.py"
    sources = [
        *module.parent.glob("*.py"),
        BENCHMARKS / "common/options.py",
        BENCHMARKS / "memory/sampled.py",
    ]
    text = "".join(source.read_text() for source in sources)
    for option in (argument for argument in command if argument.startswith("--")):
        assert f'"{option}"' in text, option

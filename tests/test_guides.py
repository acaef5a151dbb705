"""README, tutorial and guides run from top to bottom, each in an empty folder, as a reader would paste them.

A page's Python blocks share one interpreter. Commands before and behind them are forked, each as a process
of its own; a shell runs those between two blocks. Other blocks with a `title` are written to that file. A
comment above a block says that it needs another environment.
Pages of several machines have a test of their own, tests/distributed/test_clusters.py.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests import warm
from tests.extras import PATIENCE
from tests.figures.pages import check_html
from tests.synth.building import compiled, taking
from typer.testing import CliRunner

from graphbraid.cli.main import app

ROOT = Path(__file__).parents[1]
NAMES = ("install", "tutorial", "tables", "serving")
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{page}.md" for page in NAMES)]
PAGES += sorted((ROOT / "docs" / "guides").glob("*.md"))
SKIPPED = "<!-- needs another environment -->\n"
BLOCK = re.compile(rf'(?<!{SKIPPED})^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
NOT_RUN = ("make demo", "make test", "pip ", "docker ", "apptainer ")
"""Commands that install, which CI's own steps do, or containers, which nest in none."""
SHELL = "import subprocess; subprocess.run({line!r}, shell=True, check=True, executable='/bin/bash')"
Step = tuple[str, str]
"""``python`` or ``command`` with its text, or the name of a file with what is written to it."""


def steps_of(page: Path) -> list[Step]:
    """Return all that a page says, in its order."""
    steps: list[Step] = []
    for kind, title, text in BLOCK.findall(page.read_text()):
        if title:
            steps.append((title, text))
        elif kind == "python":
            steps.append((kind, text))
        elif kind == "console":
            steps += [("command", line) for line in commands_of(text)]
    return steps


def script_of(steps: Sequence[Step]) -> str:
    """Return one Python script that does some steps in their order."""
    lines = []
    for kind, text in steps:
        if kind == "python":
            lines.append(text)
        elif kind == "command":
            lines.append(SHELL.format(line=text))
        else:
            lines.append(f"import pathlib; pathlib.Path({kind!r}).write_text({text!r})")
    return "\n".join(lines)


def programs_of(steps: Sequence[Step]) -> list[list[str]]:
    """Return programs as tests/warm.py takes them: one for all Python, and one for each command around it."""
    python = [number for number, (kind, _) in enumerate(steps) if kind == "python"] or [0]
    first, behind = python[0], python[-1] + 1
    parts = [*([one] for one in steps[:first]), steps[first:behind], *([one] for one in steps[behind:])]
    programs = []
    for part in parts:
        if len(part) == 1 and part[0][0] == "command":
            programs.append(["-m", *shlex.split(part[0][1], comments=True)])
        else:
            programs.append(["-c", script_of(part)])
    return programs


def commands_of(text: str) -> list[str]:
    """Return the commands of a console block that can run here: its lines after `$`, or all without one."""
    given = [line for line in text.splitlines() if line]
    found = [line.removeprefix("$ ") for line in given if line.startswith("$ ")] or given
    run = [line for line in found if not line.startswith(NOT_RUN)]
    assert all(line.startswith("graphbraid ") for line in run), f"what runs these lines? {run}"
    return run


def test_every_page_on_the_path_runs():
    nav = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2].partition("  - Notebooks:")[0]
    pages = set(re.findall(r": ([\w/]+\.md)", nav)) - {"index.md", "clusters.md"}
    assert pages == {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.name != "README.md"}


def test_lines_of_a_console_are_commands_or_refused():
    assert commands_of("$ graphbraid info x\n5 nodes\n") == ["graphbraid info x"]
    assert commands_of("make demo  # first\ngraphbraid info x\n") == ["graphbraid info x"]
    with pytest.raises(AssertionError, match="what runs these"):
        commands_of("$ rm -r x\n")


def quick_builds(factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return variables by which CMake compiles a program's text alone, as it is compiled for other tests.

    The rest is the same in each program, and compiled once. tests/synth/test_walk.py builds all as users do.
    """
    launcher = taking(compiled(factory).objects, factory.mktemp("launcher"))
    return {"CMAKE_BUILD_TYPE": "None", "CMAKE_CXX_COMPILER_LAUNCHER": str(launcher)}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_runs(page, tmp_path, tmp_path_factory):
    steps = steps_of(page)
    assert steps, f"{page} has no block that runs"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path} | (quick_builds(tmp_path_factory) if page.stem == "to_cpp" else {})
    for program in programs_of(steps):
        done = warm.run(program, cwd=tmp_path, environment=os.environ | own)
        assert done.returncode == 0, f"{program}\n{done.stdout}{done.stderr}"


README = (ROOT / "README.md").read_text()


def test_the_commands_are_there():
    consoles = "".join(re.findall(r"^```console\n(.*?)^```", README, re.MULTILINE | re.DOTALL))
    commands = re.findall(r"^(make \w+|graphbraid \w+)", consoles, re.MULTILINE)
    assert {"make demo", "make test", "graphbraid train", "graphbraid predict"} <= set(commands)
    makefile = (ROOT / "Makefile").read_text()
    for command in commands:
        tool, name = command.split()
        if tool == "make":
            assert re.search(rf"^{name}:", makefile, re.MULTILINE), command
        else:
            assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0, command


def test_the_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    for link in links:
        assert link.startswith("https://") or (ROOT / link).exists(), link


def test_make_help_lists_every_target():
    assert shutil.which("make"), "make is needed for the README's commands"
    shown = subprocess.run(
        ["make", "help"], capture_output=True, text=True, cwd=ROOT, check=True, timeout=PATIENCE
    ).stdout
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in phony.group(1).split():
        assert f"make {target}" in shown


RUNNER = ROOT / "scripts" / "site" / "cells.py"
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.py"))
MOST_SECONDS = 20
EXPECTED = {
    "first_hour": ["epochs, steps", "mode sampled: fits"],
    "your_tables": ["customer buys item", "test accuracy"],
    "the_plan": ["limited by the", "bus twice as fast"],
    "inside_compile": ["prune", "largest difference: "],
}
"""Words that the cells show."""
sys.path.append(str(RUNNER.parent))
import cells  # noqa: E402
import outputs  # noqa: E402


def test_every_notebook_is_on_the_site():
    assert {path.stem for path in NOTEBOOKS} == set(EXPECTED)
    nav = (ROOT / "mkdocs.yml").read_text()
    assert all(f": notebooks/{path.stem}.md" in nav for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_becomes_one_of_jupyters(path):
    found = json.loads(cells.ipynb(path))
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert found["cells"][0]["cell_type"] == "markdown"
    for cell in found["cells"]:
        if cell["cell_type"] == "code":
            compile(cell["source"], path.name, "exec")
        else:
            assert not cell["source"].startswith("# %%")


def test_cells_show_what_jupyter_would(tmp_path):
    path = tmp_path / "small.py"
    path.write_text("# %% [markdown]\n# # Title\n#\n# Text.\n\n# %%\nprint(1)\nx = 2\n\n# %%\nx + 1\n")
    assert cells.cells(path.read_text()) == [
        ("markdown", "# Title\n\nText."),
        ("code", "print(1)\nx = 2"),
        ("code", "x + 1"),
    ]
    shown = cells.run(path)
    assert shown == [{"text": "1\n", "html": ""}, {"text": "3\n", "html": ""}]
    assert cells.markdown(path, shown).endswith("```python\nx + 1\n```\n\n```text\n3\n```")
    path.write_text("# %%\n1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        cells.run(path)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path, tmp_path):
    # Seconds of its processors, which other programs on the machine do not lengthen.
    code = (
        f"import runpy, sys, time; sys.argv = ['notebook', {str(path)!r}]; "
        f"runpy.run_path({str(RUNNER)!r}, run_name='__main__'); print(time.process_time())"
    )
    done = warm.run(["-c", code], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    output, seconds = done.stdout.splitlines()[-2:]
    shown = json.loads(output)
    assert float(seconds) < MOST_SECONDS
    told = "".join(cell["text"] + cell["html"] for cell in shown)
    for words in EXPECTED[path.stem]:
        assert words in told
    for cell in shown:
        if 'class="graphbraid"' in cell["html"]:
            check_html(cell["html"])
    outputs.keep(path, output + "\n")  # the site shows it


EXAMPLES = ROOT / "examples"

# What the output must match, and the least test accuracy; chance is 1 in 8, in the CSV example 1 in 3.
EXPECTED_OF_EXAMPLES = {
    "pyg_by_one_import.py": (r"epoch 4: loss", 0.6),
    "own_training_loop.py": (r"epoch 4: validation accuracy", 0.6),
    "resume_after_kill.py": (
        r"killed by signal 9 after \d+ of \d+ steps\nresumed: .* to the bit: True",
        None,
    ),
    "full_graph.py": (r"hoist: features aggregated once(.|\n)*epoch 59: loss", 0.6),
    "node_types.py": (r"mean over author writes paper(.|\n)*epoch 29: loss", 0.7),
    "predict_all_nodes.py": (r"\(5000, 8\) probabilities", 0.6),
    "layerwise_inference.py": (r"epoch 4: loss(.|\n)*val accuracy", 0.7),
    "lightning_sage.py": (r"predicted 3490 nodes, accuracy 0\.[6-9]", 0.6),
    "imbalanced_classes.py": (
        r"12\.\d% of the training .* (4[5-9]|5[0-5])\.\d% of those drawn\n.*\nbalanced: recall 0\.[789]",
        None,
    ),
    "link_prediction.py": (r"AUC of later links: 0\.[789]\d*\namong all nodes: filtered MRR 0\.\d+", None),
    "nearest_items.py": (r"recall of the 10 likeliest films: (0\.9|1\.0)", None),
    "service.py": (
        r"400 requests answered by the models \[1(, 2)?\], none dropped; last: 2\n"
        r"as Trainer.predict says: (0\.99\d|1\.000); new nodes as their originals: (0\.99\d|1\.000)\n"
        r"an unknown id: 404; damaged weights: 422",
        None,
    ),
    "tune_optuna.py": (r"\d trials ended, \d were pruned\nbest validation accuracy 0\.[4-9]", None),
    "tune_ray.py": (r"6 trials, 0 failed\nbest validation accuracy 0\.[3-9]", None),
    "database.py": (r"3 types and 4 relations(.|\n)*epoch 4: loss 0\.[34]", 0.75),
    "graph_classification.py": (r"test accuracy 1\.000(.|\n)*graphs 0 to 9: \[0, 1, 0, 1", None),
    "dataset_from_csv.py": (r"400 people, \d+ friendships, clubs: chess, rowing, theatre", 0.7),
}


def test_every_example_is_tested_and_listed():
    files = {path.name for path in EXAMPLES.glob("*.py")}
    assert files == set(EXPECTED_OF_EXAMPLES)
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"`{name}`" in listed for name in files)


QUICK = {"pyg_by_one_import.py"}
NEEDS = {
    "nearest_items.py": "usearch",
    "service.py": "fastapi",
    "tune_optuna.py": "optuna",
    "tune_ray.py": "ray",
}
"""Packages of examples that the environment may lack."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
        for name in sorted(EXPECTED_OF_EXAMPLES)
    ],
)
def test_example_runs(name, tmp_path):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{name} needs the package {NEEDS[name]}")
    pattern, least_accuracy = EXPECTED_OF_EXAMPLES[name]
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    done = warm.run([EXAMPLES / name], cwd=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    doubt = "the machine's rates are doubtful"  # other tests run beside this one
    told = done.stderr.splitlines()
    assert (
        name == "tune_ray.py" or [line for line in told if not line.startswith(doubt)] == []
    )  # Ray tells more
    assert re.search(pattern, done.stdout), done.stdout
    if least_accuracy is not None:
        accuracy = re.search(r"test accuracy (\d\.\d+)", done.stdout)
        assert accuracy, done.stdout
        assert float(accuracy.group(1)) > least_accuracy, done.stdout
    assert not list(tmp_path.iterdir()), "an example left files behind"
    assert outputs.picture(done.stdout), "the gallery shows a picture of each"
    outputs.keep(EXAMPLES / name, done.stdout)

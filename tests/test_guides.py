"""README, tutorial and guides run from top to bottom, each in an empty folder, as a reader would paste them.

A page's Python blocks share one interpreter. Commands before and behind them are forked, each as a process
of its own; a shell runs those between two blocks. Other blocks with a `title` are written to that file. A
comment above a block says that it needs another environment.
Pages of several machines have a test of their own, tests/distributed/test_clusters.py.
"""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests import warm
from tests.synth.building import compiled, taking

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

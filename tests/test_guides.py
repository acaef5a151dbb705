"""README, tutorial and guides run from top to bottom, each in an empty folder, as a reader would paste them.

A page's Python blocks share one interpreter. Commands of its console blocks run in a shell. Other blocks
with a `title` are written to that file. A comment above a block says that it needs another environment.
Pages of several machines have a test of their own, tests/distributed/test_clusters.py.
"""

import os
import re
import sys
from pathlib import Path

import pytest
from tests import warm

ROOT = Path(__file__).parents[1]
NAMES = ("install", "tutorial", "tables", "serving")
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{page}.md" for page in NAMES)]
PAGES += sorted((ROOT / "docs" / "guides").glob("*.md"))
SKIPPED = "<!-- needs another environment -->\n"
BLOCK = re.compile(rf'(?<!{SKIPPED})^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
NOT_RUN = ("make demo", "make test", "pip ", "docker ", "apptainer ")
"""Commands that install, which CI's own steps do, or containers, which nest in none."""
SHELL = "import subprocess; subprocess.run({line!r}, shell=True, check=True, executable='/bin/bash')"


def script_of(page: Path) -> str:
    """Return one Python script that does all that a page says, in its order."""
    lines = []
    for kind, title, text in BLOCK.findall(page.read_text()):
        if title:
            lines.append(f"import pathlib; pathlib.Path({title!r}).write_text({text!r})")
        elif kind == "python":
            lines.append(text)
        elif kind == "console":
            lines += [SHELL.format(line=line) for line in commands_of(text)]
    return "\n".join(lines)


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


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One cache for all pages, as a reader has one: the machine's rates are measured once."""
    return str(tmp_path_factory.mktemp("cache"))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_runs(page, cache, tmp_path):
    script = script_of(page)
    assert script, f"{page} has no block that runs"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "GRAPHBRAID_CACHE": cache}
    done = warm.run(["-c", script], cwd=tmp_path, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr

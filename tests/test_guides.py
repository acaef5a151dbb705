"""README, tutorial and guides run from top to bottom, each in an empty folder, as a reader would paste them.

A page's Python blocks share one interpreter. Commands of its console blocks run in a shell. Other blocks
with a `title` are written to that file. A comment above a block says that it needs another environment.
"""

import os
import re
import sys
from pathlib import Path

import pytest
from tests import warm

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{page}.md" for page in ("install", "tutorial", "serving"))]
PAGES += sorted((ROOT / "docs" / "guides").glob("*.md"))
SKIPPED = "<!-- needs another environment -->\n"
BLOCK = re.compile(rf'(?<!{SKIPPED})^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ )?(graphbraid .*)", re.MULTILINE)
"""What a test can run: `make demo` and `make test` are CI's own steps."""
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
            lines += [SHELL.format(line=line) for line in COMMAND.findall(text)]
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_runs(page, tmp_path):
    script = script_of(page)
    assert script, f"{page} has no block that runs"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "GRAPHBRAID_CACHE": str(tmp_path / "cache")}
    done = warm.run(["-c", script], cwd=tmp_path, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr

"""The README's Python snippets run, in order, as one would paste them; its commands and files exist."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests import warm
from tests.extras import PATIENCE
from typer.testing import CliRunner

from graphbraid.cli.main import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def snippets(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/serving.md"])
def test_the_snippets_run(page, tmp_path):
    found = snippets(page)
    assert found
    environment = os.environ | {"GRAPHBRAID_CACHE": str(tmp_path / "cache")}
    done = warm.run(["-c", "\n".join(found)], cwd=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr


def test_the_commands_are_there():
    consoles = "".join(re.findall(r"^```console\n(.*?)^```", README, re.MULTILINE | re.DOTALL))
    commands = re.findall(r"^(make \w+|graphbraid \w+)", consoles, re.MULTILINE)
    assert {"make demo", "make test", "graphbraid train", "graphbraid doctor"} <= set(commands)
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

"""The README's commands and files exist; tests/test_guides.py runs them."""

import re
import shutil
import subprocess
from pathlib import Path

from tests.extras import PATIENCE
from typer.testing import CliRunner

from graphbraid.cli.main import app

ROOT = Path(__file__).parents[1]
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

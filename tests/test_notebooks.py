"""Notebooks run from top to bottom, in an empty folder and within 20 s, and become pages and .ipynb files."""

import json
import sys
from pathlib import Path

import pytest
from tests import warm
from tests.figures.pages import check_html

ROOT = Path(__file__).parents[1]
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

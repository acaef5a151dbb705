"""Conversions from and to DGL: the checks of dgl_checks.py on the stand-in, and on DGL itself where it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from tests.extras import PATIENCE
from tests.graph import dgl_checks, fake_dgl
from tests.graph.cases import graphs

ROOT = Path(__file__).parents[2]


@pytest.fixture
def dgl(monkeypatch):
    """The stand-in, in DGL's place."""
    monkeypatch.setitem(sys.modules, "dgl", fake_dgl)
    return fake_dgl


@pytest.mark.parametrize("check", dgl_checks.OF_BOTH, ids=lambda check: check.__name__)
def test_conversion(check, dgl):
    check(dgl)


@given(graphs())
def test_any_graph_goes_over_and_comes_back(graph):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "dgl", fake_dgl)
        patch.setattr(dgl_checks, "_graphs", lambda: [graph])
        dgl_checks.goes_over_and_comes_back(fake_dgl)


@pytest.mark.slow
def test_the_package_itself():
    python = os.environ.get("GRAPHBRAID_DGL_PYTHON")
    if not python:
        pytest.skip("needs DGL, which needs an older torch: name its Python in GRAPHBRAID_DGL_PYTHON")
    done = subprocess.run(
        [python, "-m", "tests.graph.real_dgl"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all agree" in done.stdout, done.stdout

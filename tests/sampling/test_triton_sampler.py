"""Every kernel of the sampler compiles. What they compute is tested in tests/sampling/triton."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.extras import NO_TRITON, PATIENCE

import graphbraid

SOURCES = Path(graphbraid.__file__).parent / "sampling/triton"
TESTS = Path(__file__).parent / "triton"


def run(command, **variables):
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=TESTS.parents[2],
        env=os.environ | variables,
        timeout=4 * PATIENCE,
    )


@pytest.mark.slow
def test_every_kernel_compiles_and_none_fuses_multiply_and_add_in_float64(tmp_path):
    pytest.importorskip("triton", reason=NO_TRITON)
    command = [sys.executable, TESTS / "compile_kernels.py", "90"]
    done = run(command, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    compiled = json.loads(done.stdout)
    assert min(compiled["sizes"].values()) > 0
    assert set(compiled["sizes"]) == defined_kernels()
    assert compiled["fused"] == []  # a fused multiply-add rounds once: other bits than the CPU's


@pytest.mark.slow
def test_importing_the_sampler_does_not_import_triton():
    code = "import sys, graphbraid.loader; print('triton' in sys.modules)"
    assert run([sys.executable, "-c", code]).stdout.strip() == "False"


def defined_kernels():
    """Names of the functions that are launched: those called ``*_kernel``."""
    trees = [ast.parse(path.read_text()) for path in SOURCES.glob("*.py")]
    nodes = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {node.name for node in nodes if node.name.endswith("_kernel")}

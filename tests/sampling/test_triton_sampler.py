"""Every kernel of the sampler compiles. What they compute is tested in tests/sampling/triton."""

import json
import sys
from pathlib import Path

import pytest
from tests.extras import NO_TRITON
from tests.interpreter import defined_kernels, run

import graphbraid

SOURCES = Path(graphbraid.__file__).parent / "sampling/triton"
TESTS = Path(__file__).parent / "triton"


@pytest.mark.slow
def test_every_kernel_compiles_and_none_fuses_multiply_and_add_in_float64(tmp_path):
    pytest.importorskip("triton", reason=NO_TRITON)
    command = [sys.executable, TESTS / "compile_kernels.py", "90"]
    done = run(command, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    compiled = json.loads(done.stdout)
    assert min(compiled["sizes"].values()) > 0
    assert set(compiled["sizes"]) == defined_kernels(SOURCES)
    assert compiled["fused"] == []  # a fused multiply-add rounds once: other bits than the CPU's


@pytest.mark.slow
def test_importing_the_sampler_does_not_import_triton():
    code = "import sys, graphbraid.loader; print('triton' in sys.modules)"
    assert run([sys.executable, "-c", code]).stdout.strip() == "False"

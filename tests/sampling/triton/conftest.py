"""The sampler in Triton beside the reference: on a CUDA device, or on the CPU through Triton's interpreter.

A process either compiles or interprets: tests/conftest.py decides which, before triton is imported.
"""

import importlib.util
import os
from pathlib import Path

import pytest
import torch
from tests.extras import NO_TRITON
from tests.interpreter import hasten

HERE = Path(__file__).parent
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_collection_modifyitems(items):
    """Mark what runs on a device where there is one, and what is interpreted where there is none."""
    for item in items:
        if item.path.is_relative_to(HERE) and "device" in item.fixturenames:
            item.add_marker(pytest.mark.interpreted if INTERPRETED else pytest.mark.gpu)


@pytest.fixture(scope="session", autouse=True)
def quicker_interpreter():
    """Spare the interpreter most of what it does besides the kernels."""
    if INTERPRETED and importlib.util.find_spec("triton"):
        hasten()


@pytest.fixture(scope="session")
def device():
    """Where the kernels run."""
    if not INTERPRETED and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1")
    pytest.importorskip("triton", reason=NO_TRITON)
    return torch.device("cpu" if INTERPRETED else "cuda")

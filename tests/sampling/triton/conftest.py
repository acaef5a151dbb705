"""The sampler in Triton beside the reference: on a CUDA device, or on the CPU by Triton's interpreter."""

from pathlib import Path

from tests import interpreter
from tests.interpreter import device, quicker_interpreter

__all__ = ["device", "quicker_interpreter"]


def pytest_collection_modifyitems(items):
    list(interpreter.mark(items, Path(__file__).parent))

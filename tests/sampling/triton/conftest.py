"""The sampler in Triton beside the reference: on a CUDA device, or on the CPU through Triton's interpreter.

As in tests/ops/triton: tests/sampling/test_triton_sampler.py runs these files interpreted, in a process of
their own; in the suite's own process they need a CUDA device.
"""

import os

import pytest
import torch
from tests.extras import NO_TRITON

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_collection_modifyitems(items):
    """Mark what needs a device."""
    for item in items:
        if not INTERPRETED and "device" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def device():
    """Where the kernels run."""
    if not INTERPRETED and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device; tests/sampling/test_triton_sampler.py runs this on the CPU")
    pytest.importorskip("triton", reason=NO_TRITON)
    return torch.device("cpu" if INTERPRETED else "cuda")

"""The compiled variants of kernels, one after the other."""

from collections.abc import Iterator

import pytest
from tests.extras import NO_KERNELS

from graphbraid import native


# The text of avx2 is that of avx512, in narrower vectors.
@pytest.fixture(
    params=[
        pytest.param(
            variant, marks=[pytest.mark.each_variant, *([pytest.mark.slow] if variant == "avx2" else [])]
        )
        for variant in native.COMPILED_VARIANTS
    ]
)
def compiled(request: pytest.FixtureRequest) -> Iterator[object]:
    """Each compiled variant this processor has, active while the test runs."""
    kernels = native.kernels()
    if kernels is None:
        pytest.skip(NO_KERNELS)
    if reason := native.unsupported_reason(request.param):
        pytest.skip(reason)
    kernels.select(request.param)
    yield kernels
    kernels.select(native.active().variant)

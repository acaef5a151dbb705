"""The mark of tests that need the compiled kernels."""

import pytest
from tests.extras import NO_KERNELS

from graphbraid import native

needs_kernels = pytest.mark.skipif(native.kernels() is None, reason=NO_KERNELS)

"""What programs are built from."""

import sys
from pathlib import Path

import pytest
from tests.synth.building import Compiled, compiled


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """The runtime and the kernels of every program."""
    return compiled(tmp_path_factory)


@pytest.fixture
def clang_format() -> Path:
    """The command that formats C++, of the environment's folder."""
    command = Path(sys.executable).with_name("clang-format")
    if not command.is_file():
        pytest.skip("there is no clang-format")
    return command

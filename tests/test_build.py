"""Which variants of the kernels CMake is told to compile, and what a wheel is tied to."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.extras import ran
from tests.kernels import needs_kernels

from graphbraid import native

ROOT = Path(__file__).parents[1]
CMAKE = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CMAKE is None, reason="needs CMake, which `make test` installs"),
]


def configured(folder: Path, variants: str, **further: str) -> subprocess.CompletedProcess[str]:
    assert CMAKE is not None
    options = {
        "GB_VARIANTS": variants,
        "Python_EXECUTABLE": sys.executable,
        "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",
        **further,
    }
    given = [f"-D{name}={value}" for name, value in options.items()]
    return ran([CMAKE, "-S", str(ROOT), "-B", str(folder), *given])


def left_out(folder: Path) -> set[str]:
    """Variants that no kernel is compiled for; each file's command must say the same."""
    entries = json.loads((folder / "compile_commands.json").read_text())
    kernels = [entry for entry in entries if "csrc" in Path(entry["file"]).parts]
    assert len(kernels) > 20
    said = {frozenset(re.findall(r"-DGB_WITHOUT_(\w+)", entry["command"])) for entry in kernels}
    assert len(said) == 1, said
    return {name.lower() for name in said.pop()}


def test_the_same_folder_compiles_every_kernel_anew_for_other_variants(tmp_path):
    for asked, lacking in (
        ("all", set()),
        ("portable", {"avx2", "avx512"}),
        ("avx2,portable", {"avx512"}),
        ("avx512", {"portable", "avx2"}),
        ("all", set()),
    ):
        done = configured(tmp_path, asked)
        assert done.returncode == 0, done.stderr
        assert left_out(tmp_path) == lacking


@needs_kernels
def test_native_is_the_fastest_variant_of_this_processor(tmp_path):
    assert configured(tmp_path, "native").returncode == 0
    fastest = next(name for name in native.COMPILED_VARIANTS if native.kernels().is_supported(name))
    assert left_out(tmp_path) == {"portable", "avx2", "avx512"} - {fastest}


@pytest.mark.parametrize("asked", ["avx2,neon", ""])
def test_a_variant_that_does_not_exist_is_refused(asked, tmp_path):
    done = configured(tmp_path, asked)
    assert done.returncode != 0
    assert "all, native, or a list of portable, avx2 and avx512" in " ".join(done.stderr.split())
    assert "'neon'" in done.stderr or "names no variant" in done.stderr


def test_a_wheel_uses_the_stable_abi_and_other_builds_have_nanobind_inside(tmp_path):
    pytest.importorskip("nanobind")
    for asked, stable in (("3.11", True), ("", False)):
        done = configured(tmp_path / f"abi{asked}", "portable", SKBUILD_SABI_VERSION=asked)
        assert done.returncode == 0, done.stderr
        entries = json.loads((tmp_path / f"abi{asked}" / "compile_commands.json").read_text())
        for entry in entries:
            if "csrc" in Path(entry["file"]).parts:
                assert ("-DPy_LIMITED_API=0x30b0000" in entry["command"]) == stable, entry["command"]
        assert any("nb_func" in entry["file"] or "unity" in entry["file"] for entry in entries) != stable


def test_one_wheel_serves_all_pythons_and_none_names_a_torch():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["scikit-build"]["wheel"]["py-api"] == "cp311"
    # With a bound, two packages could not be installed side by side: all share one nanobind-backend.
    (backend,) = [need for need in project["project"]["dependencies"] if need.startswith("nanobind-backend")]
    assert re.fullmatch(r"nanobind-backend>=[\d.]+; platform_system == 'Linux'", backend)
    if (kernels := native.kernels()) is not None and shutil.which("readelf"):
        needed = subprocess.run(
            ["readelf", "--dynamic", kernels.__file__], capture_output=True, text=True, check=True
        ).stdout
        assert not re.search(r"NEEDED.*(torch|c10|gomp|cuda|python)", needed), needed

"""doctor tells what runs and why, and what is wrong."""

import os

import pytest
from tests import warm

from graphbraid import native
from graphbraid.cli.commands import doctor
from graphbraid.fullgraph import rates as kept_rates
from graphbraid.machine.hardware import Rates


@pytest.fixture
def unmeasured(monkeypatch):
    """Rates that nobody need measure."""
    monkeypatch.setattr(kept_rates, "measured_rates", lambda: kept_rates.MeasuredRates(rates=Rates()))


@pytest.mark.slow
def test_doctor_reports_versions_kernels_and_hardware(graphbraid_process):
    report = graphbraid_process("doctor", "--json", GRAPHBRAID_KERNELS="").json
    assert report["kernels"]["active"] in native.VARIANTS
    assert report["packages"]["torch"]
    assert report["hardware"]["usable_cores"] >= 1
    assert len(report["openmp"]["runtimes"]) == 1, "two OpenMP runtimes in one process (decision 0002)"
    assert "torch" in report["openmp"]["runtimes"][0]


# Not measured: the twins' rates take seconds, and the run above measures.
UNMEASURED = """
from graphbraid.cli.main import app
from graphbraid.fullgraph import rates
from graphbraid.machine.hardware import Rates

rates.measured_rates = lambda: rates.MeasuredRates(rates=Rates())
app(["doctor"])
"""


@pytest.mark.parametrize("variant", ["portable", "reference"])
def test_doctor_says_that_a_variant_was_forced(variant):
    if variant != "reference" and (reason := native.unsupported_reason(variant)):
        pytest.skip(reason)
    done = warm.run(["-c", UNMEASURED], environment=os.environ | {"GRAPHBRAID_KERNELS": variant})
    assert f"{variant}: GRAPHBRAID_KERNELS={variant} asks for it" in done.stdout, done.stderr


def test_doctor_ends_with_6_where_the_forced_variant_does_not_exist(graphbraid_warm):
    done = graphbraid_warm("doctor", "--json", GRAPHBRAID_KERNELS="neon", code=6)
    assert done.json["kernels"]["active"] is None
    assert any("'neon' names no kernel variant" in problem for problem in done.json["problems"])


def test_a_missing_optional_package_comes_with_its_install_command(monkeypatch, graphbraid, unmeasured):
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "pyarrow" else real(name))
    done = graphbraid("doctor")
    assert "not installed; for CSV and Parquet tables: pip install 'graphbraid[tabular]'" in done.stdout


def test_two_openmp_runtimes_and_too_many_threads_are_problems(monkeypatch, unmeasured):
    monkeypatch.setattr(doctor, "_openmp_runtimes", lambda: ["/a/libgomp.so.1", "/b/libomp.so"])
    monkeypatch.setattr(doctor, "_torch_threads", lambda: 512)
    problems = doctor.examine()["problems"]
    assert any("2 OpenMP runtimes" in problem and "/b/libomp.so" in problem for problem in problems)
    assert any("512 threads" in problem and "OMP_NUM_THREADS=" in problem for problem in problems)

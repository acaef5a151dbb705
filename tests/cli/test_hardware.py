"""Hardware is read from recorded /proc and /sys trees, containers' limits included."""

import dataclasses
import os

import pytest
from tests import warm

from graphbraid import native
from graphbraid.cli.commands import doctor
from graphbraid.fullgraph import rates as kept_rates
from graphbraid.machine.hardware import Hardware, Rates, memory_group

CPUINFO = """processor\t: 0
model name\t: Great CPU 9000

processor\t: 1
model name\t: Great CPU 9000

processor\t: 2
model name\t: Great CPU 9000
"""
MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\n"


def write(root, files):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.fixture
def machine(tmp_path):
    return write(tmp_path, {"proc/cpuinfo": CPUINFO, "proc/meminfo": MEMINFO})


def test_processor_and_memory_are_read(machine):
    hardware = Hardware.detect(root=machine)
    assert hardware.cpu_model == "Great CPU 9000"
    assert hardware.memory_total_bytes == 16_000_000 * 1024
    assert hardware.memory_available_bytes == 8_000_000 * 1024
    assert (hardware.memory_limit_bytes, hardware.quota_cores) == (None, None)


def test_limits_of_a_container_count_version_2(machine):
    write(
        machine,
        {
            "proc/self/cgroup": "0::/pod/one\n",
            "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/pod/one/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/one/memory.max": "4294967296\n",
            "sys/fs/cgroup/pod/one/memory.current": "1073741824\n",
            "sys/fs/cgroup/pod/memory.max": "max\n",
            "sys/fs/cgroup/pod/memory.current": "1073741824\n",
        },
    )
    hardware = Hardware.detect(root=machine)
    assert hardware.quota_cores == 1.5
    assert hardware.memory_limit_bytes == 4 << 30
    assert (
        hardware.memory_available_bytes == 3 << 30
    )  # what the container has left, not the 8 GB of the machine
    assert memory_group(root=machine) == str(machine / "sys/fs/cgroup/pod/one")  # the outer one has no limit


def test_limits_of_a_container_count_version_1(machine):
    write(
        machine,
        {
            "proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/\n1:name=systemd:/x\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "2147483648\n",
            "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "0\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    hardware = Hardware.detect(root=machine)
    assert (hardware.memory_limit_bytes, hardware.quota_cores) == (2 << 30, None)
    assert memory_group(root=machine) == str(machine / "sys/fs/cgroup/memory/box")


def test_a_machine_that_tells_nothing_still_gives_a_record(tmp_path):
    hardware = Hardware.detect(root=tmp_path)
    assert hardware.memory_total_bytes is None
    assert "unknown" in str(hardware)


def test_threads_are_planned_for_the_tighter_of_affinity_and_quota(machine):
    hardware = Hardware.detect(root=machine)
    planned = dataclasses.replace(hardware, usable_cores=8, quota_cores=2.5).planned_cores
    assert planned == 2
    assert dataclasses.replace(hardware, usable_cores=8, quota_cores=0.2).planned_cores == 1
    assert dataclasses.replace(hardware, usable_cores=8, quota_cores=None).planned_cores == 8


def test_the_record_is_frozen_and_prints_a_line_per_fact():
    hardware = Hardware.detect()
    with pytest.raises(dataclasses.FrozenInstanceError):
        hardware.usable_cores = 64
    lines = str(hardware).splitlines()
    assert len(lines) == len(hardware.rows())
    assert lines[0].startswith("processor")
    assert hardware.as_dict()["usable_cores"] == len(os.sched_getaffinity(0))


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
    real = doctor.version_of
    monkeypatch.setattr(doctor, "version_of", lambda name: None if name == "pyarrow" else real(name))
    done = graphbraid("doctor")
    assert "not installed; for CSV and Parquet tables: pip install 'graphbraid[tabular]'" in done.stdout


def test_two_openmp_runtimes_and_too_many_threads_are_problems(monkeypatch, unmeasured):
    monkeypatch.setattr(doctor, "_openmp_runtimes", lambda: ["/a/libgomp.so.1", "/b/libomp.so"])
    monkeypatch.setattr(doctor, "_torch_threads", lambda: 512)
    problems = doctor.examine()["problems"]
    assert any("2 OpenMP runtimes" in problem and "/b/libomp.so" in problem for problem in problems)
    assert any("512 threads" in problem and "OMP_NUM_THREADS=" in problem for problem in problems)

"""Everything that wants a GPU, as cases with processes and limits of their own, in three tiers.

a: one smallest case of each kernel family and route, and compute-sanitizer over the families;
b: every test that wants a card; c: measurements, in the order of the papers' claims.

A row is written as each case ends, so nothing is lost when the suite is killed. ``--resume FILE`` goes on
with the cases that have not passed there. ``gpu_suite.sh`` installs wheels and builds the kernels first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.contenders import ROOT
from benchmarks.common.options import absolute_path
from benchmarks.common.rows import machine_and_commit, read_lines

TIERS = {"a": (90, 8), "b": (240, 4), "c": (300, 1)}
"""Tier -> its seconds, and how many of its cases run at a time: measurements run alone.

A machine with fewer cores runs fewer at a time, and has as much longer."""
_KEPT_LINES = 30
_SANITIZER = "compute-sanitizer"
_SANITIZER_FOUND = 86
_TRITON = "tests/ops/triton/test_"

FAMILIES: dict[str, tuple[str, ...]] = {
    "spmm": (f"{_TRITON}spmm.py", "test_a_skipped_self_loop_may_hold_anything"),
    "spmm_max": (f"{_TRITON}spmm.py", "test_kernels_equal_twins_on_a_hub_and_its_transpose"),
    "gine": (f"{_TRITON}gine.py", "test_kernels_equal_twins_on_a_hub_and_its_transpose"),
    "messages": (f"{_TRITON}messages.py", "test_every_message_equals_its_twin"),
    "sddmm": (f"{_TRITON}sddmm.py", "test_rows_may_be_strided"),
    "edge_softmax": (f"{_TRITON}sddmm.py", "test_edge_softmax_of_a_hub_sums_to_one_for_huge_logits"),
    "attention": (f"{_TRITON}attention.py", "test_huge_logits_stay_finite"),
    "epilogue": (f"{_TRITON}epilogue.py", "test_many_rows_sum_in_a_fixed_order"),
    "norm": (f"{_TRITON}norm.py", "test_rows_wider_than_a_tile_are_read_in_parts"),
    "bit_product": (f"{_TRITON}bit_product.py", "test_adds_to_strided_rows_and_ends_in_an_epilogue"),
    "gather": (f"{_TRITON}gather.py", "test_a_table_may_start_anywhere"),
    "gather_tiered": (f"{_TRITON}gather.py", "test_rows_are_those_of_the_twin"),
    "pipelined_sum": (
        f"{_TRITON}pipelined_sum.py",
        "test_rows_of_a_wider_result_keep_what_stands_beside_them",
    ),
    "sampler": (
        "tests/sampling/triton/test_sampler.py",
        "test_long_rows_and_fanouts_beyond_a_tile_keep_their_bits",
    ),
    "draws": ("tests/sampling/triton/test_parts.py", "test_bounded_draws_agree"),
}
"""Kernel family -> file and name of its smallest test, which also runs under compute-sanitizer."""
ROUTES: dict[str, tuple[str, ...]] = {
    "zero copy": ("tests/sampling/test_pinning.py", "test_the_device_reads_a_table_that_was_locked_in_place"),
    "tiers": (f"{_TRITON}gather.py", "test_the_device_reads_page_locked_rows_beside_its_own"),
    "braided epoch": ("tests/sampling/triton/test_device_batching.py", "test_losses_are_equal_to_the_bit"),
    "whole graph": ("tests/fullgraph/test_cuda.py", "test_trains_as_on_the_cpu"),
    "recorded passes": ("tests/fullgraph/test_cuda.py", "test_passes_are_recorded"),
    "recorded batches": ("tests/fullgraph/test_cuda.py", "test_batches_are_recorded"),
    "trainer": ("tests/fullgraph/test_cuda.py", "test_the_trainer_compiles_for_the_device"),
    "peers by IPC": ("tests/distributed/test_peers.py", "test_processes_on_one_card_read_each_others_rows"),
    "ranks on a card": ("tests/distributed/test_whole_device.py", "test_processes_on_one_card_train"),
}
"""Route of a batch or a step -> file and name of its smallest test on a card."""
_SUITES = {
    "engine": ("tests/fullgraph/test_cuda.py",),
    "sampler": ("tests/sampling/triton",),
    "tiers": ("tests/sampling/test_pinning.py", "tests/sampling/test_peers.py", f"{_TRITON}gather.py"),
    "peers": ("tests/distributed/test_peers.py", "tests/distributed/test_whole_device.py"),
    "ranks": ("tests/distributed/test_hot_ranks.py", "tests/sampling/test_minibatch.py"),
    "sums": (f"{_TRITON}spmm.py", f"{_TRITON}gine.py", f"{_TRITON}sddmm.py"),
    "messages": (f"{_TRITON}messages.py",),
    "batches": (f"{_TRITON}batches.py",),
    "attention": (f"{_TRITON}attention.py",),
    "rows": (f"{_TRITON}epilogue.py", f"{_TRITON}norm.py", f"{_TRITON}bit_product.py", f"{_TRITON}gather.py"),
    "operators": (f"{_TRITON}operators.py", f"{_TRITON}fullgraph.py", f"{_TRITON}pipelined_sum.py"),
}
_SIZES = "--nodes 2000000 --edges 40000000 "
_MEASUREMENTS = {
    "tiers": (55, "--budget 40 --steps 50 --repeats 2 " + _SIZES),
    "sampling": (32, "--budget 16 --batches 30 --repeats 2 " + _SIZES),
    "collective": (
        78,
        "--budget 58 --steps 40 --repeats 1 --grid 0.5 --cores 4 2 8 16 --hot 1 0.25 " + _SIZES,
    ),
    "fullgraph": (60, "--budget 38 --epochs 10 --repeats 2 --names arxiv-like products-lite reddit-lite"),
    "batches": (25, "--budget 14"),
    "pipeline": (25, "--budget 15"),
    "kernels": (25, "--budget 18"),
}
"""Benchmark in ``benchmarks.gpu`` -> its seconds and its options: ``--budget`` leaves time for what began."""


@dataclass(frozen=True)
class Case:
    """One process of the suite."""

    name: str
    tier: str
    seconds: float
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()


def cases(*, smoke: bool, config: Path, out: Path) -> list[Case]:
    """Return all cases in their order; ``config`` is pytest's, ``out`` is the benchmarks' folder."""
    pytest = (sys.executable, "-m", "pytest", "-q", "-c", str(config), "--rootdir", str(ROOT), "--tb=short")
    marks = () if smoke else ("-m", "gpu")
    one = [
        Case(name, "a", 60, (*pytest, "-x", "--maxfail=1", file, "-k", test, *marks))
        for name, (file, test) in (FAMILIES | ROUTES).items()
    ]
    checked = [
        Case(
            f"{tool} of {name}",
            "a",
            60,
            (
                _SANITIZER,
                "--tool",
                tool,
                "--error-exitcode",
                str(_SANITIZER_FOUND),
                *pytest,
                "-x",
                file,
                "-k",
                test,
            ),
            (("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),),  # else every row lies in one block of the allocator's
        )
        for tool in ("memcheck", "racecheck")
        for name, (file, test) in FAMILIES.items()
        if shutil.which(_SANITIZER) and not smoke
    ]
    whole = [Case(f"tests of {name}", "b", 120, (*pytest, *marks, *paths)) for name, paths in _SUITES.items()]
    measured = [
        Case(
            name,
            "c",
            seconds,
            (
                *(sys.executable, "-m", f"benchmarks.gpu.{name}", *(("--smoke",) if smoke else ())),
                *(*options.split(), "--out", str(out / f"gpu_{name}.jsonl")),
            ),
        )
        for name, (seconds, options) in _MEASUREMENTS.items()
    ]
    return [*one, *checked, *([] if smoke else whole), *measured]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen cases; returns 1 where one neither passed nor was skipped."""
    given = _options(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    journal = given.out / "gpu_suite.jsonl"
    passed = (
        {row["row"] for row in read_lines(given.resume) if row["status"] == "passed"}
        if given.resume
        else set()
    )
    config = _pytest_config(given.out)
    chosen = [
        case
        for case in cases(smoke=given.smoke, config=config, out=given.out)
        if case.tier in given.tiers
        and case.name not in passed
        and (not given.only or case.name in given.only)
        and case.name not in given.skip
    ]
    if unknown := set(given.only) - {case.name for case in chosen} - passed:
        raise SystemExit(f"no such cases: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows: list[dict[str, Any]] = []
    stamp = machine_and_commit() | {"card": _card()}
    for tier in given.tiers:
        for row in _run_tier([case for case in chosen if case.tier == tier], *TIERS[tier]):
            rows.append(row)
            with journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**row, **stamp}) + "\n")
            print(f"{tier}  {row['status']:14}{row['seconds']:7.1f} s  {row['row']}  {row['by']}", flush=True)
    _show(rows)
    return int(any(row["status"] not in ("passed", "skipped") for row in rows))


def _card() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def _run_tier(chosen: Sequence[Case], seconds: float, at_a_time: int) -> Iterator[dict[str, Any]]:
    """Run cases until their tier's time is over; yields each one's row as it ends."""
    workers = min(at_a_time, max(1, (os.cpu_count() or 1) // 2))
    end = time.monotonic() + seconds * at_a_time / workers
    running: set[subprocess.Popen[str]] = set()
    pool = ThreadPoolExecutor(workers)
    try:
        for ended in as_completed([pool.submit(_run, case, end, running) for case in chosen]):
            yield ended.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in tuple(running):
            _kill(process)


def _run(case: Case, end: float, running: set[subprocess.Popen[str]]) -> dict[str, Any]:
    began = time.monotonic()
    limit = min(case.seconds, end - began)
    row = {"row": case.name, "tier": case.tier, "by": "", "seconds": 0.0, "output": []}
    if limit < 1:
        return row | {"status": "left out", "by": "the tier's time is over"}
    process = subprocess.Popen(
        case.command,
        cwd=ROOT,
        env=os.environ | dict(case.environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # so that what it starts ends with it
    )
    running.add(process)
    try:
        said, _ = process.communicate(timeout=limit)
        status, by = status_of(process.returncode, said)
    except subprocess.TimeoutExpired:
        _kill(process)
        said, _ = process.communicate()
        status, by = "timeout", f"over {limit:.0f} s"
    running.discard(process)
    output = [] if status == "passed" and case.tier != "c" else _telling(said)
    return row | {"status": status, "by": by, "seconds": time.monotonic() - began, "output": output}


def status_of(code: int, said: str) -> tuple[str, str]:
    """Return what came of a case, and by how much it was wrong or what kind of error it was."""
    if code == 0 or code == 5:  # pytest's code where no test was left
        is_skipped = code == 5 or (re.search(r"\d+ skipped", said) and not re.search(r"\d+ passed", said))
        return ("skipped", "") if is_skipped else ("passed", "")
    if code < 0 or code in (134, 139):
        return "crash", f"signal {-code if code < 0 else code - 128}"
    if code == _SANITIZER_FOUND:
        return "memory error", next(iter(re.findall(r"========= (?:Invalid|Error|Race).*", said)), "")
    if found := re.findall(
        r"\b(?:CompilationError|PTXASError|OutOfResources|PassManager::run failed).*", said
    ):
        return "compile error", found[0][:160]
    if found := re.findall(r"Greatest (?:absolute|relative) difference: \S+", said):
        return "wrong", ", ".join(found[:2])
    errors = re.findall(r"^E +(\w*(?:Error|Exception)\b.*)$", said, flags=re.M)
    return "error", errors[0][:160] if errors else f"exit code {code}"


def _telling(said: str) -> list[str]:
    """Return the lines from where a failure is described on, or the last ones."""
    lines = said.splitlines()
    begins = [number for number, line in enumerate(lines) if "FAILURES" in line or "= ERRORS" in line]
    return lines[begins[0] :][:_KEPT_LINES] if begins else lines[-_KEPT_LINES:]


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _show(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        if row["status"] not in ("passed", "skipped"):
            print(f"\n== {row['row']}: {row['status']} {row['by']}")
            print("\n".join(row["output"]))
    print(f"\n{'case':34}{'tier':6}{'status':16}{'seconds':>8}")
    for row in rows:
        print(f"{row['row']:34}{row['tier']:6}{row['status']:16}{row['seconds']:8.1f}  {row['by']}")
    print(", ".join(f"{count} {status}" for status, count in Counter(row["status"] for row in rows).items()))


def _pytest_config(folder: Path) -> Path:
    """A configuration of its own: the project's names plugins that a GPU machine may lack."""
    place = folder / "pytest.ini"
    marks = ("slow", "long", "rest", "interpreted", "whole", "each_variant", "gpu", "distributed")
    listed = "".join(f"  {mark}: see pyproject.toml\n" for mark in marks)
    paths = f"pythonpath = {ROOT} {ROOT / 'src'}\n"
    options = "addopts = -ra --import-mode=importlib -p no:cacheprovider\n"
    place.write_text(f"[pytest]\n{options}{paths}markers =\n{listed}", encoding="utf-8")
    return place


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = lambda text: [one for one in text.split(",") if one]  # noqa: E731
    parser.add_argument("--tiers", type=lambda text: text.split(","), default=list(TIERS), help="a,b,c")
    parser.add_argument("--only", type=names, default=[], help="names of cases, separated by commas")
    parser.add_argument("--skip", type=names, default=[], help="names of cases, separated by commas")
    parser.add_argument("--resume", type=absolute_path, help="leave out what has passed in this file of rows")
    parser.add_argument("--smoke", action="store_true", help="on the CPU: interpreted kernels and tiny sizes")
    parser.add_argument("--out", type=absolute_path, default=ROOT / "benchmarks" / "results")
    given = parser.parse_args(arguments)
    if unknown := set(given.tiers) - set(TIERS):
        parser.error(f"--tiers takes {', '.join(TIERS)}; got {', '.join(sorted(unknown))}")
    return given


if __name__ == "__main__":
    sys.exit(main())

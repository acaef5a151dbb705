"""``graphbraid doctor``: shows what is installed, which kernels run and why, and what the machine offers."""

import dataclasses
import platform
import sys
from pathlib import Path
from typing import Any

import typer

from graphbraid import __version__, native
from graphbraid.cli.common import DebugOption, JsonOption, facts, guarded, out_console, print_json, say
from graphbraid.errors import KernelError
from graphbraid.machine.hardware import Hardware, version_of

REQUIRED = ("torch", "numpy", "scipy", "pydantic", "PyYAML", "rich", "typer", "torchmetrics", "xxhash")
OPTIONAL = {
    "torch-geometric": ("pyg", "PyG graphs, datasets and models"),
    "pyarrow": ("tabular", "CSV and Parquet tables"),
    "tensorboard": ("tensorboard", "TensorBoard logs"),
    "dgl": ("", "DGL graphs"),
    "ogb": ("", "downloading OGB datasets; their folders are read without it"),
}
"""Optional distributions, each with the extra that installs it (empty if none) and its purpose."""


@guarded
def doctor(*, json_output: JsonOption = False, debug: DebugOption = False) -> None:  # noqa: ARG001
    """Show what is installed, which kernel variant is active and why, cores, memory and GPUs.

    The exit code is 6 if the variant that GRAPHBRAID_KERNELS asks for cannot run here, otherwise 0.

    Examples:

        graphbraid doctor

        graphbraid doctor --json

        GRAPHBRAID_KERNELS=portable graphbraid doctor
    """  # noqa: D412  (typer shows the blank line between examples)
    report = examine()
    if json_output:
        print_json(report)
    else:
        _show(report)
    if report["kernels"]["active"] is None:
        raise typer.Exit(KernelError.exit_code)


def examine() -> dict[str, Any]:
    """Return everything that ``doctor`` shows, as plain values."""
    kernel_report = _kernels()
    hardware = Hardware.detect()
    runtimes = _openmp_runtimes()
    return {
        "graphbraid": {"version": __version__, "location": str(Path(__file__).parents[2])},
        "python": {
            "version": platform.python_version(),
            "executable": sys.executable,
            "system": platform.platform(),
        },
        "packages": {name: version_of(name) for name in REQUIRED},
        "optional_packages": {
            name: {"version": version_of(name), "extra": extra or None, "purpose": purpose}
            for name, (extra, purpose) in OPTIONAL.items()
        },
        "kernels": kernel_report,
        "openmp": {"runtimes": runtimes, "threads": _torch_threads()},
        "rates": _rates(),
        "hardware": hardware.as_dict() | {"planned_cores": hardware.planned_cores},
        "problems": _problems(kernel_report, runtimes, hardware),
    }


def _kernels() -> dict[str, Any]:
    try:
        selection = native.active()
    except KernelError as error:
        return {"active": None, "reason": str(error), "rejected": {}}
    return {"active": selection.variant, "reason": selection.reason, "rejected": dict(selection.rejected)}


def _rates() -> dict[str, Any]:
    from graphbraid.fullgraph.rates import measured_rates

    try:
        measured = measured_rates()
    except KernelError:
        return {}
    trust = {"others": measured.others, "doubt": measured.doubt}
    return dataclasses.asdict(measured.rates) | {"gamma": measured.rates.gamma} | trust


def _torch_threads() -> int:
    import torch

    return torch.get_num_threads()


def _openmp_runtimes() -> list[str]:
    """List the OpenMP libraries mapped into this process; two of them would compete for the cores."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if len(line.split(maxsplit=5)) == 6}
    return sorted(p for p in paths if Path(p).name.startswith(("libgomp", "libomp", "libiomp")))


def _problems(kernel_report: dict[str, Any], runtimes: list[str], hardware: Hardware) -> list[str]:
    """Describe the problems that make runs slow or fail, each with the next step."""
    problems = []
    if kernel_report["active"] is None:
        problems.append(kernel_report["reason"])
    elif kernel_report["active"] == "reference" and kernel_report["rejected"]:
        why = next(iter(kernel_report["rejected"].values()))
        problems.append(
            "no compiled kernels: everything runs on the slower PyTorch reference. "
            f"Reinstall graphbraid with a C++ compiler at hand. Reason: {why}"
        )
    if len(runtimes) > 1:
        problems.append(
            f"{len(runtimes)} OpenMP runtimes are loaded and compete for cores: {', '.join(runtimes)}"
        )
    threads = _torch_threads()
    if threads > hardware.planned_cores:
        problems.append(
            f"PyTorch uses {threads} threads but only {hardware.planned_cores} cores may be used; "
            f"set OMP_NUM_THREADS={hardware.planned_cores}"
        )
    return problems


def _show(report: dict[str, Any]) -> None:
    console = out_console()
    _print_rows("graphbraid", _software_rows(report))
    _print_rows("kernels", _kernel_rows(report))
    _print_rows("machine", Hardware.detect().rows())
    _print_rows("rates", _rate_rows(report["rates"]))
    _print_rows("optional packages", _optional_rows(report))
    if not report["problems"]:
        say(console, "[green]no problems found[/]")
    for problem in report["problems"]:
        say(console, "[bold yellow]problem:[/] {}", problem)


def _print_rows(title: str, rows: list[tuple[str, str]]) -> None:
    console = out_console()
    say(console, "[bold]{}[/]", title)
    console.print(facts((f"  {label}", value) for label, value in rows))


def _software_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("graphbraid", f"{report['graphbraid']['version']} in {report['graphbraid']['location']}"),
        ("python", f"{report['python']['version']} on {report['python']['system']}"),
    ]
    return rows + [(name, version or "missing") for name, version in report["packages"].items()]


def _kernel_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    chosen = report["kernels"]
    rows = [("active", f"{chosen['active'] or 'none'}: {chosen['reason']}")]
    rows += [(f"not {name}", why) for name, why in chosen["rejected"].items()]
    runtime = ", ".join(report["openmp"]["runtimes"]) or "not loaded"
    return [*rows, ("OpenMP", f"{runtime}; {report['openmp']['threads']} threads")]


def _rate_rows(rates: dict[str, Any]) -> list[tuple[str, str]]:
    if not rates:
        return []
    giga = 1e9
    doubtful = [("doubtful", f"{rates['doubt']}; a later run measures again")] if rates["doubt"] else []
    cache = f"{rates['cache_bytes'] / 1e6:.1f} MB"
    return [
        ("dense products", f"{rates['multiply_flops'] / giga:.0f} GFLOP/s"),
        ("rows at random", f"{rates['row_bytes'] / giga:.1f} GB/s"),
        ("rows in the cores' caches", f"{rates['cached_row_bytes'] / giga:.1f} GB/s"),
        ("rows in the cache behind", f"{rates['outer_row_bytes'] / giga:.1f} GB/s, up to {cache}"),
        ("in sequence", f"{rates['stream_bytes'] / giga:.1f} GB/s"),
        ("sparse features", f"{rates['sparse_values'] / giga:.2f} G values/s, 16 columns at a time"),
        ("binary features", f"{rates['binary_values'] / giga:.1f} G values/s, 16 columns at a time"),
        ("exponentials", f"{rates['exponentials'] / giga:.1f} G/s"),
        ("sparse over dense", f"{rates['gamma']:.3f}: the density below which the sparse path is faster"),
        *doubtful,
    ]


def _optional_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for name, entry in report["optional_packages"].items():
        how = f"pip install 'graphbraid[{entry['extra']}]'" if entry["extra"] else f"pip install {name}"
        rows.append((name, entry["version"] or f"not installed; for {entry['purpose']}: {how}"))
    return rows

"""Tables of synthesised programs: beside the in-process engine and PyG, and each input path."""

from __future__ import annotations

from benchmarks.common.rows import Row, read_rows
from benchmarks.tables.markdown import NOT_MEASURED, geometric_mean, milliseconds, table, where

COMMAND = "benchmarks.synth.beside_engine"
NOTHING = "Not measured yet."


def programs() -> str:
    """Times of an epoch of the programs with OpenMP and with MPI, the engine and PyG."""
    rows = _programs()
    lines = []
    for row in rows:
        seconds = {name: row[name]["epoch_s"] for name in ("program", "engine", "pyg")}
        ranks = f" ({row['ranks']} ranks)" if "mpi" in row else ""
        lines.append(
            [
                f"{row['graph']}, {row['model']}",
                row["input_path"],
                f"**{milliseconds(seconds['program'])}**",
                milliseconds(row.get("mpi", {}).get("epoch_s")) + ranks,
                *(
                    f"{milliseconds(seconds[c])} ({seconds[c] / seconds['program']:.2f}x)"
                    for c in ("engine", "pyg")
                ),
            ]
        )
    means = [
        f"**{geometric_mean([row[c]['epoch_s'] / row['program']['epoch_s'] for row in rows]):.2f}x**"
        for c in ("engine", "pyg")
        if rows
    ]
    lines += [["geometric mean", "", "", "", *means]] if rows else []
    heads = ("an epoch of", "input path", "OpenMP", "MPI", "in-process engine", "PyG")
    return "\n\n".join([table(heads, lines), where(rows, COMMAND)]) if rows else NOTHING


def costs() -> str:
    """What the programs take beside epochs: peak memory, start-up, writing and building."""
    rows = _programs()
    lines = []
    for row in rows:
        targets = [("OpenMP", row["program"], row)]
        targets += [(f"MPI, {row['ranks']} ranks", row["mpi"], row["mpi_built"])] if "mpi" in row else []
        for target, figures, built in targets:
            lines.append(
                [
                    f"{row['graph']}, {row['model']}",
                    target,
                    *(_megabytes(of) for of in (figures, row["engine"], row["pyg"])),
                    *(_seconds(of) for of in (figures.get("load_s"), row["engine"].get("compile_s"))),
                    *(f"{built[key]:.1f} s" for key in ("write_s", "build_s")),
                    f"{built['binary_mb']:.1f} MB",
                ]
            )
    heads = (
        *("program of", "with", "peak memory", "the engine's", "PyG's", "start-up", "the engine's"),
        *("writing", "building", "binary"),
    )
    return "\n\n".join([table(heads, lines), where(rows, COMMAND)]) if rows else NOTHING


def input_paths() -> str:
    """Each input path of a program, and the one that it takes."""
    rows = [row for row in read_rows("synth") if "paths" in row]
    lines = []
    for row in rows:
        dense = row["dense"]["epoch_s"]
        for name in ("chosen", *row["paths"]):
            figures = row[name]
            chosen = " or ".join(sorted(set(row["input_path"])))
            lines.append(
                [
                    row["graph"],
                    f"{100 * row['density']:.3g}%",
                    f"its choice: **{chosen}**" if name == "chosen" else f"`--input {name}`",
                    f"{milliseconds(figures['epoch_s'])} ({dense / figures['epoch_s']:.2f}x)",
                    _megabytes(figures),
                    f"{figures['load_s']:.2f} s",
                ]
            )
    heads = ("graph", "not zero", "input path", "an epoch (dense / it)", "peak memory", "start-up")
    command = "benchmarks.synth.input_paths"
    return "\n\n".join([table(heads, lines), where(rows, command)]) if rows else NOTHING


def _programs() -> list[Row]:
    return [row for row in read_rows("synth") if "program" in row]


def _megabytes(figures: Row) -> str:
    peak = figures.get("peak_rss_gb")  # 0: it ended before it was looked at
    return f"{1e3 * peak:,.0f} MB" if peak else NOT_MEASURED


def _seconds(seconds: float | None) -> str:
    return NOT_MEASURED if seconds is None else f"{seconds:.2f} s"

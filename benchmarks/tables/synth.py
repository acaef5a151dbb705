"""Tables of synthesised programs: beside the in-process engine and PyG, and each input path."""

from __future__ import annotations

from benchmarks.common.rows import Row, read_rows
from benchmarks.tables.markdown import NOT_MEASURED, geometric_mean, milliseconds, table, where

COMMAND = "benchmarks.synth.beside_engine"
NOTHING = "Not measured yet."


def programs() -> str:
    """Times of an epoch of the programs with OpenMP, the engine and PyG."""
    rows = _programs()
    lines = []
    for row in rows:
        seconds = {name: row[name]["epoch_s"] for name in ("program", "engine", "pyg")}
        lines.append(
            [
                f"{row['graph']}, {row['model']}",
                row["input_path"],
                f"**{milliseconds(seconds['program'])}**",
                *(
                    f"{milliseconds(seconds[c])} ({seconds[c] / seconds['program']:.2f}x)"
                    for c in ("engine", "pyg")
                ),
                _off(row["program"]),
            ]
        )
    means = [
        f"**{geometric_mean([row[c]['epoch_s'] / row['program']['epoch_s'] for row in rows]):.2f}x**"
        for c in ("engine", "pyg")
        if rows
    ]
    lines += [["geometric mean", "", "", *means, ""]] if rows else []
    heads = ("an epoch of", "input path", "the program", "in-process engine", "PyG", "losses off by")
    return "\n\n".join([table(heads, lines), where(rows, COMMAND)]) if rows else NOTHING


def costs() -> str:
    """What the programs with OpenMP take beside epochs: peak memory, start-up, writing and building."""
    rows = _programs()
    lines = [
        [
            f"{row['graph']}, {row['model']}",
            *(_megabytes(row[of]) for of in ("program", "engine", "pyg")),
            _seconds(row["program"].get("load_s")),
            *(_seconds(row["engine"].get(key)) for key in ("startup_s", "compile_s")),
            *_built(row["program"]),
        ]
        for row in rows
    ]
    heads = (
        *("program of", "peak memory", "the engine's", "PyG's"),
        *("start-up", "the engine's", "of it compiling", "writing", "building", "binary"),
    )
    return "\n\n".join([table(heads, lines), where(rows, COMMAND)]) if rows else NOTHING


def ranks() -> str:
    """The programs with MPI: an epoch, what the ranks send, and what they take beside."""
    rows = [row for row in _programs() if row["ranks"]]
    lines = []
    for row in rows:
        for num_ranks in row["ranks"]:
            of, alone = row[f"mpi-{num_ranks}"], row["program"]["epoch_s"]
            lines.append(
                [
                    f"{row['graph']}, {row['model']}",
                    str(num_ranks),
                    f"{milliseconds(of['epoch_s'])} ({alone / of['epoch_s']:.2f}x)",
                    f"{of['sent_bytes'] / 1e6:,.2f} MB",
                    _off(of),
                    _megabytes(of),
                    _seconds(of["load_s"]),
                    *_built(of),
                ]
            )
    heads = (
        *("program of", "ranks", "an epoch (OpenMP / it)", "sent in it", "losses off by"),
        *("peak memory of all", "start-up", "writing", "building", "binary"),
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
    peak = figures.get("peak_rss_gb")
    return f"{1e3 * peak:,.0f} MB" if peak else NOT_MEASURED


def _off(figures: Row) -> str:
    """How far its losses are off the engine's at most."""
    return f"{figures['off']:.0e}" if "off" in figures else NOT_MEASURED


def _built(figures: Row) -> list[str]:
    """What writing and building took, and the binary's size."""
    seconds = [f"{figures[key]:.1f} s" for key in ("write_s", "build_s")]
    return [*seconds, f"{figures['binary_mb']:.1f} MB"]


def _seconds(seconds: float | None) -> str:
    return NOT_MEASURED if seconds is None else f"{seconds:.2f} s"

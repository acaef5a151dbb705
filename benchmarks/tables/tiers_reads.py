"""Tables of reading rows: from memory, from disk, and of graphs and features larger than memory."""

from __future__ import annotations

from statistics import median

from benchmarks.common.rows import Row, read_rows
from benchmarks.tables.markdown import table, where
from graphbraid.files.writing import format_bytes


def gather() -> str:
    """Rows gathered from memory beside the limit."""
    rows = read_rows("tiers_gather")
    lines = []
    for row in rows:
        rates, shares = row["bytes_per_second"], row["of_limit"]
        measured = [name for name in ("kernel", "tiers", "map") if name in rates]
        ours = [f"{rates[name] / 1e9:.1f} ({shares[name]:.0%})" for name in measured]
        ours += ["-"] * (3 - len(measured))
        lines.append([str(row["row_bytes"]), str(row["threads"]), f"{rates['limit'] / 1e9:.1f}", *ours])
    ways = ("features in memory", "rows in tiers, all in memory", "the same, by a map")
    heads = ("bytes a row", "threads", "C loop, GB/s", *ways)
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.tiers.gather")])


def disk() -> str:
    """Rows of a file with memory for a part of them."""
    rows = read_rows("tiers_disk")
    lines = [line for row in rows for line in _ways(row)]
    heads = ("features, memory", "way", "batches", "seconds", "tiers, seconds", "times as fast", "reads")
    notes = [_note(row) for row in rows]
    return "\n\n".join([table(heads, lines), *notes, where(rows, "benchmarks.tiers.disk")])


def _ways(row: Row) -> list[list[str]]:
    """Plain memmap beside tiers, and memmap told not to read ahead beside tiers over more batches."""
    plain = row.get("plain", row)  # older rows compare all over the same batches
    lines = []
    for name, label, beside in (
        ("memmap", "`numpy.memmap`", plain),
        ("memmap-random", "`numpy.memmap`, `MADV_RANDOM`", row),
    ):
        seconds = {one: median(found) for one, found in beside["seconds"].items()}
        run = row.get(name)
        rate = f"{format_bytes(run['read_bytes'] / run['whole_seconds'])}/s" if run else ""
        lines.append(
            [
                row["row"].replace(" with ", ", ") if name == "memmap" else "",
                label,
                f"{beside['steps']:,}",
                f"{seconds[name]:.1f}",
                f"{seconds['tiers']:.1f}",
                f"{seconds[name] / seconds['tiers']:.1f}",
                rate,
            ]
        )
    return lines


def _note(row: Row) -> str:
    limits = [
        f"{format_bytes(limit['bytes_per_second'])}/s in requests of {format_bytes(limit['request_bytes'])}"
        for limit in row["limits"]
    ]
    tiers, ahead = row["tiers"], row.get("read_ahead_bytes")
    said = f"At a page fault the system reads {format_bytes(ahead)} ahead. " if ahead is not None else ""
    return (
        f"Rows of {row['row_bytes']} bytes, from a cold file. {said}"
        f"Over all {tiers['batches']} batches tiers had "
        f"{tiers['host_share']:.1%} of the rows in memory and read "
        f"{format_bytes(tiers['disk_bytes'] / tiers['whole_seconds'])}/s. "
        f"At random the disk gives {' and '.join(limits)}. The memory's limit: {tiers['limit']}."
    )


def scale() -> str:
    """The stages of a graph larger than the memory it may take."""
    rows = read_rows("tiers_scale")
    lines = [
        [
            row["stage"],
            f"{row['seconds']:.0f}",
            format_bytes(row["own_bytes"]),
            format_bytes(row["resident_bytes"]),
            row["what"],
        ]
        for row in rows
    ]
    heads = ("stage", "seconds", "own memory at most", "with mapped files", "what")
    made = next(row for row in rows if "feature_bytes" in row)
    note = (
        f"{made['num_edges']:,} edges ({format_bytes(made['topology_bytes'])}), "
        f"{format_bytes(made['feature_bytes'])} of features; `--host {made['host']}`, "
        f"{made['budget']} for exact inference. Each stage is a process of its own, from start to end."
    )
    return "\n\n".join([table(heads, lines), note, where(rows, "benchmarks.tiers.scale")])


def whole() -> str:
    """Full-graph training with its features on disk and in memory."""
    rows = read_rows("tiers_whole")
    lines = [line for row in rows for line in _streamed_and_not(row)]
    heads = (
        *("model, features, limit", "features", "seconds an epoch", "read an epoch", "read a second"),
        *("the disk gives", "peak memory"),
    )
    note = (
        f"`host={rows[0]['host']}` of the limit is for features; the limit ({rows[0]['streamed']['limit']}) "
        "counts the pages of files as well, and not the libraries, which the peak does."
    )
    return "\n\n".join([table(heads, lines), note, where(rows, "benchmarks.tiers.whole")])


def _streamed_and_not(row: Row) -> list[list[str]]:
    seconds = {way: median(row[way]["epoch_seconds"][1:]) for way in ("streamed", "in_memory")}
    peaks = {way: format_bytes(row[way]["peak_bytes"]) for way in seconds}
    read, disk = median(row["streamed"]["read_bytes"][1:]), row["disk"]["bytes_per_second"]
    rates = [f"{format_bytes(rate)}/s" for rate in (read / seconds["streamed"], disk)]
    streamed = [row["row"], "on disk", f"{seconds['streamed']:.2f}", format_bytes(read), *rates]
    in_memory = ["", "in memory", f"{seconds['in_memory']:.2f}", "", "", ""]
    return [[*streamed, peaks["streamed"]], [*in_memory, peaks["in_memory"]]]


def renumbering() -> str:
    """Renumbering the nodes of a large graph beside the peer: seconds, and peak memory."""
    rows = read_rows("tiers_reordering")
    lines = []
    for row in rows:
        mine, theirs = row["graphbraid"], row["dgl"]
        cells = [f"{found['seconds']:.2f} s, {found['peak_of_topology']:.2f}" for found in (mine, theirs)]
        lines.append([f"{row['num_edges']:,}", *cells, f"{row['ratio']:.0f}x"])
    heads = ("edges", "graphbraid: time, peak / topology", "dgl.reorder_graph", "faster")
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.tiers.reordering")])

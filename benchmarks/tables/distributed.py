"""Tables of distributed training."""

from __future__ import annotations

import math
import statistics
from typing import Any

from benchmarks.common.rows import read_rows
from benchmarks.distributed.mini_batches import ranged as ranged_shares
from benchmarks.distributed.rounding import FLOAT64, SHOWN, distances
from benchmarks.distributed.scaling import HEADS, cells_of
from benchmarks.distributed.shaped import MODES, derived, ranged
from benchmarks.distributed.whole_graph import beside
from benchmarks.tables.fullgraph import PEERS as PEER_LABELS
from benchmarks.tables.markdown import NOT_MEASURED, table, where

LABELS = {
    "auto": "graphbraid (auto)",
    "metis": "METIS, in-edges balanced",
    "metis-nodes": "METIS, nodes balanced",
    "streaming": "streaming",
    "contiguous": "contiguous",
    "random": "random",
}
COMMAND = "benchmarks.distributed.partitioning"


def partitions() -> str:
    """Edges cut and balance, beside METIS's own."""
    rows = read_rows("partitioning")
    lines = []
    for row in rows:
        cells = (
            f"{100 * row[name]['cut']:.2f} ({row[name]['edges']:.2f})" if name in row else NOT_MEASURED
            for name in LABELS
        )
        lines.append([row["graph"], str(row["num_parts"]), *cells])
    heads = ("% of edges cut (heaviest part's in-edges by the mean)", "parts", *LABELS.values())
    return "\n\n".join([table(heads, lines), where(rows, COMMAND)])


def partition_costs() -> str:
    """Seconds and peak memory, for the most parts that were measured of each graph."""
    rows = read_rows("partitioning")
    last = {row["graph"]: row for row in rows}
    lines = []
    for row in last.values():
        cells = (
            f"{row[name]['seconds']:.2f} s, {row[name]['peak_bytes'] / 1e6:,.0f} MB"
            if name in row
            else NOT_MEASURED
            for name in LABELS
        )
        sizes = f"{row['num_nodes']:,} nodes, {row['num_edges']:,} edges"
        lines.append([f"{row['graph']} ({sizes})", str(row["num_parts"]), *cells])
    limits = " or ".join(dict.fromkeys(row["memory"] for row in rows))
    note = (
        f"Memory is the peak above the graph. Streaming was allowed {limits} beside it, and read the graph "
        "from a store."
    )
    return "\n\n".join([table(("graph", "parts", *LABELS.values()), lines), note, where(rows, COMMAND)])


def whole_graphs() -> str:
    """Seconds and bytes of a full-graph epoch on ranks, beside one process with as many cores."""
    rows = read_rows("distributed_fullgraph")
    lines = []
    for row in rows:
        seconds = (statistics.median(row[key]) for key in ("one_seconds", "ranks_seconds"))
        megabytes = (row[key] / 1e6 for key in ("sent_bytes", "boundary_bytes"))
        cells = (
            *(f"{1e3 * second:.1f}" for second in seconds),
            f"{row['cost']:.2f}",
            *(_beside_ranks(row, lib) for lib in PEER_LABELS),
            *(f"{size:.2f}" for size in megabytes),
        )
        lines.append([row["row"], *cells])
    heads = (
        "graph",
        "one process, ms",
        "ranks, ms",
        "times as long",
        *(f"{label}, ms" for label in PEER_LABELS.values()),
        "MB sent",
        "MB of all boundary rows in every layer",
    )
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.distributed.whole_graph")])


def ways() -> str:
    """Seconds of what two ranks of a machine do by each way between them, by those of shared memory."""
    rows = read_rows("distributed_machine")
    medians = {
        row["row"]: {name: statistics.median(times) for name, times in row["seconds"].items()} for row in rows
    }
    lines = []
    for operation, first in medians["memory"].items():
        cells = (f"{1e6 * of[operation]:,.0f} ({of[operation] / first:.2f})" for of in medians.values())
        lines.append([operation, *cells])
    heads = ("microseconds (by those of shared memory)", *medians)
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.distributed.machine")])


def scaling() -> str:
    """Simulated epochs on up to 1,024 ranks, as ranges."""
    rows = read_rows("distributed_scaling")
    lines = [
        [row["row"] if count == "1" else "", count, *cells_of(found)]
        for row in rows
        for count, found in row["ranks"].items()
    ]
    return "\n\n".join(
        [table(("graph", "ranks", *HEADS), lines), where(rows, "benchmarks.distributed.scaling")]
    )


def _beside_ranks(row: dict[str, Any], lib: str) -> str:
    """A peer's milliseconds, and how many times those of the ranks they are."""
    if lib not in row.get("peers_seconds", {}):
        return NOT_MEASURED
    seconds, lead = beside(row)[lib]
    return f"{1e3 * seconds:.0f} ({lead:.1f}x)"


def shaped() -> str:
    """Epochs of ranks behind shaped links, beside what they compute and send, and what was predicted."""
    rows = read_rows("distributed_shaped")
    lines = []
    for row in rows:
        times = [f"{1e3 * row['seconds'][mode]:.0f}" for mode in MODES]
        of = derived(row)
        ratios = {name: NOT_MEASURED if math.isnan(value) else f"{value:.2f}" for name, value in of.items()}
        ratios["predicted by it"] = ranged(row)
        cost = row.get("byte_processor_seconds")
        of_link = (
            f"{row['bandwidth_bytes'] * 8 / 1e6:.0f}",
            NOT_MEASURED if cost is None else f"{1e9 * cost:.2f}",
        )
        lines.append([row["row"], *times, *ratios.values(), *of_link])
    heads = (
        "ranks, rate of each link",
        *(f"{mode}, ms" for mode in MODES),
        "by the longer of the last two",
        "by the same with the core's work for bytes sent",
        "blocking by overlapped",
        "predicted by measured",
        "bytes by report",
        "Mbit/s that an exchange reaches each way",
        "ns of a core for a byte each way",
    )
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.distributed.shaped")])


def mini_batches() -> str:
    """Epochs of mini-batches that ranks share, beside what was predicted."""
    rows = read_rows("distributed_mini_batches")
    lines = []
    for row in rows:
        one, several = row["seconds"]["alone"], row["seconds"]["ranks"]
        lines.append(
            [
                row["row"],
                f"{1e3 * one:.0f}",
                ranged_shares(row, "alone"),
                f"{1e3 * several:.0f}",
                ranged_shares(row),
                f"{one / several:.2f}",
                f"{row['share']['repeats']:.2f}",
            ]
        )
    heads = (
        "ranks, rate of each link",
        "one process on one core, ms",
        "predicted by measured",
        "ranks, ms",
        "predicted by measured",
        "speedup",
        "ranks that read a node of a batch",
    )
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.distributed.mini_batches")])


def sharded() -> str:
    """Losses, seconds and peaks of ranks within memory limits, beside one process without any."""
    rows = read_rows("distributed_sharded")
    lines = [
        [
            row["row"],
            f"{row['losses'][-1]:.6f}",
            f"{row['test']['loss']:.6f}",
            f"{row['most_difference']:.0e}" if "most_difference" in row else "",
            f"{statistics.median(row['epoch_seconds']):.0f}",
            *(
                " ".join(f"{count / 1e9:.2f}" for count in row.get(key, ()))
                for key in ("group_bytes", "process_bytes")
            ),
            f"{row['noticed_seconds']:.1f}" if "noticed_seconds" in row else "",
        ]
        for row in rows
    ]
    heads = (
        "ranks",
        "last loss",
        "loss of the test",
        "largest difference of a step's loss",
        "epoch with validation, s",
        "GB of each cgroup at its peak",
        "GB of each process, with mapped pages",
        "seconds from the kill to the last message",
    )
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.distributed.sharded")])


def rounding() -> str:
    """How far losses of ranks in float32 are from those in float64, by epochs."""
    rows = read_rows("distributed_rounding")
    lines = [
        [row["row"], run, *(f"{one:.1e}" for one in distances(row, run))]
        for row in rows
        for run in row["losses"]
        if run != FLOAT64
    ]
    heads = ("model", "run", *(f"in {count} epoch{'s' * (count > 1)}" for count in SHOWN))
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.distributed.rounding")])


def kept_rows() -> str:
    """Epochs of ranks that hold parts alone, by what they keep of others' rows."""
    rows = read_rows("distributed_kept_rows")
    lines = [
        [
            row["row"],
            way,
            f"{1e3 * one['seconds']:.0f}",
            f"{1e3 * one['processor_seconds']:.0f}",
            f"{one['by_longer']:.2f}",
            f"{one['by_bound']:.2f}",
            f"{max(rank['sent_bytes'] for rank in one['ranks']) / 1e6:.1f}",
            f"{100 * statistics.fmean(rank['hits'] for rank in one['ranks']):.0f} %",
            f"{one['sent_by_foreseen']:.3f}",
        ]
        for row in rows
        for way, one in row["ways"].items()
    ]
    heads = (
        "ranks, rate of each link",
        "rows of others",
        "epoch, ms",
        "processor time of a rank, ms",
        "by the longer of computing and sending",
        "by the longer of processor time and sending",
        "MB that the busiest rank sends",
        "of those asked for, kept",
        "sent by foreseen",
    )
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.distributed.kept_rows")])


def exact() -> str:
    """Exact outputs on ranks that hold parts alone, in both ways."""
    rows = read_rows("distributed_exact")
    lines = [
        [row["row"], way, f"{one['seconds']:.1f}", f"{one['sent_bytes'] / 1e6:.0f}"]
        for row in rows
        for way, one in row["ways"].items()
    ]
    heads = ("GraphSAGE", "way", "seconds", "MB that the busiest rank sends")
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.distributed.exact")])

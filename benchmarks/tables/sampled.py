"""Tables of sampling and of sampled training."""

from __future__ import annotations

from statistics import geometric_mean

from benchmarks.common.rows import Row, read_rows
from benchmarks.tables.markdown import milliseconds, table, where

PEERS = {"graphbolt": "GraphBolt", "dgl": "DGL"}
WORK = {False: "sample", True: "sample + gather"}
NOTE = "Milliseconds per mini-batch of 1,024 seeds, fanouts 15,10,5; in brackets, graphbraid's lead."
COMMAND = "benchmarks.sampling.beside_peers"


def _times(row: Row) -> list[str]:
    peers = (f"{row[p]['ms_per_batch']:.1f} ms ({row['ratio'][p]:.1f}x)" for p in PEERS)
    return [f"**{row['graphbraid']['ms_per_batch']:.2f} ms**", *peers]


def batches() -> str:
    """Every graph, with and without features, by one worker and by two."""
    rows = read_rows("sampling")
    lines = (
        [
            row["graph"],
            WORK[row["features"]],
            str(row["workers"]),
            *_times(row),
            f"{row['gather']['share_of_limit']:.0%}" if row["features"] else "",
        ]
        for row in rows
    )
    heads = ("graph", "work", "workers", "graphbraid", *PEERS.values(), "gather, share of copy rate")
    note = f"{NOTE} The share of the copy rate passes 100 % where one worker gathers while the other samples."
    return "\n\n".join([table(heads, lines), note, where(rows, COMMAND)])


MODEL_WAYS = {
    "as written": "PyG as written",
    "trim_to_layer": "PyG, `trim_to_layer`",
    **{way: way for way in ("DGL", "compiled", "graphbraid.nn")},
}
"""Who takes a step -> the head of their column."""
FLOORS = {"all": "over its floor", "products": "over that of its products"}
"""What a floor counts -> the head of its column."""


def models() -> str:
    """Steps of PyG's models, as written, trimmed and compiled, and those of graphbraid.nn."""
    rows = [row for row in read_rows("sampled_models") if "seeds" not in row]
    ways = tuple(MODEL_WAYS)
    lines = []
    for row in rows:
        ms = row["ms"]
        leads = {way: f" ({ms[way] / ms['compiled']:.1f}x)" for way in ways[:3] if way in ms}
        times = [f"{ms[way]:,.1f} ms{leads.get(way, '')}" if way in ms else "-" for way in ways]
        floors = row.get("floor_ms", {})
        over = [f"{ms['compiled'] / floors[of]:.2f}x" if of in floors else "-" for of in FLOORS]
        peaks = row.get("peak_bytes")
        memory = "-"
        if peaks:
            share = peaks["compiled"] / peaks["as written"]
            memory = f"{peaks['compiled'] / 2**20:,.0f} MiB ({share:.2f})"
        lines.append([f"{row['graph']}, {row['model']} {row['hidden']}", *times, *over, memory])
    means = [
        geometric_mean(row["ms"][way] / row["ms"]["compiled"] for row in rows if way in row["ms"])
        for way in ways[:3]
        if any(way in row["ms"] for row in rows)
    ]
    heads = ("a step", *MODEL_WAYS.values(), *FLOORS.values(), "memory")
    note = (
        "Forward, loss and backward of three layers; 1,024 seeds, fanouts 15,10,5; on graphs with types two "
        "layers, fanouts 10,10 for each relation. "
        "Processor time of one thread, the least of a batch's turns. The [floor](fullgraph.md#the-floor) is "
        "the least time of forward and backward, with two products where a sum has two of the same rows; "
        "a batch makes one of them. Memory is the most that a compiled step holds at a time, in brackets as "
        "a share of that of PyG as written. "
        "DGL runs in a process of its own, on blocks of the same batches. "
        f"The leads' geometric means are {', '.join(f'{mean:.1f}x' for mean in means)}."
    )
    return "\n\n".join([table(heads, lines), note, where(rows, "benchmarks.sampling.models")])


def tiny_models() -> str:
    """Steps on batches so small that they show the time of Python and of torch."""
    rows = [row for row in read_rows("sampled_models") if "seeds" in row]
    lines, has_outside = [], any("outside_ms" in row for row in rows)
    for row in rows:
        ms = row["ms"]
        leads = {way: f" ({ms[way] / ms['compiled']:.1f}x)" for way in [*MODEL_WAYS][:3] if way in ms}
        times = [f"{1e3 * ms[way]:,.0f} us{leads.get(way, '')}" if way in ms else "-" for way in MODEL_WAYS]
        outside = [f"{1e3 * row['outside_ms']:,.0f} us" if "outside_ms" in row else "-"] * has_outside
        lines.append([f"{row['model']} {row['hidden']}", *times, *outside])
    fanouts = ",".join(map(str, rows[0]["fanouts"]))
    note = (
        f"Gradients set to None, forward, loss and backward of three layers on {rows[0]['graph']}. "
        f"Seeds: {rows[0]['seeds']}, fanouts {fanouts}. "
        "Processor time of one thread, the least of a batch's turns."
    )
    if has_outside:
        note += " Outside of kernels: a compiled step without its calls of compiled code for both directions."
    heads = ("a step", *MODEL_WAYS.values(), *["outside of kernels"] * has_outside)
    return "\n\n".join([table(heads, lines), note, where(rows, "benchmarks.sampling.models")])


def scaling() -> str:
    """How much faster two workers are than one, beside what the machine's memory allows."""
    rows = read_rows("sampling")
    of = {(row["graph"], row["features"], row["workers"]): row for row in rows}
    lines = []
    for (graph, features, workers), one in of.items():
        if workers == 1 and (two := of.get((graph, features, 2))):
            speedup = one["graphbraid"]["ms_per_batch"] / two["graphbraid"]["ms_per_batch"]
            limit = two["limit"]["limit_gb_per_s"] / one["limit"]["limit_gb_per_s"]
            lines.append([graph, WORK[features], f"{speedup:.2f}x", f"{limit:.2f}x"])
    heads = ("graph", "work", "two workers over one", "the same reads alone, two threads over one")
    return "\n\n".join([table(heads, lines), where(rows, COMMAND)])


def epoch() -> str:
    """An epoch of training, contender by contender."""
    rows = read_rows("epoch")
    lines = (
        [
            row.get("model", "SAGE 256"),
            row["name"],
            f"{row['epoch_s']:.2f}",
            f"{row['ratio']:.2f}",
            f"{row['runs'][0]['losses'][-1]:.4f}",
        ]
        for row in rows
    )
    heads = ("model", "an epoch", "seconds", "relative", "loss after the last epoch")
    note = (
        f"3 layers, {rows[0]['graph']}, CPU only. graphbraid runs PyG's own model, compiled. "
        "GraphSAGE starts from the same weights; DGL's GCN and GAT have no self-loops."
    )
    return "\n\n".join([table(heads, lines), note, where(rows, "benchmarks.training.epoch")])


def defaults() -> str:
    """An epoch of `graphbraid train` as it starts, beside other ways and the peers'."""
    rows = read_rows("defaults")
    parts = [(mode, busy) for mode in ("sampled", "full") for busy in sorted({row["busy"] for row in rows})]
    of = {(row["mode"], row["busy"], row["way"]): row for row in rows}
    lines = (
        [way, *(milliseconds(of.get((*part, way), {}).get("epoch_seconds")) for part in parts)]
        for way in dict.fromkeys(row["way"] for row in rows)
    )
    heads = ["median epoch", *(f"{mode}, {busy} busy" if busy else f"{mode}, quiet" for mode, busy in parts)]
    note = "Beside as many processes that are busy all the time. Peers train the same layers without dropout."
    return "\n\n".join([table(heads, lines), note, where(rows, "benchmarks.training.defaults")])


def memory() -> str:
    """Peak memory while the graph grows."""
    rows = read_rows("memory")
    lines = (
        [
            f"{row['growth']}x",
            f"{row['num_edges']:,}",
            *(f"{row[key] / 1e9:.2f} GB" for key in ("graph_bytes", "peak_rss", "beyond_data")),
        ]
        for row in rows
    )
    heads = ("growth", "edges", "graph + features", "peak memory of training", "beyond the data")
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.memory.sampled")])

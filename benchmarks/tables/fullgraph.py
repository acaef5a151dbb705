"""Tables of full-graph training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.common.rows import Row, read_rows
from benchmarks.graphs.named import GENERATED, REAL
from benchmarks.tables.markdown import NOT_MEASURED, geometric_mean, milliseconds, table, where

PEERS = {"pyg": "PyG (edge_index)", "pyg-csr": "PyG (CSR)", "dgl": "DGL"}
MODELS = {"gcn": "GCN", "sage": "GraphSAGE", "gin": "GIN", "gat": "GAT with 4 heads"}
ROUNDED = "bfloat16 rows"
COMMAND = "benchmarks.fullgraph.beside_peers"
PEERS_THEMSELVES = (
    "In rows without PyG (CSR) the memory of PyG and DGL holds the libraries too, about 250 and 110 MB."
)
"""Rows of before the peers' memory counted from where the library was imported."""
ONE_CACHE = (
    "Floors of before the two caches were told apart: all of the cache counts as fast as a core's own, which "
    "makes them lower."
)
LEAST_PART = 0.05
"""Least share of an epoch that a floor's table names."""


def rows_of(model: str, graphs: Sequence[str]) -> list[Row]:
    """The rows of a model, in the order of the graphs."""
    rows = [row for row in read_rows("fullgraph") if row["model"] == model and row["graph"] in graphs]
    return sorted(rows, key=lambda row: graphs.index(row["graph"]))


def epochs(model: str, graphs: Sequence[str] = GENERATED + REAL) -> str:
    """One model: times, the floor, memory."""
    rows = rows_of(model, graphs)
    lines = []
    for row in rows:
        mine, *peers = _times(row)
        floor = row.get("floor_s")
        over = f"{row['graphbraid']['epoch_s'] / floor:.2f}x" if floor else NOT_MEASURED
        rounded = milliseconds(row.get(ROUNDED, {}).get("epoch_s"))
        lines.append([row["graph"], mine, over, rounded, *peers, _memory(row)])
    heads = (
        f"a full-graph epoch of {MODELS[model]}",
        "graphbraid",
        "over its floor",
        ROUNDED,
        *PEERS.values(),
        _MEMORY,
    )
    caches = [ONE_CACHE] if any("floor_rates" not in row for row in rows if "floor_s" in row) else []
    return "\n\n".join([table(heads, lines), *caches, _note(rows), where(rows, COMMAND)])


_MEMORY = "MB above the data: graphbraid, " + ", ".join(PEERS.values())


def _times(row: Row) -> list[str]:
    peers = (
        f"{1e3 * row[peer]['epoch_s']:,.0f} ms ({row['ratio'][peer]:.1f}x)" if peer in row else NOT_MEASURED
        for peer in PEERS
    )
    return [f"**{milliseconds(row['graphbraid']['epoch_s'])}**", *peers]


def _memory(row: Row) -> str:
    return ", ".join(
        f"{1e3 * row[name]['above_data_gb']:,.0f}" if name in row else NOT_MEASURED
        for name in ("graphbraid", *PEERS)
    )


def _note(rows: list[Row]) -> str:
    often = " or ".join(str(n) for n in sorted({len(row["graphbraid"]["runs"]) for row in rows}))
    means = {
        label: geometric_mean([row["ratio"][peer] for row in rows if peer in row["ratio"]])
        for peer, label in PEERS.items()
        if any(peer in row["ratio"] for row in rows)
    }
    leads = "; ".join(f"{mean:.1f}x over {label}" for label, mean in means.items())
    doubts = sorted({row["doubt"] for row in rows if row.get("doubt")})
    return "\n".join(
        [
            *([PEERS_THEMSELVES] if any("pyg-csr" not in row for row in rows) else []),
            *(f"The rates that floors are counted with are doubtful: {doubt}." for doubt in doubts),
            "Three layers, hidden width 32, Adam, two threads, weights and losses as in PyG; "
            f"{often} runs of five epochs each, medians. Geometric mean of the lead: {leads}.",
        ]
    )


def memory() -> str:
    """Peak memory while the edges double."""
    rows = read_rows("full_memory")
    names = ("graphbraid", *PEERS)
    lines = (
        [
            f"{row['num_edges']:,}",
            *(f"{1e3 * row[n]['above_data_gb']:,.0f} MB" if n in row else NOT_MEASURED for n in names),
        ]
        for row in rows
    )
    heads = (f"edges between {rows[0]['num_nodes']:,} nodes", "graphbraid", *PEERS.values())
    notes = [PEERS_THEMSELVES] if any("pyg-csr" not in row for row in rows) else []
    return "\n\n".join([table(heads, lines), *notes, where(rows, "benchmarks.memory.fullgraph")])


def ready() -> str:
    """PyG's ready models and propagating layers, compiled beside PyG itself."""
    rows = read_rows("fullgraph_ready")
    lines = (
        [
            row["graph"],
            row["model"],
            milliseconds(row["graphbraid_s"]),
            milliseconds(row["pyg_s"]),
            f"{row['pyg_s'] / row['graphbraid_s']:.1f}x",
            f"{row['compile_s']:.2f} s",
        ]
        for row in rows
    )
    heads = ("graph", "model", "graphbraid", "PyG (edge_index)", "lead", "compiled in")
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.fullgraph.ready")])


def coverage() -> str:
    """How many of the listed models are lowered, by family, and what stops the others."""
    rows = read_rows("fullgraph_coverage")
    lines = [_of_family(family, rows) for family in dict.fromkeys(row["family"] for row in rows)]
    lines.append(_of_family("all", rows, lambda _: True))
    kinds = ("lowered", "all message passing", "partly", "as written", "equal to PyG")
    heads = ("models of", "listed", *kinds, "on batches: changed", *(f"on batches: {kind}" for kind in kinds))
    stopped = (
        [f"{row['family']}: {row['model']}", row["status"], row["batches_status"], _reasons(row)]
        for row in rows
        if row["reason"] or row["batches_status"] != "lowered" or row["batches_why_other"]
    )
    others = table(("not lowered as a whole", "runs", "on batches", "because"), stopped)
    return "\n\n".join([table(heads, lines), others, where(rows, "benchmarks.fullgraph.models")])


def _reasons(row: Row) -> str:
    """Why a model, or a part of it, runs as written; on batches, if that is another reason."""
    whole, batches = (f"{row[p + 'part']}: {row[p + 'reason']}" for p in ("", "batches_"))
    found = [whole] if row["reason"] else []
    found += [f"changed for batches, {row['batches_why_other']}"] if row["batches_why_other"] else []
    found += [f"on batches, {batches}"] if row["batches_reason"] and batches != whole else []
    return _without_pipes("; ".join(found))


def _of_family(family: str, rows: list[Row], belongs: Callable[[Row], bool] | None = None) -> list[str]:
    some = [row for row in rows if (belongs(row) if belongs else row["family"] == family)]
    kinds = ("lowered", "all message passing", "partly", "as written")
    counts = [len(some)]
    for of in ("", "batches_"):
        counts += [sum(bool(row["batches_why_other"]) for row in some)] if of else []
        counts += [sum(row[f"{of}status"] == kind for row in some) for kind in kinds]
        counts.append(sum(row[f"{of}equal"] for row in some))
    return [family, *map(str, counts)]


def _without_pipes(text: str) -> str:
    return text.replace("|", "or")


def ablation() -> str:
    """Milliseconds an epoch with all passes, without each, and with none."""
    rows = [
        row for row in read_rows("fullgraph_ablation") if row["model"] == "gcn" and row["graph"] in GENERATED
    ]
    names = list(rows[0]["ablation"])
    lines = ([row["graph"], *(f"{1e3 * row['ablation'][name]:.1f}" for name in names)] for row in rows)
    return "\n\n".join(
        [table(("ms an epoch", *names), lines), where(rows, "benchmarks.fullgraph.without_passes")]
    )


def floor() -> str:
    """An epoch beside the least its step can take, and where more goes."""
    rows = read_rows("fullgraph_floor")
    lines = []
    for row in rows:
        times = [milliseconds(row[key]) for key in ("epoch_s", "step_s", "floor_s")]
        parts = [part for part in row["goes"] if part[1] >= LEAST_PART * row["epoch_s"]]
        beyond = ", ".join(f"{what} {1e3 * seconds:.1f}" for what, seconds in parts)
        ratio = f"{row['epoch_s'] / row['floor_s']:.2f}"
        lines.append([row["graph"], str(row["hidden"]), *times, ratio, beyond])
    heads = (
        "full-graph epoch, GCN",
        "width",
        "epoch",
        "step",
        "its floor",
        "epoch over floor",
        "beyond, ms",
    )
    doubts = [f"{row['graph']}: {row['doubt']}" for row in rows if row["doubt"]]
    note = (
        "The least of some; the epoch with its loss and Adam. Parts of a twentieth of it or more are named."
    )
    if alone := ", ".join(row["graph"] for row in rows if "beside_s" not in row):
        note += f" Floors without loss and Adam: {alone}."
    notes = [note, *(f"The rates are doubtful: {doubt}." for doubt in doubts)]
    return "\n\n".join([table(heads, lines), *notes, where(rows, "benchmarks.fullgraph.floor")])


def growth() -> str:
    """Epochs and memory while a graph grows."""
    rows = sorted(read_rows("fullgraph_growth"), key=lambda row: row["num_edges"])
    lines = [
        [
            f"{row['num_edges'] / 1e6:.1f} M",
            milliseconds(row["epoch_s"]),
            f"{row['ns_per_edge']:.1f} ns",
            f"{row['epoch_s'] / row['floor_s']:.2f}x",
            f"{row['data_rss_gb']:.2f} GB",
            f"{row['peak_rss_gb']:.2f} GB",
            f"{row['compile_s']:.1f} s",
        ]
        for row in rows
    ]
    heads = (
        "edges",
        "an epoch of GCN",
        "an edge",
        "over its floor",
        "graph in memory",
        "at most",
        "compiled in",
    )
    doubts = sorted({row["doubt"] for row in rows if row["doubt"]})
    notes = [f"The rates are doubtful: {doubt}." for doubt in doubts]
    return "\n\n".join([table(heads, lines), *notes, where(rows, "benchmarks.fullgraph.growth")])


def relational() -> str:
    """R-GCN over a whole graph of many relations: times and memory beside the peers."""
    rows = read_rows("fullgraph_relational")
    lines = []
    for row in rows:
        mine, peers = row["graphbraid"], list(row["ratio"])
        lines.append(
            [
                f"{row['row']}, {row['share']:g} of its size, hidden width {row['hidden']}",
                f"**{milliseconds(mine['epoch_s'])}**",
                f"{mine['epoch_s'] / row['floor_s']:.2f}x",
                *(f"{milliseconds(row[p]['epoch_s'])} ({row['ratio'][p]:.1f}x)" for p in peers),
                " / ".join(f"{row[name]['above_data_gb']:.2f}" for name in ("graphbraid", *peers)),
            ]
        )
    names = [PEERS.get(name, name) for name in rows[0]["ratio"]]
    heads = ("an epoch of R-GCN", "graphbraid", "over its floor", *names, "GB above the data, in this order")
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.fullgraph.relational")])


def transformer() -> str:
    """HGT over a whole graph of many relations: times and memory beside PyG."""
    rows = read_rows("fullgraph_transformer")
    lines = []
    for row in rows:
        mine, theirs = row["graphbraid"], row["pyg"]
        lines.append(
            [
                f"{row['row']}, {row['share']:g} of its size, hidden width {row['hidden']}",
                f"**{milliseconds(mine['epoch_s'])}**",
                f"{milliseconds(theirs['epoch_s'])} ({row['ratio']:.1f}x)",
                f"{mine['above_data_gb']:.2f} / {theirs['above_data_gb']:.2f}",
                f"{mine['runs'][0]['loss']:.4f} / {theirs['runs'][0]['loss']:.4f}",
            ]
        )
    heads = ("an epoch of HGT", "graphbraid", "PyG", "GB above the data, in this order", "last loss")
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.fullgraph.transformer")])

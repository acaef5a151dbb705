"""The README's table of speed beside its losses, and the picture of the same rows."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from benchmarks.common.rows import Row, read_rows
from benchmarks.tables.fullgraph import COMMAND
from benchmarks.tables.markdown import NOT_MEASURED, table, where

PEERS = ("PyG", "DGL", "GraphBolt")
SAMPLED = {"pyg": "PyG", "dgl": "DGL", "graphbolt": "GraphBolt"}
"""What the rows of sampled epochs call the peers."""
WHOLE_GRAPHS = ("arxiv-like", "products-lite", "coauthor_physics")
"""Graphs of the full-graph rows; docs/results.md has the others."""
BAR, ROW, LABEL, WIDTH = 12, 9, 250, 560
"""Pixels. A phone shows the picture at two thirds of its width, so its text must be large."""
COLOURS = {"graphbraid": "#0a9588", "PyG": "#9aa5b1", "DGL": "#c3a06a", "GraphBolt": "#8a86c8"}


@dataclass(frozen=True, slots=True)
class Epoch:
    """Seconds and the last loss of one kind of epoch, by library."""

    name: str
    seconds: dict[str, float]
    losses: dict[str, float]


def epochs() -> list[Epoch]:
    """The rows of the table: sampled epochs, then full-graph ones. Of a peer's ways, its fastest counts."""
    found = []
    sampled: dict[str, dict[str, list[Row]]] = {}
    for row in read_rows("epoch"):
        if "bfloat16" not in row["name"]:
            peer = SAMPLED.get(row["name"].split(",")[0], "graphbraid")
            sampled.setdefault(row["model"], {}).setdefault(peer, []).append(row)
    for model, by_name in sampled.items():
        best = {name: min(rows, key=lambda row: row["epoch_s"]) for name, rows in by_name.items()}
        found.append(
            Epoch(
                f"{model}, sampled, products-lite",
                {name: row["epoch_s"] for name, row in best.items()},
                {name: row["runs"][0]["losses"][-1] for name, row in best.items()},
            )
        )
    for row in whole_graphs():
        peers = {"PyG": [row["pyg"], row["pyg-csr"]], "DGL": [row["dgl"]], "graphbraid": [row["graphbraid"]]}
        best = {name: min(ways, key=lambda way: way["epoch_s"]) for name, ways in peers.items()}
        found.append(
            Epoch(
                f"GCN 32, whole graph, {row['graph']}",
                {name: way["epoch_s"] for name, way in best.items()},
                {name: way["runs"][0]["loss"] for name, way in best.items()},
            )
        )
    return found


def whole_graphs() -> list[Row]:
    """The full-graph rows that the table shows."""
    rows = [row for row in read_rows("fullgraph") if row["model"] == "gcn" and row["graph"] in WHOLE_GRAPHS]
    return sorted(rows, key=lambda row: WHOLE_GRAPHS.index(row["graph"]))


def speed() -> str:
    """Epochs of PyG's own models by library, with the loss after the last one."""
    lines = []
    for epoch in epochs():
        mine = epoch.seconds["graphbraid"]
        cells = [
            f"{epoch.seconds[peer]:.3g} s ({epoch.seconds[peer] / mine:.1f}x)"
            if peer in epoch.seconds
            else NOT_MEASURED
            for peer in PEERS
        ]
        losses = [
            f"{epoch.losses[name]:.3f}" if name in epoch.losses else NOT_MEASURED
            for name in ("graphbraid", *PEERS)
        ]
        lines.append([epoch.name, f"**{mine:.3g} s**", *cells, " / ".join(losses)])
    heads = ("an epoch, two cores", "graphbraid", *PEERS, "loss: graphbraid / " + " / ".join(PEERS))
    note = (
        "graphbraid runs PyG's own model, compiled. For each peer, its fastest way counts. Losses are those "
        "after the last epoch; DGL's GCN and GAT have no self-loops. "
    )
    rows = [*read_rows("epoch"), *whole_graphs()]
    if any(row.get("name", "").startswith("pyg") for row in rows):
        note += "PyG samples by torch-sparse (pyg-lib is not on PyPI), so it cannot trim layers. "
    note += f"{NOT_MEASURED}: not measured."
    return "\n\n".join([table(heads, lines), note, where(rows, f"benchmarks.training.epoch`, `{COMMAND}")])


def picture() -> str:
    """Bars of the same epochs as SVG: how many times graphbraid's time each library takes."""
    shown, parts, y = epochs(), [], 56
    most = max(max(e.seconds.values()) / e.seconds["graphbraid"] for e in shown)
    scale = (WIDTH - LABEL - 40) / most
    for epoch in shown:
        parts.append(f'<text x="{LABEL - 8}" y="{y + 10}" text-anchor="end">{escape(epoch.name)}</text>')
        for name, colour in COLOURS.items():
            if name in epoch.seconds:
                times = epoch.seconds[name] / epoch.seconds["graphbraid"]
                long = times * scale
                parts.append(
                    f'<rect x="{LABEL}" y="{y}" width="{long:.1f}" height="{BAR - 2}" fill="{colour}"/>'
                    f'<text x="{LABEL + long + 4:.1f}" y="{y + 9}" font-size="11">{times:.1f}</text>'
                )
                y += BAR
        y += ROW
    x = 8
    legend = []
    for name, colour in COLOURS.items():
        legend.append(f'<rect x="{x}" y="30" width="10" height="10" fill="{colour}"/>')
        legend.append(f'<text x="{x + 15}" y="40">{name}</text>')
        x += 36 + 8 * len(name)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" '
        'font-family="sans-serif" font-size="13">'
        "<title>Time of an epoch, as a multiple of graphbraid's</title>"
        "<style>text{fill:#24292f}@media(prefers-color-scheme:dark){text{fill:#d0d7de}}</style>"
        "<text x='8' y='19'>Time of an epoch, as a multiple of graphbraid's</text>"
    )
    return "\n".join([head, *legend, *parts, "</svg>", ""])

"""Writes the tables of the README and the docs from the committed results.

python -m benchmarks.readme_table [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, ROOT

BEGIN, END = "<!-- benchmarks:begin -->", "<!-- benchmarks:end -->"


def read(name: str) -> dict[str, Any] | None:
    """A result, or None where it was not measured yet."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def sampling_lines(result: dict[str, Any]) -> list[str]:
    """A line per graph, work and number of workers."""
    lines = ["| graph | work | workers | graphbraid | GraphBolt | DGL | gather, share of copy rate |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for row in result["rows"]:
        work = "sample + gather" if row["features"] else "sample"
        peers = [f"{row[p]['ms_per_batch']:.1f} ms ({row['ratio'][p]:.1f}x)" for p in ("graphbolt", "dgl")]
        share = f"{row['gather']['share_of_limit']:.0%}" if row["features"] else ""
        mine = f"**{row['graphbraid']['ms_per_batch']:.2f} ms**"
        lines.append(
            f"| {row['graph']} | {work} | {row['workers']} | {mine} | {peers[0]} | {peers[1]} | {share} |"
        )
    return [
        *lines,
        "",
        "Milliseconds per mini-batch of 1,024 seeds, fanouts 15,10,5; in brackets, graphbraid's lead. The",
        "share of the copy rate passes 100 % where one worker gathers while the other samples.",
    ]


def scaling_lines(result: dict[str, Any]) -> list[str]:
    """A line per graph and work."""
    lines = ["| graph | work | two workers over one | the same reads alone, two threads over one |"]
    lines.append("| --- | --- | --- | --- |")
    for row in result["scaling"]:
        work = "sample + gather" if row["features"] else "sample"
        lines.append(f"| {row['graph']} | {work} | {row['speedup']:.2f}x | {row['limit_speedup']:.2f}x |")
    return lines


def epoch_lines(result: dict[str, Any]) -> list[str]:
    """A line per contender."""
    lines = [
        "| epoch of GraphSAGE | seconds | relative | loss after the last epoch |",
        "| --- | --- | --- | --- |",
    ]
    for row in result["rows"]:
        loss = row["runs"][0]["losses"][-1]
        lines.append(f"| {row['name']} | {row['epoch_s']:.2f} | {row['ratio']:.2f} | {loss:.4f} |")
    note = f"3 layers, hidden width 256, {result['graph']}, CPU only, all from the same initial weights."
    return [*lines, "", note]


def ablation_lines(result: dict[str, Any]) -> list[str]:
    """Milliseconds an epoch with all passes, without each, and with none."""
    names = list(result["rows"][0]["ablation"])
    lines = ["| ms an epoch | " + " | ".join(names) + " |", "| --- " * (len(names) + 1) + "|"]
    for row in result["rows"]:
        times = " | ".join(f"{1e3 * row['ablation'][name]:.1f}" for name in names)
        lines.append(f"| {row['graph']} | {times} |")
    return lines


LEAST_PART = 0.05


def floor_lines(result: dict[str, Any]) -> list[str]:
    """A line per graph: an epoch beside the least its step can take, and where more goes."""
    lines = [
        "| full-graph epoch, GCN | width | epoch | step | its floor | epoch over floor | beyond, ms |",
        "| --- " * 7 + "|",
    ]
    for row in result["rows"]:
        times = " | ".join(f"{1e3 * row[key]:.1f} ms" for key in ("epoch_s", "step_s", "floor_s"))
        parts = [part for part in row["goes"] if part[1] >= LEAST_PART * row["epoch_s"]]
        beyond = ", ".join(f"{what} {1e3 * seconds:.1f}" for what, seconds in parts)
        ratio = row["epoch_s"] / row["floor_s"]
        lines.append(f"| {row['graph']} | {row['hidden']} | {times} | {ratio:.2f} | {beyond} |")
    doubts = sorted({row["doubt"] for row in result["rows"] if row["doubt"]})
    note = (
        "The least of some; the epoch with its loss and Adam. Parts of a twentieth of it or more are named."
    )
    return [*lines, "", note, *[f"The rates are doubtful: {doubt}." for doubt in doubts]]


PEERS = {"pyg": "PyG", "dgl": "DGL"}


def fullgraph_lines(result: dict[str, Any]) -> list[str]:
    """A line per graph."""
    model = result["rows"][0]["model"]
    lines = [
        f"| full-graph epoch, {MODELS[model]} | graphbraid | over its floor | bfloat16 rows | PyG | DGL | "
        "memory above the data: graphbraid, PyG, DGL |",
        "| --- " * 7 + "|",
    ]
    for row in result["rows"]:
        peers = [f"{1e3 * row[p]['epoch_s']:.0f} ms ({row['ratio'][p]:.1f}x)" for p in PEERS]
        memory = ", ".join(f"{1e3 * row[p]['above_data_gb']:,.0f} MB" for p in ("graphbraid", *PEERS))
        mine = f"**{1e3 * row['graphbraid']['epoch_s']:.1f} ms**"
        over = f"{row['graphbraid']['epoch_s'] / row['floor_s']:.2f}x" if "floor_s" in row else ""
        rounded = f"{1e3 * row[ROUNDED]['epoch_s']:.1f} ms" if ROUNDED in row else ""
        lines.append(f"| {row['graph']} | {mine} | {over} | {rounded} | {peers[0]} | {peers[1]} | {memory} |")
    means = ", ".join(f"{value:.1f}x {PEERS[name]}" for name, value in result["geometric_mean"].items())
    repeats = sorted({len(row["graphbraid"]["runs"]) for row in result["rows"]})
    often = " or ".join(map(str, repeats))
    doubts = sorted({row["doubt"] for row in result["rows"] if row.get("doubt")})
    return [
        *lines,
        "",
        *[f"The rates that floors are counted with are doubtful: {doubt}." for doubt in doubts],
        f"Three layers, hidden width 32, Adam, two threads, weights and losses as in PyG; {often} runs of "
        f"five epochs each, medians. Geometric mean of the lead: {means}.",
    ]


def memory_lines(result: dict[str, Any]) -> list[str]:
    """A line per size."""
    lines = [
        "| growth | edges | graph + features | peak memory of training | beyond the data |",
        "| --- " * 5 + "|",
    ]
    for row in result["rows"]:
        data, peak, beyond = (row[key] / 1e9 for key in ("graph_bytes", "peak_rss", "beyond_data"))
        lines.append(
            f"| {row['growth']}x | {row['num_edges']:,} | {data:.2f} GB | {peak:.2f} GB | {beyond:.2f} GB |"
        )
    return lines


MODELS = {"gcn": "GCN", "sage": "GraphSAGE", "gin": "GIN", "gat": "GAT with 4 heads"}
ROUNDED = "bfloat16 rows"

Sections = tuple[tuple[str, Callable[[dict[str, Any]], list[str]]], ...]
SECTIONS: Sections = (
    ("sampling", sampling_lines),
    ("sampling", scaling_lines),
    ("epoch", epoch_lines),
    ("fullgraph", fullgraph_lines),
    ("fullgraph_real", fullgraph_lines),
    ("fullgraph_sage", fullgraph_lines),
    ("fullgraph_gin", fullgraph_lines),
    ("fullgraph_gat", fullgraph_lines),
    ("memory", memory_lines),
)


IN_DOCS: Sections = (("fullgraph", ablation_lines), ("fullgraph_floor", floor_lines))


def table(sections: Sections) -> str:
    """All there is, with the machine of each part."""
    parts = []
    for name, lines in sections:
        if (result := read(name)) is not None:
            machine = result["machine"]
            where = f"{machine['cpu']}, {machine['cores']} cores, {machine['date']}, `benchmarks.{name}`"
            parts += [*lines(result), "", f"<sub>Measured on {where}</sub>", ""]
    return "\n".join(parts)


def made(text: str, sections: Sections) -> str:
    """A page with the tables between its marks."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table(sections)}{END}{after}"


def main() -> None:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a page differs from the results")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs" / "fullgraph.md")
    options = parser.parse_args()
    for page, sections in ((options.readme, SECTIONS), (options.docs, IN_DOCS)):
        text = page.read_text()
        if options.check and made(text, sections) != text:
            sys.exit(f"{page} is out of step with benchmarks/results; run this without --check")
        page.write_text(made(text, sections))


if __name__ == "__main__":
    main()

"""Reads results written as one JSON object per file, and rewrites them as one JSON line per row.

    python -m benchmarks.common.old_results [FOLDER]

Rows keep their figures; what was stored beside them and follows from them (ratios between rows, geometric
means, worst cases) is left out. ``repeats`` is null where the file did not say it. The rows of a table
replace those of the same name that were there before. To be removed when no branch holds old files any more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Old = dict[str, Any]
Named = Iterator[tuple[str, Old]]


def convert(name: str, old: Old) -> tuple[str, list[Old]]:
    """The name of the results that an old file's rows belong to, and these rows, stamped."""
    into = "fullgraph" if name in TABLES_OF_FULLGRAPH else name
    if into not in ROWS:
        raise ValueError(f"no benchmark wrote {name}.json; known: {', '.join(sorted(ROWS))}")
    return into, [_stamped(row, fields, old) for row, fields in ROWS[into](old)]


def _stamped(row: str, fields: Old, old: Old) -> Old:
    """A row with what the whole file said of all its rows; what a row says of itself wins."""
    machine = dict(fields.pop("machine", old["machine"]))
    commit, date = machine.pop("commit"), machine.pop("date")
    stamp = {"row": row, "commit": fields.pop("commit", commit), "date": date, "machine": machine}
    return {**stamp, "repeats": fields.pop("repeats", None), **fields}


def _sampling(old: Old) -> Named:
    for row in old["rows"]:
        work = "sample + gather" if row["features"] else "sample"
        yield (
            f"{row['graph']}, {work}, {row['workers']} workers",
            row | {"repeats": len(row["graphbraid"]["runs"])},
        )


def _epoch(old: Old) -> Named:
    for row in old["rows"]:
        yield row["name"], {"graph": old["graph"], **row, "repeats": len(row["runs"])}


def _fullgraph(old: Old) -> Named:
    for row in old["rows"]:
        yield f"{row['graph']}, {row['model']}", row | {"repeats": len(row["graphbraid"]["runs"])}


def _floor(old: Old) -> Named:
    for row in old["rows"]:
        yield f"{row['graph']}, {row['model']}, width {row['hidden']}", dict(row)


def _models(old: Old) -> Named:
    for row in old["rows"]:
        yield f"{row['graph']}, {row['model']}", row | {"repeats": old["epochs"]}


def _checks(old: Old) -> Named:
    before = {"before": old["before"]} if "before" in old else {}
    for row in old["rows"]:
        yield row["graph"], {**row, **before, "repeats": len(row["runs"]["full"]["now"])}


def _defaults(old: Old) -> Named:
    for row in old["rows"]:
        yield f"{row['mode']}, {row['busy']} busy, {row['way']}", row | {"repeats": len(row["epochs"])}


def _memory(old: Old) -> Named:
    for row in old["rows"]:
        yield f"{row['growth']}x", row | {"repeats": len(row["runs"])}


def _full_memory(old: Old) -> Named:
    for row in old["rows"]:
        yield f"{row['num_edges']} edges", row | {"repeats": len(row["graphbraid"]["runs"])}


def _kernels(old: Old) -> Named:
    for row in old["rows"]:
        rates = {
            "copy_gb_per_s": old["copy_gb_per_s"],
            "row_limit_gb_per_s": old["row_limit_gb_per_s"][str(row["width"])],
        }
        yield f"{row['graph']}, width {row['width']}, {row['kernel']}", row | rates


def _density(old: Old) -> Named:
    for row in old["rows"]:
        kind = "zeros and ones" if row["binary features"] else "any numbers"
        yield f"density {row['density']:g}, {kind}", dict(row)


def _dispatch(old: Old) -> Named:
    for name, value in old["microseconds"].items():
        yield name, {"microseconds": value, "repeats": 9}


def _datasets(old: Old) -> Named:
    for row in old["generation"]:
        yield f"generation of {row['name']}", dict(row)
    for row in old["accuracy"]:
        yield f"accuracy of {row['model']}, {row['epochs']} epochs", dict(row)


def _schedule(old: Old) -> Named:
    for name, summary in old["summary"].items():
        yield name, {"config": old["config"], "summary": summary, "worst": old["worst"][name]}
    yield "small epochs", {"config": old["config"], "summary": old["small"]}


def _collective(old: Old) -> Named:
    where, config = old.get("machines", {}), {"config": old["config"]}

    def machine_of(part: str) -> Old:
        return {"machine": where[part]} if part in where else {}

    for row in old["prediction"]:
        name = f"prediction, {row['cores']} cores, {row['link']} link"
        yield name, {**config, **row, **machine_of("prediction"), "repeats": len(row["runs"])}
    yield "adaptation", {**config, **old["adaptation"], **machine_of("adaptation")}
    yield "real load", {**config, **old["real_load"], **machine_of("real_load")}


def _cores(old: Old) -> Named:
    for row in old["rows"]:
        yield row["setup"], {"config": old["config"], **row, "repeats": len(row["runs"]["auto"])}


def _lookahead(old: Old) -> Named:
    for row in old["rows"]:
        fanouts = "-".join(map(str, row["fanouts"]))
        repeats = old["config"]["repeats"]
        yield f"{row['graph']}, {fanouts}", {"config": old["config"], **row, "repeats": repeats}


def _accuracy(old: Old) -> Named:
    for row in old["rows"]:
        yield row["name"], {"split_seed": old["split_seed"], **row, "repeats": len(row["runs"])}


def _full_accuracy(old: Old) -> Named:
    for row in old["rows"]:
        yield row["dataset"], row | {"repeats": len(row["runs"]["graphbraid"])}


TABLES_OF_FULLGRAPH = {
    "fullgraph",
    "fullgraph_real",
    "fullgraph_sage",
    "fullgraph_gin",
    "fullgraph_gat",
    "fullgraph_locality",
}
ROWS: dict[str, Callable[[Old], Named]] = {
    "accuracy": _accuracy,
    "checks": _checks,
    "collective": _collective,
    "cores": _cores,
    "datasets": _datasets,
    "defaults": _defaults,
    "density": _density,
    "dispatch": _dispatch,
    "epoch": _epoch,
    "full_accuracy": _full_accuracy,
    "full_memory": _full_memory,
    "fullgraph": _fullgraph,
    "fullgraph_floor": _floor,
    "fullgraph_models": _models,
    "kernels": _kernels,
    "lookahead": _lookahead,
    "memory": _memory,
    "sampling": _sampling,
    "schedule": _schedule,
}
"""The rows of each benchmark's old file, by name."""


def main() -> None:
    """Rewrite every old file of a folder and remove it."""
    from benchmarks.common.rows import RESULTS, put_rows  # which reads old files through this module

    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    for path in sorted(folder.glob("*.json")):
        into, rows = convert(path.stem, json.loads(path.read_text(encoding="utf-8")))
        put_rows(folder / f"{into}.jsonl", rows)
        path.unlink()
        print(f"{path.name}: {len(rows)} rows into {into}.jsonl")


if __name__ == "__main__":
    main()

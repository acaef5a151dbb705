"""Prints how large each room of src/graphbraid is, beside its budget: lines and files of Python.

``python scripts/size.py`` also prints the C++ core, the tests and the benchmarks. Budgets are goals: none of
them fails the script. Someone who needs more for a room moves its budget here, and says why in
``docs/decisions/0018-size-of-the-rooms.md``.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "graphbraid"
BUDGETS = {
    (
        "errors.py",
        "arguments.py",
        "signatures.py",
        "native.py",
        "checks",
        "files",
        "figures.py",
        "machine",
    ): 2_940,
    ("graph",): 4_745,
    ("ops",): 11_035,
    ("sampling",): 6_470,
    ("features",): 4_055,
    ("datasets",): 6_650,
    ("nn",): 3_735,
    ("loader",): 3_510,
    ("collective",): 4_295,
    ("fullgraph",): 30_215,
    ("distributed",): 7_060,
    ("synth",): 5_745,
    ("train",): 10_210,
    ("estimates",): 4_130,
    ("report.py",): 415,
    ("cli",): 4_555,
}
"""Rooms and modules of the package -> lines of Python that they should have at most."""
WHOLE_LINES, WHOLE_FILES = 109_954, 414
TEST_LINES = 95_780


def size(path: Path, *endings: str) -> tuple[int, int]:
    """Lines and files below ``path`` whose names have one of the endings; a file counts itself."""
    paths = [path] if path.is_file() else path.rglob("*")
    found = [each for each in paths if each.is_file() and each.suffix in (endings or (".py",))]
    return sum(len(each.read_text(encoding="utf-8").splitlines()) for each in found), len(found)


def rooms() -> list[tuple[str, int, int, int | None]]:
    """Name, lines, files and budget of each group of rooms; what no budget names comes last."""
    rows: list[tuple[str, int, int, int | None]] = []
    named = {name for names in BUDGETS for name in names}
    others = [path.name for path in PACKAGE.iterdir() if path.name not in named and path.name != "csrc"]
    for names, budget in [*BUDGETS.items(), (tuple(others), None)]:
        sizes = [size(PACKAGE / name) for name in names]
        label = ", ".join(names) if budget else "others"
        rows.append((label, sum(lines for lines, _ in sizes), sum(files for _, files in sizes), budget))
    return rows


TO_PREDICTIONS = [
    *(f"datasets/tables/{name}.py" for name in ("column_types", "encoded", "encoding")),
    *(f"nn/{name}.py" for name in ("pyg_layers", "relation_predictors")),
    *(f"train/{name}.py" for name in ("inference/embed", "step/graphs")),
    *("graph/graph_set.py", "ops/distances.py", "cli/run/tasks.py"),
]
"""Modules that serve only the path from tables to predictions: 3,000 lines at most, with docstrings."""
LAST_IN = {
    "nn/link_predictors.py": "class EdgeDecoder",
    "nn/models.py": "Readout = ",
    "sampling/links/link_seeds.py": "GIVEN, KIND",
    "train/step/links/encoder.py": "BlockScorer = ",
}
"""Modules whose last lines serve that path, too -> the text where these begin."""


def to_predictions() -> int:
    """Lines of :data:`TO_PREDICTIONS` and :data:`LAST_IN`."""
    begins = dict.fromkeys(TO_PREDICTIONS, "") | LAST_IN
    texts = ((begin, (PACKAGE / name).read_text(encoding="utf-8")) for name, begin in begins.items())
    return sum(len(text[text.index(begin) :].splitlines()) for begin, text in texts)


ON_PARTS = [
    *(f"distributed/{name}" for name in ("shards", "parts/rows.py")),
    *(f"fullgraph/batches/{name}.py" for name in ("levels_on_parts", "rank_norms")),
]
"""Rooms and modules that serve only mini-batches of ranks that hold parts: 3,000 lines are asked for."""
WITHIN = ("nn/encoders.py", "class ShardedEmbedding", "TypedEdges = ")
"""A module with a class that serves these, too, and the texts where the class begins and the next begins."""


def on_parts() -> tuple[int, int]:
    """Lines and files of :data:`ON_PARTS` and :data:`WITHIN`."""
    name, begin, end = WITHIN
    text = (PACKAGE / name).read_text(encoding="utf-8")
    sizes = [size(PACKAGE / one) for one in ON_PARTS]
    assert all(files for _, files in sizes), "a module was renamed"
    own = len(text[text.index(begin) : text.index(end)].splitlines())
    return own + sum(lines for lines, _ in sizes), 1 + sum(files for _, files in sizes)


def main() -> None:
    """Print the tables."""
    line = "{:<75}{:>8}{:>8}{:>8}".format
    print(line("room", "lines", "files", "budget"))
    for name, lines, files, budget in rooms():
        print(line(name, lines, files, budget or ""))
    lines, files = size(PACKAGE)
    print(line("src/graphbraid", lines, files, WHOLE_LINES), f"lines, {WHOLE_FILES} files")
    print(line("tables to predictions", to_predictions(), len([*TO_PREDICTIONS, *LAST_IN]), 3000))
    print(line("mini-batches on parts", *on_parts(), 3000))
    print(line("tests", *size(ROOT / "tests"), TEST_LINES))
    print(line("benchmarks", *size(ROOT / "benchmarks"), ""))
    print(line("src/graphbraid/csrc (C++)", *size(PACKAGE / "csrc", ".cpp", ".h", ".inl"), ""))


if __name__ == "__main__":
    main()

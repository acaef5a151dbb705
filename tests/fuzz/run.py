"""Runs the fuzz: ``python -m tests.fuzz.run [--seconds N] [--seed N] [--kinds api,cli] [--case NAME]``."""

import argparse
import datetime
import gc
import importlib
import os
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.extras import import_all
from tests.fuzz import file_kinds, isolate
from tests.fuzz.case import FINDINGS, Name, Verdict

from graphbraid.files.writing import atomic_write

KINDS = {"api": 6, "files": 5, "cli": 3, "kernels": 6, "programs": 1, "threads": 2, "links": 1, "memory": 1}
"""Kind -> its share of the cases started; each is a module of this package."""
PAGE = Path("docs/robustness.md")


@dataclass
class Report:
    """What all cases came to."""

    verbose: bool = False
    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    findings: dict[tuple[str, str], list[tuple[Name, str, Verdict]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def add(self, name: Name, text: str, verdict: Verdict) -> None:
        self.counts[name.kind][verdict.status] += 1
        if self.verbose:
            print(f"{name}  {verdict.status}  {text}  {verdict.detail[:200]}", flush=True)
        if verdict.status in FINDINGS:
            known = self.findings[(verdict.status, verdict.cause)]
            if not known:
                print(
                    f"FINDING {name}  {text}\n    {verdict.status}: {verdict.cause}\n    {verdict.detail}",
                    flush=True,
                )
            known.append((name, text, verdict))

    def show(self, seconds: float) -> None:
        columns = ("ok", "refused", *FINDINGS)
        print(f"\n{'kind':8}{'cases':>8}" + "".join(f"{name:>9}" for name in columns))
        for kind, counts in self.counts.items():
            print(f"{kind:8}{counts.total():>8}" + "".join(f"{counts[name]:>9}" for name in columns))
        total = sum(counts.total() for counts in self.counts.values())
        print(f"{total} cases in {seconds:.0f} s; {len(self.findings)} findings by cause")
        for (status, cause), cases in sorted(self.findings.items()):
            name, text, _ = cases[0]
            print(f"  {status:8} {len(cases):4} times  {cause}")
            print(f"           scripts/fuzz.sh --case {name}   # {text}")

    def record(self, seed: int) -> None:
        """Write the counts into the page; rows of kinds that did not run stay."""
        begin, end = "<!-- table: fuzz -->\n", "<!-- end of table -->"
        head, rest = PAGE.read_text(encoding="utf-8").split(begin)
        table, tail = rest.split(end)
        rows = {line.split(" | ")[0]: line for line in table.splitlines() if line.startswith("| `")}
        for kind, counts in self.counts.items():
            found = ", ".join(f"{counts[name]} {name}" for name in FINDINGS if counts[name]) or "none"
            cells = (counts.total(), counts["ok"], counts["refused"], found, seed, f"{datetime.date.today()}")
            rows[f"| `{kind}`"] = " | ".join(map(str, (f"| `{kind}`", *cells))) + " |"
        names = ("kind", "cases", "ok", "refused", "findings", "seed", "date")
        lines = [f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]
        lines += [row for kind in KINDS if (row := rows.get(f"| `{kind}`"))]
        text = f"{head}{begin}\n" + "\n".join(lines) + f"\n\n{end}{tail}"
        with atomic_write(PAGE) as place:
            place.write_text(text, encoding="utf-8")


_HEAVY = (
    *("pandas", "pyarrow", "pyarrow.csv", "pyarrow.parquet", "scipy.sparse", "sklearn.metrics", "yaml"),
    *("torchmetrics", "torch_geometric", "torch_geometric.nn", "torch_geometric.loader", "rich.progress"),
)


def warm_up() -> None:
    """Import what cases use, without starting a thread, so that a fork of this process is a fresh user's."""
    for name in _HEAVY:
        importlib.import_module(name)
    import_all()


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        folder = Path(place)
        os.environ["GRAPHBRAID_CACHE"] = str(folder / "cache")
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        warm_up()
        isolate.in_child(file_kinds.keep_rates)
        if options.case:
            return _one(Name.parse(options.case), folder)
        return _many(options, folder)


def _many(options: argparse.Namespace, folder: Path) -> int:
    kinds = options.kinds.split(",")
    print(f"seed {options.seed}, {options.seconds:.0f} s, kinds {options.kinds}")
    print("again, one case: scripts/fuzz.sh --case KIND:SEED:NUMBER")
    modules = {kind: _ready(kind, folder) for kind in kinds}
    gc.freeze()  # else each case looks through all that is imported for garbage
    order = [kind for kind in kinds for _ in range(KINDS[kind])]
    numbers: Counter[str] = Counter()
    report, running, count = Report(options.verbose), [], 0
    begin = time.monotonic()
    while True:
        over = time.monotonic() - begin > options.seconds or (options.cases and count >= options.cases)
        if over and not running:
            break
        while not over and len(running) < options.jobs:
            kind = order[count % len(order)]
            name = Name(kind, options.seed, options.start + numbers[kind])
            numbers[kind] += 1
            count += 1
            running.append(_start(name, modules[kind], folder))
            over = bool(options.cases) and count >= options.cases
        for case in list(running):
            if ended := case.ended():
                running.remove(case)
                text, verdict = ended
                if (
                    verdict.status == "hang" and case.limit == isolate.SECONDS
                ):  # the machine may be busy: once more
                    running.append(_start(case.name, modules[case.name.kind], folder, patience=2.0))
                else:
                    report.add(case.name, text, verdict)
        time.sleep(0.003)
    report.show(time.monotonic() - begin)
    if options.record:
        report.record(options.seed)
    return 1 if report.findings else 0


def _one(name: Name, folder: Path) -> int:
    text, verdict = _wait(_start(name, _ready(name.kind, folder), folder))
    print(f"{name}  {text}\n{verdict.status}  {verdict.cause}\n{verdict.detail}")
    return 1 if verdict.status in FINDINGS else 0


def _ready(kind: str, folder: Path) -> Any:
    module = importlib.import_module(f"tests.fuzz.{kind}")
    (folder / kind).mkdir(exist_ok=True)
    isolate.in_child(lambda: module.prepare(folder / kind))
    return module


def _start(name: Name, module: Any, folder: Path, *, patience: float = 1.0) -> isolate.Running:
    place = folder / "cases" / f"{name.kind}-{name.number}"
    shutil.rmtree(place, ignore_errors=True)
    shared = folder / name.kind
    return isolate.start(
        name, place, lambda: module.plan(name.random(), name.number, shared), patience=patience
    )


def _wait(case: isolate.Running) -> tuple[str, Verdict]:
    while not (ended := case.ended()):
        time.sleep(0.005)
    return ended


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/fuzz.sh", description=__doc__)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("GB_FUZZ_SECONDS", "600")))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("GB_FUZZ_SEED", "0")))
    parser.add_argument("--kinds", default=os.environ.get("GB_FUZZ_KINDS", ",".join(KINDS)))
    most = int(os.environ.get("GB_FUZZ_CASES", "0"))
    parser.add_argument("--cases", type=int, default=most, help="stop after so many cases")
    parser.add_argument("--start", type=int, default=0, help="number of the first case of each kind")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--verbose", action="store_true", help="print every case")
    parser.add_argument("--record", action="store_true", help=f"write the counts into {PAGE}")
    parser.add_argument("--case", default="", help="run one case, by its name KIND:SEED:NUMBER")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The fuzz itself: it covers all that is public, its inputs are sound, and it sees what it should."""

import os
import random
import resource
import shutil
import time
from pathlib import Path

import pytest
import torch
from tests import warm
from tests.extras import NO_KERNELS
from tests.fuzz import api, files, links, memory, run, threads
from tests.fuzz import kernels as kernel_cases
from tests.fuzz.case import Name, Verdict
from tests.fuzz.damage import damage
from tests.fuzz.kernel_calls import CALLS
from tests.fuzz.kernel_inputs import Inputs
from tests.fuzz.targets import TARGETS
from tests.fuzz.verdict import judge
from tests.fuzz.world import World, numbers_of, unequal

from graphbraid import native
from graphbraid.errors import DataError
from graphbraid.fullgraph import rates as kept_rates
from graphbraid.graph import Graph
from graphbraid.ops import reference

PLANTED = """
import os, signal, sys, time
from pathlib import Path
from tests.fuzz import isolate
from tests.fuzz.case import Name, Planned, Verdict

def ends(run, patience=1.0):
    folder = Path(sys.argv[1]) / str(len(os.listdir(sys.argv[1])))
    case = isolate.start(Name("api", 0, 0), folder, lambda: Planned("planted", run), patience=patience)
    while not (ended := case.ended()):
        time.sleep(0.005)
    return ended[1].status

def loop():
    while True:
        pass

print(ends(lambda: Verdict("ok")))
print(ends(lambda: os.kill(os.getpid(), signal.SIGSEGV)))
print(ends(loop, patience=0.02))
print(ends(lambda: time.sleep(60), patience=0.02))
print(ends(lambda: os._exit(3)))
print(ends(lambda: 1 / 0))
"""


def test_everything_public_is_called():
    assert api.untouched() == []


@pytest.mark.slow
def test_planted_faults_are_found(tmp_path):
    done = warm.run(["-c", PLANTED, tmp_path])
    assert done.stdout.split() == ["ok", "signal", "hang", "hang", "signal", "broken"], done.stderr


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_call_that_cases_start_from_works(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Measured in a process for each mode, as tests/train/test_estimate_runs.py does.
    monkeypatch.setattr("graphbraid.estimates.memory.baseline_bytes", lambda *_: 300 << 20)
    call = TARGETS[name](World())
    arguments = dict(call.arguments)
    positions = [arguments.pop(str(i)) for i in range(10) if str(i) in arguments]
    call.use(call.function(*positions, **arguments))


@pytest.mark.parametrize("name", sorted(files.KINDS))
def test_the_files_that_cases_start_from_are_read(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kept_rates, "_measured", kept_rates._measured)  # whose replacement ends with the test
    kind = files.KINDS[name]
    folder = tmp_path / "sound"
    folder.mkdir()
    kind.write(folder, World())
    assert any(kind.is_damaged(path) for path in folder.rglob("*") if path.is_file())
    for reader, read in kind.readers.items():
        place = tmp_path / reader
        shutil.copytree(folder, place)
        got = numbers_of(read(place))
        if kind.independent is not None:
            assert not unequal(numbers_of(kind.independent(place)), got)


def test_damage_is_the_same_each_time_and_differs_between_cases(tmp_path):
    seen = set()
    for number in range(40):
        name = Name("files", 3, number)
        results = []
        for copy in "ab":
            path = tmp_path / f"{number}{copy}.bin"
            path.write_bytes(bytes(range(200)))
            text = damage(path, name.random())
            results.append((text, path.read_bytes() if path.is_file() else None))
        assert results[0] == results[1]
        seen.add(results[0])
    assert len(seen) > 30


@pytest.mark.parametrize(
    ("made", "status"),
    [
        (lambda: _raise(DataError("x must be a Tensor")), "refused"),
        (lambda: _raise(DataError("")), "raw"),
        (lambda: None.shape, "raw"),
        (Graph.from_edge_index, "refused"),
        (lambda: _raise(ValueError("not of ours")), "raw"),
        (lambda: torch.empty(-1), "raw"),
        (lambda: _raise(MemoryError()), "refused"),
    ],
)
def test_a_raw_exception_is_told_from_a_clear_one(made, status):
    with pytest.raises(Exception) as raised:
        made()
    assert judge(raised.value).status == status


def _raise(error: Exception) -> None:
    raise error


def test_threads_that_disturb_each_other_are_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def made():
        shared = []

        def work(i: int) -> int:
            shared.append(i)
            time.sleep(0.01)
            return shared[-1]

        return work

    limits = resource.getrlimit(resource.RLIMIT_AS)
    verdict = threads._compared("planted", made, 4, True)
    resource.setrlimit(resource.RLIMIT_AS, limits)
    assert verdict.status == "differs"


@pytest.mark.parametrize("form", ["symbolic", "hard", "dangling"])
def test_a_command_that_writes_through_a_link_is_found(form, tmp_path, monkeypatch):
    def writes(words: list[str], fresh: bool) -> Verdict:
        Path("run/steps.jsonl").write_text("begun anew")
        return Verdict("ok")

    monkeypatch.chdir(tmp_path)
    Path("user").mkdir()
    Path("user/thesis.txt").write_text("years of work")
    monkeypatch.setattr(links.cli, "_run", writes)
    assert links._run(["train"], Path("run/steps.jsonl"), form).status == "lost"


def test_a_command_that_takes_more_memory_than_it_has_is_found(tmp_path, monkeypatch):
    def takes(words: list[str], fresh: bool) -> Verdict:
        try:
            held = bytearray(200 << 20)
        except MemoryError:  # where the limit is the process's own
            os.abort()
        return Verdict("ok", detail=str(len(held)))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory.cli, "_run", takes)
    assert memory._run(["train"], 50 << 20).status == "signal"
    assert memory._run(["train"], 400 << 20).status == "ok"


def test_counts_of_a_run_replace_those_of_its_kinds_alone(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: fuzz -->\n\n<!-- end of table -->\nafter\n")
    monkeypatch.setattr(run, "PAGE", page)
    for kind, status in (("cli", "ok"), ("api", "refused"), ("cli", "lost")):
        report = run.Report()
        report.counts[kind][status] += 3
        report.record(seed=7)
    rows = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    assert [row.split(" | ")[:6] for row in rows] == [
        ["| `api`", "3", "0", "3", "none", "7"],
        ["| `cli`", "3", "0", "0", "3 lost", "7"],
    ]
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("after\n")


def test_names_say_all(tmp_path):
    name = Name.parse("api:3:17")
    assert str(name) == "api:3:17"
    assert name.random().random() == Name("api", 3, 17).random().random()
    assert api.plan(name.random(), 17, tmp_path).text == api.plan(name.random(), 17, tmp_path).text


NOT_OPERATORS = {
    *(
        "is_supported",
        "is_compiled",
        "select",
        "let_idle_threads_sleep",
        "explain_bus_errors",
        "raise_resource_errors_as",
    ),
    *("mix", "draws", "permuted"),  # of the counter, for its own tests
    *("bound", "Segment", "SegmentPass"),  # the same kernels, with their arguments kept, one or a row of them
    *("block_model_csc", "block_model_features", "cached_reads", "community_order"),  # compared in own tests
    *("push_shares", "push_draws", "count_ids", "items_of", "forms_of", "few_edges"),  # compared in own tests
    *("invert_order", "count_lists", "rename_lists", "move_lists"),  # in tests of the reordering
    *("BroughtRows", "DiskRows", "NeighborLists", "RowCache", "RowReader", "xxh64"),  # in tests of features
    "Types",  # in tests/sampling/typed
    "induced_edges",  # in tests/sampling
    *("pool_bytes", "count_rows"),  # in tests/ops/test_pool.py
    *(
        "pack_by_load",
        "place_nodes",
        "count_cut",
        "count_split",
        "write_split",
        "relabel",
        "own_places",
        "take_rows",
        "put_rows",
    ),  # in tests/distributed
}


@pytest.fixture
def compiled_kernels(monkeypatch: pytest.MonkeyPatch):
    """The compiled kernels; whatever a case does to choose among them is undone."""
    kernels, threads = native.kernels(), torch.get_num_threads()
    if kernels is None:
        pytest.skip(NO_KERNELS)
    monkeypatch.setattr(native, "kernels", native.kernels)
    yield kernels
    kernels.select(native.active().variant)
    torch.set_num_threads(threads)


def test_every_kernel_is_called(compiled_kernels, monkeypatch):
    called = set()

    class Recorded:
        def __getattr__(self, name: str):
            called.add(name)
            return getattr(compiled_kernels, name)

    monkeypatch.setattr(native, "kernels", Recorded)
    there = {name for name in dir(compiled_kernels) if not name.startswith("_")}
    for seed in range(60):
        for name in CALLS:
            CALLS[name](Inputs(random.Random(seed)))()
        if called >= there - NOT_OPERATORS:
            break
    assert there - called == NOT_OPERATORS


@pytest.mark.parametrize("name", sorted(CALLS))
def test_kernel_cases_agree_and_say_the_same_each_time(name, compiled_kernels, tmp_path):
    number = sorted(CALLS).index(name) + 7 * len(CALLS)
    planned, again = (
        kernel_cases.plan(Name("kernels", 0, number).random(), number, tmp_path) for _ in range(2)
    )
    assert planned.text == again.text
    assert planned.text.startswith(f"{name} by ")
    verdict = planned.run()
    assert (verdict.status, verdict.detail) == ("ok", "")


@pytest.mark.parametrize("wrong", [lambda out: out.mul_(1.001), lambda out: out[-1:].add_(0.01)])
def test_a_kernel_that_computes_something_else_is_found(wrong, compiled_kernels, monkeypatch):
    """The twin is changed instead: beside it, the kernel computes something else."""
    sound, outs, variant = reference.spmm, 12, native.active().variant

    def changed(*arguments):
        sound(*arguments)
        wrong(arguments[outs])

    monkeypatch.setattr(reference, "spmm", changed)
    verdicts = []
    for seed in range(12):
        monkeypatch.setattr(native, "kernels", lambda: compiled_kernels)
        verdicts.append(kernel_cases._compared("aggregate", variant, 1, seed / 12))
    found = [verdict for verdict in verdicts if verdict.status == "differs"]
    assert len(found) >= 3
    assert {verdict.cause for verdict in found} <= {
        "aggregate: result differs from the twin's",
        "aggregate: gradient of x differs from the twin's",
    }

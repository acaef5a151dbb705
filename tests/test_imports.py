"""Importing has no side effects and never fails, and imports point downwards through the house."""

import ast
import functools
import graphlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.extras import PATIENCE, ran

import graphbraid

PACKAGE = Path(graphbraid.__file__).parent

# The house (docs/architecture.md), lowest floor first: a module imports only from its own floor or below.
FLOORS = (
    ("errors",),
    ("arguments", "signatures", "files", "figures", "native", "lazy"),
    ("machine",),
    ("graph",),
    ("ops",),
    ("sampling", "nn"),
    ("features",),
    ("datasets", "collective"),
    ("loader", "fullgraph", "distributed"),
    ("synth",),
    ("train", "estimates"),
    ("report",),
    ("cli",),
)
# Floors inside a room, also one inside another. Modules that are not named stand where ... does, or on top.
INNER_FLOORS = {
    "fullgraph/step": ((...,), ("operations",), ("planned_step",)),
    "graph": ((...,), ("interop",), ("graph",), ("graph_set",)),
    "ops": (
        ("library",),
        ("rng",),
        ("reference",),
        ("kernels",),
        ("aggregation",),
        (...,),
        ("attention", "gram_rounds", "linear", "peers"),
        ("triton",),
    ),
    "ops/triton": (
        ("launch",),
        ("partition",),
        ("epilogue",),
        (...,),
        ("attention",),
        ("attention_backward",),
    ),
    "features": (("rows",), ("reference",), ("scores",), ("budgets", "reordering"), ("tiers",)),
    "sampling": (("rows",), (...,), ("links", "minibatch"), ("triton",), ("gpu",)),
    "loader": (
        ("keywords", "sources", "gather_ahead", "planned"),
        (...,),
        ("neighbor",),
        ("link_neighbor", "induced"),
    ),
    "synth": (("language",), (...,), ("emit",)),
    "cli": ((...,), ("run",), ("commands",), ("main",)),
    "collective": (("plan",), ("run",), ("hardware",)),
    "datasets": ((...,), ("store",), ("npz", "ogb", "tables"), ("registry", "synthetic")),
    "distributed": (("partitioning", "ranks"), ("parts", "peers"), ("shards",)),
    "fullgraph": (
        ("device", "program"),
        ("lowering", "reading"),
        ("ranks", "step", "batches"),
        ("rates", "explain"),
    ),
    "train": (
        ("records", "option_values", "option_checks", "config", "task", "callbacks"),
        ("runtime", "step"),
        ("inference", "run_folder"),
        ("run",),
    ),
    "train/step": ((...,), ("links",)),
}
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}
# Decided by name at run time, not imported: native loads _native; the command line is started by __main__.
OUTSIDE = {"__init__", "__main__", "_native"}


def run_python(code, **variables):
    """Run code in a fresh interpreter; its standard output must be JSON."""
    done = ran([sys.executable, "-W", "error", "-c", code], env=os.environ | variables)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_importing_the_package_loads_nothing_prints_nothing_and_starts_no_thread():
    code = """
import json, sys, threading
before = set(sys.modules)
import graphbraid
new = {name.split('.')[0] for name in set(sys.modules) - before}
print(json.dumps({"threads": threading.active_count(), "new": sorted(new)}))
"""
    out, err = run_python(code)
    seen = json.loads(out)
    assert err == ""
    assert seen["threads"] == 1
    heavy = {"torch", "numpy", "scipy", "typer", "rich", "pydantic", "torchmetrics"}
    assert not heavy & set(seen["new"]), seen["new"]


def test_the_command_line_imports_no_torch_before_a_command_runs():
    code = """
import sys, typer
from graphbraid.cli.main import app
assert len(list(typer.main.get_command(app).commands.values())) >= 12  # reads the options of each
print('torch' in sys.modules)
"""
    out, _ = run_python(code)
    assert out.strip() == "False"


def imported_by(*arguments):
    """What a command prints, and the modules that it imports beside typer's."""
    code = f"""
import sys, typer
typer_alone = set(sys.modules)
from graphbraid.cli.main import app
app({list(arguments)}, standalone_mode=False)
print(sorted(set(sys.modules) - typer_alone))
"""
    return run_python(code)[0]


def test_help_of_a_command_imports_no_torch_and_no_rich_help():
    shown, _, imported = imported_by("train", "--help").rpartition("\n[")
    assert [f"\n{heading}:\n" in shown for heading in ("Run", "Data", "Options")] == [True] * 3
    assert not {"torch", "numpy", "typer.rich_utils"} & set(ast.literal_eval(f"[{imported}"))


def test_help_imports_nothing_but_typer():
    out = imported_by("--help")
    listed, _, imported = out.rpartition("\n[")
    assert "doctor" in listed
    ours = {name for name in ast.literal_eval(f"[{imported}") if name.startswith("graphbraid")}
    assert ours == {"graphbraid", "graphbraid.cli", "graphbraid.cli.main", "graphbraid.errors"}
    assert not {"rich", "pydantic", "yaml", "numpy"} & set(ast.literal_eval(f"[{imported}"))


def test_a_model_of_the_users_own_is_read_without_torchs_compiler():
    code = """
import sys, torch
from graphbraid import Graph, Trainer, nn

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.SAGEConv(8, 4)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index).relu()

ids = torch.arange(64)
edges = torch.stack([ids, ids.roll(1)])
graph = Graph.from_edge_index(edges, 64, x=torch.rand(64, 8), y=ids % 4, splits={"train": ids, "test": ids})
for mode in ("sampled", "full"):
    Trainer(Net(), graph, mode=mode, epochs=1, fanouts=(2,), batch_size=8).fit()
print("torch._dynamo" in sys.modules)
"""
    out, _ = run_python(code)
    assert out.strip() == "False"


@pytest.mark.slow
def test_importing_every_module_prints_nothing_and_starts_no_thread():
    modules = sorted(_module_name(path) for path in PACKAGE.rglob("*.py") if path.name != "__main__.py")
    if importlib.util.find_spec("triton") is None:  # only what a CUDA tensor makes graphbraid import needs it
        needs_it = ("graphbraid.ops.triton", "graphbraid.sampling.triton")
        modules = [name for name in modules if not name.startswith(needs_it)]
    if importlib.util.find_spec("torch_geometric") is None:  # only a loader's batches where it is need these
        modules = [name for name in modules if not name.startswith("graphbraid.loader.pyg_")]
    code = f"""
import importlib, json, sys, threading, warnings
warnings.simplefilter("default")  # what other packages warn of on import is theirs
for name in {modules!r}:
    importlib.import_module(name)
print(json.dumps(threading.active_count()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1"


def test_every_public_name_is_there_and_declared_for_type_checkers():
    for name in graphbraid.__all__:
        assert getattr(graphbraid, name) is not None
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    declared = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "graphbraid":
            for alias in node.names:
                declared[alias.name] = node.module.removeprefix("graphbraid").lstrip(".")
    assert {name: home for name, home in declared.items() if home} == graphbraid._HOMES
    assert {name for name, home in declared.items() if not home} - {
        "annotations",
        "TYPE_CHECKING",
        "Any",
    } == set(graphbraid._SUBMODULES)
    assert set(graphbraid.__all__) == {*graphbraid._HOMES, *graphbraid._SUBMODULES, "__version__"}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Grph'"):
        graphbraid.Grph  # noqa: B018


def _module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _room(path, house=PACKAGE):
    return path.relative_to(house).parts[0].removesuffix(".py")


@functools.cache
def _statements(path):
    """The imports of a file, and what it does under a condition."""
    wanted = (ast.Import, ast.ImportFrom, ast.If)
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, wanted)]


def _imports(path):
    """(parts of the module's name below graphbraid, line) of each import of ours, wherever it stands."""
    package = _module_name(path).split(".")[: None if path.name == "__init__.py" else -1]
    for node in _statements(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "graphbraid" and len(parts) > 1:
                yield parts[1:], node.lineno


def _for_type_checkers(path):
    """Lines that only type checkers read: two classes may name each other there."""
    lines = set()
    for node in _statements(path):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            lines |= set(range(node.lineno, node.end_lineno + 1))
    return lines


def test_imports_point_downwards():
    offenders, num_checked = [], 0
    for path in sorted(PACKAGE.rglob("*.py")):
        room = _room(path)
        if room in OUTSIDE:
            continue
        assert room in FLOOR, f"{room} is on no floor: add it to FLOORS and to docs/architecture.md"
        for (imported, *_), line in _imports(path):
            if imported in OUTSIDE or imported == "__version__":
                continue
            num_checked += 1
            if FLOOR[imported] > FLOOR[room]:
                offenders.append(f"{path.relative_to(PACKAGE)}:{line} ({room}) imports {imported}")
    assert not offenders, "\n".join(offenders)
    assert num_checked > 50


@pytest.mark.parametrize("room", INNER_FLOORS)
def test_imports_point_downwards_inside(room):
    floor_of = {name: floor for floor, names in enumerate(INNER_FLOORS[room]) for name in names}
    floor_of["__init__"] = len(INNER_FLOORS[room])
    others = floor_of.get(..., len(INNER_FLOORS[room]))
    within = room.split("/")
    offenders, num_checked = [], 0
    for path in sorted((PACKAGE / room).rglob("*.py")):
        inner = _room(path, PACKAGE / room)
        if (PACKAGE / room / inner).is_dir():
            assert inner in floor_of, f"{room}/{inner} is on no floor: add it to INNER_FLOORS"
        only_types = _for_type_checkers(path)
        for parts, line in _imports(path):
            if parts[: len(within)] != within or len(parts) == len(within) or line in only_types:
                continue
            num_checked += 1
            imported = parts[len(within)]
            if floor_of.get(imported, others) > floor_of.get(inner, others):
                offenders.append(f"{path.relative_to(PACKAGE)}:{line} ({inner}) imports {imported}")
    assert not offenders, "\n".join(offenders)
    assert num_checked > 10


@pytest.mark.parametrize("room", sorted({room for rooms in FLOORS for room in rooms}))
def test_no_modules_of_a_room_import_each_other(room):
    paths = [PACKAGE / f"{room}.py", *(PACKAGE / room).rglob("*.py")]
    modules = {tuple(_module_name(path).split(".")[1:]): path for path in paths if path.is_file()}
    needed = {}
    for module, path in modules.items():
        only_types = _for_type_checkers(path)
        names = [parts for parts, line in _imports(path) if line not in only_types]
        # "from a import b" names a module b of the package a, or what module a holds.
        found = {tuple(parts) if tuple(parts) in modules else tuple(parts[:-1]) for parts in names}
        needed[module] = (found & modules.keys()) - {module}
    assert modules
    # Imports on use, inside functions, count as those at the top do.
    graphlib.TopologicalSorter(needed).prepare()  # raises CycleError, which lists the circle


@pytest.fixture
def copy_without_kernels(tmp_path):
    """A copy of the package whose compiled module is gone, in front of the installed one."""
    shutil.copytree(
        PACKAGE, tmp_path / "graphbraid", ignore=shutil.ignore_patterns("_native*", "csrc", "__pycache__")
    )
    # An editable install's finder would come first.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if 'ScikitBuild' not in type(f).__name__]\n"
    )
    return {"PYTHONPATH": str(tmp_path), "GRAPHBRAID_KERNELS": ""}


@pytest.mark.slow
def test_without_compiled_kernels_the_reference_runs_and_doctor_says_so(copy_without_kernels):
    """The rates of twins take seconds to measure: doctor is told usual ones."""
    code = """
import json, torch, graphbraid
from graphbraid import native, ops
from graphbraid.cli.commands import doctor
from graphbraid.fullgraph import rates
from graphbraid.graph.csc import Csc
from graphbraid.machine.hardware import Rates

csc = Csc(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1], dtype=torch.int32), 2)
out = ops.spmm(csc, torch.tensor([[1.0], [10.0]]))
rates.measured_rates = lambda: rates.MeasuredRates(rates=Rates())
report = doctor.examine()
print(json.dumps([graphbraid.__file__, native.active().variant, out.flatten().tolist(), report]))
"""
    out, _ = run_python(code, **copy_without_kernels)
    file, variant, values, report = json.loads(out)
    assert file.startswith(copy_without_kernels["PYTHONPATH"])
    assert (variant, values) == ("reference", [11.0, 10.0])
    assert report["kernels"]["active"] == "reference"
    assert "could not be loaded" in report["kernels"]["rejected"]["portable"]
    assert any("no compiled kernels" in problem for problem in report["problems"])

"""The architecture page shows the house as it is built."""

import ast
import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "benchmarks/**/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"  # which keeps the names of its time
)
WRITTEN = {"main.cpp", "main.cu"}
"""Files that a synthesised program has."""
SHARED = {
    "Linear",  # the layer, which is public, and the operation that programs have in its place
}
"""Names of classes in two modules; besides, a ``*_reference`` module names a twin as the kernels do."""

OPENS_BY_ITSELF = {
    # Files of the system, of this package or of this process, and those that were opened before.
    *("machine/hardware.py", "machine/measurements.py", "shared_tensors.py", "emit/folder.py", "parsing.py"),
    *("checksums.py", "run_folder/folder.py", "run/ranks.py"),
}
"""Modules that read files otherwise than by ``files/opening.py``, which refuses pipes and devices."""


@pytest.fixture(scope="module")
def house():
    """The script that makes the picture."""
    spec = importlib.util.spec_from_file_location("house", ROOT / "scripts" / "house.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_the_page_shows_the_rooms_and_floors_there_are(house):
    text = house.PAGE.read_text(encoding="utf-8")
    assert text == house.page(text), "run scripts/house.py --write"


def test_the_core_has_the_rooms_that_its_readme_names(house):
    folders = {path.name for path in (house.PACKAGE / "csrc").iterdir() if path.is_dir()}
    assert folders == set(house.csrc_rooms()), "csrc/README.md names each room once"


def test_includes_point_downwards_in_the_core(house):
    core = house.PACKAGE / "csrc"
    floor_of = {room: floor for floor, room in enumerate(house.csrc_rooms())}
    offenders, num_checked = [], 0
    for path in sorted(core.glob("*/*")):
        text = path.read_text(encoding="utf-8")
        included = re.findall(r'^ *# *(?:include|define GB_KERNEL_FILE) "([^"]+)"', text, re.MULTILINE)
        for name in included:
            num_checked += 1
            is_above = floor_of.get(name.split("/")[0], len(floor_of)) > floor_of[path.parent.name]
            if is_above or not (core / name).is_file():
                offenders.append(f"{path.relative_to(core)} includes {name}")
    assert not offenders, "\n".join(offenders)
    assert num_checked > 200


def test_the_picture_names_every_room_and_every_loose_module(house):
    shown = {line.split()[0] for line in house.block().splitlines()[2:-1] if line.split()}
    rooms = {f"{path.parent.name}/" for path in house.PACKAGE.glob("*/__init__.py")}
    modules = {path.name for path in house.PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert rooms | modules | {"csrc/", "collective/", "plan/"} <= shown


def test_no_room_has_a_name_that_git_ignores(house):
    ignored = {line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines()} - {"__pycache__"}
    folders = {path.name for path in house.PACKAGE.rglob("*") if path.is_dir()}
    assert "runs" in ignored
    assert not folders & ignored


def test_the_scripts_that_a_build_calls_are_in_the_repository():
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in ("Makefile", "mkdocs.yml", ".ci/run")]
    named = sorted({name for text in texts for name in re.findall(r"scripts/[\w/]+\.(?:py|sh)", text)})
    assert "scripts/site/roles.py" in named
    assert not [name for name in named if not (ROOT / name).is_file()]
    ask = ["git", "check-ignore", "--no-index", *named]  # such a file is on its author's disk alone
    assert subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, check=False).stdout == ""


def test_a_page_that_differs_is_refused(house):
    text = house.PAGE.read_text(encoding="utf-8")
    assert house.page(text.replace("src/graphbraid/\n", "src/elsewhere/\n")) != text.replace(
        "src/graphbraid/\n", "src/elsewhere/\n"
    )
    assert house.page(text.replace("cli ▸ train", "train ▸ cli")) == text
    for marker in ("<!-- house -->", "<!-- /floors -->"):
        with pytest.raises(SystemExit, match="needs one pair"):
            house.page(text.replace(marker, ""))


@pytest.mark.parametrize("page", PAGES)
def test_the_files_that_a_page_names_exist(house, page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.(?:py|cpp|cu|cuh|h|inl))`", text)) - WRITTEN
    named |= set(re.findall(r"`((?:[a-z_0-9]+/){2,})`", text))
    tops = (house.PACKAGE, house.PACKAGE / "csrc", ROOT, (ROOT / page).parent)
    missing = [name for name in sorted(named) if not any((top / name).exists() for top in tops)]
    assert not missing, f"{page} names what is not there: {', '.join(missing)}"


def test_the_files_that_comments_name_exist(house):
    """Also the twins that C++ names, and headers that it includes."""
    naming = re.compile(r"(?<![\w./<])(?:[a-z_0-9]+/)+[a-z_0-9]+\.(?:py|cpp|cu|cuh|h|inl)\b")
    for path in sorted(house.PACKAGE.rglob("*")):
        if path.suffix in {".py", ".cpp", ".cu", ".cuh", ".h", ".inl", ".j2"}:
            tops = (*path.parents, house.PACKAGE / "csrc", house.PACKAGE / "synth" / "emit")
            named = set(naming.findall(path.read_text(encoding="utf-8")))
            missing = [name for name in sorted(named) if not any((top / name).is_file() for top in tops)]
            assert not missing, f"{path.relative_to(ROOT)} names what is not there: {', '.join(missing)}"


def kinds_in(tree):
    """Names of a module's classes and public type aliases."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=value)
            ):
                is_variable = isinstance(value, ast.Call) and ast.unparse(value.func).endswith(
                    ("TypeVar", "ParamSpec")
                )
                if re.fullmatch(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*", name) and not is_variable:
                    yield name


@pytest.mark.slow
def test_no_two_modules_give_different_things_one_name(house):
    homes = {}
    for path in sorted(house.PACKAGE.rglob("*.py")):
        if not path.stem.endswith("reference"):  # twins have their kernels' names
            for name in kinds_in(ast.parse(path.read_text(encoding="utf-8"))):
                homes.setdefault(name, []).append(path.relative_to(house.PACKAGE).as_posix())
    shared = {name: places for name, places in homes.items() if len(places) > 1}
    said = "\n".join(f"{name}: {', '.join(places)}" for name, places in shared.items() if name not in SHARED)
    assert not said, f"name each by what it is, or make one of them:\n{said}"
    assert set(shared) >= SHARED, "names that are no longer shared leave the list"
    assert len(homes) > 800


def test_classes_and_public_aliases_are_found():
    text = "class A: ...\nclass _B: ...\nPair = tuple[int, int]\nKey: TypeAlias = str\n"
    others = "_Own = int\nBatch = TypeVar('Batch')\nMOST = 1\nname = A\n"
    assert list(kinds_in(ast.parse(text + others))) == ["A", "_B", "Pair", "Key"]


def test_files_of_users_are_opened_where_pipes_are_refused(house):
    reads = re.compile(r"\.read_text\(|\.read_bytes\(|np\.load\(|\.open\(\"r")
    found = {
        f"{path.relative_to(house.PACKAGE)}: {line.strip()}"
        for path in house.PACKAGE.rglob("*.py")
        if not path.as_posix().endswith(tuple(OPENS_BY_ITSELF))
        for line in path.read_text(encoding="utf-8").splitlines()
        if reads.search(line) and "/proc/" not in line
    }
    assert not found, "use read_text or open_file of files/opening.py"

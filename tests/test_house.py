"""The architecture page shows the house as it is built."""

import importlib.util
import re
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


def test_the_picture_names_every_room_and_every_loose_module(house):
    shown = {line.split()[0] for line in house.block().splitlines()[2:-1] if line.split()}
    rooms = {f"{path.parent.name}/" for path in house.PACKAGE.glob("*/__init__.py")}
    modules = {path.name for path in house.PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert rooms | modules | {"csrc/", "collective/", "plan/"} <= shown


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

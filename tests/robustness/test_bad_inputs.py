"""Every bad input of the table ends with one clear error; the documentation shows the same table."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.robustness import errors_page
from tests.robustness.cases import CASES
from tests.robustness.workplace import QUICK, Workplace, graph
from tests.suites import every
from typer.testing import CliRunner

from graphbraid.cli.main import app
from graphbraid.datasets import save_store

COMMANDS = [case for case in CASES if case.error is None]
CALLS = [case for case in CASES if case.error is not None]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``store`` and, trained on it, ``run``."""
    folder = tmp_path_factory.mktemp("trained")
    save_store(graph(), folder / "store")
    arguments = ("train", "--data", folder / "store", "--out", folder / "run", *QUICK)
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.stderr
    return folder


@pytest.fixture
def workplace(tmp_path, monkeypatch, request) -> Iterator[Workplace]:
    place = Workplace(tmp_path / "place", monkeypatch, lambda: request.getfixturevalue("trained"))
    yield place
    place.close()


# One place prints every error: here as text of every other command, and as JSON of the rest.
FORMS = [(case, bool(number % 2)) for number, case in enumerate(COMMANDS)]
OTHERS = [pytest.param(case, not as_json, marks=pytest.mark.long) for case, as_json in FORMS]


@pytest.mark.parametrize(
    ("case", "as_json"),
    [*every(3, FORMS), *OTHERS],
    ids=lambda value: getattr(value, "id", "json" if value else "text"),
)
def test_command_ends_with_one_clear_error(case, as_json, workplace):
    arguments = [str(argument) for argument in case.provoke(workplace)] + ["--json"] * as_json
    code, out, err = _invoke(arguments)
    workplace.close()
    assert code == case.code, out + err
    if as_json and out:  # a mistyped flag is found before --json is known
        error = json.loads(out)["error"]
        assert error["exit_code"] == code
        message = error["message"]
    else:
        assert out == ""
        message = err
        assert err.lower().count("error") >= 1
    flat = " ".join(message.split())
    for text in case.says:
        assert text in flat, flat
    for text in ("Traceback", "not foreseen", 'File "'):
        assert text not in out + err, out + err
    assert not list(workplace.folder.rglob("*.tmp")), "a half-written file was left"


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.id)
def test_call_raises_one_clear_error(case, workplace):
    assert case.error is not None
    with pytest.raises(case.error) as caught:
        case.provoke(workplace)
    assert type(caught.value) is case.error
    for text in case.says:
        assert text in str(caught.value)


def test_the_table_is_long_enough_and_covers_every_exit_code():
    assert len(CASES) >= 45
    assert {case.code for case in CASES} == set(range(2, 8))


def test_the_documentation_shows_this_table():
    written = errors_page.PATH.read_text(encoding="utf-8")
    assert written == errors_page.render(), f"run: {errors_page.COMMAND}"


def _invoke(arguments: list[str]) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr

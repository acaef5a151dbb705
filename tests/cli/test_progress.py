"""Progress: every stage says all of its work, bars show the time left on a terminal alone, and vanish."""

import contextlib
import io
import json

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import graphbraid
from graphbraid import distributed
from graphbraid.cli import common
from graphbraid.cli.main import app
from graphbraid.datasets import from_tables, open_store, save_store
from graphbraid.files.progress import counted, listening, stage


class Heard:
    """Stages in the order of their beginning: name, total, and what was done."""

    def __init__(self):
        self.stages, self.open = [], 0

    @contextlib.contextmanager
    def listen(self, name, total):
        found = {"name": name, "total": total, "done": 0.0}
        self.stages.append(found)
        self.open += 1

        def advance(amount):
            found["done"] += amount

        try:
            yield advance
        finally:
            self.open -= 1

    def names(self):
        return {one["name"] for one in self.stages}


@pytest.fixture
def heard():
    found = Heard()
    with listening(found.listen):
        yield found
    assert found.open == 0, "every stage has ended"


def check_all_is_done(heard):
    for one in heard.stages:
        if one["total"] is not None:
            assert one["done"] == pytest.approx(one["total"]), one


def test_a_store_says_what_it_writes_and_checks(heard, tmp_path):
    save_store(graphbraid.datasets.load("braid-10k"), tmp_path / "store")
    open_store(tmp_path / "store", verify=True).validate()
    assert {"writing x.npy", "writing indices.npy", "checking x.npy", "checking every value"} <= heard.names()
    check_all_is_done(heard)


def test_tables_say_how_much_of_them_is_read(heard, tmp_path):
    pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet, table

    edges = table({"source": [0, 1, 2], "destination": [1, 2, 0]})
    parquet.write_table(edges, tmp_path / "edges.parquet")
    csv.write_csv(edges, tmp_path / "edges.csv")
    from_tables(tmp_path / "edges.parquet")
    check_all_is_done(heard)
    from_tables(tmp_path / "edges.csv")
    (text,) = [one for one in heard.stages if one["name"] == "reading edges.csv"]
    assert text["done"] >= text["total"] > 0, "the last block of a text is shorter"


@pytest.mark.parametrize("strategy", ["auto", "streaming", "greedy"])
def test_a_partition_says_its_passes_and_parts(heard, tmp_path, strategy):
    graph = graphbraid.datasets.load("braid-10k")
    made = distributed.partition(graph, 3, strategy=strategy)
    distributed.save_partition(graph, made, tmp_path / "parts")
    distributed.SavedPartition(tmp_path / "parts", graph).check()
    assert {f"dividing the nodes, strategy {strategy}", "writing parts", "checking parts"} <= heard.names()
    heard.stages = [one for one in heard.stages if one["name"] != "streaming the edges"]  # may end early
    check_all_is_done(heard)


@pytest.mark.slow
def test_an_estimate_says_its_parts(heard):
    graph = graphbraid.datasets.load("braid-10k")
    graphbraid.estimate(graphbraid.nn.GCN(32, 8, 4), graph, epochs=1)
    assert heard.stages[0]["total"]
    check_all_is_done(heard)


def test_a_failed_stage_has_ended(heard):
    with pytest.raises(ZeroDivisionError), stage("fails", 3):
        1 / 0  # noqa: B018
    items = counted([1, 2, 3], "left early", 3)
    next(items)
    items.close()


def terminal(is_one=True):
    return Console(file=io.StringIO(), force_terminal=is_one, width=100, color_system=None)


def test_bars_show_the_time_left_and_vanish(monkeypatch):
    monkeypatch.setattr(common, "LEAST_SECONDS", 0.0)
    console = terminal()
    with common.bars_shown(console, quiet=False):
        with stage("outer \x1b[31m[red]"), stage("inner", 2) as advance:
            advance(1)
            advance(1)
        with stage("next", 1):
            pass
    text = console.file.getvalue()
    assert "inner" in text
    assert "left" in text
    assert "[red]" in text, "names are no markup"
    assert "\x1b[31m" not in text, "names cannot control the terminal"
    assert "\x1b[2K" in text.rpartition("next")[2], "the last bar was wiped out"


@pytest.mark.parametrize(("is_terminal", "quiet"), [(False, False), (True, True)])
def test_nothing_is_shown_without_a_terminal_or_if_quiet(monkeypatch, is_terminal, quiet):
    monkeypatch.setattr(common, "LEAST_SECONDS", 0.0)
    console = terminal(is_terminal)
    with common.bars_shown(console, quiet=quiet), stage("work", 1) as advance:
        advance(1)
    assert console.file.getvalue() == ""


def test_a_short_stage_has_no_bar():
    console = terminal()
    with common.bars_shown(console, quiet=False), stage("short", 1):
        pass
    assert "short" not in console.file.getvalue()


def test_commands_show_bars_on_the_terminal_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(common, "LEAST_SECONDS", 0.0)
    shown, show = terminal(), common.bars_shown
    monkeypatch.setattr(common, "bars_shown", lambda console, quiet: show(shown, quiet=quiet))
    command = ["convert", "braid-10k", str(tmp_path / "store")]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert "writing" in shown.file.getvalue()
    shown.file.truncate(0)
    done = CliRunner().invoke(app, [*command, "--overwrite", "--json"])
    assert json.loads(done.stdout)["num_nodes"] == 1000
    assert shown.file.getvalue().strip("\0") == ""


def test_a_run_has_its_own_bar_alone(monkeypatch, tmp_path):
    heard = Heard()
    monkeypatch.setattr(common, "bars_shown", lambda console, quiet: listening(heard.listen))
    words = ["train", "--data", "braid-10k", "--epochs", "1", "--out", str(tmp_path / "run")]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert not [name for name in heard.names() if name.startswith("writing")]


def test_other_threads_are_not_heard(heard):
    import threading

    def work():
        with stage("in a thread"):
            torch.zeros(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard.stages == []

"""The progress display: plain lines in a file, a bar on a terminal, nothing when quiet."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from tests.train.communities import AsWritten, community_graph, new_model

from graphbraid.train import Trainer
from graphbraid.train.progress import ProgressDisplay


def shown(*, terminal: bool, quiet: bool = False, as_written: bool = False, **options: object) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=140, color_system=None)
    graph = community_graph()
    options = {"epochs": 3, "batch_size": 100, "fanouts": (5, 5), "threads": 1, "compiled": False} | options
    model = AsWritten(graph.num_features, graph.num_classes) if as_written else new_model(graph)
    Trainer(model, graph, **options, callbacks=[ProgressDisplay(console, quiet=quiet)]).fit()
    return text.getvalue()


def test_lines_in_a_file_show_loss_metric_and_stage_times() -> None:
    baseline, *lines = shown(terminal=False).splitlines()
    assert baseline.startswith("baseline  always predicting class ")
    heading = "epoch loss val loss val accuracy sample gather wait model eval epoch (seconds)"
    assert lines[0].split() == heading.split()
    assert [line.split()[0] for line in lines[1:4]] == ["0", "1", "2"]
    assert all(len(line.removesuffix("  best").split()) == 10 for line in lines[1:4])
    assert any(line.endswith("  best") for line in lines[1:4])
    assert lines[4].startswith("finished after 3 epochs, 6 steps")
    assert any(line.startswith("test loss") for line in lines)
    assert "\x1b" not in "".join(lines)


def test_a_model_that_runs_as_written_is_shown() -> None:
    assert shown(terminal=False, as_written=True, compiled=True).startswith("uncompiled  ")


def test_epoch_without_evaluation_shows_a_dash() -> None:
    lines = shown(terminal=False, eval_every=2).splitlines()[1:]
    assert lines[1].split()[2:4] == ["-", "-"]
    assert "-" not in lines[2].split()


def test_terminal_gets_a_bar_and_keeps_the_lines() -> None:
    text = shown(terminal=True)
    assert "epoch 0 of 3" in text
    assert "val accuracy" in text
    assert "finished after 3 epochs" in text
    assert text.endswith("\n")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")  # the cursor is shown again


def test_cursor_comes_back_after_an_error() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120)
    graph = community_graph()
    display = ProgressDisplay(console)

    class Fail(ProgressDisplay):
        def on_step_end(self, trainer: Trainer, record: object) -> None:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        Trainer(new_model(graph), graph, fanouts=(5, 5), callbacks=[display, Fail(quiet=True)]).fit()
    assert text.getvalue().count("\x1b[?25l") == text.getvalue().count("\x1b[?25h") == 1


def test_quiet_says_nothing() -> None:
    assert shown(terminal=False, quiet=True) == ""
    assert shown(terminal=True, quiet=True) == ""

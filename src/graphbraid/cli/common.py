"""Shared parts of all commands: consoles, JSON results, and errors without tracebacks."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from graphbraid.cli import ranks, signals
from graphbraid.errors import GraphbraidError, ResourceError
from graphbraid.files.progress import Advance, listening
from graphbraid.files.writing import format_bytes, printable
from graphbraid.machine.hardware import require_least

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress
    from rich.table import Table


DEBUG_VARIABLE = "GRAPHBRAID_DEBUG"
_NO_MEMORY = "can't allocate memory"
INTERRUPTED = signals.EXIT_CODE
_WIDE = 200
_OF_LITTLE_MEMORY = frozenset({"doctor", "report", "compare"})
"""Commands that start whatever memory is free: they say how much there is, or read small files."""
_PLACE = "\ue000"  # a private-use character that stands for {} while markup is parsed

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, all else on standard error.")
]
DebugOption = Annotated[
    bool, typer.Option("--debug", envvar=DEBUG_VARIABLE, help="Show the whole traceback of an error.")
]


def flag(
    default: Any,
    flags: str,
    text: str,
    *,
    metavar: str | None = None,
    panel: str | None = None,
    parser: Callable[[str], Any] | None = None,
) -> Any:
    """Return the declaration of an option.

    Args:
        default: its value if it is not given; ``...`` if it must be.
        flags: its flags, such as ``--data -d``. If empty, the parameter's name.
        text: its help. The default is added, unless there is none or the text says it.
        metavar: word of the help for the value. If None, the value's type.
        panel: heading of the help under which it stands.
        parser: makes the value of the text. If None, the annotation does.
    """
    return typer.Option(
        default,
        *flags.split(),
        help=text,
        metavar=metavar,
        rich_help_panel=panel,
        show_default="(default:" not in text,
        parser=parser,
    )


def path_flag(default: Any, flags: str, text: str, *, metavar: str, panel: str | None = None) -> Any:
    """Return the declaration of an option that is a path, which must not be empty."""
    return flag(default, flags, text, metavar=metavar, panel=panel, parser=path_given)


def path_given(text: str) -> Path:
    """Parse an option's path, refusing an empty one, which ``Path`` would take for the working directory.

    Raises:
        BadParameter: the text is empty.
    """
    if not text.strip():
        raise typer.BadParameter("a file or folder must be named; got an empty text")
    return Path(text)


def err_console() -> Console:
    """Return the console for standard error: progress, tables, errors; wide if it is not a terminal.

    It does not interpret markup or emoji in the text that it prints, which may come from the user; only
    :func:`marked` does.
    """
    width = None if sys.stderr.isatty() else _WIDE
    return Console(stderr=True, width=width, markup=False, emoji=False)


def out_console() -> Console:
    """Return the console for standard output: a command's result; wide if it is not a terminal, for grep."""
    return Console(width=None if sys.stdout.isatty() else _WIDE, markup=False, emoji=False)


def marked(template: str, *values: object) -> Text:
    """Fill each ``{}`` of a template in rich's markup with a value, which is not interpreted as markup."""
    text = Text.from_markup(template.replace("{}", _PLACE), emoji=False)
    filled, done = Text(), 0
    for at, value in zip((at for at, c in enumerate(text.plain) if c == _PLACE), values, strict=True):
        part = Text(printable(value))
        for span in text.spans:
            if span.start <= at < span.end:
                part.stylize(span.style)
        filled, done = filled.append_text(text[done:at]).append_text(part), at + 1
    return filled.append_text(text[done:])


def say(console: Console, template: str, *values: object) -> None:
    """Print one :func:`marked` text without wrapping its lines."""
    console.print(marked(template, *values), highlight=False, soft_wrap=True)


def table(
    columns: Mapping[str, str], rows: Iterable[Sequence[str | Text]], title: str | None = None
) -> Table:
    """Return a table without lines; text in its cells cannot control a terminal.

    Each of ``columns`` comes with what it is like: ``"left"``, ``"right"``, or a style.
    """
    from rich.table import Table

    made = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for name, like in columns.items():
        style = None if like in ("left", "right") else like
        made.add_column(name, justify="right" if like == "right" else "left", style=style, overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else printable(cell) for cell in row))
    return made


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and facts without a heading."""
    made = table({"name": "cyan", "value": "left"}, rows)
    made.show_header = False
    return made


def print_json(value: Any) -> None:
    """Print the command's result as JSON; NoOutputError if standard output is closed, or its disk is full.

    JSON has no NaN, as of a metric that is not defined, and no infinity: they are null.
    """
    finite = json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)
    try:
        sys.stdout.write(json.dumps(finite, indent=2) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _lose_output()
        raise NoOutputError(f"cannot write the result to standard output: {error.strerror}") from error


class NoOutputError(ResourceError):
    """Standard output takes no result, nor an error as JSON."""


def _lose_output() -> None:
    """Discard the rest of standard output's buffer, which Python would fail to flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Turn a command's exceptions into a message, or a JSON object, and an exit code.

    The command takes ``json_output`` and ``debug`` among its keyword arguments.
    """

    @functools.wraps(command)
    def run(*given: Any, **options: Any) -> None:
        quiet = bool(options.get("json_output") or options.get("quiet"))
        try:
            if command.__name__ not in _OF_LITTLE_MEMORY:
                require_least(f"graphbraid {command.__name__}")
            with bars_shown(err_console(), quiet=quiet):
                command(*given, **options)
        except (typer.Exit, typer.Abort):
            raise
        except (signals.Stopped, KeyboardInterrupt) as error:
            signals.ending()
            _report(error, "interrupted", INTERRUPTED, options)
        except BrokenPipeError:
            # The reader closed the pipe, as `head` does. Python would report it when flushing at exit.
            _lose_output()
            raise typer.Exit(1) from None
        except GraphbraidError as error:
            _report(error, str(error), error.exit_code, options)
        except MemoryError as error:
            _report(error, _memory_message(error), ResourceError.exit_code, options)
        except OSError as error:
            _report(error, _os_message(error), ResourceError.exit_code, options)
        except Exception as error:  # anything unforeseen
            if _NO_MEMORY in str(error):  # torch raises a plain RuntimeError
                _report(error, _memory_message(error), ResourceError.exit_code, options)
            message = f"{type(error).__name__}: {error} (not foreseen: run again with --debug and report it)"
            _report(error, message, GraphbraidError.exit_code, options)

    return run


def _memory_message(error: Exception) -> str:
    if asked := re.search(r"you tried to allocate (\d+) bytes", str(error)):
        size = format_bytes(int(asked[1]))
        return f"out of memory: {size} at once are more than there is; is a size or an id far too large?"
    detail = f" ({error})" if str(error) else ""
    return f"out of memory{detail}; try a smaller batch, smaller fanouts or fewer workers"


def _os_message(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    advice = {
        errno.ENOSPC: "; free some disk space or choose another place with --out",
        errno.EACCES: "; choose a place that you may read and write",
        errno.EROFS: "; choose a place that can be written",
    }.get(error.errno or 0, "")
    return f"{where}{error.strerror or error}{advice}"


def _report(error: BaseException, message: str, code: int, options: dict[str, Any]) -> None:
    """Report an error and exit with ``code``."""
    if options.get("debug"):
        traceback.print_exception(error, file=sys.stderr)
    shown = False
    if options.get("json_output") and not isinstance(error, NoOutputError):
        with contextlib.suppress(NoOutputError):
            print_json({"error": {"type": type(error).__name__, "message": message, "exit_code": code}})
            shown = True
    if not shown:
        style = "yellow" if code == INTERRUPTED else "bold red"
        label = "stopped" if code == INTERRUPTED else "error"
        rank = f"rank {ranks.rank()}: " if ranks.rank() else ""
        say(err_console(), f"[{style}]{rank}{label}:[/] {{}}", message)
    raise typer.Exit(code) from None


# ---- bars of long work

LEAST_SECONDS = 0.5
"""A shorter stage has no bar."""


def bars_shown(console: Console, *, quiet: bool) -> AbstractContextManager[None]:
    """Show the long stages of a block on a terminal; elsewhere, or if ``quiet``, do nothing."""
    return nullcontext() if quiet or not console.is_terminal else listening(Bars(console).stage)


class Bars:
    """A bar for each stage that is under way. They vanish with their stages."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None

    @contextmanager
    def stage(self, name: str, total: float | None) -> Generator[Advance]:
        """Show a stage until its block ends."""
        is_first = self._progress is None
        progress = self._progress = self._progress or self._started()
        task = progress.add_task(printable(name), total=total)
        try:
            yield lambda amount: progress.advance(task, amount)
        finally:
            progress.remove_task(task)
            if is_first:
                progress.stop()
                self._progress = None

    def _started(self) -> Progress:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        class Long(Progress):
            """The bars of stages that take long."""

            def get_renderables(self) -> Iterable[RenderableType]:
                yield self.make_tasks_table(
                    [task for task in self.tasks if (task.elapsed or 0.0) >= LEAST_SECONDS]
                )

        found = Long(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left", markup=False),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        found.start()
        return found

"""Whether an exception is a clear refusal or something raw that a user should not meet."""

import ast
import linecache
import re
import traceback
from pathlib import Path
from types import TracebackType

from tests.fuzz.case import Verdict, shorten

import graphbraid
from graphbraid.errors import GraphbraidError

PACKAGE = str(Path(graphbraid.__file__).parent)
_HERE = str(Path(__file__).parent)
_BINDING = re.compile(
    r"unexpected keyword argument|missing \d+ required|takes .* positional argument|multiple values for"
)
_KERNELS = re.compile(r"[a-z_]+(\[[^]]*\])?( and [a-z_]+)? must (be|have|hold|lie|not|run|start|end)\b")
"""How the compiled kernels' own checks begin: with the argument's name."""
_NO_MEMORY = ("can't allocate memory", "out of memory", "Unable to allocate")


def judge(error: BaseException) -> Verdict:
    """Refused: an error of graphbraid's own, Python's about unknown or missing arguments, no memory, or a
    TypeError, ValueError or IndexError that a check of ours raised, in Python or in the kernels. Else raw.
    """
    text = f"{type(error).__name__}: {shorten(error, 300)}"
    if isinstance(error, GraphbraidError):
        if str(error).strip():
            return Verdict("refused", detail=text)
        return Verdict("raw", cause=f"{type(error).__name__} without a message {_place(error)}", detail=text)
    if isinstance(error, MemoryError) or any(part in str(error) for part in _NO_MEMORY):
        return Verdict("refused", detail=text)
    if isinstance(error, TypeError) and _BINDING.search(str(error)) and _is_call_of_ours(error):
        return Verdict("refused", detail=text)
    if isinstance(error, TypeError | ValueError | IndexError) and _raised_by_us(error):
        return Verdict("refused", detail=text)
    if type(error) in (ValueError, TypeError) and not _is_call_of_ours(error) and _KERNELS.match(str(error)):
        return Verdict("refused", detail=text)
    return Verdict("raw", cause=f"{type(error).__name__} {_place(error)}: {_general(error)}", detail=text)


def _frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(trace))


def _place(error: BaseException) -> str:
    """The innermost frame of graphbraid, and of whom it called if it went on from there."""
    frames = _frames(error.__traceback__)
    ours = [f for f in frames if f.filename.startswith(PACKAGE)]
    if not ours:
        outside = [f for f in frames if not f.filename.startswith(_HERE)]
        return f"outside graphbraid, in {outside[-1].name}" if outside else "at the call"
    last = ours[-1]
    return f"in {Path(last.filename).relative_to(PACKAGE)}:{last.name}"


def _is_call_of_ours(error: BaseException) -> bool:
    """Whether the call that did not fit its signature was the user's own, not one inside the package."""
    return not any(f.filename.startswith(PACKAGE) for f in _frames(error.__traceback__))


def _raised_by_us(error: BaseException) -> bool:
    frames = _frames(error.__traceback__)
    if not frames or not frames[-1].filename.startswith(PACKAGE):
        return False
    last = frames[-1]
    return _statement_at(last.filename, last.lineno or 0).startswith("raise ")


def _statement_at(filename: str, line: int) -> str:
    """The first line of the innermost simple statement that covers a line."""
    source = "".join(linecache.getlines(filename))
    found = ""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and node.lineno <= line <= (node.end_lineno or node.lineno):
            found = "raise "
    return found


def _general(error: BaseException) -> str:
    """The message without numbers, quoted values and addresses."""
    text = re.sub(r"0x[0-9a-f]+|'[^']*'|\"[^\"]*\"|-?\d[\d.e+]*", "*", str(error))
    return shorten(text, 90)

"""Programs of the synthesis language that came to harm: each runs, or is refused with its place."""

import random
import string
from pathlib import Path

from tests.fuzz.case import Planned, Verdict, shorten
from tests.fuzz.verdict import judge
from tests.synth.programs import LISTING, program

from graphbraid.synth import ProgramError, parse_program
from graphbraid.synth.language import syntax
from graphbraid.synth.specializing import specialize

PROGRAMS_OF_A_CASE = 40
LAYERS = (8, 16, 16, 4)
_SOUND = (
    LISTING,
    program("GAT", "Sum", before="gnn.heads(4); gnn.seed(3);", optimizer='"adamw", 0.01, 0.9, 0.99, 0.1'),
    program(
        "SAGE",
        "Mean",
        before='gnn.earlyStop("val", 5);',
        after_layer='if (l < layers - 1 && !(l == 7)) { gnn.dropout(l, 0.5); gnn.activation(l, "elu"); }',
        after_epoch='if (epoch % 2 == 0) { gnn.evaluate("val"); } else { gnn.evaluate("test"); }',
        optimizer='"sgd", 0.1, 0.9',
    ),
    program(
        before="float best = 0.0;",
        after_epoch='best = gnn.evaluate("val"); while (best > 2) { best /= 2; } if (best < 1) { break; }',
        optimizer='"sgd", 0.1 / (epoch + 1)',
    ),
)
_PARTS = (
    *(
        "{",
        "}",
        "(",
        ")",
        ";",
        ",",
        "[",
        "]",
        "<",
        ">",
        "=",
        "==",
        "&&",
        "||",
        "!",
        "+",
        "-",
        "++",
        "--",
        "*",
        "/",
    ),
    *(
        "%",
        '"',
        "//",
        "/*",
        "*/",
        ".",
        "&",
        "function",
        "for",
        "forall (v in g.nodes())",
        "u.x",
        "propNode<float> x",
        "if",
        "else",
        "break;",
        "while",
        "print(",
        "return",
        "gnn.loss()",
        "continue;",
        "true",
        "int",
    ),
    *(
        "float",
        "bool",
        "Graph",
        "GNN",
        "container<int>",
        "String",
        "0",
        "-1",
        "1e308",
        "99999999999999999999",
    ),
    *(
        "for (;;) {}",
        "for (int i = 0; i < 9; i++) {",
        "int x = 1;",
        "x *= 3;",
        "layers[l]",
        "layers - 1",
        "\0",
        "é",
    ),
    *syntax.METHODS["GNN"],
)


def prepare(folder: Path) -> None:
    """Nothing is shared between cases."""


def plan(numbers: random.Random, number: int, folder: Path) -> Planned:
    """Some damaged programs."""
    texts = [_damaged(numbers) for _ in range(PROGRAMS_OF_A_CASE)]
    return Planned(f"{len(texts)} programs", lambda: _tried(texts))


def _tried(texts: list[str]) -> Verdict:
    status = "refused"
    for text in texts:
        try:
            specialize(parse_program(text), LAYERS, {"totalEpoch": 3})
            status = "ok"
        except ProgramError as error:
            if not _names_its_place(error, text):
                return Verdict(
                    "raw", cause="an error without its place", detail=shorten(f"{error}: {text}", 900)
                )
        except Exception as error:
            verdict = judge(error)
            detail = shorten(f"{verdict.detail}: {text}", 900)
            return Verdict("raw", cause=verdict.cause or type(error).__name__, detail=detail)
    return Verdict(status)


def _names_its_place(error: ProgramError, text: str) -> bool:
    """Whether an error points into the text, or at the end of its last line."""
    if error.place is None or not error.message:
        return False
    lines = text.split("\n") or [""]
    return (
        1 <= error.place.line <= len(lines)
        and 1 <= error.place.column <= len(lines[error.place.line - 1]) + 1
    )


def _damaged(numbers: random.Random) -> str:
    text = numbers.choice(_SOUND)
    for _ in range(numbers.randrange(1, 8)):
        text = numbers.choice(_DAMAGES)(text, numbers)
    return text


def _cut(text: str, numbers: random.Random) -> str:
    at = numbers.randrange(len(text) + 1)
    return text[:at] + text[at + numbers.choice((1, 1, 3, 40, 400)) :]


def _insert(text: str, numbers: random.Random) -> str:
    at = numbers.randrange(len(text) + 1)
    count = numbers.choice((1, 1, 1, 5, 300))
    return text[:at] + " ".join([numbers.choice(_PARTS)] * count) + text[at:]


def _other_letters(text: str, numbers: random.Random) -> str:
    at = numbers.randrange(len(text) + 1)
    return text[:at] + "".join(numbers.choices(string.printable, k=3)) + text[at + 3 :]


def _again(text: str, numbers: random.Random) -> str:
    first = numbers.randrange(len(text) + 1)
    at = numbers.randrange(len(text) + 1)
    return text[:at] + text[first : first + numbers.randrange(200)] + text[at:]


def _exchanged(text: str, numbers: random.Random) -> str:
    parts = text.split(" ")
    first, second = numbers.randrange(len(parts)), numbers.randrange(len(parts))
    parts[first], parts[second] = parts[second], parts[first]
    return " ".join(parts)


_DAMAGES = (_cut, _insert, _insert, _other_letters, _again, _exchanged)

"""Reading a program: text or file becomes a checked syntax tree; and the standard program of each model."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from graphbraid.arguments import check_choice
from graphbraid.errors import DataError
from graphbraid.files.opening import read_text
from graphbraid.signatures import typed
from graphbraid.synth.language.checking import check
from graphbraid.synth.language.parsing import MOST_CHARACTERS, parse
from graphbraid.synth.language.syntax import Function, ProgramError
from graphbraid.synth.language.words import MODELS, USUAL, word_of


@typed
def parse_program(text: str, *, source: str = "program") -> Function:
    """Parse a program's text and check its names, types and calls.

    Args:
        text: the program; ``docs/synthesis.md`` describes the language.
        source: name of the text in errors.

    Returns:
        The syntax tree. Its ``notes`` name marks that the parser supplied, such as a missing brace.

    Raises:
        ProgramError: the program is wrong; the message gives the line, the column and a hint.
    """
    try:
        function = parse(text)
        check(function)
    except ProgramError as error:
        raise error.within(source, text) from None
    return replace(function, source=source, text=text)


@typed
def read_program(path: str | os.PathLike[str]) -> Function:
    """Read a program's file like :func:`parse_program`.

    Raises:
        ProgramError: the program is wrong.
        DataError: the file cannot be read, or is no text in UTF-8.
    """
    file = Path(path)
    try:
        if file.stat().st_size > 4 * MOST_CHARACTERS:
            raise DataError(f"{file} is too large for a program: {file.stat().st_size:,} bytes")
        text = read_text(file).removeprefix("\ufeff")  # the byte order mark of files from Windows
    except UnicodeDecodeError as error:
        what = f"byte {error.start} is none of a character's"
        raise DataError(f"{file} is not text in UTF-8: {what}") from error
    except OSError as error:
        raise DataError(f"cannot read the program {file}: {error.strerror or error}") from error
    return parse_program(text, source=file.name)


_TEXT = """\
function {kind}(Graph g, GNN gnn, container<int>& layers, String dataset) {{
  gnn.load(g, dataset);
  gnn.initializeLayers(layers, "xavier");
  for (int epoch = 0; epoch < totalEpoch; epoch++) {{
    for (int l = 0; l < gnn.getLayers(); l++) {{
      gnn.forwardPass(l, "{kind}", "{aggregation}");
    }}
    for (int l = gnn.getLayers() - 1; l >= 0; l--) {{
      gnn.backPropagation(l);
    }}
    gnn.optimizer("adam", 0.01);
  }}
}}
"""


@typed
def standard_program(model: str) -> Function:
    """Return the program that trains a kind of model by Adam, without dropout; its ``text`` shows it.

    Args:
        model: ``gcn``, ``sage``, ``gin``, ``gat`` or ``gatv2``.

    Raises:
        ConfigError: there is no such model.
    """
    check_choice(model, "model", [kind.lower() for kind in MODELS])
    kind = word_of(model, MODELS) or ""
    return parse_program(_TEXT.format(kind=kind, aggregation=USUAL[kind]), source=model)

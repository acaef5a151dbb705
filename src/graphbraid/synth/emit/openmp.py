"""The OpenMP target: a folder of C++ that trains by the tasks of the full-graph engine."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch

import graphbraid
from graphbraid.errors import ConfigError
from graphbraid.files.writing import atomic_directory, require_absent
from graphbraid.fullgraph import CompileOptions
from graphbraid.graph import Graph
from graphbraid.signatures import typed
from graphbraid.synth.emit.memory import ArrayFile
from graphbraid.synth.emit.writer import Writer
from graphbraid.synth.synthesis import Synthesis
from graphbraid.synth.weights import save_weights

FORMAT = 2
"""Version of what is written."""
_PACKAGE = Path(graphbraid.__file__).parent
_CSRC, _RUNTIME = _PACKAGE / "csrc", _PACKAGE / "synth" / "emit" / "runtime"
_SOURCES = (
    *("arrays.cpp", "options.cpp", "training.cpp"),
    *("kernels_dense.cpp", "kernels_epilogue.cpp", "kernels_spmm.cpp"),
)
_SOURCE_OF = {
    "spmm_max": "kernels_spmm_max.cpp",
    "bit_product": "kernels_bits.cpp",
    "gat_forward": "kernels_attention.cpp",
    "gat_backward": "kernels_gat_backward.cpp",
    "batch_norm": "kernels_norm.cpp",
}
"""What is only compiled for a program that calls the kernel."""
_KERNEL_SOURCES = ("threads.cpp", "variants.cpp")
_INCLUDE = re.compile(r'^\s*#(?:include|define GB_KERNEL_FILE) "([^"]+)"', re.MULTILINE)


@dataclass(frozen=True, eq=False, slots=True)
class Sources:
    """A synthesised program that is not yet written."""

    main: str
    cmake: str
    readme: str
    sources: tuple[Path, ...]
    """Files of the kernels and of the runtime, copied as they are."""
    arrays: tuple[ArrayFile, ...]


@typed
def write_openmp(
    synthesis: Synthesis,
    graph: Graph,
    folder: str | os.PathLike[str],
    *,
    options: CompileOptions | None = None,
) -> Path:
    """Write a program in C++ with OpenMP that trains a model on a graph.

    Args:
        synthesis: the model, whose weights the program begins from, and its recipe.
        graph: the graph, opened from the store that the program will be run with.
        folder: the folder to make, with its own ``README.md``.
        options: how to lower. If None, as :func:`graphbraid.compile` does.

    Returns:
        The folder.

    Raises:
        NotLoweredError: the model needs what the target does not have; the message names it.
        DataError: the graph does not fit the model or the recipe.
        ResourceError: the folder exists or cannot be written.
    """
    place = Path(folder)
    require_absent(place)
    made = sources_of(synthesis, graph, options)
    with atomic_directory(place) as temp:
        for name in ("csrc", "runtime", "plan"):
            (temp / name).mkdir()
        texts = {"main.cpp": made.main, "CMakeLists.txt": made.cmake, "README.md": made.readme}
        for file, text in texts.items():
            (temp / file).write_text(text, encoding="utf-8")
        for source in made.sources:
            shutil.copyfile(source, temp / source.parent.name / source.name)
        for array in made.arrays:
            if not array.in_store:
                np.save(temp / "plan" / array.file, array.tensor.detach().contiguous().numpy())
        save_weights(synthesis.model, temp / "weights")
    return place


def sources_of(synthesis: Synthesis, graph: Graph, options: CompileOptions | None = None) -> Sources:
    """Plan, record and write down a program without making a file."""
    lowered = synthesis.lower(graph, options)
    with torch.random.fork_rng(devices=[]):
        writer = Writer(synthesis, lowered, graph)
        context = writer.context()
    sources = _files_of(writer.kernels)
    title = f"{synthesis.recipe.name}: full-graph training"
    context |= {"title": title, "version": graphbraid.__version__, "format": FORMAT, "graph": graph.name}
    context["sources"] = [f"{s.parent.name}/{s.name}" for s in sources if s.suffix == ".cpp"]
    main, cmake, readme = (_rendered(name, context) for name in ("main.cpp", "CMakeLists.txt", "README.md"))
    return Sources(main, cmake, readme, tuple(sources), tuple(writer.arrays.files))


def _files_of(kernels: Iterable[str]) -> list[Path]:
    """Return the runtime's files, and the kernels' files that they include, in order of their names."""
    sources = [*_SOURCES, *(_SOURCE_OF[name] for name in sorted(kernels) if name in _SOURCE_OF)]
    wanted = [_RUNTIME / name for name in sources] + [_CSRC / name for name in _KERNEL_SOURCES]
    found: dict[str, Path] = {}
    while wanted:
        file = wanted.pop()
        if file.name in found:
            continue
        if not file.is_file():
            raise ConfigError(f"this installation lacks {file}; install graphbraid from its source")
        found[file.name] = file
        for name in _INCLUDE.findall(file.read_text(encoding="utf-8")):
            inner = _RUNTIME / name if (_RUNTIME / name).is_file() else _CSRC / name
            wanted.append(inner)
    return sorted(found.values(), key=lambda file: (file.parent.name, file.name))


def _rendered(name: str, context: dict[str, Any]) -> str:
    templates = resources.files(__package__).joinpath("templates")
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    text = templates.joinpath(f"{name}.j2").read_text(encoding="utf-8")
    return environment.from_string(text).render(**context)


__all__ = ["FORMAT", "Sources", "sources_of", "write_openmp"]

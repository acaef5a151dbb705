"""The folder of a synthesised program: files made from templates, and copies of the runtime's sources."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from torch import Tensor, nn

import graphbraid
from graphbraid.errors import ConfigError
from graphbraid.files.writing import atomic_directory, require_absent
from graphbraid.synth.emit.control import script_lines
from graphbraid.synth.emit.layout import CppStatement, Fields, aligned, comment_lines, lines_of
from graphbraid.synth.weights import save_weights

FORMAT = 6
_PACKAGE = Path(graphbraid.__file__).parent
_EMIT = _PACKAGE / "synth" / "emit"
_ROOMS = (_EMIT / "runtime", _EMIT / "runtime_mpi", _EMIT / "runtime_cuda", _PACKAGE / "csrc")
"""Folders of the sources, in the order in which an include is looked for."""
_COMMON = ("arrays.cpp", "epochs.cpp", "following.h", "options.cpp", "peak_memory.cpp", "weights.cpp")
_OPENMP = (
    *("kernels_dense.cpp", "kernels_epilogue.cpp", "kernels_loss.cpp", "kernels_spmm.cpp"),
    *("threads/threads.cpp", "training.cpp", "variants/variants.cpp"),
)
_CHOICE, _CHOICE_OF_BITS = "input_choice.cpp", "input_bits.cpp"
_SOURCE_OF = {
    "spmm_max": ("kernels_spmm_max.cpp", "kernels_spmm_max.cu"),
    "bit_product": ("kernels_bits.cpp", "kernels_bits.cu"),
    "reduce_messages": ("kernels_messages.cpp", "messages.cuh"),
    "gat_forward": ("kernels_attention.cpp", "kernels_attention.cu"),
    "gat_backward": ("kernels_gat_backward.cpp", "kernels_attention.cu"),
    "gatv2_forward": ("kernels_attention.cpp", "kernels_attention.cu"),
    "gatv2_backward": ("kernels_gatv2_backward.cpp", "kernels_attention.cu"),
    "batch_norm": ("kernels_norm.cpp", "kernels_norm.cu"),
    "layer_norm": ("kernels_norm.cpp", "kernels_norm.cu"),
}
"""Kernels -> their sources for CPUs and for GPUs. Only programs with these kernels need them."""
_CUDA = (
    *("gpu_memory.cu", "gpu_training.cu", "kernels_dense.cu", "kernels_elements.cu", "kernels_spmm.cu"),
    *("gemm.cu", "gemm_on_host.cpp", "on_host.cpp", "on_host_memory.cpp"),
)
_INCLUDE = re.compile(r'^\s*#(?:include|define GB_KERNEL_FILE) "([^"]+)"', re.MULTILINE)


@dataclass(frozen=True, eq=False, slots=True)
class Sources:
    """A synthesised program that is not yet written."""

    language: str
    """Ending of the file with ``main``: cpp or cu."""
    main: str
    cmake: str
    readme: str
    sources: tuple[Path, ...]
    """Files of the kernels and of the runtime, copied as they are."""
    plan: Mapping[str, Tensor]
    """Arrays by their files in ``plan/``."""


def rendered(context: dict[str, Any], names: Iterable[str], plan: Mapping[str, Tensor]) -> Sources:
    """Fill the templates.

    By default there is one rank, no GPU, and one input path. Files that the sources in ``names`` include are
    found here. ``plan`` has the arrays by their files in ``plan/``.
    """
    sources = tuple(files_of(names))
    context = {"ranks": 0, "gpu": None, "inputs": None, "paths": [context]} | context
    shown = context | {
        "script": script_lines(context["recipe"].steps),
        "title": f"{context['recipe'].name}: full-graph training",
        "version": graphbraid.__version__,
        "format": FORMAT,
        "sources": [_place(file) for file in sources if file.suffix in {".cpp", ".cu"}],
    }
    target = "cuda." if context["gpu"] else ""
    names = ("main.cpp", f"CMakeLists.{target}txt", f"README.{target}md")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_EMIT / "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        finalize=_in_one_line,
    )
    environment.filters |= {"laid_out": _laid_out, "comment": comment_lines, "combined": dict.__or__}
    templates = (environment.get_template(f"{name}.j2") for name in names)
    main, cmake, readme = (template.render(**shown, aligned=aligned) for template in templates)
    return Sources("cu" if context["gpu"] else "cpp", main, cmake, readme, sources, plan)


def write_folder(folder: str | os.PathLike[str], model: nn.Module, make: Callable[[], Sources]) -> Path:
    """Make a program and write it, whole or not at all; return its folder, which must not exist before."""
    require_absent(folder)
    made = make()
    with atomic_directory(folder) as temp:
        texts = {f"main.{made.language}": made.main, "CMakeLists.txt": made.cmake, "README.md": made.readme}
        for file, text in texts.items():
            (temp / file).write_text(text, encoding="utf-8")
        for source in made.sources:
            copy = temp / _place(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
        (temp / "plan").mkdir()
        for name, tensor in made.plan.items():
            (temp / "plan" / name).parent.mkdir(exist_ok=True)
            np.save(temp / "plan" / name, tensor.detach().contiguous().numpy())
        save_weights(model, temp / "weights")
    return Path(folder)


def openmp_sources(kernels: Collection[str], inputs: Collection[str] = ()) -> list[str]:
    """Return names of the sources of a program for CPUs.

    ``inputs`` are the input paths among which the program chooses.
    """
    tried = [_CHOICE, *([_CHOICE_OF_BITS] if "bits" in inputs else [])] if len(inputs) > 1 else []
    return [
        *_COMMON,
        *_OPENMP,
        *tried,
        *(of[0] for kernel, of in _SOURCE_OF.items() if kernel in kernels),
    ]


def cuda_sources(kernels: Collection[str]) -> list[str]:
    """Return names of the sources of a program for a GPU; see :func:`openmp_sources`."""
    return [*_COMMON, *_CUDA, *(of[1] for kernel, of in _SOURCE_OF.items() if kernel in kernels)]


def files_of(names: Iterable[str]) -> list[Path]:
    """Return sources and the files that they include, sorted by name."""
    wanted = list(names)
    found: dict[str, Path] = {}
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        file = next((room / name for room in _ROOMS if (room / name).is_file()), None)
        if file is None:
            raise ConfigError(f"this installation lacks {name}; install graphbraid from its source")
        found[name] = file
        wanted += _INCLUDE.findall(file.read_text(encoding="utf-8"))
    return sorted(found.values(), key=_place)


def _place(source: Path) -> str:
    return next(source.relative_to(room.parent) for room in _ROOMS if room in source.parents).as_posix()


def _in_one_line(value: Any) -> Any:
    """Return the value that a template shows. Names with line breaks are refused: they would become code."""
    if isinstance(value, str) and not value.isprintable() and value.strip(" ,\n"):
        raise ConfigError(f"a program's files cannot hold {value!r}: rename it without line breaks")
    return value


def _laid_out(
    statement: CppStatement | Fields | None, indent: int, begin: str = "", end: str = ""
) -> list[str]:
    """Return the lines of a statement, or of a structure between two texts."""
    return lines_of(
        statement if isinstance(statement, CppStatement) else CppStatement(begin, statement, end), indent
    )

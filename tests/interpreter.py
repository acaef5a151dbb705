"""Tests of Triton's kernels: where they run, and an interpreter spared what it does again and again.

A process either compiles or interprets: tests/conftest.py decides which, before triton is imported.
"""

import ast
import dataclasses
import functools
import importlib.util
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.extras import NO_TRITON, PATIENCE

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def mark(items: Iterable[pytest.Item], folder: Path) -> Iterator[pytest.Item]:
    """Mark what runs on a device where there is one, and what is interpreted where there is none.

    Returns:
        The tests of a folder.
    """
    for item in items:
        if item.path.is_relative_to(folder):
            if "device" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.interpreted if INTERPRETED else pytest.mark.gpu)
            yield item


@pytest.fixture(scope="session", autouse=True)
def quicker_interpreter() -> None:
    """Spare the interpreter most of what it does besides the kernels."""
    if INTERPRETED and importlib.util.find_spec("triton"):
        hasten()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the kernels run."""
    if not INTERPRETED and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1")
    pytest.importorskip("triton", reason=NO_TRITON)
    return torch.device("cpu" if INTERPRETED else "cuda")


def run(command: Sequence[Any], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the project's folder, with other environment variables."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        env=os.environ | variables,
        timeout=4 * PATIENCE,
    )


def defined_kernels(sources: Path) -> set[str]:
    """Return the names of the functions that are launched: those called ``*_kernel``."""
    trees = [ast.parse(path.read_text()) for path in sources.rglob("*.py")]
    nodes = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {node.name for node in nodes if node.name.endswith("_kernel")}


@functools.cache
def hasten() -> None:
    """Let kernels that are interpreted in this process take a third of the time, with the same results."""
    _patch_once_a_launch()
    _keep_what_is_of_a_type()
    _leave_out_checks_without_effect()


def _patch_once_a_launch() -> None:
    """Let what a kernel calls find the language as the launch's first such call has patched it.

    A launch patches what the kernel's module sees of the language, and takes that back at its end. Each call
    of a device function, ``tl.sum`` among them, does the same again: whatever it would replace is replaced.
    """
    from triton.runtime import interpreter

    launch, patched = interpreter.GridExecutor.__call__, set[frozenset[str]]()

    def launched(self: Any, *arguments: Any, **named: Any) -> None:
        patched.clear()
        try:
            launch(self, *arguments, **named)
        finally:
            patched.clear()

    @functools.cache
    def languages_of(function: Any) -> frozenset[str]:
        modules = [value for value in function.__globals__.values() if isinstance(value, ModuleType)]
        return frozenset(m.__name__ for m in modules if m in (interpreter.tl, interpreter.tl.core))

    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        rewritten = self.rewrite()  # adds what its module sees
        languages = languages_of(self.fn)
        if languages not in patched:
            interpreter._patch_lang(self.fn)
            patched.add(languages)
        try:
            return rewritten(*arguments, **named)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    interpreter.GridExecutor.__call__ = launched
    interpreter.InterpretedFunction.__call__ = called


def _keep_what_is_of_a_type() -> None:
    """Make the type of a block once, with what each of its tensors says of it, and look dtypes up once."""
    from triton.language import core
    from triton.runtime import interpreter

    make_type, make_tensor, look_up = (
        core.block_type.__init__,
        core.tensor.__init__,
        interpreter._get_np_dtype,
    )
    types, shapes, dtypes = dict[Any, Any](), dict[Any, tuple[Any, Any]](), dict[str, Any]()

    def block_type(cls: Any, element: Any, shape: Any) -> Any:
        key = (element.name, getattr(element, "address_space", None), *map(core._unwrap_if_constexpr, shape))
        if (made := types.get(key)) is None:
            made = object.__new__(cls)
            make_type(made, element, shape)
            types[key] = made
        return made

    def tensor(self: Any, handle: Any, of: Any) -> None:
        key = of.shape if of.is_block() else ()
        if (kept := shapes.get(key)) is None:
            make_tensor(self, handle, of)
            shapes[key] = self.shape, self.numel
            return
        self.shape, self.numel = kept
        self.handle, self.type, self.dtype = handle, of, of.scalar

    def np_dtype(of: Any) -> Any:
        if (found := dtypes.get(of.name)) is None:
            found = dtypes[of.name] = look_up(of)
        return found

    core.block_type.__new__ = block_type
    core.block_type.__init__ = lambda *_: None
    core.tensor.__init__ = tensor
    interpreter._get_np_dtype = np_dtype


def _leave_out_checks_without_effect() -> None:
    """Compute no sums and products a second time, in 64 bits, for an assertion that is only made to debug."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)

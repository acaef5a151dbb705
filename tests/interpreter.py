"""Makes Triton's interpreter patch its language once a launch, not at each call of a device function."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any


@functools.cache
def patch_once_a_launch() -> None:
    """Let what a kernel calls find the language as the launch's first such call has patched it.

    A launch patches what the kernel's module sees of the language, and takes that back at its end. Each call
    of a device function, ``tl.sum`` among them, does the same again, which is most of an interpreted kernel's
    time: whatever it would replace is replaced.
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

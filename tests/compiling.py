"""Triton's compiler without a device: what is launched ends once its kernel is compiled.

The interpreter does not check what the compiler does: types, shapes, what is known at compile time.
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import triton.compiler
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction


class _DriverWithoutDevice:
    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class _FarEnoughError(Exception):
    """What the last stage made of a kernel."""


class Compiled:
    """Replaces this process's launches of Triton kernels for good.

    Of each kernel, what is launched first becomes machine code. Its other instances, for other types and
    constants, end after the stage ``others_until``: what may be wrong with a type or a constant, the first
    stage finds.

    Args:
        capability: the CUDA architecture: 80, 90, ...
        others_until: ``"ttir"`` (Triton's own language), ``"ptx"`` or ``"cubin"`` (machine code).
        look: is called with the name and the results of each instance that becomes PTX, by their stage.
    """

    def __init__(
        self,
        capability: int,
        others_until: str,
        look: Callable[[str, Mapping[str, Any]], object] = lambda name, results: None,
    ) -> None:
        self.sizes: dict[str, int] = {}
        """Bytes of machine code of each kernel's first instance, by name."""
        self._last, self._look, self._is_known = others_until, look, False
        self._compile, self._add_stages = triton.compiler.compile, CUDABackend.add_stages
        launch = JITFunction.run
        driver.set_active(_DriverWithoutDevice(capability))
        triton.compiler.compile = self._compile_in_part

        def add_stages(backend: Any, stages: dict[str, Any], *arguments: Any) -> None:
            self._add_stages(backend, stages, *arguments)
            if self._is_known:
                self._end_early(stages)

        def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
            return launch(kernel, *arguments, grid=grid, warmup=True, **named)

        CUDABackend.add_stages, JITFunction.run = add_stages, run

    def _compile_in_part(self, source: Any, *arguments: Any, **named: Any) -> Any:
        name = source.fn.__name__
        self._is_known = name in self.sizes
        try:
            compiled = self._compile(source, *arguments, **named)
            self.sizes.setdefault(name, len(compiled.asm["cubin"]))
        except _FarEnoughError as enough:
            compiled = SimpleNamespace(asm={self._last: enough.args[0]})
        if "ptx" in compiled.asm:
            self._look(name, compiled.asm)
        return compiled

    def _end_early(self, stages: dict[str, Any]) -> None:
        last = stages[self._last]

        def ended(source: Any, metadata: Any) -> None:
            raise _FarEnoughError(last(source, metadata))

        if self._last != "cubin":
            stages[self._last] = ended

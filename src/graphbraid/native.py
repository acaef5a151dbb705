"""Loads the compiled kernels and chooses their variant once; without them the reference twins run.

The variants are, fastest first, ``avx512``, ``avx2``, ``portable`` and ``reference`` (plain PyTorch, which
always works). ``GRAPHBRAID_KERNELS`` forces one by name; it is an error if that one cannot run. Nothing is
loaded on import: the first call of :func:`kernels` or :func:`active` decides.
"""

import contextlib
import ctypes
import ctypes.util
import functools
import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from graphbraid.errors import DataError, GraphbraidError, KernelError, ResourceError

ENV_VARIABLE = "GRAPHBRAID_KERNELS"
WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""Variables that set how OpenMP's threads wait for work; with neither set they sleep (decision 0009)."""
COMPILED_VARIANTS = ("avx512", "avx2", "portable")
VARIANTS = (*COMPILED_VARIANTS, "reference")


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The kernel variant that runs, and why the faster ones do not."""

    variant: str
    """Name of the variant, one of :data:`VARIANTS`."""
    reason: str
    """Why this variant was chosen."""
    rejected: dict[str, str]
    """Variants that cannot run here, each with the reason."""


@functools.cache
def kernels() -> Any | None:
    """Return the compiled extension module, or None where the reference twins are to run.

    Raises:
        KernelError: ``GRAPHBRAID_KERNELS`` names a variant that cannot run here.
    """
    return None if active().variant == "reference" else _load()[0]


def forced_variant() -> str:
    """Return the variant that ``GRAPHBRAID_KERNELS`` names, or an empty string if it is not set.

    Raises:
        KernelError: it is set, but not to the name of a variant.
    """
    forced = os.environ.get(ENV_VARIABLE, "").strip().lower()
    if forced and forced not in VARIANTS:
        raise KernelError(
            f"{ENV_VARIABLE}={forced!r} names no kernel variant; choose one of {', '.join(VARIANTS)}"
        )
    return forced


@functools.cache
def active() -> Selection:
    """Return the variant in use; the first call chooses it.

    Raises:
        KernelError: ``GRAPHBRAID_KERNELS`` names a variant that is unknown or cannot run here.
    """
    forced = forced_variant()
    if forced == "reference":
        return Selection(variant="reference", reason=f"{ENV_VARIABLE}=reference asks for it", rejected={})
    rejected = {name: why for name in COMPILED_VARIANTS if (why := unsupported_reason(name))}
    if forced:
        if forced in rejected:
            raise KernelError(f"{ENV_VARIABLE}={forced} cannot run here: {rejected[forced]}")
        return _select(
            Selection(variant=forced, reason=f"{ENV_VARIABLE}={forced} asks for it", rejected=rejected)
        )
    for name in COMPILED_VARIANTS:
        if name not in rejected:
            return _select(
                Selection(variant=name, reason="the fastest this processor can run", rejected=rejected)
            )
    return Selection(variant="reference", reason="no compiled kernels could be loaded", rejected=rejected)


def unsupported_reason(variant: str) -> str | None:
    """Return why a compiled variant cannot run here, or None if it can."""
    module, failure = _load()
    if module is None:
        return failure
    if not module.is_supported(variant):
        return f"this processor does not have {variant}"
    if not module.is_compiled(variant):
        return f"{variant} is not compiled in this build; rebuild with GB_VARIANTS=all in the environment"
    return None


def _select(selection: Selection) -> Selection:
    module, _ = _load()
    assert module is not None
    module.raise_resource_errors_as(ResourceError)
    module.explain_bus_errors()
    module.select(selection.variant)
    return selection


@functools.cache
def _load() -> tuple[ModuleType | None, str]:
    """Return the extension module, or None and the reason."""
    _map_openmp()
    try:
        module = importlib.import_module("graphbraid._native")
    except ImportError as error:
        return None, f"the compiled kernels could not be loaded ({error})"
    if not any(os.environ.get(name) for name in WAIT_VARIABLES):
        module.let_idle_threads_sleep()
    return module, ""


def _map_openmp() -> None:
    """Make torch's OpenMP runtime visible to the kernels, which are not linked to one (decision 0002)."""
    import torch

    package = Path(torch.__file__).parent
    candidates = [*package.glob("lib/libgomp*"), *package.parent.glob("torch.libs/libgomp*")]
    if system := ctypes.util.find_library("gomp"):
        candidates.append(Path(system))
    for path in candidates:
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            return


LOOK_MICROSECONDS = 500
"""Time for which a thread of a pass looks for the next parallel loop before it sleeps."""


@contextlib.contextmanager
def awake_threads() -> Iterator[None]:
    """Keep the kernels' threads awake between the loops that this thread opens inside (decision 0009)."""
    compiled = kernels()
    begins = compiled is not None and compiled.begin_pass(look_microseconds())
    try:
        yield
    finally:
        if compiled is not None and begins:
            compiled.end_pass()


@functools.cache
def look_microseconds() -> int:
    """Return how long threads of a pass look for work; -1 if the threads of OpenMP run its loops."""
    policy = os.environ.get("OMP_WAIT_POLICY", "").strip().lower()
    if os.environ.get("GOMP_SPINCOUNT") or policy == "active":
        return -1
    return 0 if policy == "passive" else LOOK_MICROSECONDS


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Turn what compiled code raises about files and changed arrays into the library's errors."""
    try:
        yield
    except GraphbraidError:
        raise
    except ValueError as error:
        raise DataError(str(error)) from None
    except RuntimeError as error:
        raise ResourceError(str(error)) from None

"""What to say where an optional part or the machine lacks something; how what was measured is tested."""

import importlib
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

NO_PYG = 'needs PyTorch Geometric: pip install "graphbraid[pyg]"'
NO_TRITON = 'needs Triton: pip install "graphbraid[triton]"'
NO_TORCH_SPARSE = "needs torch-sparse, and PyPI has no wheel of it"
NO_TENSORBOARD = 'needs TensorBoard: pip install "graphbraid[tensorboard]"'
NO_PEAK = "needs Linux, whose peak of resident memory it reads"
NO_KERNELS = "needs the compiled kernels: install graphbraid, and leave GRAPHBRAID_KERNELS unset"

PATIENCE = 240.0
"""Seconds to wait for what takes a moment: only a hang lasts as long, however busy the machine is."""


def import_all() -> None:
    """Import every module of the package, so that processes forked from this one import none of them.

    Not Triton's kernels: their import decides by a variable of the environment whether they are interpreted.
    """
    import graphbraid

    package = Path(graphbraid.__file__).parent
    for path in sorted(package.rglob("*.py")):
        names = path.relative_to(package.parent).with_suffix("").parts
        if "triton" not in names and names[-1] != "__main__":
            importlib.import_module(".".join(names).removesuffix(".__init__"))


def ran(command: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    """What a program said, and the code that it ended with; it hangs if it takes :data:`PATIENCE`."""
    given = {"capture_output": True, "text": True, "timeout": PATIENCE} | options
    return subprocess.run([str(word) for word in command], check=False, **given)


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """What each call gives in a thread of its own, all begun at once; raises what one of them raises."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


LEAST_ATTEMPTS = 8


def require_to_hetero() -> None:
    """Skip a test where PyG's ``to_hetero`` fails: PyG 2.6 reads a name that PyTorch 2.9 no longer has."""
    import pytest
    from torch import fx
    from torch_geometric import __version__

    if __version__.startswith("2.6.") and not hasattr(fx._symbolic_trace, "List"):
        pytest.skip("to_hetero of PyG 2.6 fails with this PyTorch: pip install 'torch-geometric>=2.7'")


def to_hetero(model: Any, *more: Any) -> Any:
    """PyG's ``to_hetero``, where it runs."""
    from torch_geometric import nn

    require_to_hetero()
    return nn.to_hetero(model, *more)


def once_undisturbed(check: Callable[[], None]) -> None:
    """Call a check of measured times until it holds: other programs spoil some measurements, a fault all.

    Pauses that grow, up to half of :data:`PATIENCE` in all, let a busy spell pass.
    """
    until, attempts = time.monotonic() + PATIENCE / 2, 0
    while True:
        attempts += 1
        try:
            return check()
        except AssertionError:
            if attempts >= LEAST_ATTEMPTS and time.monotonic() > until:
                raise
        time.sleep(min(0.05 * attempts, 2.0))

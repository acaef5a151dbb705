"""Calls the kernels of an unpacked wheel under this Python, without PyTorch, and compares what they give.

    python3 -m zipfile -e dist/graphbraid-*.whl unpacked
    python3.13 -m pip install --target backend nanobind-backend
    PYTHONPATH=backend python3.13 scripts/call_wheel.py unpacked/graphbraid

One file serves all Pythons: this is the quick look that it does so. The system's OpenMP stands in for
PyTorch's.
"""

import ctypes
import platform
import sys
import types
from array import array


def floats(rows: int, columns: int, value: float) -> memoryview:
    return memoryview(bytearray(array("f", [value] * rows * columns).tobytes())).cast("f", (rows, columns))


def main() -> None:
    # The core asks these classes how their arrays cross. Here arrays are memoryviews.
    for module, name in (("torch", "Tensor"), ("torch.nn", "Parameter")):
        sys.modules[module] = types.ModuleType(module)
        setattr(sys.modules[module], name, type(name, (), {}))
    ctypes.CDLL("libgomp.so.1", mode=ctypes.RTLD_GLOBAL)
    sys.path.insert(0, sys.argv[1])
    import _native

    variants = ("avx512", "avx2", "portable")
    variant = next(name for name in variants if _native.is_compiled(name) and _native.is_supported(name))
    _native.select(variant)

    table, ids = bytes(range(128)), array("q", [3, 0, 7, 1])
    out = bytearray(64)
    _native.gather_rows(memoryview(table).cast("B", (8, 16)), ids, memoryview(out).cast("B", (4, 16)))
    assert out == b"".join(table[16 * i : 16 * i + 16] for i in ids), out

    sums = floats(2, 8, 0.0)
    edges = (array("q", [0, 2, 3]), array("i", [0, 2, 1]))
    _native.spmm(*edges, floats(3, 8, 1.5), None, None, None, None, 0.0, 0, False, False, None, sums)
    assert sums.tolist() == [[3.0] * 8, [1.5] * 8], sums.tolist()

    try:
        _native.gather_rows(memoryview(table).cast("B", (8, 16)), array("d", [1.0]), memoryview(out))
    except TypeError as error:
        assert str(error) == "ids must be int64; got float64", error
    else:
        raise AssertionError("ids of float64 were taken")
    print(f"{variant} kernels run under Python {platform.python_version()} on {platform.machine()}")


if __name__ == "__main__":
    main()

"""What a fuzzed argument may become: pools by the kind of value that stands there, each with a label."""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from tests.fuzz.world import WIDTH
from torch import Tensor, nn


class Value(NamedTuple):
    """A replacement: what it is in words, and how it is made."""

    label: str
    make: Callable[[], Any]


def _plain(*values: Any) -> list[Value]:
    return [Value(_label(value), lambda value=value: value) for value in values]


def _label(value: Any) -> str:
    text = f"{type(value).__name__} {value!r}" if not isinstance(value, int | float | str) else repr(value)
    return text if len(text) < 70 else f"{text[:50]}... ({len(text)} characters)"


COUNTS = _plain(
    -1, 0, 1, 2, 3, 7, 1000, 100_000, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64, 10**30,
    -2, -(2**31), -(2**63), -(2**63) - 1,
)  # fmt: skip
FLOATS = _plain(
    *(0.0, -0.0, 1.0, 0.5, 1.5, -1.0, 2.0, math.nan, math.inf, -math.inf),
    *(1e308, -1e308, 1e39, 5e-324, 1e-12, 1 - 1e-16),
)
TEXTS = _plain(
    "", " ", "nope", "relu", "sum", "mean", "max", "auto", "train", "cpu", "cpu:1", "cuda", "cuda:99", "meta",
    "a\0b", "[bold]x[/]", "[/]", "\n", "🙂", "-1", "1e5", "../..", "/", "x" * 5000, "{}", "%s", "None",
)  # fmt: skip
OTHERS = [
    *_plain(
        None,
        True,
        False,
        b"bytes",
        1 + 2j,
        [],
        (),
        {},
        [None],
        {"a": 1},
        {1},
        "text",
        3,
        1.5,
        math.nan,
        ...,
        range(2),
    ),
    Value("object()", object),
    Value("a class", lambda: int),
    Value("a lambda", lambda: lambda *args, **options: None),
    Value("a module", lambda: nn.Linear(WIDTH, 3)),
    Value("a generator", lambda: (i for i in range(2))),
    Value("np.int64(3)", lambda: np.int64(3)),
    Value("np.uint64(2**63)", lambda: np.uint64(2**63)),
    Value("np.float32(0.5)", lambda: np.float32(0.5)),
    Value("np.bool_(True)", lambda: np.bool_(True)),
    Value("tensor(2)", lambda: torch.tensor(2)),
    Value("tensor(0.5)", lambda: torch.tensor(0.5)),
    Value("tensor([])", lambda: torch.empty(0)),
    Value("tensor([1, 2])", lambda: torch.tensor([1, 2])),
    Value("array([1, 2])", lambda: np.array([1, 2])),
    Value("array of objects", lambda: np.array([1, "a", None], dtype=object)),
    Value("array of text", lambda: np.array(["a", "b"])),
    Value("a namespace", lambda: SimpleNamespace(shape=(3, 3), dtype=torch.float32)),
    Value("Path('.')", Path),
    Value("torch.float32", lambda: torch.float32),
    Value("torch.device('cpu')", lambda: torch.device("cpu")),
    Value("csr_matrix", lambda: scipy.sparse.csr_matrix(np.eye(3))),
]
SEQUENCES = _plain(
    *([], [0], [-1], [-2], [3], [3, 3, 3], [2**31], [2**40, 1], [2**64], [1.5], [math.nan], ["3"], [None]),
    *(
        [True, False],
        [[3, 3]],
        (3,) * 40,
        (1_000_000, 1_000_000),
        [0, 0],
        {3: 3},
        "33",
        range(1, 3),
        [-1, -1],
    ),
)
PATHS = _plain(
    "missing.npz", "", ".", "..", "a\0b", "/", "x" * 300, "~", "[bold]", "/proc/self/mem", "edges.csv/x"
)

_DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
)  # fmt: skip
_SPOTS = (-1, 0, 1, 2, 127, -128, 2**15, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
_REALS = (math.nan, math.inf, -math.inf, -1.0, 1e38, 3e38, 1e-45, 0.0)


def of(value: Any, numbers: random.Random) -> Value:
    """A replacement for a value of its kind, or now and then of any other."""
    if numbers.random() < 0.2:
        return numbers.choice(OTHERS)
    if isinstance(value, Tensor):
        return numbers.choice(tensors(value, numbers))
    if isinstance(value, np.ndarray):
        return numbers.choice(arrays(value, numbers))
    if isinstance(value, bool):
        return numbers.choice(_plain(None, 0, 1, 2, -1, "true", "no", math.nan, [], not value))
    if isinstance(value, int):
        return numbers.choice(COUNTS)
    if isinstance(value, float):
        return numbers.choice(FLOATS + COUNTS)
    if isinstance(value, Path):
        return numbers.choice(PATHS)
    if isinstance(value, str):
        return numbers.choice(TEXTS + PATHS)
    if isinstance(value, list | tuple) and (not value or not isinstance(value[0], Tensor)):
        return numbers.choice(SEQUENCES)
    return numbers.choice(OTHERS + COUNTS + FLOATS + TEXTS + SEQUENCES)


def tensors(t: Tensor, numbers: random.Random) -> list[Value]:
    """Wrong forms, types and contents of a tensor."""
    t = t.detach()
    forms: list[tuple[str, Callable[[], Any]]] = [
        ("without its last row", lambda: t[:-1]),
        ("with a row more", lambda: torch.cat([t, t[:1]])),
        ("with a leading axis", lambda: t[None]),
        ("flattened", t.flatten),
        ("its first row", lambda: t[0]),
        ("empty", lambda: t[:0]),
        ("transposed", lambda: t.T if t.ndim == 2 else t[:, None]),
        ("as a column", lambda: t.reshape(-1, 1)),
        ("0-d", lambda: t.flatten()[0]),
        ("of width 0", lambda: t.reshape(t.shape[0], -1)[:, :0]),
        ("on meta", lambda: t.to("meta")),
        ("sparse COO", t.to_sparse),
        ("sparse CSR", (t if t.ndim == 2 else t[None]).to_sparse_csr),
        ("expanded from one", lambda: t.flatten()[0].expand(t.shape)),
        ("quantized", lambda: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.quint8)),
        ("conjugate view", lambda: t.to(torch.complex64).conj()),
        ("a list", t.tolist),
        ("a ragged list", lambda: [[1, 2], [3]]),
        ("an object array", lambda: t.numpy().astype(object)),
        ("a text array", lambda: t.numpy().astype(str)),
        ("a masked array", lambda: np.ma.masked_array(t.numpy(), mask=True)),
        ("a datetime array", lambda: t.long().numpy().astype("datetime64[s]")),
        ("a structured array", lambda: np.zeros(t.shape, dtype=[("a", "i4"), ("b", "f4")])),
        ("a nested tensor", lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
    ]  # fmt: skip
    out = [Value(text, make) for text, make in forms]
    out += [Value(f"as {dtype}", lambda dtype=dtype: t.to(dtype)) for dtype in _DTYPES]
    if not t.numel():
        return out
    for _ in range(12):  # what is inside is what matters most
        place = numbers.randrange(t.numel())
        spots = _REALS if t.is_floating_point() else _SPOTS
        spot = numbers.choice(spots)
        if not t.is_floating_point() and t.dtype != torch.bool:
            info = torch.iinfo(t.dtype)
            if not info.min <= spot <= info.max:
                continue
        out.append(Value(f"[{place}] = {spot}", lambda place=place, spot=spot: with_spot(t, place, spot)))
    out.append(Value("shuffled", lambda: t.flatten().flip(0).reshape(t.shape)))
    out.append(Value("all as the first", lambda: torch.full_like(t, t.flatten()[0].item())))
    return out


def with_spot(t: Tensor, place: int, spot: Any) -> Tensor:
    changed = t.clone().contiguous()
    changed.view(-1)[place] = bool(spot) if t.dtype == torch.bool else spot
    return changed


def arrays(a: np.ndarray[Any, Any], numbers: random.Random) -> list[Value]:
    if a.dtype.kind not in "biuf":
        return OTHERS
    tensor = torch.from_numpy(np.ascontiguousarray(a))
    wrong = numbers.choice(tensors(tensor, numbers))

    def made() -> Any:
        value = wrong.make()
        return value.numpy() if isinstance(value, Tensor) and value.layout == torch.strided else value

    return [Value(f"array {wrong.label}", made)]


def same(value: Any) -> Sequence[Value]:
    """Other forms of the very same numbers: a call that takes one must give what it gives for ``value``."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "iuf":
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Tensor) and value.dtype != torch.bool and not value.is_sparse:
        return _same_tensors(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return ()
    return [
        Value("the same as np.int64", lambda: np.int64(value)),
        Value("the same as np.uint8", lambda: np.uint8(value) if 0 <= value < 256 else value),
        Value("the same as tensor", lambda: torch.tensor(value)),
    ]


def _same_tensors(t: Tensor) -> list[Value]:
    t = t.detach()
    array = t.numpy()
    forms: list[tuple[str, Callable[[], Any]]] = [
        ("non-contiguous", lambda: torch.stack([t, t], -1)[..., 0]),
        ("column-major", lambda: t.T.contiguous().T),
        ("a view at an offset", lambda: torch.cat([t.flatten()[:1], t.flatten()])[1:].reshape(t.shape)),
        ("an array", lambda: array),
        ("a read-only array", lambda: _read_only(array)),
        ("an array of the other byte order", lambda: array.astype(array.dtype.newbyteorder())),
        ("a reversed array view", lambda: array[::-1].copy()[::-1]),
        ("a list", t.tolist),
        ("requiring grad", lambda: t.clone().requires_grad_() if t.is_floating_point() else t),
        ("a Parameter", lambda: nn.Parameter(t.clone()) if t.is_floating_point() else t),
        ("negative view", lambda: torch._neg_view(-t) if t.is_floating_point() else t),
        ("a matrix", lambda: np.asmatrix(array) if array.ndim == 2 else array),
    ]  # fmt: skip
    if t.is_floating_point():
        forms.append(("float64", t.double))
    else:
        forms += [(str(dtype), lambda dtype=dtype: t.to(dtype)) for dtype in _holding(t)]
    return [Value(f"the same, {text}", make) for text, make in forms]


def _holding(t: Tensor) -> list[torch.dtype]:
    """Whole-number dtypes in which every value of ``t`` fits."""
    low, high = (int(t.min()), int(t.max())) if t.numel() else (0, 0)
    kinds = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
    return [d for d in kinds if torch.iinfo(d).min <= low and high <= torch.iinfo(d).max]


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    copy = array.copy()
    copy.setflags(write=False)
    return copy

"""Ways in which a file comes to harm."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

_BYTES = (
    b"\0",
    b"\xff",
    b"\n",
    b",",
    b'"',
    b"-",
    b"1",
    b" ",
    b"\t",
    b"\r\n",
    b"nan",
    b"1e999",
    b"\xef\xbb\xbf",
    b"'",
    b".5",
)
_VALUES = (
    None,
    True,
    -1,
    0,
    1,
    3,
    2**31,
    2**63,
    10**30,
    1.5,
    -0.5,
    1e308,
    "",
    "text",
    [],
    {},
    [1],
    {"a": 1},
    "[bold]",
)


def damage(path: Path, numbers: random.Random) -> str:
    """Harm the file; says how."""
    data = path.read_bytes()
    if path.suffix == ".json" and numbers.random() < 0.4 and (done := _json(path, data, numbers)):
        return done
    if numbers.random() < 0.06:
        return _whole(path, numbers)
    ways: list[Callable[[bytearray, random.Random], str]] = [
        _flip_bit, _flip_bit, _flip_bit, _set_byte, _cut, _append, _zero, _remove, _insert, _swap, _repeat
    ]  # fmt: skip
    changed = bytearray(data)
    text = numbers.choice(ways)(changed, numbers) if data else _append(changed, numbers)
    path.unlink()  # a copy may share its bytes with others
    path.write_bytes(changed)
    return text


def _at(data: bytearray, numbers: random.Random) -> int:
    """Often near the ends, where formats keep what they are."""
    if numbers.random() < 0.3:
        near = min(len(data), 64)
        return numbers.choice((numbers.randrange(near), len(data) - 1 - numbers.randrange(near)))
    return numbers.randrange(len(data))


def _span(data: bytearray, numbers: random.Random) -> tuple[int, int]:
    begin = _at(data, numbers)
    return begin, min(len(data), begin + 2 ** numbers.randrange(9))


def _flip_bit(data: bytearray, numbers: random.Random) -> str:
    at, bit = _at(data, numbers), numbers.randrange(8)
    data[at] ^= 1 << bit
    return f"bit {bit} of byte {at} flipped"


def _set_byte(data: bytearray, numbers: random.Random) -> str:
    at, value = _at(data, numbers), numbers.choice(b"0123456789,.-\"' \n\0\xff")
    data[at] = value
    return f"byte {at} set to {value}"


def _cut(data: bytearray, numbers: random.Random) -> str:
    at = _at(data, numbers)
    del data[at:]
    return f"cut at {at}"


def _append(data: bytearray, numbers: random.Random) -> str:
    extra = numbers.choice(_BYTES) * numbers.choice((1, 2, 100))
    data += extra
    return f"{len(extra)} bytes appended"


def _zero(data: bytearray, numbers: random.Random) -> str:
    begin, end = _span(data, numbers)
    data[begin:end] = bytes(end - begin)
    return f"[{begin}:{end}] zeroed"


def _remove(data: bytearray, numbers: random.Random) -> str:
    begin, end = _span(data, numbers)
    del data[begin:end]
    return f"[{begin}:{end}] removed"


def _insert(data: bytearray, numbers: random.Random) -> str:
    at, extra = _at(data, numbers), numbers.choice(_BYTES)
    data[at:at] = extra
    return f"{extra!r} inserted at {at}"


def _swap(data: bytearray, numbers: random.Random) -> str:
    a, b = _at(data, numbers), _at(data, numbers)
    data[a], data[b] = data[b], data[a]
    return f"bytes {a} and {b} swapped"


def _repeat(data: bytearray, numbers: random.Random) -> str:
    begin, end = _span(data, numbers)
    data[end:end] = data[begin:end]
    return f"[{begin}:{end}] repeated"


def _whole(path: Path, numbers: random.Random) -> str:
    way = numbers.choice(
        ("gone", "empty", "a folder", "a link to nowhere", "a link to itself", "a named pipe")
    )
    path.unlink()
    if way == "empty":
        path.touch()
    elif way == "a folder":
        path.mkdir()
    elif way == "a named pipe":
        os.mkfifo(path)
    elif way != "gone":
        path.symlink_to("nowhere" if way == "a link to nowhere" else path.name)
    return f"now {way}"


def _json(path: Path, data: bytes, numbers: random.Random) -> str | None:
    """A value of a JSON file edited by hand."""
    try:
        root = json.loads(data)
    except ValueError:
        return None
    places = list(_places(root))
    if not places:
        return None
    parent, key, name = numbers.choice(places)
    if numbers.random() < 0.3:
        del parent[key]
        text = f"{name} removed"
    else:
        value = numbers.choice(_VALUES)
        if (
            isinstance(parent[key], int | float)
            and not isinstance(parent[key], bool)
            and numbers.random() < 0.5
        ):
            value = parent[key] + 1
        parent[key] = value
        text = f"{name} = {value!r}"
    path.unlink()
    path.write_text(json.dumps(root))
    return text


def _places(value: Any, name: str = "") -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key, f"{name}.{key}"
        yield from _places(inner, f"{name}.{key}")

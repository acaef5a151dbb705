"""A parser that loses its count among threads is asked again."""

import io

import pytest

from graphbraid.files.mapped import read_alone


def failing(times):
    left = [times]

    def read(stream):
        found = stream.read()
        if left[0]:
            left[0] -= 1
            raise SystemError("AST constructor recursion depth mismatch")
        return found

    return read


def test_a_header_is_read_again_from_its_beginning():
    stream = io.BytesIO(b"before header")
    stream.seek(7)
    assert read_alone(failing(3), stream) == b"header"


def test_what_fails_for_good_fails():
    with pytest.raises(SystemError):
        read_alone(failing(4), io.BytesIO(b"header"))

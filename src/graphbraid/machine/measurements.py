"""Measurements kept between runs: a file for each, named by the key that says what was measured.

Files carry a checksum. One that is damaged, or holds nothing sound, counts as not there: it is said, and what
it held is measured again. Whoever measures decides, by :mod:`.contention`, what is worth keeping.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from graphbraid.errors import DataError, ResourceError
from graphbraid.files.caches import cache_folder
from graphbraid.files.checksums import FIELD, sealed, unsealed
from graphbraid.files.writing import atomic_write

T = TypeVar("T")

NOT_KEPT = (OSError, ResourceError)
"""What :meth:`Kept.write` raises where a measurement cannot be kept."""
_UNSOUND = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)

_log = logging.getLogger(__name__)


class Kept(Generic[T]):
    """Measurements of one kind.

    Args:
        kind: what they are, in messages and as the name of their folder: ``rates``.
        to_json: plain values of a measurement.
        from_json: the measurement of plain values; raises ValueError, TypeError or KeyError where they are
            unsound.
    """

    def __init__(
        self, kind: str, to_json: Callable[[T], Mapping[str, Any]], from_json: Callable[[Any], T]
    ) -> None:
        self._kind, self._to_json, self._from_json = kind, to_json, from_json

    def file(self, key: str) -> Path:
        """Where the measurement of a key is kept; what decides a measurement is part of its key."""
        return cache_folder(self._kind) / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"

    def read(self, file: Path) -> T | None:
        """What a file holds; None where there is none, or where it holds nothing sound, which is said."""
        try:
            return self._load(file)
        except FileNotFoundError:
            return None
        except _UNSOUND as error:
            message = "the %s kept in the cache %s cannot be used: what it held is measured again (%s)"
            _log.warning(message, self._kind, file, error)
            return None

    def read_others(self, file: Path) -> Iterator[T]:
        """What is kept under other keys than a file's; what holds nothing sound is passed over."""
        for other in sorted(file.parent.glob("*.json")):
            if other == file:
                continue
            try:
                found = self._load(other)
            except _UNSOUND:
                continue
            yield found

    def write(self, file: Path, found: T) -> None:
        """Keep a measurement in place of an earlier one.

        Raises:
            OSError: the folder cannot be made or written.
            ResourceError: the file cannot be written.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as aside:
            aside.write_text(json.dumps(sealed(self._to_json(found)), indent=1), encoding="utf-8")

    def _load(self, file: Path) -> T:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or FIELD not in content:
            raise DataError("it has no checksum")
        return self._from_json(unsealed(content, file))


__all__ = ["NOT_KEPT", "Kept"]

"""Measurements kept between runs: one file each, named by a hash of the key that says what was measured.

Files carry a checksum. One that is damaged or invalid counts as missing: a warning is logged and its content
is measured again. The caller decides, with :mod:`.contention`, which measurements are worth keeping.
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
from graphbraid.files.opening import read_text
from graphbraid.files.writing import atomic_write

T = TypeVar("T")

NOT_KEPT = (OSError, ResourceError)
"""Errors that :meth:`Kept.write` raises if a measurement cannot be kept."""
_UNSOUND = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)

_log = logging.getLogger(__name__)


class Kept(Generic[T]):
    """The cache of measurements of one kind.

    Args:
        kind: name of the kind in messages, and of its folder, such as ``rates``.
        to_json: function that turns a measurement into plain values.
        from_json: function that turns plain values into a measurement; raises ValueError, TypeError or
            KeyError if they are invalid.
    """

    def __init__(
        self, kind: str, to_json: Callable[[T], Mapping[str, Any]], from_json: Callable[[Any], T]
    ) -> None:
        self._kind, self._to_json, self._from_json = kind, to_json, from_json

    def file(self, key: str) -> Path:
        """Return the file for a key, which must hold everything that the measurement depends on."""
        return cache_folder(self._kind) / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"

    def read(self, file: Path) -> T | None:
        """Read a measurement; return None if the file is missing, or, with a warning, if it is invalid."""
        try:
            return self._load(file)
        except FileNotFoundError:
            return None
        except _UNSOUND as error:
            message = "the %s kept in the cache %s cannot be used: what it held is measured again (%s)"
            _log.warning(message, self._kind, file, error)
            return None

    def read_others(self, file: Path) -> Iterator[T]:
        """Yield the measurements kept under other keys than that of ``file``, skipping invalid files."""
        for other in sorted(file.parent.glob("*.json")):
            if other == file:
                continue
            try:
                found = self._load(other)
            except _UNSOUND:
                continue
            yield found

    def write(self, file: Path, found: T) -> None:
        """Write a measurement, replacing an earlier one.

        Raises:
            OSError: the folder cannot be made or written.
            ResourceError: the file cannot be written.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as aside:
            aside.write_text(json.dumps(sealed(self._to_json(found)), indent=1), encoding="utf-8")

    def _load(self, file: Path) -> T:
        content = json.loads(read_text(file))
        if not isinstance(content, dict) or FIELD not in content:
            raise DataError("it has no checksum")
        return self._from_json(unsealed(content, file))


__all__ = ["NOT_KEPT", "Kept"]

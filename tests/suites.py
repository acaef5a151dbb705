"""Which tests `make test` runs, and which it leaves to `make test-slow`, beyond those that are marked slow.

Of a test whose cases are a product of parameters `make test` runs as many as it takes for every value of
every parameter to occur, and of kernels that are interpreted the first two of those; the rest are slow.
Random examples are few there and many in `make test-slow` and `make test-all`, which runs each test once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path

import hypothesis
import pytest

TESTS = Path(__file__).parent
FEW, MANY = "few", "many"
"""Profiles of hypothesis."""
_NUM_EXAMPLES = {FEW: 8, MANY: 60}
_MOST_INTERPRETED = 2  # cases of a product; an interpreted kernel takes a thousand times as long

Values = frozenset[tuple[Hashable, Hashable]]


def register_profiles() -> None:
    """Make both profiles known; the few are taken unless ``--hypothesis-profile`` says otherwise."""
    for name, count in _NUM_EXAMPLES.items():
        # The machines are shared and slow at times: a deadline per example would fail by chance.
        hypothesis.settings.register_profile(name, deadline=None, max_examples=count, derandomize=True)
    hypothesis.settings.load_profile(FEW)


def examples(many: int) -> int:
    """As many random examples as the profile takes of a test that has ``many`` of them in the larger one."""
    return max(5, many * hypothesis.settings.default.max_examples // _NUM_EXAMPLES[MANY])


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark what `make test` leaves out."""
    products: dict[tuple[object, str], list[pytest.Function]] = defaultdict(list)
    is_many = hypothesis.settings.default.max_examples >= _NUM_EXAMPLES[MANY]
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if is_many and getattr(item.obj, "is_hypothesis_test", False):
            item.add_marker(pytest.mark.slow)  # its few examples are not
        is_left_alone = item.get_closest_marker("slow") or item.get_closest_marker("whole")
        if hasattr(item, "callspec") and not is_left_alone:
            products[item.path, item.originalname].append(item)
    for cases in products.values():
        # An id for each parametrization: parameters that one of them sets together count as one.
        kept = covering([frozenset(enumerate(case.callspec._idlist)) for case in cases])
        if cases[0].get_closest_marker("interpreted"):
            kept = kept[:_MOST_INTERPRETED]
        for number, case in enumerate(cases):
            if number not in kept:
                case.add_marker(pytest.mark.slow)
                case.add_marker(pytest.mark.rest)


def share_out(items: list[pytest.Item]) -> None:
    """Give a file's tests to one of several processes, which makes once what they share; the longest come first.

    Those that are slow each by itself are given out singly, unless they need a fixture of their module.
    """
    units = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if _is_slow_by_itself(item) and not _shares_a_fixture(item):
            units[item.nodeid].append(item)
        else:
            file = item.path.relative_to(TESTS).with_suffix("").as_posix()
            item.add_marker(pytest.mark.xdist_group(file))
            units[file].append(item)
    # The processes end together if what is left for the end is short.
    longest_first = sorted(units.values(), key=lambda unit: -sum(map(_length, unit)))
    items[:] = [item for unit in longest_first for item in unit]


def _is_slow_by_itself(item: pytest.Item) -> bool:
    return bool(item.get_closest_marker("slow")) and not item.get_closest_marker("rest")


def _length(item: pytest.Item) -> int:
    """About how many plain tests take as long."""
    if _is_slow_by_itself(item):
        return 100
    starts_processes = item.get_closest_marker("distributed") or "warm" in getattr(item, "fixturenames", ())
    return 20 if starts_processes else 1


def _shares_a_fixture(item: pytest.Item) -> bool:
    """Whether the test needs, directly or not, a fixture that is made once for its module."""
    if not isinstance(item, pytest.Function):
        return False
    definitions = item._fixtureinfo.name2fixturedefs.values()
    return any(definition.scope == "module" for found in definitions for definition in found)


def covering(cases: Sequence[Values]) -> list[int]:
    """Numbers of cases in which every value that occurs in any occurs; of equally good ones the rarest.

    The first show the most values.
    """
    missing, used = Values().union(*cases), Counter[tuple[Hashable, Hashable]]()
    left, kept = dict(enumerate(cases)), list[int]()
    while missing:
        best = max(
            left, key=lambda number: (len(left[number] & missing), -_uses(left[number], used), -number)
        )
        found = left.pop(best)
        kept.append(best)
        missing -= found
        used.update(found)
    return kept


def _uses(values: Values, used: Counter[tuple[Hashable, Hashable]]) -> int:
    return sum(used[value] for value in values)

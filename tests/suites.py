"""Which tests `make test` and `make test-all` run, beyond what is marked slow and long.

Of a test whose cases are a product of parameters

- `make test` runs as many as it takes for every value of every parameter to occur, and of kernels that are
  interpreted the first of those; the rest are slow. Tests say by :func:`few_of` and :func:`every` of which
  values fewer will do.
- `make test-all` runs as many as it takes for every value to occur twice, beside other values. Every pair of
  values occurs in tests of kernels, where a pair chooses the compiled instance, and in those marked `pairs`.
  Where each case takes long, as of kernels that are interpreted and of tests that are slow as a whole, every
  value occurs once. The rest are long. Where a test marks some of its cases long itself, those are all.
- `make test-long` runs every case.

Random examples are few, some and many in these.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

KERNELS = Path(__file__).with_name("ops")
FEW, SOME, MANY = "few", "some", "many"
"""Profiles of hypothesis: of `make test`, `make test-all` and `make test-long`."""
_NUM_EXAMPLES = {FEW: 8, SOME: 20, MANY: 60}
_MOST_INTERPRETED = 1  # cases of a product; an interpreted kernel takes a thousand times as long

Values = frozenset[Hashable]
"""What a case shows: (parameter, value), or pairs of these."""


def register_profiles() -> None:
    """Make the profiles known; the few are taken unless ``--hypothesis-profile`` says otherwise."""
    for name, count in _NUM_EXAMPLES.items():
        # The machines are shared and slow at times: a deadline per example would fail by chance.
        hypothesis.settings.register_profile(name, deadline=None, max_examples=count, derandomize=True)
    hypothesis.settings.load_profile(FEW)


def examples(many: int) -> int:
    """Number of random examples the profile takes of a test that has ``many`` of them in the largest one."""
    return max(5, many * hypothesis.settings.default.max_examples // _NUM_EXAMPLES[MANY])


def few_of(values: Iterable[Any], few: Container[Any]) -> list[Any]:
    """Values of a parameter of which `make test` runs ``few``; of several parameters, by the first."""
    return [value if _first(value) in few else _later(value) for value in values]


def every(step: int, values: Iterable[Any], *, some: int = 1) -> list[Any]:
    """Values of a parameter, or of several, of which `make test` runs the first and every so many-th.

    `make test-all` runs every ``some``-th of the others, too: all, unless another test is alike.
    """
    return [
        value if number % step == 0 else _later(value, is_long=bool(number % some))
        for number, value in enumerate(values)
    ]


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value


def _later(value: Any, *, is_long: bool = False) -> Any:
    """The value as one of the rest of a product, which `make test` leaves out."""
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=(pytest.mark.slow, pytest.mark.rest, *[pytest.mark.long] * is_long))


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark what `make test` leaves out as slow, and what `make test-all` leaves out as long, too."""
    products: dict[tuple[object, str], list[pytest.Function]] = defaultdict(list)
    are_more = hypothesis.settings.default.max_examples > _NUM_EXAMPLES[FEW]
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if are_more and getattr(item.obj, "is_hypothesis_test", False):
            item.add_marker(pytest.mark.slow)  # its few examples are not
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.slow)
        if hasattr(item, "callspec") and not item.get_closest_marker("whole"):
            products[item.path, item.originalname].append(item)
    for cases in products.values():
        mark_product(cases)


def mark_product(cases: list[pytest.Function]) -> None:
    """Mark the cases of one test."""
    is_interpreted = cases[0].get_closest_marker("interpreted") is not None
    says_itself = any(case.get_closest_marker("long") for case in cases)
    # An id for each parametrization: parameters that one of them sets together count as one.
    shown = [frozenset[Hashable](enumerate(case.callspec._idlist)) for case in cases]
    quick = [number for number, case in enumerate(cases) if not case.get_closest_marker("slow")]
    kept = [quick[number] for number in covering([shown[number] for number in quick])]
    if is_interpreted:
        kept = kept[:_MOST_INTERPRETED]
    for number in set(quick) - set(kept):
        cases[number].add_marker(pytest.mark.slow)
        cases[number].add_marker(pytest.mark.rest)
    if not says_itself:
        if not quick or is_interpreted:
            more = covering(shown, kept)
        elif KERNELS in cases[0].path.parents or cases[0].get_closest_marker("pairs"):
            more = covering([with_pairs(values) for values in shown], kept)
        else:
            more = twice(shown, kept)
        for number in set(range(len(cases))) - set(more):
            cases[number].add_marker(pytest.mark.long)


def twice(cases: Sequence[Values], first: Iterable[int] = ()) -> list[int]:
    """Numbers of cases in which every value occurs twice, if it can; those that are ``first`` come first."""
    kept = covering(cases, first)
    left = sorted(set(range(len(cases))) - set(kept))
    return kept + [left[number] for number in covering([cases[number] for number in left])]


def with_pairs(values: Values) -> Values:
    """The values of a case and their pairs."""
    return values | frozenset(map(frozenset, itertools.combinations(values, 2)))


def covering(cases: Sequence[Values], first: Iterable[int] = ()) -> list[int]:
    """Numbers of cases in which every value that occurs in any occurs; of equally good ones the rarest.

    Those that are ``first`` come first, then those which show the most values.
    """
    kept, used = list(first), Counter[Hashable]()
    left = dict(enumerate(cases))
    missing = Values().union(*cases)
    for number in kept:
        missing -= left[number]
        used.update(left.pop(number))
    while missing:
        new = {number: len(values & missing) for number, values in left.items()}
        most = max(new.values())
        best = min(
            (number for number, count in new.items() if count == most),
            key=lambda number: (_uses(left[number], used), number),
        )
        found = left.pop(best)
        kept.append(best)
        missing -= found
        used.update(found)
    return kept


def _uses(values: Values, used: Counter[Hashable]) -> int:
    return sum(used[value] for value in values)

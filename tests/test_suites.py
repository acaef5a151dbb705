"""Which cases of a product of parameters the suites run."""

import itertools
import os
import signal
import subprocess
from types import SimpleNamespace

import pytest
from tests import warm
from tests.suites import KERNELS, covering, every, few_of, mark_product, twice, with_pairs


def product(*counts):
    """Every combination of so many values of so many parameters: the values' numbers by the parameters'."""
    ranges = [range(count) for count in counts]
    return [frozenset(enumerate(combination)) for combination in itertools.product(*ranges)]


@pytest.mark.parametrize("counts", [(4,), (2, 5), (12, 4, 3, 2)])
def test_every_value_occurs_and_no_more_cases_than_the_longest_parameter_has(counts):
    cases = product(*counts)
    kept = covering(cases)
    assert len(kept) == max(counts)
    assert frozenset().union(*(cases[number] for number in kept)) == frozenset().union(*cases)


def test_short_parameters_take_turns():
    cases = product(10, 2)
    second = [dict(cases[number])[1] for number in covering(cases)]
    assert second.count(0) == second.count(1) == 5


def test_parameters_that_change_together_leave_nothing_out():
    cases = [frozenset({(0, number)}) for number in range(7)]
    assert covering(cases) == list(range(7))


def test_the_first_cases_show_the_most_values():
    cases = [frozenset({(0, "a")}), frozenset({(0, "b"), (1, "c")}), frozenset({(0, "d"), (1, "c")})]
    assert covering(cases) == [1, 0, 2]


def test_a_value_that_stands_in_one_case_is_kept():
    cases = [*product(3, 3), frozenset({(0, 0), (1, 7)})]
    assert len(cases) - 1 in covering(cases)


def test_nothing_is_chosen_of_nothing():
    assert covering([]) == []


def test_every_pair_of_values_occurs_in_far_fewer_cases_than_there_are():
    cases = [with_pairs(values) for values in product(12, 4, 3)]
    kept = covering(cases)
    assert frozenset().union(*(cases[number] for number in kept)) == frozenset().union(*cases)
    assert 48 <= len(kept) <= 60  # of 144; 48 pairs are of the longest two


def test_every_value_occurs_twice_beside_another_one():
    cases = product(6, 3)
    kept = twice(cases)
    assert len(kept) == len(set(kept)) == 12
    for value in frozenset().union(*cases):
        beside = {cases[number] - {value} for number in kept if value in cases[number]}
        assert len(beside) >= 2
    assert twice(product(4)) == [0, 1, 2, 3]


def test_what_runs_anyway_comes_first_and_is_no_more_looked_for():
    cases = product(3, 3)
    assert covering(cases, [4, 0]) == [4, 0, 8]


class Case:
    """A test's case, by its values and markers."""

    path = KERNELS / "test_a_kernel.py"

    def __init__(self, values, *markers):
        self.callspec, self.markers = SimpleNamespace(_idlist=values), set(markers)

    def get_closest_marker(self, name):
        return name if name in self.markers else None

    def add_marker(self, marker):
        self.markers.add(marker.name)


def counts(cases):
    """How many cases `make test` and `make test-all` run, and how many there are."""
    mark_product(cases)
    assert all("slow" in case.markers for case in cases if "long" in case.markers)
    return tuple(sum(name not in case.markers for case in cases) for name in ("slow", "long", ""))


def cases_of(*counts, markers=lambda values: ()):
    return [Case(values, *markers(values)) for values in itertools.product(*map(range, counts))]


def test_the_suites_run_every_value_every_pair_and_every_case():
    quick, more, whole = counts(cases_of(5, 4, 3))
    assert (quick, whole) == (5, 60)
    assert 20 <= more <= 27
    assert counts(cases_of(5, 4)) == (5, 20, 20)


def test_of_what_is_no_kernel_every_value_occurs_twice_unless_pairs_are_asked_for(monkeypatch):
    monkeypatch.setattr(Case, "path", KERNELS.parent / "train" / "test_a_run.py")
    assert counts(cases_of(5, 4, 3)) == (5, 10, 60)
    assert counts(cases_of(5, 4, markers=lambda _: ("pairs",))) == (5, 20, 20)


def test_of_what_takes_long_there_are_fewer():
    assert counts(cases_of(5, 4, 3, markers=lambda _: ("interpreted",))) == (1, 5, 60)
    assert counts(cases_of(5, 4, 3, markers=lambda _: ("slow",))) == (0, 5, 60)


def test_a_slow_value_waits_for_make_test_all():
    cases = cases_of(5, 2, 2, markers=lambda values: ("slow",) if values[1] else ())
    quick, more, _ = counts(cases)
    assert quick == 5
    assert 10 <= more < 20


def test_a_test_may_say_itself_what_is_long():
    markers = {0: (), 1: ("slow",), 2: ("slow", "long")}
    assert counts(cases_of(3, 4, markers=lambda values: markers[values[0]])) == (4, 8, 12)


def test_values_that_make_test_leaves_out_are_the_rest_of_a_product():
    kept, left = few_of(("a", "b"), {"a"})
    assert kept == "a"
    assert left.values == ("b",)
    assert {mark.name for mark in left.marks} == {"slow", "rest"}
    first, second, third = every(2, [("a", 1), ("b", 2), ("c", 3)])
    assert (first, second.values, third) == (("a", 1), ("b", 2), ("c", 3))
    assert few_of([("a", 1), ("b", 2)], {"b"})[1] == ("b", 2)
    _, second, third = every(3, "abc", some=2)
    assert [{mark.name for mark in one.marks} for one in (second, third)] == [
        {"slow", "rest", "long"},
        {"slow", "rest"},
    ]


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ("sys.exit(7)", 7),
        ("sys.exit('why')", 1),
        ("1 / 0", 1),
        ("os.kill(os.getpid(), 9)", -9),
        ("os.abort()", -signal.SIGABRT),
    ],
)
def test_a_program_ends_as_under_python(ends, code):
    assert warm.run(["-c", f"import os, sys; {ends}"]).returncode == code


def test_a_program_has_its_arguments_folder_environment_and_streams(tmp_path):
    code = "import os, sys; print(os.getcwd(), sys.argv, os.environ['A']); print('no', file=sys.stderr)"
    done = warm.run(["-c", code, "a b"], cwd=tmp_path, environment=os.environ | {"A": "1"})
    assert (done.stdout, done.stderr) == (f"{tmp_path} ['-c', 'a b'] 1\n", "no\n")


def test_threads_and_exit_handlers_run_before_a_program_ends():
    code = (
        "import atexit, threading\n"
        "atexit.register(print, 'handler')\n"
        "threading.Timer(0.05, print, ['thread']).start()"
    )
    assert sorted(warm.run(["-c", code]).stdout.split()) == ["handler", "thread"]


def test_a_program_that_takes_too_long_is_killed():
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run(["-c", "import time; time.sleep(600)"], timeout=0.5)

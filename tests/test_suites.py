"""Which cases of a product of parameters `make test` runs, and which tests one process runs."""

import itertools

import pytest
from tests.suites import covering, share_out


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


@pytest.fixture(scope="module")
def of_the_module():
    return None


def stays_with_its_file(item):
    before = len(list(item.iter_markers("xdist_group")))
    share_out([item])
    return len(list(item.iter_markers("xdist_group"))) > before


def test_a_files_tests_stay_together_but_those_that_are_slow(request):
    assert stays_with_its_file(request.node)
    request.node.add_marker("slow")
    assert not stays_with_its_file(request.node)
    request.node.add_marker("rest")  # slow for being one of many
    assert stays_with_its_file(request.node)


def test_slow_tests_with_a_fixture_of_their_module_stay_together(request, of_the_module):
    request.node.add_marker("slow")
    assert stays_with_its_file(request.node)

"""CrossIterationSearch: finds the fastest setting of a few knobs while training goes on, a trial at a time.

The cross-iteration optimisation of MGG (Wang et al., section 4), for any number of knobs: all begin at their
first value; one after the other is turned up as long as that pays; then the first one is turned back a value
at a time, and the last one up again, until what is found is not among the three fastest of the table. Departs
from the paper in turning all knobs up again while one of them still pays, as more parts of rows do once their
gradients come in parts; and, as live times are noisy, in three things:

- a knob is turned further until two values are slower by more than noise, not merely slower;
- settings that were passed by are tried where the table, by a sum of each knob's own effect, expects them
  near the fastest: such a sum leans on all trials, not on a lucky one;
- those within noise of the fastest, three at most, take turns in further trials, so that what slows the
  machine for a while touches all alike. The least time of each counts, and the first setting stays where no
  gain is larger than a hundredth.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from statistics import fmean

Setting = tuple[int, ...]
"""The value of each knob, in the order of their ladders."""
MOST_TRIALS = 15
TOP = 3
LEAST_GAIN = 0.01
"""Least part of the first setting's time that another must save to be chosen."""
NOISE = 0.1
"""Part by which two trials of one setting may differ."""
FINAL_TRIALS = 4
"""Trials that are kept for those that lie within noise of the fastest; of a few, a third."""
FINAL_ROUNDS = 2
"""Rounds in which they are tried."""
_SWEEPS = 20


class CrossIterationSearch:
    """A search that says what to try next, and is told what it took.

    Args:
        ladders: the values of each knob, by its name, from the one to begin with; those turned first come
            first.
        most_trials: number of trials after which the fastest so far is chosen.
        allowed: whether a setting is worth a trial; the first one is tried in any case. Where one is not,
            those of larger values are not either. If None, all are.
    """

    def __init__(
        self,
        ladders: Mapping[str, Sequence[int]],
        most_trials: int = MOST_TRIALS,
        allowed: Callable[[Setting], bool] | None = None,
    ) -> None:
        self.names, self._ladders = tuple(ladders), tuple(ladders.values())
        self._allowed = allowed or (lambda _: True)
        self._most_trials = most_trials
        self.first = self._setting([0] * len(self._ladders))
        """The setting that is tried first."""
        self.table: dict[Setting, float] = {}
        """Least seconds of each setting that was tried, in the order of the trials."""
        self.num_trials = 0
        """Number of trials so far."""
        self._trials = self._searched()
        self.next: Setting | None = next(self._trials, None)
        """The setting to try next; None if the search is over."""

    def tell(self, seconds: float) -> None:
        """Take the time of :attr:`next`, and go on to another."""
        assert self.next is not None, "the search is over"
        self.table[self.next] = min(seconds, self.table.get(self.next, seconds))
        self.num_trials += 1
        self.next = None if self.num_trials >= self._most_trials else next(self._trials, None)

    @property
    def ladders(self) -> tuple[Sequence[int], ...]:
        """The values of each knob."""
        return self._ladders

    @property
    def best(self) -> Setting:
        """The setting to choose by what is known so far."""
        first, fastest = next(iter(self.table)), self._fastest()[0]
        gains = self.table[fastest] < (1 - LEAST_GAIN) * self.table[first]
        return fastest if gains else first

    def _fastest(self) -> list[Setting]:
        return sorted(self.table, key=self.table.__getitem__)[:TOP]

    # Settings are tried as places on the ladders: value 0, 1, ... of each knob.

    def _searched(self) -> Generator[Setting]:
        most = self._most_trials - min(FINAL_TRIALS, self._most_trials // 3)
        for setting in self._climbed():
            yield setting
            if self.num_trials >= most:
                break
        while self.num_trials < most and (likely := self._likely()) is not None:
            yield likely
        yield from self._in_turns()

    def _likely(self) -> Setting | None:
        """Return the untried setting that is expected to be fastest, if that is near the fastest tried."""
        expected = {
            one: seconds for one, seconds in expected_seconds(self.table).items() if self._allowed(one)
        }
        setting = min(expected, key=expected.__getitem__, default=None)
        if setting is None or expected[setting] > (1 + NOISE) * min(self.table.values()):
            return None
        return setting

    def _in_turns(self) -> Generator[Setting]:
        """Try those within noise of the fastest again, in rounds, until one is left."""
        for number in range(FINAL_ROUNDS):
            fastest = self._fastest()
            close = [one for one in fastest if self.table[one] <= (1 + NOISE) * self.table[fastest[0]]]
            if number > 0 and len(close) == 1:
                return
            yield from close

    def _climbed(self) -> Generator[Setting]:
        places = [0] * len(self._ladders)
        yield from self._tried(places)
        before: list[int] = []
        while places != before:
            before = places
            for knob in range(len(self._ladders)):
                places = yield from self._turned_up(places, knob)
        while len(places) > 1 and places[0] > 0:
            turned = [places[0] - 1, *places[1:]]
            yield from self._tried(turned)
            if self._setting(turned) not in self._fastest():
                return
            places = yield from self._turned_up(turned, len(self._ladders) - 1)

    def _turned_up(self, places: list[int], knob: int) -> Generator[Setting, None, list[int]]:
        """Turn one knob up until two values in a row are no match; return the fastest places on the way."""
        best, misses = places, 0
        for place in range(places[knob] + 1, len(self._ladders[knob])):
            turned = [*places[:knob], place, *places[knob + 1 :]]
            if not self._allowed(self._setting(turned)):
                break
            yield from self._tried(turned)
            if self._seconds(turned) < self._seconds(best):
                best, misses = turned, 0
            elif self._seconds(turned) > (1 + NOISE) * self._seconds(best):
                misses += 1
            if misses == 2:
                break
        return best

    def _tried(self, places: Sequence[int]) -> Generator[Setting]:
        if self._setting(places) not in self.table:
            yield self._setting(places)

    def _seconds(self, places: Sequence[int]) -> float:
        return self.table[self._setting(places)]

    def _setting(self, places: Sequence[int]) -> Setting:
        return tuple(ladder[place] for ladder, place in zip(self._ladders, places, strict=True))


def expected_seconds(table: Mapping[Setting, float]) -> dict[Setting, float]:
    """Return what untried settings of tried values would take if each knob had an effect of its own.

    The sum of a mean and one effect for each value of each knob that is nearest to the table in least
    squares, found by fitting one knob after the other to what the others leave.

    Args:
        table: seconds of the settings that were tried, at least one.
    """
    mean, num_knobs = fmean(table.values()), len(next(iter(table)))
    effects = [dict.fromkeys(sorted({setting[k] for setting in table}), 0.0) for k in range(num_knobs)]

    def expected(setting: Setting) -> float:
        return mean + sum(effect[value] for effect, value in zip(effects, setting, strict=True))

    for _ in range(_SWEEPS):
        for knob, effect in enumerate(effects):
            for value in effect:
                alike = [setting for setting in table if setting[knob] == value]
                effect[value] += fmean(table[setting] - expected(setting) for setting in alike)
    return {setting: expected(setting) for setting in itertools.product(*effects) if setting not in table}


__all__ = ["LEAST_GAIN", "MOST_TRIALS", "NOISE", "CrossIterationSearch", "Setting", "expected_seconds"]
